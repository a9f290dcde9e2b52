"""The Spark driver of spark_under_fire.py: a process of its own, to be killed and started again.

Reads from its input how to make a session of the Spark cluster, where the service is, and the
folder of its checkpoint; prints the process id of its JVM; ends in good order when its input ends.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from typing import TYPE_CHECKING, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from velaray.pipelines.spark_on_ray_session import SessionMaker

FLIGHTS = "persistent://public/default/flights"
DELAYS = "persistent://public/default/delays"
WATERMARK = "7 days"
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    # Nothing here lives long enough for code to be worth compiling well.
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Each executor that is killed takes an attempt of a task along, or a stage's data.
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "20",
}


class Task(NamedTuple):
    """What a driver is told."""

    sessions: SessionMaker
    service_url: str
    checkpoint: str


def start(spark: SparkSession, task: Task) -> StreamingQuery:
    """Flights and minutes of delay per hour of departure and carrier, once the hour is over."""
    flights = (
        spark.readStream.format("velaray")
        .option("service_url", task.service_url)
        .option("topic", FLIGHTS)
        .option("columns", "value,event_time")
        .option("starting_position", "earliest")
        .load()
    )
    flight = F.from_json(F.col("value").cast("string"), "carrier string, delay double")
    delays = (
        flights.select("event_time", flight.alias("flight"))
        .withWatermark("event_time", WATERMARK)
        .groupBy(F.window("event_time", "1 hour").alias("hour"), "flight.carrier")
        .agg(F.count("*").alias("flights"), F.sum("flight.delay").alias("minutes"))
    )
    hour = F.date_format("hour.start", "yyyy-MM-dd HH")
    minutes = F.coalesce("minutes", F.lit(0.0))
    row = F.struct(hour.alias("hour"), "carrier", "flights", minutes.alias("minutes"))
    return (
        delays.select(F.to_json(row).alias("value"), F.col("carrier").alias("key"))
        .writeStream.format("velaray")
        .option("service_url", task.service_url)
        .option("topic", DELAYS)
        .option("checkpointLocation", task.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )


def main() -> None:
    """Run the query until the input ends, or it fails."""
    task: Task = pickle.load(sys.stdin.buffer)
    spark = task.sessions.session("delays", SETTINGS)
    query = start(spark, task)

    def stop_in_the_end() -> None:
        sys.stdin.buffer.read()
        query.stop()

    threading.Thread(target=stop_in_the_end, daemon=True).start()
    print(spark.sparkContext._gateway.proc.pid, flush=True)
    try:
        query.awaitTermination()
    except (OSError, Py4JError, PySparkException):
        traceback.print_exc()
        os._exit(1)  # its JVM may not be there to be asked for anything
    task.sessions.stop()


if __name__ == "__main__":
    main()

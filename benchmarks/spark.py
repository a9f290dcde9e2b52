"""How fast Spark reads topics and writes to them, and what a trigger costs, beside Spark's own.

Rows of 1 KiB of random bytes, which nothing compresses. The yardsticks are a Parquet source and
sink with the same rows, and the rate source for what a trigger costs whatever it reads.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import velaray
from benchmarks.model import Result, Samples, Verdict
from benchmarks.options import Options
from benchmarks.rig import running_cluster
from velaray.topology.cluster import Cluster

ROWS = 200_000
SIZE = 1024
PER_BATCH = 4096
NAMESPACE = "persistent://public/default/"
PARTITIONS = 2
TRIGGERS = 30
PER_TRIGGER = 10
WITHIN_S = 120.0
READ_LIMIT = 0.5
SINK_LIMIT = 150_000.0
TRIGGER_LIMIT = 1.2
PARQUET, RATE = "Parquet", "rate source"
STREAM, BATCH, LEDGERS, SINK = "velaray, stream", "velaray, batch", "velaray, ledgers", "velaray"
READ, WRITE, TRIGGER = "read to noop", "write", "trigger of ten rows"


def run(options: Options) -> Result:
    """Every way once to warm up, then in turns."""
    samples = Samples()
    with (
        tempfile.TemporaryDirectory(prefix="velaray-bench-") as folder,
        running_cluster() as cluster,
        _session() as spark,
    ):
        bench = _Bench(spark, cluster, Path(folder))
        bench.prepare()
        for number in range(-1, options.rounds):
            for case, subject, measure in bench.ways():
                value, unit = measure()
                if number >= 0:
                    samples.add(case, subject, unit, unit, value)
    return _result(samples)


def _result(samples: Samples) -> Result:
    result = Result(
        name="spark",
        settings={
            "Spark": "local[2], Python data source API; column value alone",
            "rows": f"{ROWS} of {SIZE} B, random, {PARTITIONS} partitions or files",
            "velaray": "a cluster on Ray, defaults; stream: AvailableNow, fresh checkpoint; batch:"
            " over the wire; ledgers: option data_dir",
            "write": "from rows in Spark's memory",
            "trigger": f"median of triggerExecution over {TRIGGERS} triggers of {PER_TRIGGER} rows",
        },
        baseline=PARQUET,
        rows=samples.rows(),
    )
    found = {(row.case, row.subject): row.median for row in result.rows}
    for way in (STREAM, BATCH, LEDGERS):
        ratio = found[READ, way] / found[READ, PARQUET]
        result.verdicts.append(Verdict(f"{way}, over Parquet", ratio, READ_LIMIT, at_least=True))
    ratio = found[TRIGGER, STREAM] / found[TRIGGER, RATE]
    result.verdicts += [
        Verdict("sink, rows per second", found[WRITE, SINK], SINK_LIMIT, at_least=True),
        Verdict("trigger, over the rate source's", ratio, TRIGGER_LIMIT),
    ]
    return result


@contextmanager
def _session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from velaray.pipelines import register

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("velaray benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


class _Bench:
    """The data, and the ways to measure."""

    def __init__(self, spark: Any, cluster: Cluster, folder: Path) -> None:
        self._spark = spark
        self._url = cluster.service_url
        self._admin_url = cluster.admin_url
        self._data_dir = str(cluster.config.data_dir)
        self._folder = folder
        self._rows: Any = None
        self._runs = 0

    def prepare(self) -> None:
        """The same rows into a topic and into files; a few into another topic."""
        dice = random.Random(1)
        for topic in ("rows", "written"):
            velaray.Admin(self._admin_url).create_topic(
                f"{NAMESPACE}{topic}", partitions=PARTITIONS
            )
        (self._folder / "rows").mkdir()
        with velaray.Client(self._url) as client:
            for topic in ("rows", "few", "written"):  # trimmed, if nobody subscribed
                client.subscribe(topic, "keeps").close()
            producers = [client.create_producer(topic) for topic in ("rows", "few")]
            files = [
                pq.ParquetWriter(self._folder / "rows" / f"{at}.parquet", _SCHEMA)
                for at in range(PARTITIONS)
            ]
            for at in range(0, ROWS, PER_BATCH):
                count = min(PER_BATCH, ROWS - at)
                values = pa.array([dice.randbytes(SIZE) for _ in range(count)], pa.binary())
                producers[0].send_many(values)
                batch = pa.record_batch([values], schema=_SCHEMA)
                files[at // PER_BATCH % PARTITIONS].write_batch(batch)
            for file in files:
                file.close()
            for number in range(TRIGGERS * PER_TRIGGER):
                producers[1].send(b"%d" % number)
        self._rows = self._spark.read.parquet(str(self._folder / "rows")).persist()
        self._rows.write.format("noop").mode("overwrite").save()

    def ways(self) -> list[tuple[str, str, Callable[[], tuple[float, str]]]]:
        """Case, subject, and what measures it."""
        parquet = self._spark.read.parquet(str(self._folder / "rows"))
        rows = self._read("rows").option("service_url", self._url)
        ledgers = self._read("rows").option("data_dir", self._data_dir)
        return [
            (READ, PARQUET, lambda: self._timed(lambda: _drain(parquet))),
            (READ, STREAM, lambda: self._timed(self._stream)),
            (READ, BATCH, lambda: self._timed(lambda: _drain(rows.load()))),
            (READ, LEDGERS, lambda: self._timed(lambda: _drain(ledgers.load()))),
            (WRITE, PARQUET, lambda: self._timed(self._write_parquet)),
            (WRITE, SINK, lambda: self._timed(self._write_topic)),
            (TRIGGER, RATE, self._rate_trigger),
            (TRIGGER, STREAM, self._topic_trigger),
        ]

    def _timed(self, work: Callable[[], None]) -> tuple[float, str]:
        began = time.monotonic()
        work()
        return ROWS / (time.monotonic() - began), "rows/s"

    def _read(self, topic: str) -> Any:
        return self._spark.read.format("velaray").option("topic", topic).option("columns", "value")

    def _place(self) -> str:
        self._runs += 1
        return str(self._folder / f"run-{self._runs}")

    def _start(self, stream: Any, *, all_there_is: bool) -> Any:
        writer = stream.writeStream.format("noop").option("checkpointLocation", self._place())
        return (writer.trigger(availableNow=True) if all_there_is else writer).start()

    def _topic(self, topic: str) -> Any:
        return (
            self._spark.readStream.format("velaray")
            .option("service_url", self._url)
            .option("topic", topic)
            .option("columns", "value")
            .option("starting_position", "earliest")
        )

    def _stream(self) -> None:
        _finish(self._start(self._topic("rows").load(), all_there_is=True))

    def _write_parquet(self) -> None:
        self._rows.write.parquet(self._place())

    def _write_topic(self) -> None:
        writer = self._rows.write.format("velaray").mode("append")
        writer.option("service_url", self._url).option("topic", "written").save()

    def _topic_trigger(self) -> tuple[float, str]:
        few = self._topic("few").option("max_messages_per_trigger", PER_TRIGGER).load()
        query = self._start(few, all_there_is=True)
        _finish(query)
        return _per_trigger(query), "ms"

    def _rate_trigger(self) -> tuple[float, str]:
        rate = self._spark.readStream.format("rate-micro-batch")
        query = self._start(rate.option("rowsPerBatch", PER_TRIGGER).load(), all_there_is=False)
        until = time.monotonic() + WITHIN_S
        while len(query.recentProgress) < TRIGGERS:
            if time.monotonic() > until:
                raise TimeoutError(f"the rate source made no {TRIGGERS} batches in {WITHIN_S} s")
            query.awaitTermination(1)
        query.stop()
        return _per_trigger(query), "ms"


_SCHEMA = pa.schema([("value", pa.binary())])


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _finish(query: Any) -> None:
    if not query.awaitTermination(WITHIN_S):
        query.stop()
        raise TimeoutError(f"a query took more than {WITHIN_S} s")


def _per_trigger(query: Any) -> float:
    """Of what Spark has noted of its triggers that read something."""
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return median(each["durationMs"]["triggerExecution"] for each in done)

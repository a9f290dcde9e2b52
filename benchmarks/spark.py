"""How fast Spark reads topics and writes to them, and what a trigger costs, beside Spark's own.

Rows of 1 KiB of random bytes, which nothing compresses. The yardsticks are a Parquet source and
sink with the same rows, and for what a trigger costs whatever it reads, the rate source, and a
source in Python that makes up its rows: what Spark itself needs for one.

A streaming query runs for weeks: how fast its source is, is measured in one that runs, and has
read something before. All rows appear to it at once, by a commit or as files. The measured time is
that of the triggers that read them, from the request for offsets to the commit log. Queries from
their start to their end are measured as well: starting one takes about as long as the rest.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
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
from velaray.broker.coordinator.coordinators import DEFAULT_COORDINATORS
from velaray.cluster import Cluster

ROWS = 400_000
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
PARQUET, RATE, EMPTY = "Parquet", "rate source", "a Python source without a service"
STREAM, BATCH, LEDGERS, SINK = "velaray, stream", "velaray, batch", "velaray, ledgers", "velaray"
READ, WHOLE = "triggers of a running query, to noop", "a query from start to end, to noop"
WRITE, TRIGGER = "write", "trigger of ten rows"


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
                os.sync()  # what others wrote isn't to be written at this one's expense
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
            "velaray": "a cluster on Ray, defaults; stream: fresh checkpoint, and from start to end"
            " AvailableNow; batch: over the wire; ledgers: option data_dir",
            "write": "from rows in Spark's memory; all coordinators run",
            "trigger": f"median of triggerExecution over {TRIGGERS} triggers of {PER_TRIGGER} rows",
        },
        baseline=PARQUET,
        rows=samples.rows(),
    )
    found = {(row.case, row.subject): row.median for row in result.rows}
    for case, way in ((READ, STREAM), (WHOLE, BATCH), (WHOLE, LEDGERS)):
        ratio = found[case, way] / found[case, PARQUET]
        result.verdicts.append(Verdict(f"{way}, over Parquet", ratio, READ_LIMIT, at_least=True))
    sink = found[WRITE, SINK]
    result.verdicts.append(Verdict("sink, rows per second", sink, SINK_LIMIT, at_least=True))
    for other in (RATE, EMPTY):
        ratio = found[TRIGGER, STREAM] / found[TRIGGER, other]
        result.verdicts.append(Verdict(f"trigger, over {other}", ratio, TRIGGER_LIMIT))
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
        .config("spark.ui.showConsoleProgress", "false")
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
        for topic in ("rows", "written", "fed"):
            velaray.Admin(self._admin_url).create_topic(
                f"{NAMESPACE}{topic}", partitions=PARTITIONS
            )
        (self._folder / "rows").mkdir()
        with velaray.Client(self._url) as client:
            for topic in ("rows", "few", "written", "fed"):  # trimmed, without a subscription
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
        # Of files of other names: else Spark would read the others from its memory as well.
        (self._folder / "kept").mkdir()
        for source in (self._folder / "rows").iterdir():
            (self._folder / "kept" / source.name).hardlink_to(source)
        self._rows = self._spark.read.parquet(str(self._folder / "kept")).persist()
        self._rows.write.format("noop").mode("overwrite").save()

    def ways(self) -> list[tuple[str, str, Callable[[], tuple[float, str]]]]:
        """Case, subject, and what measures it."""
        parquet = self._spark.read.parquet(str(self._folder / "rows"))
        rows = self._read("rows").option("service_url", self._url)
        ledgers = self._read("rows").option("data_dir", self._data_dir)
        return [
            (READ, PARQUET, self._parquet_triggers),
            (READ, STREAM, self._topic_triggers),
            (WHOLE, PARQUET, lambda: self._timed(lambda: _drain(parquet))),
            (WHOLE, STREAM, lambda: self._timed(self._stream)),
            (WHOLE, BATCH, lambda: self._timed(lambda: _drain(rows.load()))),
            (WHOLE, LEDGERS, lambda: self._timed(lambda: _drain(ledgers.load()))),
            (WRITE, PARQUET, lambda: self._timed(self._write_parquet)),
            (WRITE, SINK, self._timed_sink),
            (TRIGGER, RATE, self._rate_trigger),
            (TRIGGER, EMPTY, self._empty_trigger),
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

    def _topic(self, topic: str, position: str = "earliest") -> Any:
        return (
            self._spark.readStream.format("velaray")
            .option("service_url", self._url)
            .option("topic", topic)
            .option("columns", "value")
            .option("starting_position", position)
        )

    def _parquet_triggers(self) -> tuple[float, str]:
        watched = Path(self._place())
        watched.mkdir()

        def put(rows: Iterable[pa.RecordBatch]) -> None:
            name = str(len(list(watched.iterdir())))
            hidden = watched / f"_{name}"  # Spark doesn't look at names like that
            with pq.ParquetWriter(hidden, _SCHEMA) as file:
                for batch in rows:
                    file.write_batch(batch)
            hidden.rename(watched / name)

        stream = self._spark.readStream.schema("value binary").parquet(str(watched))
        return self._triggers(stream, put)

    def _topic_triggers(self) -> tuple[float, str]:
        with velaray.Client(self._url) as client:
            producer = client.create_producer("fed")

            def put(rows: Iterable[pa.RecordBatch]) -> None:
                with client.transaction(WITHIN_S) as txn:
                    for batch in rows:
                        producer.send_many(batch.column(0), txn=txn)

            return self._triggers(self._topic("fed", "latest").load(), put)

    def _triggers(
        self, stream: Any, put: Callable[[Iterable[pa.RecordBatch]], None]
    ) -> tuple[float, str]:
        """Rows per second of what a query does for all rows, after it had a few."""
        query = self._start(stream, all_there_is=False)
        try:
            query.processAllAvailable()
            put([pa.record_batch([pa.array([b"few"], pa.binary())], schema=_SCHEMA)])
            query.processAllAvailable()
            before = len(_with_rows(query))
            files = (self._folder / "rows").iterdir()
            put(each for file in files for each in pq.ParquetFile(file).iter_batches(PER_BATCH))
            query.processAllAvailable()
        finally:
            query.stop()
        done = _with_rows(query)[before:]
        rows = sum(each["numInputRows"] for each in done)
        if rows != ROWS:
            raise ValueError(f"{rows} rows were read, not {ROWS}")
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in done)
        return float(rows * 1000 / took_ms), "rows/s"

    def _stream(self) -> None:
        _finish(self._start(self._topic("rows").load(), all_there_is=True))

    def _write_parquet(self) -> None:
        self._rows.write.parquet(self._place())

    def _timed_sink(self) -> tuple[float, str]:
        # Each write is a series of its own, of any coordinator: those that sleep are started first.
        with velaray.Client(self._url) as client:
            started: set[int] = set()
            for name in map(str, itertools.count()):
                if len(started) == DEFAULT_COORDINATORS:
                    break
                started.add(client.commit_sequence(name).coordinator)
        return self._timed(self._write_topic)

    def _write_topic(self) -> None:
        writer = self._rows.write.format("velaray").mode("append")
        writer.option("service_url", self._url).option("topic", "written").save()

    def _topic_trigger(self) -> tuple[float, str]:
        few = self._topic("few").option("max_messages_per_trigger", PER_TRIGGER).load()
        query = self._start(few, all_there_is=True)
        _finish(query)
        return _per_trigger(query), "ms"

    def _empty_trigger(self) -> tuple[float, str]:
        self._spark.dataSource.register(_empty_source())
        query = self._start(self._spark.readStream.format("empty").load(), all_there_is=True)
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


def _empty_source() -> Any:
    """A source in Python whose triggers have ten rows and no service.

    Its classes are made in here: so they come to Spark's processes by value, which may not find
    this module.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

    last, rows, schema = TRIGGERS * PER_TRIGGER, PER_TRIGGER, _SCHEMA

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def getDefaultReadLimit(self) -> ReadMaxRows:
            return ReadMaxRows(rows)

        def prepareForTriggerAvailableNow(self) -> None:
            pass

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"at": min(start["at"] + rows, last)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch([pa.array([b"made up"] * rows, pa.binary())], schema=schema)

    class Empty(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "value binary"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader()

    return Empty


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _finish(query: Any) -> None:
    if not query.awaitTermination(WITHIN_S):
        query.stop()
        raise TimeoutError(f"a query took more than {WITHIN_S} s")


def _with_rows(query: Any) -> list[Any]:
    """What Spark has noted of the query's triggers that read something."""
    return [each for each in query.recentProgress if each["numInputRows"]]


def _per_trigger(query: Any) -> float:
    return median(each["durationMs"]["triggerExecution"] for each in _with_rows(query))

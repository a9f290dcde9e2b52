"""Spark's batch source: the messages of topics between two positions, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from velaray import Client, MessageId
from velaray.exceptions import InvalidConfiguration
from velaray.pipelines.ledgers import LedgerPart, plan
from velaray.pipelines.rows import columns_named
from velaray.pipelines.spark_client import CONNECTION
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import Place, Start
from velaray.pipelines.spark_reading import OPTIONS, Origin, Span, spans, topics_named

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_OPTIONS = OPTIONS | {"ending_position", "data_dir"}


class LedgerSpan(InputPartition):
    """What one task reads from files."""

    def __init__(self, part: LedgerPart) -> None:
        self.part = part


class BatchSource(DataSourceReader):
    """Reads topics between two positions, which are looked up when the query is planned.

    From the service, or with ``data_dir`` from the files of its ledgers: then neither driver nor
    executors connect to anything, and both must see the directory.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, BATCH_OPTIONS, "the velaray batch source")
        self._start = Start.parse(known.text("starting_position") or "earliest")
        self._end = Start.parse(known.text("ending_position") or "latest")
        self._columns = columns_named(known.text("columns"))
        self._topics, pattern = topics_named(known)
        self._data_dir = known.text("data_dir")
        if self._data_dir is None:
            self._origin = Origin.of(known)
            return
        if pattern is not None:
            raise InvalidConfiguration("topics_pattern and data_dir: name the topics")
        remote = [name for name in sorted(CONNECTION) if known.text(name) is not None]
        if remote:
            raise InvalidConfiguration(
                f"{remote[0]} and data_dir: read from the service, or from its files without it"
            )

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each part of a partition that has something to read."""
        if self._data_dir is not None:
            parts = plan(self._data_dir, self._topics, self._start, self._end)
            return [LedgerSpan(part) for part in parts]
        return self._spans()

    def _spans(self) -> list[Span]:
        with self._origin.service.client() as client:
            names = self._origin.partitions(client)
            self._start.check(names)
            self._end.check(names)
            bounds = {name: self._bounds(client, name) for name in names}
        start = {name: begin for name, (begin, _) in bounds.items()}
        return spans(start, {name: end for name, (_, end) in bounds.items()})

    def _bounds(self, client: Client, partition: str) -> tuple[Place, Place]:
        latest = MessageId.latest
        with client.create_reader(partition, latest, receiver_queue_size=0) as reader:

            def sought(time: int) -> Place:
                reader.seek(time)
                return Place.of(reader.get_positions()[partition][1])

            last = Place.of(reader.get_positions()[partition][0])
            start, end = (each.place(partition, last, sought) for each in (self._start, self._end))
        return start, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs in an executor."""
        match partition:
            case LedgerSpan():
                return partition.part.read(self._columns)
            case Span():
                return self._origin.read(partition)
        return iter(())  # Spark plans a task for nothing if there is nothing to read

"""Spark's batch source: the messages of topics between two positions, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from velaray import Client, MessageId
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import Place, Start
from velaray.pipelines.spark_source import OPTIONS, Origin, Span, spans

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_OPTIONS = OPTIONS | {"ending_position"}


class BatchSource(DataSourceReader):
    """Reads topics between two positions, which are looked up when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, BATCH_OPTIONS, "the velaray batch source")
        self._origin = Origin.of(known)
        self._start = Start.parse(known.text("starting_position") or "earliest")
        self._end = Start.parse(known.text("ending_position") or "latest")

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each partition of a topic that has something to read."""
        with Client(self._origin.service_url) as client:
            topics = self._origin.topics
            names = [name for each in topics for name in client.get_topic_partitions(each)]
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
        # Spark plans a task for nothing if there is nothing to read.
        return self._origin.read(partition) if isinstance(partition, Span) else iter(())

"""Topics read from the service: what is to be read, in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velaray import Client, MessageId
from velaray.pipelines.rows import record_batch
from velaray.pipelines.spark_client import link_to
from velaray.pipelines.spark_positions import Place, Start, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.aio.blocks import Segment

ROWS = 50_000
"""Rows of a record batch, at most, and messages that wait for who reads."""
WAIT_MS = 60_000
"""How long who reads waits for messages that are there."""


@dataclass(frozen=True, slots=True)
class ServicePart:
    """What is after ``start`` and up to ``end`` in a topic's partition."""

    service_url: str
    partition: str
    start: Place
    end: Place

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The messages that consumers get, in order, as rows.

        Raises `Timeout` if the service doesn't deliver what it has.
        """
        begin = self.start.message_id(number_of(self.partition))
        with (
            link_to(self.service_url) as link,
            link.client.create_reader(self.partition, begin, receiver_queue_size=ROWS) as reader,
        ):
            over = False
            # What is left may have been hidden or trimmed: then nothing comes, and that's the end.
            while not over and reader.has_message_available():
                segments, over = self._within(reader.read_many(ROWS, WAIT_MS).segments)
                if segments:
                    yield record_batch(segments, columns)

    def _within(self, segments: list[Segment]) -> tuple[list[Segment], bool]:
        """Those of ``segments`` up to the end, and whether there is nothing more up to there."""
        found = []
        for segment in segments:
            at = Place(*segment.block.info.where)
            if at > self.end:
                return found, True
            found.append(segment)
            if at == self.end and segment.end == len(segment.block):
                return found, True
        return found, False


def plan(service_url: str, topics: Sequence[str], start: Start, end: Start) -> list[ServicePart]:
    """What there is to read between two positions, a part for each partition.

    Nothing of a transaction that is open, and nothing behind its first message. Raises
    `InvalidConfiguration` if a position is missing, and what the service says.
    """
    with Client(service_url) as client:
        names = [name for each in topics for name in client.get_topic_partitions(each)]
        start.check(names)
        end.check(names)
        parts = [
            ServicePart(service_url, name, *_bounds(client, name, start, end)) for name in names
        ]
    return [part for part in parts if part.start < part.end]


def _bounds(client: Client, partition: str, start: Start, end: Start) -> tuple[Place, Place]:
    with client.create_reader(partition, MessageId.latest, receiver_queue_size=0) as reader:

        def sought(time: int) -> Place:
            reader.seek(time)
            return Place.of(reader.get_positions()[partition][1])

        last = Place.of(reader.get_positions()[partition][0])
        return start.place(partition, last, sought), end.place(partition, last, sought)

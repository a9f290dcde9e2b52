"""What tasks of Spark's sources do: read a part of a topic partition, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from velaray import Client
from velaray.exceptions import InvalidConfiguration
from velaray.pipelines.rows import columns_named, record_batch
from velaray.pipelines.spark_client import CONNECTION, Service, link_to
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import BEGINNING, Place, Positions, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.aio.blocks import Segment

OPTIONS = CONNECTION | {"topic", "topics", "topics_pattern", "columns", "starting_position"}

ROWS = 50_000
"""Rows of a record batch, at most, and messages that wait for a task."""
WAIT_MS = 60_000
"""How long a task waits for messages that are there."""


class Span(InputPartition):
    """What one task reads: of a topic partition what is after ``start`` and up to ``end``.

    A chunked message is where its last chunk is; from behind ``chunks`` on are the others.
    """

    def __init__(
        self, partition: str, start: Place, end: Place, chunks: Place | None = None
    ) -> None:
        self.partition = partition
        self.start = start
        self.end = end
        self.chunks = chunks


def topics_named(options: Options) -> tuple[tuple[str, ...], str | None]:
    """The topics that are to be read, or a pattern of them. Raises `InvalidConfiguration`."""
    one, many, pattern = options.one_of("topic", "topics", "topics_pattern")
    listed = [one] if one is not None else (many or "").split(",")
    names = tuple(name.strip() for name in listed if name and name.strip())
    if not names and pattern is None:
        raise InvalidConfiguration(f"topics={many!r}: name one, or several with commas")
    return names, pattern


@dataclass(frozen=True)
class Origin:
    """What a query reads, as its options say."""

    service: Service
    names: tuple[str, ...]
    pattern: str | None
    columns: tuple[str, ...]

    @staticmethod
    def of(options: Options) -> Origin:
        """Read and check them. Raises `InvalidConfiguration`."""
        names, pattern = topics_named(options)
        columns = columns_named(options.text("columns"))
        return Origin(Service.of(options), names, pattern, columns)

    def topics(self, client: Client) -> list[str]:
        """The topics that there are now."""
        if self.pattern is None:
            return list(self.names)
        return client.get_matching_topics(self.pattern)

    def partitions(self, client: Client) -> list[str]:
        """The partitions that there are now, by their full names."""
        found = (client.get_topic_partitions(topic) for topic in self.topics(client))
        return list(dict.fromkeys(name for names in found for name in names))

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The messages of a span that consumers get, in order.

        Raises `Timeout` if the service doesn't deliver what it has.
        """
        begin = (span.chunks or span.start).message_id(number_of(span.partition))
        with (
            link_to(self.service) as link,
            link.client.create_reader(
                span.partition, begin, receiver_queue_size=ROWS, max_pending_chunked_message=0
            ) as reader,
        ):
            over = False
            # What is left may have been hidden or trimmed: then nothing comes, and that's the end.
            while not over and reader.has_message_available():
                segments, over = _within(reader.read_many(ROWS, WAIT_MS).segments, span)
                if segments:
                    yield record_batch(segments, self.columns)


def _within(segments: list[Segment], span: Span) -> tuple[list[Segment], bool]:
    """Those of ``segments`` in the span, and whether there is nothing more of it."""
    found = []
    for segment in segments:
        at = Place(*segment.block.info.where)
        if at > span.end:
            return found, True
        if at > span.start:
            found.append(segment)
        if at == span.end and segment.end == len(segment.block):
            return found, True
    return found, False


def spans(start: Positions, end: Positions) -> list[Span]:
    """What there is to read up to ``end``, of each partition."""
    begun = {name: start.get(name, BEGINNING) for name in end}
    return [Span(name, begun[name], end[name]) for name in end if begun[name] < end[name]]

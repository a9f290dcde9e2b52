"""The tasks of Spark's sources: read a part of a topic partition as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from velaray import Client
from velaray.client.core import topic_name
from velaray.client.exceptions import InvalidConfiguration, TopicNotFound
from velaray.pipelines.rows import columns_named
from velaray.pipelines.service_parts import ServicePart
from velaray.pipelines.spark_client import CONNECTION, Service
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import Place

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.pipelines.typed_values import TypedValue

OPTIONS = CONNECTION | {
    "topic",
    "topics",
    "topics_pattern",
    "columns",
    "starting_position",
    "value_schema",
    "on_undecodable",
    "private_key_file",
}


class Span(InputPartition):
    """The part that one task reads: a topic partition's messages after ``start`` and up to ``end``.

    The position of a chunked message is that of its last chunk; its other chunks are behind
    ``chunks``.
    """

    def __init__(
        self, partition: str, start: Place, end: Place, chunks: Place | None = None
    ) -> None:
        self.partition = partition
        self.start = start
        self.end = end
        self.chunks = chunks


def topics_named(options: Options) -> tuple[tuple[str, ...], str | None]:
    """The topics to read, or a pattern of them. Raises `InvalidConfiguration`."""
    one, many, pattern = options.one_of("topic", "topics", "topics_pattern")
    listed = [one] if one is not None else (many or "").split(",")
    names = tuple(name.strip() for name in listed if name and name.strip())
    if not names and pattern is None:
        raise InvalidConfiguration(f"topics={many!r}: name one, or several with commas")
    return names, pattern


@dataclass(frozen=True)
class Origin:
    """The topics, service and limits of a query, from its options."""

    service: Service
    names: tuple[str, ...]
    pattern: str | None
    columns: tuple[str, ...]
    private_key_file: str | None = None

    @staticmethod
    def of(options: Options) -> Origin:
        """Read and validate the options. Raises `InvalidConfiguration`."""
        names, pattern = topics_named(options)
        columns = columns_named(options.text("columns"))
        key_file = options.text("private_key_file")
        return Origin(Service.of(options), names, pattern, columns, key_file)

    def topics(self, client: Client) -> list[str]:
        """The current topics."""
        if self.pattern is None:
            return list(self.names)
        return client.get_matching_topics(self.pattern)

    def look(self, client: Client) -> tuple[list[str], dict[str, TopicNotFound]]:
        """Return the current partitions, and the errors of named topics that don't exist.

        Both are by full name. No topic is created.
        """
        found: dict[str, None] = {}
        missing = {}
        for topic in self.topics(client):
            try:
                found |= dict.fromkeys(client.get_topic_partitions(topic, create=False))
            except TopicNotFound as error:
                if self.pattern is None:  # deleted topics of a pattern are ignored
                    missing[str(topic_name(topic))] = error
        return list(found), missing

    def partitions(self, client: Client) -> list[str]:
        """The current partitions, by their full names. Raises `TopicNotFound`."""
        found, missing = self.look(client)
        for error in missing.values():
            raise error
        return found

    def read(self, span: Span, typed: TypedValue | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a span that consumers get, in order.

        Raises as `ServicePart.read`.
        """
        part = ServicePart(self.service, span.partition, span.start, span.end, span.chunks)
        return part.read(self.columns, typed, self.private_key_file)

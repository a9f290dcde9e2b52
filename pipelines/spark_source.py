"""Spark's streaming source: the messages of topics as rows, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from velaray.exceptions import InvalidConfiguration, VelarayError
from velaray.pipelines.rows import columns_named, record_batch
from velaray.pipelines.spark_client import link_to
from velaray.pipelines.spark_marks import Marks
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import BEGINNING, Place, Positions, Start, number_of

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.aio.blocks import Segment

OPTIONS = frozenset({"service_url", "topic", "topics", "columns", "starting_position"})
STREAM_OPTIONS = OPTIONS | {"subscription", "fail_on_data_loss"}

ROWS = 50_000
"""Rows of a record batch, at most, and messages that wait for a task."""
WAIT_MS = 60_000
"""How long a task waits for messages that are there."""


class DataLossError(VelarayError):
    """Messages that a query was to read next may have been trimmed."""


def topics_named(options: Options) -> tuple[str, ...]:
    """The topics that are to be read. Raises `InvalidConfiguration`."""
    one, many = options.text("topic"), options.text("topics")
    if (one is None) == (many is None):
        raise InvalidConfiguration(
            'the velaray source needs either .option("topic", …) or .option("topics", "a,b")'
        )
    topics = [one] if one is not None else (many or "").split(",")
    return tuple(name.strip() for name in topics if name and name.strip())


@dataclass(frozen=True)
class Origin:
    """What a query reads, as its options say."""

    service_url: str
    topics: tuple[str, ...]
    columns: tuple[str, ...]

    @staticmethod
    def of(options: Options) -> Origin:
        """Read and check them. Raises `InvalidConfiguration`."""
        names, columns = topics_named(options), columns_named(options.text("columns"))
        return Origin(options.required("service_url"), names, columns)

    def read(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The messages of a span that consumers get, in order.

        Raises `Timeout` if the service doesn't deliver what it has.
        """
        begin = span.start.message_id(number_of(span.partition))
        with (
            link_to(self.service_url) as link,
            link.client.create_reader(span.partition, begin, receiver_queue_size=ROWS) as reader,
        ):
            over = False
            # What is left may have been hidden or trimmed: then nothing comes, and that's the end.
            while not over and reader.has_message_available():
                segments, over = _within(reader.read_many(ROWS, WAIT_MS).segments, span.end)
                if segments:
                    yield record_batch(segments, self.columns)


class Span(InputPartition):
    """What one task reads: a partition of a topic, after ``start`` and up to ``end``."""

    def __init__(self, partition: str, start: Place, end: Place) -> None:
        self.partition = partition
        self.start = start
        self.end = end


def _within(segments: list[Segment], end: Place) -> tuple[list[Segment], bool]:
    """Those of ``segments`` up to ``end``, and whether there is nothing more up to there."""
    found = []
    for segment in segments:
        at = Place(*segment.block.info.where)
        if at > end:
            return found, True
        found.append(segment)
        if at == end and segment.end == len(segment.block):
            return found, True
    return found, False


def spans(start: Positions, end: Positions) -> list[Span]:
    """What there is to read up to ``end``, of each partition."""
    begun = {name: start.get(name, BEGINNING) for name in end}
    return [Span(name, begun[name], end[name]) for name in end if begun[name] < end[name]]


def _offset(subscription: str, positions: Positions) -> dict[str, Any]:
    written = {name: str(positions[name]) for name in sorted(positions)}
    return {"subscription": subscription, "positions": written}


def _positions(offset: Mapping[str, Any]) -> dict[str, Place]:
    return {name: Place.parse(at) for name, at in offset["positions"].items()}


class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow, never what may yet be aborted.

    An offset holds, of each partition, the last entry that was read, and the name of the
    subscription that keeps the rest: so a query finds that again by its checkpoint alone.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, STREAM_OPTIONS, "the velaray stream source")
        self._origin = Origin.of(known)
        self._start = Start.parse(known.text("starting_position") or "latest")
        self._subscription = known.text("subscription")
        self._fail = known.flag("fail_on_data_loss", True)
        self._marks: Marks | None = None
        self._once = False
        self._until: dict[str, Any] | None = None

    def _opened(self, subscription: str) -> Marks:
        if self._marks is None:
            self._marks = Marks(self._origin.service_url, self._origin.topics, subscription)
        return self._marks

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins; its subscription exists from now on."""
        name = self._subscription or f"spark-{token_hex(8)}"
        return _offset(name, self._opened(name).begin(self._start))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is when the first batch is planned, and no more."""
        self._once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the partitions end now, those that are new among them.

        Raises `DataLossError` if a query that goes on finds its subscription gone.
        """
        if self._until is not None:
            return self._until
        name, begun = start["subscription"], _positions(start)
        marks = self._opened(name)
        lost = marks.resume(begun)
        if lost and self._fail:
            raise DataLossError(_lost(name, begun, lost))
        marks.update()
        found = _offset(name, marks.ends(begun))
        if self._once:
            self._until = found
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition of a topic that has something to read."""
        return spans(_positions(start), _positions(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task; runs in an executor."""
        assert isinstance(partition, Span)
        return self._origin.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """What is up to ``end`` is never read again: it may be trimmed."""
        self._opened(end["subscription"]).move(_positions(end))

    def stop(self) -> None:
        """Leave the service; the subscription stays."""
        if self._marks is not None:
            self._marks.close()


def _lost(subscription: str, begun: Positions, ahead: Positions) -> str:
    where = "; ".join(f"{name} after {begun[name]} up to {at}" for name, at in ahead.items())
    return (
        f"subscription {subscription!r} doesn't keep what this query reads next ({where}): it was"
        " deleted or moved, so messages may have been trimmed. Use"
        ' .option("fail_on_data_loss", "false") to go on with what there is'
    )

"""Spark's streaming source: the messages of topics as rows, as they come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from velaray import MessageId
from velaray.client.read_bounds import Span as Step
from velaray.client.read_bounds import SpanLimits
from velaray.pipelines.spark_admission import Limits, admit
from velaray.pipelines.spark_losses import Losses
from velaray.pipelines.spark_marks import Marks
from velaray.pipelines.spark_offsets import NOWHERE, Offset, Progress
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import BEGINNING, Place, Start
from velaray.pipelines.spark_reading import OPTIONS, Origin, Span

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.pipelines.typed_values import TypedValue

STREAM_OPTIONS = OPTIONS | {
    "subscription",
    "fail_on_data_loss",
    "create_topics",
    "max_messages_per_trigger",
    "max_bytes_per_trigger",
}
_NEW = Progress(BEGINNING)


class StreamSource(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow, without messages that may still be aborted."""

    def __init__(self, options: Mapping[str, str], typed: TypedValue | None = None) -> None:
        """``typed``: the type of column ``value``, if not bytes. Raises `InvalidConfiguration`."""
        known = Options(options, STREAM_OPTIONS, "the velaray stream source")
        self._typed = typed
        self._origin = Origin.of(known)
        self._start = Start.parse(known.text("starting_position") or "latest")
        self._subscription = known.text("subscription")
        self._fail = known.flag("fail_on_data_loss", True)
        self._creates = known.flag("create_topics", False)
        self._limits = Limits(
            known.count("max_messages_per_trigger"), known.count("max_bytes_per_trigger")
        )
        self._marks: Marks | None = None
        self._losses: Losses | None = None
        self._once = False
        self._until: Mapping[str, Place] | None = None
        self._planned: Offset | None = None
        self._turn = 0

    def _opened(self, subscription: str) -> tuple[Marks, Losses]:
        if self._marks is None or self._losses is None:
            self._marks = Marks(self._origin, subscription)
            self._losses = Losses(subscription, self._fail)
        return self._marks, self._losses

    def initialOffset(self) -> dict[str, Any]:
        """Return the progress of a query without a batch.

        Spark calls this again when it repeats the first batch, whose stored end contains the start.
        """
        return NOWHERE.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the options' limits of a batch."""
        if self._limits.messages:
            return ReadMaxRows(self._limits.messages)
        return ReadMaxBytes(self._limits.bytes) if self._limits.bytes else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that exist when the first batch is planned."""
        self._once = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, which begins at ``start``.

        Raises `DataLossError` if the next messages are gone, or aren't kept any more.
        """
        begun = self._begun(Offset.from_json(start))
        marks, losses = self._opened(begun.subscription or "")
        partitions = self._present(marks, losses, begun)
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._limits
        looked: set[str] = set()

        def ask(at: Mapping[str, Progress], most: Mapping[str, SpanLimits]) -> Mapping[str, Step]:
            if self._until is not None:
                ends = {name: MessageId(-1, *self._until[name]) for name in at}
                most = {name: replace(most[name], until=ends[name]) for name in at}
            found = marks.look(at, most)
            losses.check(at, {name: found[name] for name in found.keys() - looked})
            looked.update(found)
            return found

        order = sorted(partitions if self._until is None else partitions.keys() & self._until)
        self._turn += 1
        turn = self._turn % len(order) if order else 0
        ends = admit(ask, partitions, order[turn:] + order[:turn], limits)
        first = begun.partitions if start == NOWHERE.to_json() else None
        self._planned = Offset(begun.subscription, partitions | ends, first)
        if self._planned.partitions == begun.partitions and first is None:
            self._planned = begun  # exactly the same text, so that Spark sees no change
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of each partition for Spark's progress reports, in the form of an offset.

        `velaray.pipelines.lag` compares it with the end of the batch. None until a batch is
        planned. Costs two requests for each partition.
        """
        if self._planned is None or self._marks is None:
            return None
        at = {name: Progress(place) for name, place in self._marks.ends().items()}
        spans = self._marks.look(at, dict.fromkeys(at, SpanLimits()))
        ends = {name: Progress.at_end_of(span) for name, span in spans.items()}
        return Offset(self._planned.subscription, ends).to_json()

    def _begun(self, start: Offset) -> Offset:
        """Return the start of the next batch. A new query's subscription exists from now on."""
        if start != NOWHERE:
            return start
        name = self._subscription or f"spark-{token_hex(8)}"
        marks, _ = self._opened(name)
        return Offset(name, marks.begin(self._start, create=self._creates))

    def _present(self, marks: Marks, losses: Losses, begun: Offset) -> dict[str, Progress]:
        """Return the query's progress in each current partition.

        Raises `TopicNotFound` for a missing topic that a restart added to the options, unless the
        query continues after losses.
        """
        there, missing = marks.update()
        gone = begun.partitions.keys() - there
        losses.tell(dict.fromkeys(gone, "was deleted"))
        if self._fail:
            for error in missing.values():
                raise error
        losses.tell(dict.fromkeys(missing, "doesn't exist"))
        marks.drop(gone)
        if self._once and self._until is None:
            self._until = marks.ends()
        return {name: begun.partitions.get(name, _NEW) for name in there}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One task for each partition of a topic with messages to read.

        Raises `DataLossError` if these aren't kept any more.
        """
        last = Offset.from_json(end)
        begun = Offset.from_json(start).partitions if last.begun is None else last.begun
        if last != self._planned:  # it was planned before a restart
            marks, losses = self._opened(last.subscription or "")
            marks.hold(begun)
            losses.check(begun, marks.look_to(begun, last.partitions), again=True)
        found = []
        for name, progress in last.partitions.items():
            first = begun.get(name, _NEW)
            if first.after < progress.after:
                found.append(Span(name, first.after, progress.after, first.chunks))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; runs in an executor."""
        assert isinstance(partition, Span)
        return self._origin.read(partition, self._typed)

    def commit(self, end: dict[str, Any]) -> None:
        """Release the messages up to ``end`` for trimming: they are never read again."""
        done = Offset.from_json(end)
        marks, _ = self._opened(done.subscription or "")
        marks.move({name: progress.kept for name, progress in done.partitions.items()})

    def stop(self) -> None:
        """Disconnect from the service; the subscription stays."""
        if self._marks is not None:
            self._marks.close()

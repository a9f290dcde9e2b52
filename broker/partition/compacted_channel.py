"""The partition's side of a subscription that reads compacted entries.

Below the horizon it serves the current view (`velaray.broker.partition.compacted_view`), beyond it
the log. Before it reports entries to the subscription dispatcher, it makes the dispatcher
acknowledge those that compaction removed, and the removed messages of batches. So the cursor passes
over them as over any acknowledged entries, and neither the dispatcher nor the client depends on
compaction.

A new view becomes current at once, below the horizon at which the channel began to read, so the
former view can be deleted. Entries that were granted before and that the new view lacks aren't
written; the dispatcher acknowledges them and takes their permits back. Beyond that horizon readers
continue with the log. Otherwise a reader that has read a value could miss the tombstone that
removed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from velaray.actors.partition.ledger_table import LedgerSpan
from velaray.actors.subscription.cursor import mask_to_words
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.delivery import Delivery
from velaray.broker.partition.channel.feed import DispatcherFeed
from velaray.broker.partition.channel.log import PartitionLog, VisibleEntries
from velaray.broker.partition.channel.partial_delivery import PartialDelivery
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.subscription_channel import LogServices, SubscriptionChannel
from velaray.broker.subscription.messages import PassOver, ReadCompacted
from velaray.journal.errors import NotStored
from velaray.topology.transient import TRANSIENT

if TYPE_CHECKING:
    from velaray.broker.partition.compacted_view import CompactedView
    from velaray.broker.partition.compactor import Compactor

GONE = CachedEntry(b"", 1, "")
"""Stands for an entry that the current view lacks."""
PASS_ENTRIES = 1024
"""One request acknowledges the removed entries among this many kept ones."""
JUMP = 64
"""Longer gaps aren't reported to the dispatcher entry by entry."""


class CompactedEntries:
    """Entries by offset, in the shape of an `EntryCache`: `GONE` where the view lacks the entry."""

    def __init__(self, log: CompactedLog, whole: PartitionLog) -> None:
        self._log = log
        self._whole = whole

    def get(self, offset: int) -> CachedEntry | None:
        """The entry if it is in memory."""
        view = self._log.view_at(offset)
        if view is None:
            return self._whole.cache.get(offset)
        index = view.index_of(offset)
        return GONE if index is None else view.cache.get(index)

    def run(self, offset: int, count: int) -> Sequence[CachedEntry]:
        """The entries from ``offset`` on that are in memory together, at most ``count``."""
        view = self._log.view_at(offset)
        if view is None:
            return self._whole.cache.run(offset, count)
        count = max(1, min(count, self._log.horizon - offset))
        until = view.kept_from(offset)
        if until > offset:
            return [GONE] * min(until - offset, count)
        index = view.index_from(offset)
        found = view.cache.run(index, count)
        offsets = view.offsets[index : index + len(found)]
        alike = sum(at == offset + place for place, at in enumerate(offsets))
        return found[:alike]

    async def load(self, offset: int) -> None:
        """Read the entry and those after it into memory."""
        view = self._log.view_at(offset)
        if view is None:
            await self._whole.cache.load(offset)
            return
        index = view.index_of(offset)
        if index is None:
            return
        try:
            await view.cache.load(index)
        except NotStored:
            if view is self._log.view_at(offset):
                raise


class CompactedVisibility:
    """Which entries a `CompactedChannel` delivers: below the horizon all of the view."""

    def __init__(self, whole: VisibleEntries, log: CompactedLog) -> None:
        self._whole = whole
        self._log = log

    @property
    def readable_end(self) -> int:
        """As `Visibility.readable_end`; a view has nothing beyond it."""
        return self._whole.readable_end

    def visible_until(self, first: int, end: int) -> tuple[int, int]:
        """As `Visibility.visible_until`; a view has no hidden entries."""
        first = max(first, self._log.horizon)
        return self._whole.visible_until(first, end) if first < end else (end, end)

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """As `Visibility.hidden_within`."""
        return self._whole.hidden_within(max(first, self._log.horizon), end)

    async def load(self, offset: int) -> None:
        """As `Visibility.load`."""
        await self._whole.load(offset)

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """As `Visibility.next_remote`."""
        return self._whole.next_remote(origins, first, end)


class CompactedLog:
    """The partition's log as a `CompactedChannel` sees it."""

    def __init__(self, log: PartitionLog, compactor: Compactor) -> None:
        self._log = log
        self._compactor = compactor
        #: The end of the view for these readers.
        self.horizon = 0
        self.cache: Any = CompactedEntries(self, log)
        self.visibility = CompactedVisibility(log.visibility, self)
        self.partition_index = log.partition_index
        self.delayed = log.delayed

    def view_at(self, offset: int) -> CompactedView | None:
        """The current view, if it serves this offset; None if the log does.

        Beyond the readers' horizon the view serves only entries that the log has trimmed.
        """
        view = self._compactor.view
        if view is None or offset >= view.horizon:
            return None
        kept = offset >= self.horizon and self._log.kept_from(offset) == offset
        return None if kept else view

    def begin(self) -> None:
        """Begin to read: the readers' horizon becomes that of the current view."""
        view = self._compactor.view
        self.horizon = 0 if view is None else view.horizon

    @property
    def terminated_at(self) -> int | None:
        """The offset at which the topic ended."""
        return self._log.terminated_at

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        return self._log.end_offset

    def clock_ms(self) -> int:
        """See `PartitionLog`."""
        return self._log.clock_ms()

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds, or held, the entry."""
        return self._compactor.table().span_of(offset)

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed; entries of the view count as
        kept."""
        return offset if self.view_at(offset) else self._log.kept_from(offset)

    def reading_failed(self, offset: int, error: Exception) -> str:
        """Report that an entry could not be read; returns the reason, for clients."""
        return self._log.reading_failed(offset, error)


class CompactedFeed(DispatcherFeed):
    """What a dispatcher is told of compacted entries."""

    _log: CompactedLog

    def __init__(
        self, channel: SubscriptionChannel, log: CompactedLog, serve_lease: Callable[[], bool]
    ) -> None:
        super().__init__(channel, log, serve_lease)
        self._passed_to = 0  # removed entries below this offset are acknowledged
        self._restarts = 0  # how often the dispatcher requested feeding anew

    def start(self, offset: int, wanted: int, hashing: bool) -> None:
        """As `DispatcherFeed.start`, from the current view."""
        self._passed_to = offset
        self._restarts += 1
        self._log.begin()
        self._channel.tell(ReadCompacted(self._log.horizon))
        super().start(offset, wanted, hashing)

    def _feed_cached(self, limit: int) -> bool:
        first = self._fed
        view = self._log.view_at(first)
        if view is None or first >= self._log.horizon:
            return super()._feed_cached(limit)
        if first >= self._passed_to:
            return False
        kept = view.kept_from(first)
        if kept > first:
            self._fed = min(kept, self._passed_to)
            return True
        end = view.stretch_end(view.index_from(first), JUMP)
        return super()._feed_cached(min(max(limit, first + 1), end, self._passed_to))

    async def _feed_cold(self) -> None:
        first = self._fed
        view = self._log.view_at(first)
        if view is None or not self._passed_to <= first < self._log.horizon:
            await super()._feed_cold()
            return
        last = view.index_from(first) + PASS_ENTRIES
        end = view.offsets[last] if last < len(view.offsets) else self._log.horizon
        end = min(end, self._log.horizon)
        gone = [offset for ends in view.gone(first, end) for offset in ends]
        partial = [(at, mask_to_words(mask)) for at, mask in view.masks_between(first, end)]
        restarts = self._restarts
        try:
            if gone or partial:
                await self._channel.ask(PassOver(self._log.end_offset, gone, partial))
        except TRANSIENT:
            self._channel.close()  # the consumers subscribe again
            return
        if restarts == self._restarts:
            self._passed_to = end


class CompactedDelivery(PartialDelivery):
    """The deliveries to consumers that read compacted entries."""

    _log: CompactedLog

    def __init__(self, channel: SubscriptionChannel, log: CompactedLog) -> None:
        super().__init__(channel, log)
        self._view: CompactedView | None = None  # that serves the current run

    def _write(
        self,
        consumer: ChannelConsumer,
        offsets: Sequence[int],
        run: Sequence[CachedEntry],
        epoch: int | None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> int:
        """As `Delivery._write`; entries that the view lacks by now count as written."""
        self._view = self._log.view_at(offsets[0])
        if self._view is None:
            return Delivery._write(self, consumer, offsets, run, epoch, redelivery_count, ack_set)
        return super()._write(consumer, offsets, run, epoch, redelivery_count, ack_set)

    def _kept(self, offset: int, entry: CachedEntry) -> int | None:
        assert self._view is not None
        return 0 if entry is GONE else self._view.masks.get(offset)


class CompactedChannel(SubscriptionChannel):
    """The consumers of one subscription that reads compacted entries."""

    compacted = True

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        whole: LogServices,
        compactor: Compactor,
        on_closed: Callable[[SubscriptionChannel, list[ChannelConsumer]], None],
        *,
        durable: bool,
    ) -> None:
        self._compacted_log = CompactedLog(log, compactor)
        super().__init__(name, self._compacted_log, whole, on_closed, durable=durable)

    def _begin(self) -> None:
        self.delivery = CompactedDelivery(self, self._compacted_log)
        self.feed = CompactedFeed(self, self._compacted_log, self.delivery.serve_lease)

    @property
    def horizon(self) -> int:
        """The end of the view for these consumers."""
        return self._compacted_log.horizon

    def trimmed(self, gone: Sequence[int]) -> None:
        """As `SubscriptionChannel.trimmed`. Once there is a view, only ledgers that it covers are
        trimmed."""
        if not self.horizon:
            super().trimmed(gone)

"""The partition's side of a subscription to a topic whose messages can be erased.

The log has sealed entries. They are opened when they are written to a consumer, and not kept. An
entry of erased messages alone isn't written, and the erased messages of a batch are acknowledged;
see `PartialDelivery`. The dispatcher grants no lease, since it must learn of every such entry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.feed import DispatcherFeed
from velaray.broker.partition.channel.log import PartitionLog
from velaray.broker.partition.channel.partial_delivery import PartialDelivery
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.subscription_channel import LogServices, SubscriptionChannel
from velaray.broker.subscription.messages import ReadCompacted
from velaray.events.ids import INT64_MAX
from velaray.journal.errors import JournalError

OPENED_ENTRIES: Final = 32
OPENED_BYTES: Final = 1 << 20
"""Entries are opened for a consumer up to these limits: what its socket doesn't take is dropped."""


class SealedDelivery(PartialDelivery):
    """The deliveries of sealed entries."""

    def __init__(self, channel: SubscriptionChannel, log: PartitionLog, sealing: Sealing) -> None:
        super().__init__(channel, log)
        self._sealing = sealing
        self._masks: dict[int, int] = {}  # of the last run: entries that aren't whole
        self._erased: dict[int, int] = {}  # the numbers of their erased messages

    def _run(self, first: int, end: int) -> Sequence[CachedEntry]:
        """The entries from ``first`` on that can be opened now, opened."""
        stored = super()._run(first, min(end, first + OPENED_ENTRIES))
        self._masks, self._erased = {}, {}
        run: list[CachedEntry] = []
        size = 0
        for offset, entry in enumerate(stored, first):
            if size > OPENED_BYTES:
                break
            try:
                found = self._sealing.opened(entry.data)
            except JournalError:  # `_read` raises it again, once it is the first one
                break
            if found is None:
                break
            size += len(entry.data)
            if found.mask != (1 << entry.messages) - 1:
                self._masks[offset] = found.mask
                self._erased[offset] = entry.messages - found.mask.bit_count()
            run.append(entry._replace(data=found.entry))
        return run

    async def _read(self, offset: int) -> None:
        """Load the entry and its data keys. Raises `JournalError`."""
        cache = self._log.cache
        while (entry := cache.get(offset)) is None:
            await cache.load(offset)
        await self._sealing.prepare_to_open(entry.data)

    def _kept(self, offset: int, entry: CachedEntry) -> int | None:
        return self._masks.get(offset)

    def _pass(self, consumer: ChannelConsumer, offset: int, mask: int) -> None:
        super()._pass(consumer, offset, mask)
        self._sealing.erased += self._erased[offset]


class SealedFeed(DispatcherFeed):
    """The reports on sealed entries to a dispatcher."""

    def start(self, offset: int, wanted: int, hashing: bool) -> None:
        """As `DispatcherFeed.start`, for a dispatcher that grants no leases."""
        self._channel.tell(ReadCompacted(INT64_MAX))
        super().start(offset, wanted, hashing)


class SealedChannel(SubscriptionChannel):
    """The consumers of one subscription to a topic whose messages can be erased."""

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        whole: LogServices,
        sealing: Sealing,
        on_closed: Callable[[SubscriptionChannel, list[ChannelConsumer]], None],
        *,
        durable: bool,
    ) -> None:
        self._sealing = sealing
        super().__init__(name, log, whole, on_closed, durable=durable)

    def _begin(self) -> None:
        self.delivery = SealedDelivery(self, self._log, self._sealing)
        self.feed = SealedFeed(self, self._log, self.delivery.serve_lease)

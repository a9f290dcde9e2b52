"""The delivery of entries that aren't delivered as a whole.

An entry may be gone since it was granted, and a batch may have only some of its messages left. The
dispatcher acknowledges the others for the consumer, and takes their permits back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from velaray.actors.subscription.cursor import mask_to_words, words_to_mask
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.delivery import Delivery
from velaray.broker.partition.channel.log import PartitionLog
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.subscription.messages import GrantsSkipped

if TYPE_CHECKING:
    from velaray.broker.partition.subscription_channel import SubscriptionChannel


class PartialDelivery(Delivery):
    """The deliveries of a log whose entries may be gone, or kept in part."""

    gathers = False  # a run is looked at entry by entry

    def __init__(self, channel: SubscriptionChannel, log: PartitionLog) -> None:
        super().__init__(channel, log)
        self._consumers = channel
        self._unsent: list[tuple[ChannelConsumer, int, int]] = []

    def _kept(self, offset: int, entry: CachedEntry) -> int | None:
        """The messages of an entry that are left, as bits; 0 if it is gone, None if it is whole."""
        raise NotImplementedError

    def _write(
        self,
        consumer: ChannelConsumer,
        offsets: Sequence[int],
        run: Sequence[CachedEntry],
        epoch: int | None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> int:
        """As `Delivery._write`; entries that are gone count as written."""
        first = offsets[0]
        written = 0
        while written < len(run):
            offset, whole = first + written, self._whole(first, run, written)
            if whole:
                part = run[written : written + whole]
                of_part = range(offset, offset + whole)
                count = super()._write(consumer, of_part, part, epoch, redelivery_count, ack_set)
                written += count
                if count < whole:
                    break
                continue
            mask = self._kept(offset, run[written]) or 0
            if ack_set:
                mask &= words_to_mask(ack_set)
            if mask:
                words = mask_to_words(mask)
                part, alone = run[written : written + 1], range(offset, offset + 1)
                if not super()._write(consumer, alone, part, epoch, redelivery_count, words):
                    break
            if mask != words_to_mask(ack_set) or not mask:
                self._pass(consumer, offset, mask)
            written += 1
        return written

    def _whole(self, first: int, run: Sequence[CachedEntry], start: int) -> int:
        """The number of whole entries of the run from ``start`` on."""
        for at in range(start, len(run)):
            if self._kept(first + at, run[at]) is not None:
                return at - start
        return len(run) - start

    def _pass(self, consumer: ChannelConsumer, offset: int, mask: int) -> None:
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._tell_unsent)
        self._unsent.append((consumer, offset, mask))

    def _tell_unsent(self) -> None:
        """Report granted messages that weren't sent to the dispatcher, after those that were."""
        unsent, self._unsent = self._unsent, []
        by_consumer: dict[ChannelConsumer, list[tuple[int, list[int]]]] = {}
        for consumer, offset, mask in unsent:
            by_consumer.setdefault(consumer, []).append((offset, mask_to_words(mask)))
        for consumer, partial in by_consumer.items():
            if not consumer.closed:
                self._consumers.tell(GrantsSkipped(consumer.number, self._log.end_offset, partial))

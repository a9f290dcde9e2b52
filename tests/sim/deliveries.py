"""Notes in the history about deliveries of partitions: entries sent, and the clients' responses.

They cover Shared and Key_Shared subscriptions. ``sent``: the partition wrote entries to a
consumer's socket. ``freed``: it learned that the consumer no longer has them, before the
dispatcher did. ``attached`` and ``left``: consumers, with their sticky ranges. ``pending``: a
consumer acknowledges them in a transaction. The notes record what partitions sent, not decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tests.sim.history import History
from tests.sim.tap import bits, open_messages
from velaray.actors.dispatch.consumers import KeySharedPolicy, SubscriptionType
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.delivery import Delivery
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.dispatch_state import pairs
from velaray.topology import messages
from velaray.wire.commands import Message
from velaray.wire.messages import key_hash

_SHARING = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)

Replace = Callable[[Any, str, Any], None]
Note = Callable[..., None]


def watch_deliveries(replace: Replace, history: History) -> None:
    """Make every partition note its deliveries and responses."""
    numbers = itertools.count(1)

    def note(channel: Any, kind: str, /, **details: Any) -> None:
        if not hasattr(channel, "noted_as"):
            channel.noted_as = next(numbers)
        history.add(kind, channel=channel.noted_as, **details)

    _watch_consumers(replace, note)
    _watch_what_goes_out(replace, note)
    _watch_what_comes_back(replace, note)


def _watch_consumers(replace: Replace, note: Note) -> None:
    attach, remove = SubscriptionChannel.attach, SubscriptionChannel.remove

    async def attached(
        self: SubscriptionChannel, consumer: ChannelConsumer, priority: int, keys: KeySharedPolicy
    ) -> None:
        consumer.policy = keys  # type: ignore[attr-defined]
        await attach(self, consumer, priority, keys)
        if not consumer.closed:
            note(self, "attached", consumer=consumer.number, ranges=keys.ranges)

    def removed(
        self: SubscriptionChannel, consumer: ChannelConsumer, *how: Any, **named: Any
    ) -> None:
        note(self, "freed", ranges=None, parts=[], by=consumer.number)
        note(self, "left", consumer=consumer.number)
        remove(self, consumer, *how, **named)

    replace(SubscriptionChannel, "attach", attached)
    replace(SubscriptionChannel, "remove", removed)


def _watch_what_goes_out(replace: Replace, note: Note) -> None:
    write, grant = Delivery._write, SubscriptionChannel._grant
    together: list[tuple[int, Callable[[], None]]] | None = None

    def granted(self: SubscriptionChannel, grants: Sequence[m.DispatchGrant]) -> None:
        """The notes of what is written at once are in the order of the grants."""
        nonlocal together
        order = {
            offset: at
            for at, each in enumerate(grants)
            for offset in range(each.first, each.first + each.count)
        }
        together = []
        try:
            grant(self, grants)
        finally:
            noted, together = together, None
        for _, each in sorted(noted, key=lambda first_and_note: order.get(first_and_note[0], -1)):
            each()

    def written(
        self: Delivery,
        consumer: ChannelConsumer,
        offsets: Sequence[int],
        run: Any,
        epoch: int | None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> int:
        ends = [each.first + each.count for each in consumer.grants]
        count: int = write(self, consumer, offsets, run, epoch, redelivery_count, ack_set)
        if consumer.type not in _SHARING:
            return count
        delivery = Message(0, 0, 0, ack_set=tuple(ack_set))
        for first, end in _parts(offsets[:count], ends):
            entries, run = run[: end - first], run[end - first :]
            channel: Any = self._channel
            sent = partial(
                note,
                channel,
                "sent",
                subscription=channel.name,
                topic=str(self._log.topic),  # type: ignore[attr-defined]
                consumer=consumer.number,
                kind=int(consumer.type),
                loose=consumer.policy.out_of_order,  # type: ignore[attr-defined]
                first=first,
                hashes=[key_hash(entry.data) for entry in entries],
                open=[open_messages(delivery, entry.data) for entry in entries],
            )
            if together is None:
                sent()
            else:
                together.append((first, sent))
        return count

    replace(SubscriptionChannel, "_grant", granted)
    replace(Delivery, "_write", written)


def _parts(offsets: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive offsets of one grant each; grants end at ``ends``."""
    start = 0
    for at in range(1, len(offsets) + 1):
        last = offsets[at - 1]
        if at == len(offsets) or offsets[at] != last + 1 or last + 1 in ends:
            yield offsets[start], last + 1
            start = at


def _watch_what_comes_back(replace: Replace, note: Note) -> None:
    acknowledge, tell, reset, ask = (
        SubscriptionChannel.acknowledge,
        SubscriptionChannel.tell,
        SubscriptionChannel.reset,
        SubscriptionChannel.ask,
    )

    def acknowledged(
        self: SubscriptionChannel, notice: m.AckEntries | m.AckEntriesBefore, end: int
    ) -> None:
        if isinstance(notice, m.AckEntries):
            parts = [(offset, bits(words)) for offset, words in notice.partial]
            note(self, "freed", ranges=pairs(notice.ranges), parts=parts, by=None)
        else:
            note(self, "freed", ranges=[(0, notice.offset)], parts=[], by=None)
        acknowledge(self, notice, end)

    def told(self: SubscriptionChannel, notice: messages.Message) -> None:
        if isinstance(notice, m.Redeliver):
            ranges = None if notice.ranges is None else pairs(notice.ranges)
            note(self, "freed", ranges=ranges, parts=[], by=notice.number)
        tell(self, notice)

    async def was_reset(self: SubscriptionChannel, *how: Any, **named: Any) -> None:
        note(self, "moved")
        try:
            await reset(self, *how, **named)
        finally:
            note(self, "moved")

    async def asked(
        self: SubscriptionChannel, request: messages.Request[messages.ReplyT]
    ) -> messages.ReplyT:
        if isinstance(request, m.SkipTo):
            note(self, "freed", ranges=[(0, request.offset)], parts=[], by=None)
        elif isinstance(request, m.ExpireEntries):
            note(self, "freed", ranges=pairs(request.ranges), parts=[], by=None)
        elif isinstance(request, m.AckEntriesInTransaction):
            # An abort returns all of an entry, even if another consumer holds the rest.
            pending = [*pairs(request.ranges), *((at, at + 1) for at, _, _ in request.partial)]
            note(self, "freed", ranges=pending, parts=[], by=None)
            where = {"subscription": self.name, "topic": str(self._log.topic)}  # type: ignore[attr-defined]
            note(self, "pending", ranges=pending, **where)
        return await ask(self, request)

    replace(SubscriptionChannel, "acknowledge", acknowledged)
    replace(SubscriptionChannel, "tell", told)
    replace(SubscriptionChannel, "reset", was_reset)
    replace(SubscriptionChannel, "ask", asked)

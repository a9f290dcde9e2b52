"""The partition's side of one subscription.

A channel connects the consumers of one subscription, whose sockets this partition serves, to the
subscription dispatcher. It reports the number of messages of each new entry to the dispatcher
(`velaray.broker.partition.channel.feed`), passes permits and acknowledgements on
(`velaray.broker.partition.channel.link`), and writes the entries that the dispatcher grants to the
consumers' sockets (`velaray.broker.partition.channel.delivery`). It makes no decisions of its own,
except under a dispatch lease (`velaray.actors.dispatch.lease`): then it delivers new entries to the
only consumer at once, and reports the deliveries.

The dispatcher is reached by a `RpcConnection` to a subscription actor, or by a `LocalPort` to a
dispatcher in this process (for subscriptions that are not durable).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from velaray.actors.dispatch.consumers import KeySharedPolicy
from velaray.broker.partition.channel.consumer import (
    ChannelConsumer,
    ConsumerSession,
    Grant,
    answer_ack,
)
from velaray.broker.partition.channel.delivery import Delivery
from velaray.broker.partition.channel.feed import DispatcherFeed
from velaray.broker.partition.channel.link import DispatcherLink
from velaray.broker.partition.channel.log import LogSync, PartitionLog
from velaray.broker.partition.channel.origins import UnsettledOrigins
from velaray.broker.partition.dead_letters import DeadLetterMover
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.unreadable import Unreadable
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.messages import (
    ENDS_LEASE,
    AckEntries,
    AckEntriesBefore,
    Attach,
    Detach,
    EntriesTrimmed,
    ResetCursor,
    UndoMoves,
)
from velaray.topology.flow import Activity, Flow
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.wire import pulsar_pb2 as pb

ATTACH_TIMEOUT_S = 30.0


class LogServices(LogSync, Protocol):
    """What a channel needs of its partition's log besides `PartitionLog`."""

    def settle(self, channel: SubscriptionChannel) -> Awaitable[None]:
        """Make the subscription take in the waiting progress of all entries that have arrived, and
        call `UnsettledOrigins.settled`. Raises as `SubscriptionChannel.ask` does."""
        ...


class SubscriptionChannel:
    """The consumers of one subscription on this partition."""

    compacted = False
    delivery: Delivery
    feed: DispatcherFeed

    @property
    def horizon(self) -> int | None:
        """The end of the compacted view, for consumers that read it."""
        return None

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        whole: LogServices,
        on_closed: Callable[[SubscriptionChannel, list[ChannelConsumer]], None],
        *,
        durable: bool,
    ) -> None:
        """``log`` is what the consumers read, ``whole`` the log of the partition."""
        self.name = name
        self.durable = durable
        self.link = DispatcherLink(whole)
        self.origins = UnsettledOrigins(log.visibility, durable=durable)
        self.consumers: dict[int, ChannelConsumer] = {}
        self.resetting = False
        self.closed = False
        self.clock_ms = log.clock_ms
        self.traffic = Flow(log.clock_ms())
        self.activity = Activity()
        self.mover: DeadLetterMover | None = None  # None unless the subscription is durable
        #: Called when the subscription has new progress to export to other clusters.
        self.on_progress: Callable[[], None] | None = None
        #: Entries whose reads failed. Delivery stops there.
        self.unreadable = Unreadable(self._read_again)
        self._log = log
        self._whole = whole
        self._on_closed = on_closed
        self._receipts: dict[tuple[int, int], ChannelConsumer] = {}
        self._numbers = itertools.count(1)
        self._begin()

    def _begin(self) -> None:
        """Make the parts that read the log."""
        self.delivery = Delivery(self, self._log)
        self.feed = DispatcherFeed(self, self._log, self.delivery.serve_lease)

    # -- the connection to the dispatcher --------------------------------------------

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after a report of what was delivered under the lease."""
        self.delivery.report()
        had_lease = self.delivery.leased
        if type(notice) in ENDS_LEASE:
            self.delivery.end_lease()
        self.link.tell(notice)
        if had_lease and not self.delivery.leased:
            self.feed.run()  # the dispatcher lacks entries that wait for permits

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher, after a report of what was delivered under the lease.

        Raises `RpcConnectionClosed`, `TimeoutError` and `RemoteError` as RPC connections do.
        """
        await self.link.passed()
        self.delivery.report()
        return await self.link.ask(request)

    async def settle(self) -> None:
        """Make the subscription take in the waiting progress of other clusters. Raises as `ask`."""
        await self._whole.settle(self)

    # -- consumers -----------------------------------------------------------------

    def next_number(self) -> int:
        """A number for a consumer that was not used on this channel before."""
        return next(self._numbers)

    def add(
        self, session: ConsumerSession, consumer_id: int, name: str, kind: int
    ) -> ChannelConsumer:
        """Add a consumer that is about to attach; its number identifies it at the dispatcher."""
        consumer = ChannelConsumer(self, session, consumer_id, name, kind)
        self.consumers[consumer.number] = consumer
        return consumer

    async def attach(self, consumer: ChannelConsumer, priority: int, keys: KeySharedPolicy) -> None:
        """Attach the consumer at the dispatcher; ``keys`` matters for Key_Shared.

        The request is a notice, since notices keep their order: a consumer that leaves meanwhile is
        detached after it was attached. Raises `RemoteError` if the dispatcher refuses,
        `RpcConnectionClosed` if the channel closes, `TimeoutError`.
        """
        if self.closed or self.link.port is None:
            raise RpcConnectionClosed("the subscription is restarting")
        consumer.attaching = asyncio.get_running_loop().create_future()
        policy = (int(keys.mode), keys.ranges, keys.out_of_order)
        peer = consumer.connection.peer
        kind = consumer.type
        self.tell(Attach(consumer.number, consumer.name, kind, priority, policy, peer))
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            await consumer.attaching

    def remove(self, consumer: ChannelConsumer, lost: bool = False) -> None:
        """Remove a consumer; the dispatcher redelivers its un-acknowledged entries to others.

        If it was ``lost`` (its connection broke), all that it held counts as failed deliveries.
        """
        consumer.close()
        if self.consumers.pop(consumer.number, None) is not None:
            self.tell(Detach(consumer.number, lost))

    async def reset(
        self, next_offset: int, reason: str, gone: Sequence[int], *, shared: bool = False
    ) -> None:
        """Move the cursor, durably, and close every consumer, as Pulsar does.

        Consumers subscribe again and continue at ``next_offset``, without entries that are
        ``gone``. Acknowledgements that arrive while the cursor moves belong to earlier deliveries
        and are ignored. ``shared``: see `velaray.actors.subscription.machine.Reset`.
        """
        await self._moved(ResetCursor(next_offset, reason, gone, shared))

    async def undo(
        self, point_in_time: Sequence[int | None], gone: Sequence[int], *, shared: bool
    ) -> dict[str, Any]:
        """Undo a move of the cursor; consumers are closed as by `reset`."""
        sequence, at_ms = point_in_time
        return await self._moved(UndoMoves(sequence, at_ms, gone, shared))

    async def _moved(self, request: Request[ReplyT]) -> ReplyT:
        self.resetting = True
        try:
            found = await self.ask(request)
        finally:
            self.resetting = False
        self._let_go()
        return found

    def _let_go(self) -> None:
        for consumer in list(self.consumers.values()):
            self.remove(consumer)
            consumer.session.consumer_closed(consumer)

    # -- unreadable entries ----------------------------------------------------------

    def reading_failed(self, offset: int, error: Exception) -> None:
        """Stop the delivery at an entry: report the reason to the clients, and try again later."""
        problem = self._log.reading_failed(offset, error)
        if self.closed:
            return  # the partition ends
        self.unreadable.failed(offset, problem)
        for consumer in self.consumers.values():
            if consumer.subscribed:
                # Nothing in the protocol says this; clients log an error that answers nothing.
                consumer.connection.send(
                    pb.CommandError(
                        request_id=consumer.request_id, error=pb.PersistenceError, message=problem
                    )
                )

    def _read_again(self) -> None:
        self.feed.run()
        self.deliver_all()

    def deliver_all(self) -> None:
        """Deliver to every consumer what may be delivered now."""
        for consumer in list(self.consumers.values()):
            self.delivery.deliver(consumer)

    # -- acknowledgements ----------------------------------------------------------

    async def entry(self, offset: int) -> CachedEntry:
        """The entry at this offset as consumers got it, from memory or disk."""
        while (found := self._log.cache.get(offset)) is None:
            await self._log.cache.load(offset)
        return found

    def expect_receipt(self, consumer: ChannelConsumer, request_id: int) -> None:
        """Note that the client expects an answer once this acknowledgement is durable."""
        self._receipts[consumer.number, request_id] = consumer

    def acknowledge(self, notice: AckEntries | AckEntriesBefore, end: int) -> None:
        """Send an acknowledgement of offsets below ``end`` to the dispatcher, once they are synced.

        If the client expects a receipt, the log is synced at once; otherwise at its next time.
        """
        if not self.durable or self.link.may_pass(end):
            self.tell(notice)
            return
        self.delivery.report()
        self.link.hold(notice, end)

    # -- notices of the dispatcher ----------------------------------------------------

    def on_notice(self, notice: Message) -> None:
        """Handle a notice of the dispatcher."""
        match notice:
            case m.Deliver(grants):
                self._grant(grants)
            case m.GrantLease(number):
                consumer = self.consumers.get(number)
                if consumer is not None:
                    self.delivery.begin_lease(consumer, notice)
            case m.RevokeLease():
                self.delivery.release_lease()
            case m.WantEntries(wanted):
                self.feed.want(wanted)
                self.feed.run()
            case m.FeedFrom(offset, wanted, hashing):
                self.feed.start(offset, wanted, hashing)
            case m.Attached(number, refusal):
                self._on_attached(number, refusal)
            case m.AckReceipt(number, request_id, error):
                self._on_acked(number, request_id, error)
            case m.ActiveChanged(number, active):
                self._on_active(number, active)
            case m.MoveDeadLetters(dead_letters):
                if self.mover is not None:
                    self.mover.take(dead_letters)
            case m.Redelivering(number, epoch):
                self._on_redelivering(number, epoch)
            case m.EndOfTopic(number):
                self._on_end(number)
            case m.ProgressMade():
                if self.on_progress is not None:
                    self.on_progress()
            case m.Restart():
                self.close()

    def _on_attached(self, number: int, refusal: tuple[str, str] | None) -> None:
        consumer = self.consumers.get(number)
        if consumer is None or consumer.attaching is None or consumer.attaching.done():
            return
        if refusal is None:
            consumer.attaching.set_result(None)
        else:
            consumer.attaching.set_exception(RemoteError(refusal[0], refusal[1]))

    def _on_acked(self, number: int, request_id: int, error: str | None) -> None:
        consumer = self._receipts.pop((number, request_id), None)
        if consumer is not None:
            answer_ack(consumer, request_id, pb.NotAllowedError, error)

    def _on_active(self, number: int, active: bool) -> None:
        consumer = self.consumers.get(number)
        if consumer is not None:
            consumer.set_active(active)

    def _on_redelivering(self, number: int, epoch: int) -> None:
        """Note that later grants answer the consumer's redelivery request number ``epoch``."""
        consumer = self.consumers.get(number)
        if consumer is not None:
            consumer.epoch = max(epoch, consumer.epoch or 0)

    def _on_end(self, number: int) -> None:
        consumer = self.consumers.get(number)
        if consumer is not None:
            consumer.reach_end()

    def _grant(self, grants: Sequence[m.DispatchGrant]) -> None:
        idle: dict[ChannelConsumer, None] = {}
        for each in grants:
            consumer = self.consumers.get(each.number)
            if consumer is not None:
                if not consumer.grants and consumer.loading is None:
                    idle[consumer] = None
                grant = Grant(each.first, each.count, each.redelivery_count, each.words)
                self.delivery.grant(consumer, grant)
        for consumer in idle:
            self.delivery.deliver(consumer)

    # -- trimming ------------------------------------------------------------------

    def trimmed(self, gone: Sequence[int]) -> None:
        """Note that these offsets (first, last + 1, first, ...) are trimmed. Calls may be repeated.

        A durable subscription acknowledges them. A reader continues at the next kept entry. A
        consumer with grants of trimmed entries that aren't written yet subscribes again.
        """
        if self.closed:
            return
        for consumer in list(self.consumers.values()):
            if any(grant.overlaps(gone) for grant in consumer.grants):
                self.remove(consumer)
                consumer.session.consumer_closed(consumer)
        if not self.durable:
            self.tell(EntriesTrimmed(self._log.end_offset, gone))
        self.feed.run()
        self.deliver_all()

    # -- the end -------------------------------------------------------------------

    def retire(self) -> None:
        """Disconnect the dispatcher and every consumer in order: no delivery counts as failed."""
        for consumer in self.consumers.values():
            self.tell(Detach(consumer.number, False))
        self.close()

    def close(self) -> None:
        """Disconnect the dispatcher and every consumer."""
        if self.closed:
            return
        self.closed = True
        self.unreadable.close()
        if self.mover is not None:
            self.mover.close()
        self.feed.close()
        for (_, request_id), consumer in self._receipts.items():
            restarting = "the subscription is restarting; acknowledge again"
            answer_ack(consumer, request_id, pb.ServiceNotReady, restarting)
        self._receipts.clear()
        self.link.drop_held()
        consumers = list(self.consumers.values())
        self.delivery.drop_lease()
        for consumer in consumers:
            consumer.close()
        self.consumers.clear()
        self.link.close()
        self._on_closed(self, consumers)

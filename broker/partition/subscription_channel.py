"""The partition's side of one subscription: the hand.

A channel connects the consumers of one subscription, whose sockets this partition serves, to the
subscription's brain. It tells the brain how many messages each new entry holds, passes permits and
acknowledgements on, and writes the entries that the brain grants to the consumers' sockets. It
decides nothing, but while the brain lets it (`velaray.actors.dispatch.lease`) it delivers new
entries to the one consumer there is at once, and reports that.

What is granted waits here as offsets; bytes are fetched only when the socket takes them, so
a slow consumer holds at most its socket's write buffer plus one entry.

Acknowledgements of entries that a loss of power could take back (`velaray.journal.journal`,
relaxed) wait here until the log is synced: a cursor must never be ahead of what is there.

The brain is a `RpcConnection` to a subscription actor, or a `LocalPort` to one in this process (for
subscriptions that are not durable).
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

from velaray.actors.dispatch.consumers import KeySharedPolicy
from velaray.actors.dispatch.dispatcher import IN_ORDER
from velaray.actors.dispatch.lease import LeasedDelivery
from velaray.actors.partition.delayed import DelayedEntry
from velaray.actors.partition.ledger_table import LedgerSpan, NoSuchEntryError
from velaray.broker.partition.dead_letters import DeadLetterMover
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache
from velaray.broker.partition.unreadable import Unreadable
from velaray.broker.subscription import messages as m
from velaray.broker.subscription.messages import (
    ENDS_LEASE,
    AckEntries,
    AckEntriesBefore,
    AddPermits,
    Attach,
    Detach,
    EntriesDue,
    EntriesTrimmed,
    FeedEntries,
    LeaseReport,
    PassOver,
    ReleaseLease,
    ResetCursor,
    UndoMoves,
)
from velaray.topology.flow import Activity, Flow
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.topology.transient import TRANSIENT
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import MessageHeaders
from velaray.wire.connection import WireConnection

FEED_ENTRIES = 4096
HELD_NOTICES = 4096
"""So many notices wait for the log to be synced before that is asked for."""
RUN_ENTRIES = 256
"""Entries that are taken from the cache together."""
ATTACH_TIMEOUT_S = 30.0
LISTENS_AFTER_S = 1.0
"""A client that was told that it is subscribed listens by then, if it asks for nothing before."""
REPORT_S = 0.1
"""What was delivered without asking is reported so much later at the latest."""

_OVERTAKES = frozenset((AddPermits, LeaseReport))
"""Notices that may be told while acknowledgements are held back."""


@dataclass(slots=True)
class Grant:
    """Consecutive entries that the brain gave to a consumer, but for those it has by now."""

    first: int
    count: int
    redelivery_count: int
    ack_set: Sequence[int]
    epoch: int | None = None


class DispatcherPort(Protocol):
    """What a channel needs of the way to its brain."""

    closed: bool

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher."""
        ...

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher; returns its answer."""
        ...

    def close(self) -> None:
        """The channel needs the brain no longer."""
        ...


class PartitionLog(Protocol):
    """What a channel needs of its partition."""

    cache: EntryCache
    partition_index: int
    delayed: DelayedDeliveryTracker

    @property
    def terminated_at(self) -> int | None:
        """The offset at which the topic ended; None while it goes on."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    @property
    def readable_end(self) -> int:
        """Consumers get nothing at or beyond this offset: no transaction that has something
        below it is open."""
        ...

    def next_hidden(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that nobody gets, as its transaction was aborted;
        ``end`` if there is none before it."""
        ...

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """All such offsets, as ascending (first, last + 1)."""
        ...

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """The first offset from ``first`` on that came from one of these clusters (None: from any);
        ``end`` if there is none before it."""
        ...

    async def settle(self, channel: SubscriptionChannel) -> None:
        """Have acknowledged what of all that came waits at the brain, and call
        `SubscriptionChannel.settled`. Raises as `SubscriptionChannel.ask` does."""
        ...

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that no loss of power takes back."""
        ...

    def ask_for_sync(self) -> None:
        """Have `synced_offset` reach the end soon, then call `SubscriptionChannel.log_synced`."""
        ...

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds the entry, hence the positions that clients see.

        Raises `NoSuchEntryError` for one that is trimmed away.
        """
        ...

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed away."""
        ...

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        ...

    def reading_failed(self, offset: int, error: Exception) -> str:
        """An entry could not be read; returns why, for clients. Anything but an error of the
        journal ends the partition."""
        ...


class ConsumerSession(Protocol):
    """What a channel needs of the client's connection."""

    connection: WireConnection

    @property
    def client_version(self) -> str:
        """The name and version of the client's program."""
        ...

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether the client understands that a topic has ended."""
        ...

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """The channel let go of the consumer."""
        ...


class ChannelConsumer:
    """A consumer on this partition's socket, and what was granted to it."""

    def __init__(
        self,
        channel: SubscriptionChannel,
        session: ConsumerSession,
        consumer_id: int,
        name: str,
        kind: int,
    ) -> None:
        self.channel = channel
        self.session = session
        self.connection = session.connection
        self.consumer_id = consumer_id
        self.number = channel.next_number()
        self.name = name
        self.type = kind
        # The newest redelivery that the brain knows of; None if the client counts none.
        self.epoch: int | None = None
        self.grants: deque[Grant] = deque()
        #: Up to where it has acknowledged what a cluster stored first, by the cluster's number.
        self.acked_up_to: dict[int, int] = {}
        self.flowed = 0  # messages that the client ever asked for
        self.connected_ms = channel.clock_ms()
        self.traffic = Flow(self.connected_ms)
        self.activity = Activity()
        self.metadata: dict[str, str] = {}
        self.loading: asyncio.Task[None] | None = None
        self.attaching: asyncio.Future[None] | None = None
        self.subscribed = False  # the client was told that it is
        self.request_id = 0  # of the command that subscribed it
        self.auto_consume = False  # it takes whatever schema a message has
        self.closed = False
        self._active: bool | None = None
        self._listening = False
        self._listens_later: asyncio.TimerHandle | None = None

    def flow(self, permits: int) -> None:
        """The client can take that many more messages."""
        self._listen()
        self.flowed += permits
        self.activity.flowed_ms = self.channel.activity.flowed_ms = self.channel.clock_ms()
        self.channel.tell(AddPermits(self.number, permits))
        self.channel.more_permits(self, permits)

    def answered(self) -> None:
        """The client was told that the consumer is subscribed."""
        self.subscribed = True
        loop = asyncio.get_running_loop()
        self._listens_later = loop.call_later(LISTENS_AFTER_S, self._listen)

    def set_active(self, active: bool) -> None:
        """Whether it is the one that receives; the client is told once it listens."""
        self._active = active
        if self._listening:
            self._tell_active(active)

    def _listen(self) -> None:
        """Go's client ignores ACTIVE_CONSUMER_CHANGE until it has dealt with the answer to
        SUBSCRIBE. Its first permits show that it has; some clients send none before they
        receive."""
        if not self._listening:
            self._listening = True
            if self._active is not None:
                self._tell_active(self._active)

    def _tell_active(self, active: bool) -> None:
        self.connection.send(
            pb.CommandActiveConsumerChange(consumer_id=self.consumer_id, is_active=active)
        )

    def acknowledges(self) -> None:
        """The client acknowledges something."""
        self.activity.acked_ms = self.channel.activity.acked_ms = self.channel.clock_ms()

    def close(self) -> None:
        """Forget what was granted and not yet written."""
        self.closed = True
        if self._listens_later is not None:
            self._listens_later.cancel()
        self.grants.clear()
        if self.loading is not None:
            self.loading.cancel()
        if self.attaching is not None and not self.attaching.done():
            self.attaching.set_exception(
                RpcConnectionClosed("the subscription let go of its consumers")
            )


def flat_ranges(offsets: list[int]) -> list[int]:
    """Ascending, merged ranges of the offsets: first, last + 1, first, last + 1, ..."""
    if offsets and offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        return [offsets[0], offsets[-1] + 1]
    flat: list[int] = []
    for offset in sorted(offsets):
        if flat and flat[-1] >= offset:
            flat[-1] = max(flat[-1], offset + 1)
        else:
            flat += (offset, offset + 1)
    return flat


def answer_ack(
    consumer: ChannelConsumer, request_id: int, code: pb.ServerError, error: str | None
) -> None:
    """Answer an acknowledgement that asked for a receipt; ``error`` None: it is durable."""
    answer = pb.CommandAckResponse(consumer_id=consumer.consumer_id, request_id=request_id)
    if error is not None:
        answer.error = code
        answer.message = error
    consumer.connection.send(answer)


def _overlaps(grant: Grant, gone: Sequence[int]) -> bool:
    end = grant.first + grant.count
    return any(
        first < end and grant.first < stop
        for first, stop in zip(gone[::2], gone[1::2], strict=True)
    )


class SubscriptionChannel:
    """One subscription's consumers on this partition."""

    compacted = False

    @property
    def horizon(self) -> int | None:
        """Where the compacted view ends, for consumers that read it."""
        return None

    def __init__(
        self,
        name: str,
        log: PartitionLog,
        on_closed: Callable[[SubscriptionChannel, list[ChannelConsumer]], None],
        *,
        durable: bool,
    ) -> None:
        self.name = name
        self.durable = durable
        self.port: DispatcherPort | None = None
        self.consumers: dict[int, ChannelConsumer] = {}
        self.resetting = False
        self.quiet = False  # consumers get nothing more for now
        self.closed = False
        self.clock_ms = log.clock_ms
        self.traffic = Flow(log.clock_ms())
        self.activity = Activity()
        self._log = log
        self._on_closed = on_closed
        self._fed = 0
        self._wanted = 0
        self._hashing = False  # the brain needs the hashes of entries' keys
        self._hidden_passed = 0  # the brain has all hidden entries below this offset
        # Of which clusters something may wait at the brain; None: that isn't known yet.
        self._may_wait: set[str] | None = None if durable else set()
        self._settled = 0  # nothing waits of what is before this offset
        self._begun = 0  # how often the brain began to be fed
        self._feeding: asyncio.Task[None] | None = None
        self._receipts: dict[tuple[int, int], ChannelConsumer] = {}
        self._leased: LeasedDelivery | None = None
        self._served: ChannelConsumer | None = None  # by the standing grant
        self._lease_ends = 0  # how many notices were sent that end a standing grant
        self._numbers = itertools.count(1)
        self._held: deque[tuple[int, Message]] = deque()  # offset to be synced first, notice
        self._holding_all = False  # not acknowledgements alone
        self._reporting: asyncio.TimerHandle | None = None
        self.mover: DeadLetterMover | None = None  # of a durable subscription
        #: Called when the subscription has something new to tell other clusters.
        self.on_progress: Callable[[], None] | None = None
        #: Entries whose reads failed. Delivery stops there.
        self.unreadable = Unreadable(self._read_again)
        self._passing: list[asyncio.Future[None]] = []  # who waits for what is held to be sent

    # -- the way to the brain ------------------------------------------------------

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after a report of what was delivered under the lease."""
        self._report()
        had_lease = self._served is not None
        if type(notice) in ENDS_LEASE:
            self._lease_ends += 1
            self._release_lease()
        if self._held and (self._holding_all or type(notice) not in _OVERTAKES):
            if not self._holding_all:
                self._holding_all = True
                self._log.ask_for_sync()
            self._held.append((0, notice))
        elif self.port is not None:
            self.port.tell(notice)
        if had_lease and self._served is None:
            self.feed()  # of what came meanwhile, and waits for permits, the brain knows nothing

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher, after a report of what was delivered under the lease.

        Raises `RpcConnectionClosed`, `TimeoutError` and `RemoteError` as links do.
        """
        if self._held:
            await self._passed()
        self._report()
        if self.port is None:
            raise RpcConnectionClosed("the subscription is restarting")
        return await self.port.ask(request)

    # -- consumers -----------------------------------------------------------------

    def next_number(self) -> int:
        """A number for a consumer that was not used on this channel before."""
        return next(self._numbers)

    def add(
        self, session: ConsumerSession, consumer_id: int, name: str, kind: int
    ) -> ChannelConsumer:
        """A consumer that is about to attach; its number names it to the brain."""
        consumer = ChannelConsumer(self, session, consumer_id, name, kind)
        self.consumers[consumer.number] = consumer
        return consumer

    async def attach(self, consumer: ChannelConsumer, priority: int, keys: KeySharedPolicy) -> None:
        """Ask the brain to take the consumer; ``keys`` matters for Key_Shared.

        A notice, not a request: notices keep their order, so that a consumer that goes away
        meanwhile is detached after it was attached. Raises `RemoteError` if the brain
        refuses, `RpcConnectionClosed` if the channel closes, `TimeoutError`.
        """
        if self.closed or self.port is None:
            raise RpcConnectionClosed("the subscription is restarting")
        consumer.attaching = asyncio.get_running_loop().create_future()
        policy = (int(keys.mode), keys.ranges, keys.out_of_order)
        peer = consumer.connection.peer
        kind = consumer.type
        self.tell(Attach(consumer.number, consumer.name, kind, priority, policy, peer))
        async with asyncio.timeout(ATTACH_TIMEOUT_S):
            await consumer.attaching

    def remove(self, consumer: ChannelConsumer, lost: bool = False) -> None:
        """The consumer left: the brain gives what it had not acknowledged to others.

        ``lost``: without saying so, which counts as a delivery in vain of all that it held.
        """
        consumer.close()
        if self.consumers.pop(consumer.number, None) is not None:
            self.tell(Detach(consumer.number, lost))

    async def reset(
        self, next_offset: int, reason: str, gone: Sequence[int], *, shared: bool = False
    ) -> None:
        """Move the cursor, durably, and let go of every consumer, as Pulsar does.

        Consumers subscribe again and go on at ``next_offset``, but not with entries that are
        ``gone``. Acknowledgements that come while the cursor moves are of what was delivered
        before: they are void. ``shared``: see `velaray.actors.subscription.machine.Reset`.
        """
        await self._moved(ResetCursor(next_offset, reason, gone, shared))

    async def undo(
        self, point_in_time: Sequence[int | None], gone: Sequence[int], *, shared: bool
    ) -> dict[str, Any]:
        """Move the cursor back to what it was; to consumers it is a `reset`."""
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

    # -- feeding the brain ---------------------------------------------------------

    def feed_from(self, offset: int, wanted: int, hashing: bool) -> None:
        """Start to tell entry sizes at ``offset``, and hashes of keys if ``hashing``."""
        self._fed = offset
        self._wanted = wanted
        self._hashing = hashing
        self._hidden_passed = 0
        self._begun += 1
        self.feed()

    def feed(self) -> None:
        """There may be new entries: deliver them, if the brain lets this end do it; else tell
        it the sizes of those that it wants and doesn't know yet.
        """
        if self._served is not None:
            self.deliver(self._served)
            return
        if self._feeding is not None or self.port is None:
            return
        limit = min(self._wanted, self._log.readable_end)
        while self._fed < limit:
            end = self._log.next_hidden(self._fed, min(limit, self._fed + FEED_ENTRIES))
            if end == self._fed < self._hidden_passed:
                # What is hidden may go on behind what the brain was told of.
                self._fed = min(self._log.hidden_within(end, limit)[0][1], self._hidden_passed)
                continue
            if end == self._fed:
                work = self._pass_hidden(min(limit, end + FEED_ENTRIES))
                self._feeding = asyncio.get_running_loop().create_task(work)
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return
            end = self._unsettled(self._fed, end)
            if end == self._fed:
                self._feeding = asyncio.get_running_loop().create_task(self._settle())
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return
            if not self._feed_cached(end):
                if not self.unreadable.may_try(self._fed):
                    return
                self._feeding = asyncio.get_running_loop().create_task(self._feed_cold())
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return

    def _feed_cached(self, limit: int) -> bool:
        first = self._fed
        sizes: list[int] = []
        chunks: dict[int, str] = {}
        delayed: list[int] = []
        delays = self._log.delayed if len(self._log.delayed) else None
        for offset in range(first, limit):
            entry = self._log.cache.get(offset)
            if entry is None and self._log.kept_from(offset) != offset:
                sizes.append(1)  # trimmed away: the cursor has it
                continue
            later = None if delays is None else delays.get(offset)
            if entry is None and (later is None or not self._is_told(later)):
                break
            if later is not None:
                delayed.append(offset)
            if entry is None:
                assert later is not None
                sizes.append(later.messages)
                continue
            sizes.append(entry.messages)
            if entry.chunk_uuid:
                chunks[offset] = entry.chunk_uuid
        if not sizes:
            return False
        self._fed = first + len(sizes)
        assert self.port is not None
        hashes = self._hashes(first, len(sizes)) if self._hashing else None
        self.port.tell(FeedEntries(first, sizes, chunks, hashes, flat_ranges(delayed)))
        return True

    def _is_told(self, later: DelayedEntry) -> bool:
        """Whether all that the brain must know of the entry is known without reading it."""
        return later.messages > 0 and (later.key_hash > 0 or not self._hashing)

    def _hashes(self, first: int, count: int) -> list[int]:
        cache, delays = self._log.cache, self._log.delayed
        if not delays:
            return cache.hashes(first, count)
        found = []
        for offset in range(first, first + count):
            later = delays.get(offset)
            found.append(later.key_hash if later is not None else 0)
            if not found[-1]:
                found[-1:] = cache.hashes(offset, 1)
        return found

    def due(self, offsets: list[int]) -> None:
        """The delivery time of these has come: what the brain was fed of them, it may give out."""
        fed = [offset for offset in offsets if offset < self._fed]
        if fed:  # also while nobody is attached: it may know of them, for who is about to be
            self.tell(EntriesDue(flat_ranges(fed)))

    async def _pass_hidden(self, end: int) -> None:
        """Have the brain acknowledge what nobody gets, before it hears of what is behind it."""
        hidden, begun = self._log.hidden_within(self._fed, end), self._begun
        flat = [offset for part in hidden for offset in part]
        try:
            await self.ask(PassOver(self._log.end_offset, flat, []))
        except TRANSIENT:
            self.close()  # the consumers come again
            return
        if begun == self._begun:
            self._hidden_passed = end

    # -- what is acknowledged elsewhere ----------------------------------------------

    @property
    def waits(self) -> Collection[str] | None:
        """Of which clusters something may wait at the brain; None: that isn't known yet."""
        return self._may_wait

    def may_wait(self, origins: Iterable[str]) -> None:
        """The brain is about to be told what is acknowledged of these clusters' entries: what comes
        of them from now on isn't to be delivered before it is settled."""
        if self._may_wait is not None:
            self._may_wait.update(origins)

    def waits_for(self, origins: Iterable[str]) -> None:
        """At the brain something waits of these clusters alone."""
        self._may_wait = set(origins)

    def settled(self, origins: Iterable[str], before: int) -> None:
        """As `waits_for`, and of what is before this offset nothing does."""
        self.waits_for(origins)
        self._settled = max(self._settled, before)

    def _unsettled(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that must be settled before it is delivered."""
        if self._may_wait is not None and not self._may_wait:
            return end
        return self._log.next_remote(self._may_wait, max(first, self._settled), end)

    async def _settle(self) -> None:
        try:
            await self._log.settle(self)
        except TRANSIENT:
            self.close()  # the consumers come again

    async def _feed_cold(self) -> None:
        await self._log.cache.load(self._fed)

    def _fed_cold(self, offset: int, task: asyncio.Task[None]) -> None:
        self._feeding = None
        if task.cancelled() or self.closed:
            return
        error = task.exception()
        if isinstance(error, NoSuchEntryError):
            return  # it was trimmed away meanwhile; `trimmed` goes on
        if isinstance(error, Exception):
            self._reading_failed(offset, error)
        else:
            self.unreadable.read(offset)
            self.feed()

    # -- what can't be read --------------------------------------------------------

    def _reading_failed(self, offset: int, error: Exception) -> None:
        """Delivery stops at an entry: tell the clients why, and try again later."""
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
        self.feed()
        for consumer in list(self.consumers.values()):
            self.deliver(consumer)

    # -- acknowledgements ----------------------------------------------------------

    async def entry(self, offset: int) -> CachedEntry:
        """What consumers got at this offset, from memory or disk."""
        while (found := self._log.cache.get(offset)) is None:
            await self._log.cache.load(offset)
        return found

    def expect_receipt(self, consumer: ChannelConsumer, request_id: int) -> None:
        """The client wants to hear when this acknowledgement is durable."""
        self._receipts[consumer.number, request_id] = consumer

    def acknowledge(self, notice: AckEntries | AckEntriesBefore, end: int) -> None:
        """Tell the brain of an acknowledgement of offsets below ``end``, once they are synced.

        Who waits for a receipt has the log synced for it; others wait for the next time.
        """
        if not self.durable or (not self._held and end <= self._log.synced_offset):
            self.tell(notice)
            return
        self._report()
        self._held.append((end, notice))
        if notice.request_id or len(self._held) >= HELD_NOTICES:
            self._log.ask_for_sync()

    def log_synced(self) -> None:
        """Tell the brain what may be told by now, in order."""
        held, synced = self._held, self._log.synced_offset
        while held and held[0][0] <= synced:
            _, notice = held.popleft()
            if self.port is not None:
                self.port.tell(notice)
        if held:
            if self._holding_all or self._passing:
                self._log.ask_for_sync()
            return
        self._holding_all = False
        passing, self._passing = self._passing, []
        for future in passing:
            if not future.done():
                future.set_result(None)

    async def _passed(self) -> None:
        """Return when nothing is held. Raises `RpcConnectionClosed` if the channel closes
        meanwhile."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passing.append(future)
        self._log.ask_for_sync()
        await future

    # -- what the brain says -------------------------------------------------------

    def on_notice(self, notice: Message) -> None:
        """Handle a notice of the dispatcher."""
        match notice:
            case m.Deliver(grants):
                for each in grants:
                    grant = Grant(each.first, each.count, each.redelivery_count, each.words)
                    self._grant(each.number, grant)
            case m.GrantLease(number, first, debited, room, lease_ends):
                self._on_lease(number, first, debited, room, lease_ends)
            case m.RevokeLease():
                if self._leased is not None:
                    self.tell(ReleaseLease())
            case m.WantEntries(wanted):
                self._wanted = wanted
                self.feed()
            case m.FeedFrom(offset, wanted, hashing):
                self.feed_from(offset, wanted, hashing)
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
        """What is granted from now on is what the consumer's request number ``epoch`` brings."""
        consumer = self.consumers.get(number)
        if consumer is not None:
            consumer.epoch = max(epoch, consumer.epoch or 0)

    def _on_end(self, number: int) -> None:
        consumer = self.consumers.get(number)
        if consumer is not None and consumer.session.knows_end_of_topic:
            consumer.connection.send(pb.CommandReachedEndOfTopic(consumer_id=consumer.consumer_id))

    def _grant(self, number: int, grant: Grant) -> None:
        consumer = self.consumers.get(number)
        if consumer is not None:
            grant.epoch = consumer.epoch
            consumer.grants.append(grant)
            if consumer.loading is None and len(consumer.grants) == 1:
                self.deliver(consumer)

    # -- delivering without asking -------------------------------------------------

    def _on_lease(self, number: int, first: int, debited: int, room: int, lease_ends: int) -> None:
        consumer = self.consumers.get(number)
        if consumer is None or lease_ends != self._lease_ends:
            return  # it crossed what ends it
        if self.resetting:
            self.tell(ReleaseLease())  # the consumers are about to be let go of
            return
        self._leased = LeasedDelivery(first, consumer.flowed - debited, room)
        self._served = consumer
        self.deliver(consumer)

    def more_permits(self, consumer: ChannelConsumer, permits: int) -> None:
        """The client of a consumer can take that many more messages."""
        if self._leased is not None and consumer is self._served:
            self._leased.permits += permits
            # Not at once: if the client asks for redelivery behind this, that comes first.
            asyncio.get_running_loop().call_soon(self.deliver, consumer)

    def acknowledging(self, end: int) -> None:
        """To be called before offsets up to ``end`` - 1 are acknowledged.

        What is acknowledged before it was delivered is for the brain to pass over.
        """
        if self._leased is not None and end > self._leased.next_offset:
            self.tell(ReleaseLease())

    def _report(self) -> None:
        report = None if self._leased is None else self._leased.report()
        if report is not None and self.port is not None:
            self.port.tell(LeaseReport(*report))

    def _report_late(self) -> None:
        self._reporting = None
        if not self.closed:
            self._report()

    def _release_lease(self) -> None:
        if self._leased is not None:
            self._fed = max(self._fed, self._leased.next_offset)
            self._leased = self._served = None

    def _deliver_leased(self, leased: LeasedDelivery, consumer: ChannelConsumer) -> None:
        log = self._log
        readable = log.readable_end
        end = log.next_hidden(leased.next_offset, readable)
        end = self._unsettled(leased.next_offset, end)
        if log.delayed and consumer.type not in IN_ORDER:
            end = log.delayed.first_within(leased.next_offset, end)
        while (
            (allowance := leased.allowance) > 0
            and leased.next_offset < end
            and consumer.connection.writable
        ):
            first = leased.next_offset
            run = self._run(first, min(end, first + allowance))
            if not run:
                self._load(consumer, first)
                break
            sizes = [entry.messages for entry in run]
            if sum(sizes) > allowance:
                used = [0, *accumulate(sizes)]
                del sizes[bisect_left(used, allowance) :]
            written = self._write(consumer, first, run[: len(sizes)], consumer.epoch)
            if not written:
                break  # trimmed away: see `trimmed`
            keys = {
                offset: entry.chunk_uuid
                for offset, entry in enumerate(run[:written], first)
                if entry.chunk_uuid
            }
            hashes = log.cache.hashes(first, written) if self._hashing else ()
            leased.delivered(sizes[:written], keys, hashes)
        if leased.next_offset == end < readable:
            # That one must wait; what is behind it mustn't. The brain is to know of it at once.
            self._wanted = max(self._wanted, end + RUN_ENTRIES)
            self.tell(ReleaseLease())
        elif leased.room <= 0:
            self.tell(ReleaseLease())  # the consumer holds so much that the brain must decide
        elif leased.report_due or log.terminated_at is not None:
            self._report()  # of a terminated topic the brain tells consumers the end
        elif self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report_late)

    # -- delivering ----------------------------------------------------------------

    def deliver(self, consumer: ChannelConsumer) -> None:
        """Write granted entries while the socket takes them, then new ones if that is granted."""
        if consumer.loading is not None or consumer.closed or self.quiet:
            return
        while consumer.grants and consumer.connection.writable:
            grant = consumer.grants[0]
            run = self._run(grant.first, grant.first + grant.count)
            if not run:
                self._load(consumer, grant.first)
                return
            written = self._write(
                consumer, grant.first, run, grant.epoch, grant.redelivery_count, grant.ack_set
            )
            if not written:
                return  # trimmed away: see `trimmed`
            grant.first += written
            grant.count -= written
            if not grant.count:
                consumer.grants.popleft()
        if self._leased is not None and consumer is self._served and not consumer.grants:
            self._deliver_leased(self._leased, consumer)

    def _run(self, first: int, end: int) -> Sequence[CachedEntry]:
        """Entries from ``first`` on that are in memory, some at a time."""
        return self._log.cache.run(first, min(end - first, RUN_ENTRIES))

    def _write(
        self,
        consumer: ChannelConsumer,
        first: int,
        run: Sequence[CachedEntry],
        epoch: int | None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> int:
        """Write entries while the socket takes them, of one ledger; returns how many.

        0 if the first one is trimmed away.
        """
        try:
            span = self._log.span_of(first)
        except NoSuchEntryError:
            return 0
        header = MessageHeaders(
            consumer.consumer_id,
            span.ledger_id,
            self._log.partition_index,
            redelivery_count,
            ack_set,
            epoch,
        ).header
        connection = consumer.connection
        write = connection.write_two
        before = connection.bytes_written
        entry_id = start = first - span.first
        for entry in run[: span.end - first]:
            if not connection.writable:
                break
            write(header(entry_id, len(entry.data)), entry.data)
            entry_id += 1
        written = entry_id - start
        size = connection.bytes_written - before
        if written:
            now_ms, done = self.clock_ms(), run if written == len(run) else run[:written]
            for traffic in (self.traffic, consumer.traffic):
                traffic.sent(done, size, redelivery_count > 0, now_ms)
            consumer.activity.consumed_ms = self.activity.consumed_ms = now_ms
        return written

    def _load(self, consumer: ChannelConsumer, offset: int) -> None:
        if not self.unreadable.may_try(offset):
            return
        consumer.loading = asyncio.get_running_loop().create_task(self._log.cache.load(offset))
        consumer.loading.add_done_callback(lambda task: self._loaded(consumer, offset, task))

    def _loaded(self, consumer: ChannelConsumer, offset: int, task: asyncio.Task[None]) -> None:
        consumer.loading = None
        if task.cancelled() or consumer.closed:
            self.unreadable.gave_up(offset)
            return
        error = task.exception()
        if isinstance(error, NoSuchEntryError):
            return  # it was trimmed away meanwhile; `trimmed` goes on
        if isinstance(error, Exception):
            self._reading_failed(offset, error)
        else:
            self.unreadable.read(offset)
            self.deliver(consumer)

    # -- trimming ------------------------------------------------------------------

    def trimmed(self, gone: Sequence[int]) -> None:
        """The log lacks these offsets (first, last + 1, first, ...) from now on, or still does.

        A durable subscription has them acknowledged. A reader goes on at what is kept. Who was
        granted some of them, and couldn't take them so far, subscribes again.
        """
        if self.closed:
            return
        for consumer in list(self.consumers.values()):
            if any(_overlaps(grant, gone) for grant in consumer.grants):
                self.remove(consumer)
                consumer.session.consumer_closed(consumer)
        if not self.durable:
            self.tell(EntriesTrimmed(self._log.end_offset, gone))
        self.feed()
        for consumer in list(self.consumers.values()):
            self.deliver(consumer)

    # -- the end -------------------------------------------------------------------

    def retire(self) -> None:
        """Let go of the brain and of every consumer, in order: it's nobody's fault."""
        for consumer in self.consumers.values():
            self.tell(Detach(consumer.number, False))
        self.close()

    def close(self) -> None:
        """Let go of the brain and of every consumer."""
        if self.closed:
            return
        self.closed = True
        self.unreadable.close()
        if self.mover is not None:
            self.mover.close()
        if self._feeding is not None:
            self._feeding.cancel()
        for (_, request_id), consumer in self._receipts.items():
            restarting = "the subscription is restarting; acknowledge again"
            answer_ack(consumer, request_id, pb.ServiceNotReady, restarting)
        self._receipts.clear()
        self._held.clear()
        for future in self._passing:
            if not future.done():
                future.set_exception(RpcConnectionClosed("the subscription is restarting"))
        consumers = list(self.consumers.values())
        self._leased = self._served = None
        for consumer in consumers:
            consumer.close()
        self.consumers.clear()
        if self.port is not None:
            self.port.close()
        self._on_closed(self, consumers)

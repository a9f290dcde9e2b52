"""The partition's side of one subscription.

A channel connects the consumers of one subscription, whose sockets this partition serves, to the
subscription dispatcher. It reports the number of messages of each new entry to the dispatcher,
passes permits and acknowledgements on, and writes the entries that the dispatcher grants to the
consumers' sockets. It makes no decisions of its own, except under a dispatch lease
(`velaray.actors.dispatch.lease`): then it delivers new entries to the only consumer at once, and
reports the deliveries.

Granted entries wait here as offsets. Their bytes are read only when the socket takes them, so a
slow consumer holds at most its socket's write buffer plus one entry.

Acknowledgements of entries that a loss of power could remove (`velaray.journal.journal`, relaxed)
wait here until the log is synced: a cursor must never be ahead of the durable log.

The dispatcher is reached by a `RpcConnection` to a subscription actor, or by a `LocalPort` to a
dispatcher in this process (for subscriptions that are not durable).
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
"""The number of waiting notices at which the channel requests a sync of the log."""
RUN_ENTRIES = 256
"""Entries that are taken from the cache together."""
ATTACH_TIMEOUT_S = 30.0
LISTENS_AFTER_S = 1.0
"""The time after which a subscribed client is assumed to listen, if it requests nothing before."""
REPORT_S = 0.1
"""The longest delay of a report of deliveries under a lease."""

_OVERTAKES = frozenset((AddPermits, LeaseReport))
"""Notices that may be sent while acknowledgements are held back."""


@dataclass(slots=True)
class Grant:
    """Consecutive entries that the dispatcher granted to a consumer and that aren't written yet."""

    first: int
    count: int
    redelivery_count: int
    ack_set: Sequence[int]
    epoch: int | None = None


class DispatcherPort(Protocol):
    """The protocol of a channel's connection to its dispatcher."""

    closed: bool

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher."""
        ...

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher; returns its answer."""
        ...

    def close(self) -> None:
        """Close the connection: the channel doesn't need the dispatcher any more."""
        ...


class VisibleEntries(Protocol):
    """Which entries of a log its consumers get."""

    @property
    def readable_end(self) -> int:
        """Consumers get nothing at or beyond this offset: no open transaction has entries below
        it."""
        ...

    def next_hidden(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that belongs to an aborted transaction and is never
        delivered; ``end`` if there is none before it."""
        ...

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """All such offsets of the range, as ascending (first, last + 1)."""
        ...

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """The first offset from ``first`` on that came from one of these clusters (None: from any);
        ``end`` if there is none before it."""
        ...


class PartitionLog(Protocol):
    """The protocol of a channel's partition."""

    cache: EntryCache
    partition_index: int
    delayed: DelayedDeliveryTracker

    @property
    def visibility(self) -> VisibleEntries:
        """Which entries consumers get."""
        ...

    @property
    def terminated_at(self) -> int | None:
        """The offset at which the topic ended; None while it is open."""
        ...

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    async def settle(self, channel: SubscriptionChannel) -> None:
        """Make the subscription take in the waiting progress of all entries that have arrived, and
        call `SubscriptionChannel.settled`. Raises as `SubscriptionChannel.ask` does."""
        ...

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that a loss of power can't remove."""
        ...

    def ask_for_sync(self) -> None:
        """Sync the log up to its end soon, then call `SubscriptionChannel.log_synced`."""
        ...

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds the entry, which determines the positions that clients see.

        Raises `NoSuchEntryError` for a trimmed entry.
        """
        ...

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed."""
        ...

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        ...

    def reading_failed(self, offset: int, error: Exception) -> str:
        """Report that an entry could not be read; returns the reason, for clients. An error that
        isn't the journal's ends the partition."""
        ...


class ConsumerSession(Protocol):
    """The protocol of a client's connection."""

    connection: WireConnection

    @property
    def client_version(self) -> str:
        """The name and version of the client's program."""
        ...

    @property
    def knows_end_of_topic(self) -> bool:
        """Whether the client understands REACHED_END_OF_TOPIC."""
        ...

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """Note that the channel has removed the consumer."""
        ...


class ChannelConsumer:
    """A consumer on this partition's socket, and the entries granted to it."""

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
        # The newest redelivery request that the dispatcher has; None if the client doesn't number
        # them.
        self.epoch: int | None = None
        self.grants: deque[Grant] = deque()
        #: The place before which it has acknowledged the entries of an origin, by the origin's
        #: number.
        self.acked_up_to: dict[int, int] = {}
        self.flowed = 0  # messages that the client ever requested
        self.connected_ms = channel.clock_ms()
        self.traffic = Flow(self.connected_ms)
        self.activity = Activity()
        self.metadata: dict[str, str] = {}
        self.loading: asyncio.Task[None] | None = None
        self.attaching: asyncio.Future[None] | None = None
        self.subscribed = False  # the client has the answer
        self.request_id = 0  # the command that subscribed it
        self.auto_consume = False  # it takes messages of any schema
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
        """Note that the client has the answer to SUBSCRIBE."""
        self.subscribed = True
        loop = asyncio.get_running_loop()
        self._listens_later = loop.call_later(LISTENS_AFTER_S, self._listen)

    def set_active(self, active: bool) -> None:
        """Set whether the consumer is the active one; the client is notified once it listens."""
        self._active = active
        if self._listening:
            self._tell_active(active)

    def _listen(self) -> None:
        """The Go client ignores ACTIVE_CONSUMER_CHANGE until it has handled the answer to
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
        """Drop granted entries that aren't written yet."""
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
    """The consumers of one subscription on this partition."""

    compacted = False

    @property
    def horizon(self) -> int | None:
        """The end of the compacted view, for consumers that read it."""
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
        self.quiet = False  # consumers get nothing for now
        self.closed = False
        self.clock_ms = log.clock_ms
        self.traffic = Flow(log.clock_ms())
        self.activity = Activity()
        self._log = log
        self._on_closed = on_closed
        self._fed = 0
        self._wanted = 0
        self._hashing = False  # the dispatcher needs the hashes of keys
        self._hidden_passed = 0  # the dispatcher has all hidden entries below this
        # The clusters whose progress may wait at the subscription; None: not known yet.
        self._may_wait: set[str] | None = None if durable else set()
        self._settled = 0  # no progress waits for entries before this offset
        self._begun = 0  # how often feeding began
        self._feeding: asyncio.Task[None] | None = None
        self._receipts: dict[tuple[int, int], ChannelConsumer] = {}
        self._leased: LeasedDelivery | None = None
        self._served: ChannelConsumer | None = None  # holder of the lease
        self._lease_ends = 0  # the number of sent notices that end a lease
        self._numbers = itertools.count(1)
        self._held: deque[tuple[int, Message]] = deque()  # (offset to be synced first, notice)
        self._holding_all = False  # hold everything, not only acknowledgements
        self._reporting: asyncio.TimerHandle | None = None
        self.mover: DeadLetterMover | None = None  # None unless the subscription is durable
        #: Called when the subscription has new progress to export to other clusters.
        self.on_progress: Callable[[], None] | None = None
        #: Entries whose reads failed. Delivery stops there.
        self.unreadable = Unreadable(self._read_again)
        self._passing: list[asyncio.Future[None]] = []  # wait until held notices are sent

    # -- the connection to the dispatcher --------------------------------------------

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
            self.feed()  # the dispatcher lacks entries that wait for permits

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher, after a report of what was delivered under the lease.

        Raises `RpcConnectionClosed`, `TimeoutError` and `RemoteError` as RPC connections do.
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

    # -- feeding the dispatcher -----------------------------------------------------

    def feed_from(self, offset: int, wanted: int, hashing: bool) -> None:
        """Report the sizes of entries from ``offset`` on, and the hashes of their keys if
        ``hashing``."""
        self._fed = offset
        self._wanted = wanted
        self._hashing = hashing
        self._hidden_passed = 0
        self._begun += 1
        self.feed()

    def feed(self) -> None:
        """Handle new entries: deliver them under a lease; otherwise report the sizes of those that
        the dispatcher wants and lacks."""
        if self._served is not None:
            self.deliver(self._served)
            return
        if self._feeding is not None or self.port is None:
            return
        limit = min(self._wanted, self._log.visibility.readable_end)
        while self._fed < limit:
            end = self._log.visibility.next_hidden(self._fed, min(limit, self._fed + FEED_ENTRIES))
            if end == self._fed < self._hidden_passed:
                # Hidden entries may continue beyond those that were reported.
                self._fed = min(
                    self._log.visibility.hidden_within(end, limit)[0][1], self._hidden_passed
                )
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
                sizes.append(1)  # trimmed: the cursor has it
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
        """Whether everything that the dispatcher needs of the entry is known without reading it."""
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
        """End the delay of these entries: the dispatcher may deliver those that it was fed."""
        fed = [offset for offset in offsets if offset < self._fed]
        if fed:  # also without consumers: the next one may need them
            self.tell(EntriesDue(flat_ranges(fed)))

    async def _pass_hidden(self, end: int) -> None:
        """Acknowledge hidden entries at the dispatcher before later entries are reported to it."""
        hidden, begun = self._log.visibility.hidden_within(self._fed, end), self._begun
        flat = [offset for part in hidden for offset in part]
        try:
            await self.ask(PassOver(self._log.end_offset, flat, []))
        except TRANSIENT:
            self.close()  # the consumers subscribe again
            return
        if begun == self._begun:
            self._hidden_passed = end

    # -- progress of other clusters --------------------------------------------------

    @property
    def waits(self) -> Collection[str] | None:
        """The clusters whose progress may wait at the subscription; None: not known yet."""
        return self._may_wait

    def may_wait(self, origins: Iterable[str]) -> None:
        """Note that progress of these clusters' entries is about to be sent to the subscription.
        Their later entries aren't delivered before they are settled."""
        if self._may_wait is not None:
            self._may_wait.update(origins)

    def waits_for(self, origins: Iterable[str]) -> None:
        """Note that progress of these clusters alone waits at the subscription."""
        self._may_wait = set(origins)

    def settled(self, origins: Iterable[str], before: int) -> None:
        """As `waits_for`; and no progress waits for entries before this offset."""
        self.waits_for(origins)
        self._settled = max(self._settled, before)

    def _unsettled(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that must be settled before it is delivered."""
        if self._may_wait is not None and not self._may_wait:
            return end
        return self._log.visibility.next_remote(self._may_wait, max(first, self._settled), end)

    async def _settle(self) -> None:
        try:
            await self._log.settle(self)
        except TRANSIENT:
            self.close()  # the consumers subscribe again

    async def _feed_cold(self) -> None:
        await self._log.cache.load(self._fed)

    def _fed_cold(self, offset: int, task: asyncio.Task[None]) -> None:
        self._feeding = None
        if task.cancelled() or self.closed:
            return
        error = task.exception()
        if isinstance(error, NoSuchEntryError):
            return  # trimmed meanwhile; `trimmed` continues
        if isinstance(error, Exception):
            self._reading_failed(offset, error)
        else:
            self.unreadable.read(offset)
            self.feed()

    # -- unreadable entries ----------------------------------------------------------

    def _reading_failed(self, offset: int, error: Exception) -> None:
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
        self.feed()
        for consumer in list(self.consumers.values()):
            self.deliver(consumer)

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
        if not self.durable or (not self._held and end <= self._log.synced_offset):
            self.tell(notice)
            return
        self._report()
        self._held.append((end, notice))
        if notice.request_id or len(self._held) >= HELD_NOTICES:
            self._log.ask_for_sync()

    def log_synced(self) -> None:
        """Send the held notices that may be sent by now, in order."""
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
        """Return when no notice is held. Raises `RpcConnectionClosed` if the channel closes
        meanwhile."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passing.append(future)
        self._log.ask_for_sync()
        await future

    # -- notices of the dispatcher ----------------------------------------------------

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
        """Note that later grants answer the consumer's redelivery request number ``epoch``."""
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

    # -- delivery under a lease -------------------------------------------------------

    def _on_lease(self, number: int, first: int, debited: int, room: int, lease_ends: int) -> None:
        consumer = self.consumers.get(number)
        if consumer is None or lease_ends != self._lease_ends:
            return  # it crossed a notice that ends the lease
        if self.resetting:
            self.tell(ReleaseLease())  # the consumers are about to be closed
            return
        self._leased = LeasedDelivery(first, consumer.flowed - debited, room)
        self._served = consumer
        self.deliver(consumer)

    def more_permits(self, consumer: ChannelConsumer, permits: int) -> None:
        """The client of a consumer can take that many more messages."""
        if self._leased is not None and consumer is self._served:
            self._leased.permits += permits
            # Not at once: a redelivery request that follows must come first.
            asyncio.get_running_loop().call_soon(self.deliver, consumer)

    def acknowledging(self, end: int) -> None:
        """Call this before offsets up to ``end`` - 1 are acknowledged.

        It ends the lease if some of them aren't delivered yet: the dispatcher must pass over them.
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
        readable = log.visibility.readable_end
        end = log.visibility.next_hidden(leased.next_offset, readable)
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
                break  # trimmed: see `trimmed`
            keys = {
                offset: entry.chunk_uuid
                for offset, entry in enumerate(run[:written], first)
                if entry.chunk_uuid
            }
            hashes = log.cache.hashes(first, written) if self._hashing else ()
            leased.delivered(sizes[:written], keys, hashes)
        if leased.next_offset == end < readable:
            # That entry must wait, and later ones mustn't: the dispatcher must decide at once.
            self._wanted = max(self._wanted, end + RUN_ENTRIES)
            self.tell(ReleaseLease())
        elif leased.room <= 0:
            self.tell(ReleaseLease())  # the consumer is full: the dispatcher must decide
        elif leased.report_due or log.terminated_at is not None:
            self._report()  # at the end of a topic the dispatcher notifies consumers
        elif self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report_late)

    # -- delivery ----------------------------------------------------------------------

    def deliver(self, consumer: ChannelConsumer) -> None:
        """Write granted entries while the socket takes them, then new ones under a lease."""
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
                return  # trimmed: see `trimmed`
            grant.first += written
            grant.count -= written
            if not grant.count:
                consumer.grants.popleft()
        if self._leased is not None and consumer is self._served and not consumer.grants:
            self._deliver_leased(self._leased, consumer)

    def _run(self, first: int, end: int) -> Sequence[CachedEntry]:
        """The entries from ``first`` on that are in memory, up to a number."""
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
        """Write entries of one ledger while the socket takes them; returns their number.

        Returns 0 if the first one is trimmed.
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
            return  # trimmed meanwhile; `trimmed` continues
        if isinstance(error, Exception):
            self._reading_failed(offset, error)
        else:
            self.unreadable.read(offset)
            self.deliver(consumer)

    # -- trimming ------------------------------------------------------------------

    def trimmed(self, gone: Sequence[int]) -> None:
        """Note that these offsets (first, last + 1, first, ...) are trimmed. Calls may be repeated.

        A durable subscription acknowledges them. A reader continues at the next kept entry. A
        consumer with grants of trimmed entries that aren't written yet subscribes again.
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

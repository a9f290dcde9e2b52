"""A topic partition's body: its log, its producers, the channels of its subscriptions.

Clients connect here directly (`velaray.broker.partition.partition_session`). An entry is decided
on, appended and answered without being looked into; it goes to consumers as it came.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.delayed import DelayedEntry, ReleaseDelayed
from velaray.actors.partition.ledger_table import LedgerSpan, LedgerTable, NoSuchEntryError
from velaray.actors.partition.machine import (
    Chunk,
    ConfirmSwept,
    CreateSubscription,
    DeleteSubscription,
    Duplicate,
    ExpireProducers,
    PartitionMachine,
    Publish,
    Published,
    StartAt,
)
from velaray.actors.partition.origins import NOWHERE
from velaray.actors.partition.producers import Accepted, ProducerRegistry, ProducerSpec, Waiting
from velaray.actors.partition.remote_transactions import is_remote
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.partition.subscription_properties import SetProperty
from velaray.actors.partition.transactions import EndTransaction
from velaray.actors.partition.trimming import ForgetTrimmed, NoteActivity
from velaray.actors.rates import PublishRate
from velaray.actors.runtime import Runtime, Stopped
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.garbage_collection.deletion import is_deletion_topic, purge_journal
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.partition import partition_admin
from velaray.broker.partition.compacted_channel import CompactedChannel
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.dead_letters import (
    PRODUCER_PREFIX,
    DeadLetterMover,
    is_for_dead_letters,
)
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker
from velaray.broker.partition.entries import CachedEntry, EntryCache
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.partition_session import PartitionSession
from velaray.broker.partition.read_bounds import span
from velaray.broker.partition.session.client_sessions import ClientSessions
from velaray.broker.partition.session.protocols import HostedPartition, Publisher
from velaray.broker.partition.subscription_channel import ChannelConsumer, SubscriptionChannel
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.policy_watch import Follower
from velaray.broker.subscription.dispatcher import LocalPort, SubscriptionDispatcher
from velaray.broker.subscription.messages import (
    TO_PARTITION,
    EndPendingAcks,
    GetMark,
    OpenDispatcher,
    PlanUndo,
    ResetCursor,
    SetPolicies,
    TopicTerminated,
    UndoMoves,
    call_of,
)
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import ActorKey, Position, TransactionId
from velaray.journal.errors import Fenced, JournalError, NotStored
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.manifest import LedgerInfo
from velaray.topology.actor_system import ActorSystem, Address, Unreachable
from velaray.topology.config import PartitionSync
from velaray.topology.messages import Message, ReplyT, Request, decode_reply
from velaray.topology.metrics import Sample
from velaray.topology.rpc import RemoteError, RpcConnection, RpcConnectionClosed, reason_of
from velaray.topology.transient import NO_ANSWER, TRANSIENT_OR_STORE
from velaray.wire.commands import Send
from velaray.wire.connection import WireConnection
from velaray.wire.messages import delivery_time, key_hash, known_publish_time, read_metadata
from velaray.wire.replication import REPLICATED_SUBSCRIPTION

logger = logging.getLogger(__name__)

PENDING_HIGH = 32 << 20
PENDING_LOW = 8 << 20
PRODUCER_EXPIRY_MS = 6 * 3600 * 1000
_EXPIRY_CHECK_S = 600.0
_BACK = 4096
"""So many offsets are looked at together when the newest entry that isn't hidden is wanted."""


MakeGeoReplication = Callable[["PartitionActor", Callable[[], None]], GeoReplication]
"""Makes it for a partition. The second argument is called when more may be readable."""


def _flat(state: PartitionState) -> list[int]:
    return [at for pair in state.table.gone_ranges() for at in pair]


def _hosted(partition: PartitionActor) -> HostedPartition:
    """Return the partition as sessions see it."""
    return HostedPartition(
        key=partition.key,
        actor_system=partition.actor_system,
        availability=partition,
        log=partition,
        publishing=partition,
        subscriptions=partition,
        compacted=partition.compactor,
        schemas=partition.schemas,
        geo=partition.geo,
        find_span=partial(span, partition),
    )


class _DispatcherConnection:
    """The partition's end of the link to a durable subscription."""

    accepts = TO_PARTITION

    def __init__(self, channel: SubscriptionChannel) -> None:
        self._channel = channel

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "a channel answers no requests")

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "a channel answers no requests")

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        """A subscription sends typed notices only."""

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        self._channel.on_notice(notice)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        self._channel.close()


class _ShortLivedPartition:
    """The partition's end of a link for one request, without consumers."""

    accepts = TO_PARTITION

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "this end of the link answers no requests")

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "this end of the link answers no requests")

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        """There are no consumers to notify."""

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """There are no consumers to notify."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """The request fails."""


class PartitionActor(JournaledActor):
    """Serves producers and consumers of one topic partition."""

    runtime: Runtime[PartitionState]

    def __init__(
        self, key: ActorKey, actor_system: ActorSystem, make_geo_replication: MakeGeoReplication
    ) -> None:
        super().__init__(key, actor_system, PartitionMachine())
        self.topic = str(key.topic_name)
        self._serving = {"topic": self.topic, "incarnation": key.topic_incarnation}
        self.partition_index = key.partition
        self.registry = ProducerRegistry()
        self.channels: dict[str, SubscriptionChannel] = {}
        self.policies = TopicPolicies.of({})
        self.maintenance = Maintenance(self, self)
        self.compactor = Compactor(self, self)
        self.geo = make_geo_replication(self, self._schedule_feed)
        self.replication = self.geo.replication
        self.inbound = self.geo.inbound
        self.progress = self.geo.progress
        self.fence = self.geo.fence
        self.changes = self.geo.changes
        self._pulled_from: dict[str, Any] = {}
        self._replicates_to: dict[str, Any] = {}
        self.home: str | None = None
        """The other cluster where the tenant is at home, and its clients are served."""
        self.admission = TransactionAdmission(key, actor_system, self.spawn)
        self.schemas = TopicSchemas(key, actor_system, lambda: self.policies.raw)
        self.cache: EntryCache
        self.delayed: DelayedDeliveryTracker
        self.terminated_at: int | None = None
        self.pending_bytes = 0
        self.meter = PartitionMetrics(self)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._server: asyncio.Server | None = None
        self._names = itertools.count(1)
        self._feed_scheduled = False
        self._paused: set[WireConnection] = set()
        self._publish_rate: PublishRate | None = None
        self._throttling: asyncio.TimerHandle | None = None
        self.clients = ClientSessions(_hosted(self))
        self.sessions = self.clients.sessions

    # -- life ----------------------------------------------------------------------

    async def start(self) -> Address:
        """Learn the policies, recover, listen.

        Raises `WasDeleted` if the topic was deleted: then nothing is left behind.
        """
        try:
            await self.ask_whether_it_exists()
        except WasDeleted:
            await self.discard_unadmitted()
            raise
        address = await super().start()
        self.runtime.on_synced = self._synced
        state = self.runtime.state
        self.cache = EntryCache(self.read_log, state.end_offset)
        self.delayed = DelayedDeliveryTracker(self.actor_system.clock_ms, self._due, state.delayed)
        self._apply_delays()
        self.terminated_at = state.end_offset if state.terminated else None
        self.fence.up = state.fence.up
        await self.replication.begin(self._replicates_to)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self.config.host, 0)
        self.spawn(self._expire_producers())
        self.spawn(self.maintenance.run())
        self.spawn(self.compactor.watch())
        self.geo.begin()
        self.inbound.apply(self._pulled_from)
        self.spawn(Follower(self.actor_system, self._serving, self._apply).follow())
        for incarnation, name in state.deleted.items():
            self.spawn(self._finish_deletion(name, incarnation))
        own = {each.coordinator for each in state.transactions.ongoing if not is_remote(each)}
        for number in sorted(own):
            self.spawn(self._wake(ActorKey.of_coordinator(number)))
        port = self._server.sockets[0].getsockname()[1]
        return address._replace(service_port=port)

    async def _wake(self, coordinator: ActorKey) -> None:
        """Have the coordinator of what is open here run: it ends it in time."""
        while True:
            with contextlib.suppress(Unreachable, TimeoutError):  # after it was tried for long
                await self.actor_system.ask(coordinator, "describe", {})
                return

    def journal_settings(self) -> JournalSettings:
        """Relaxed, if the cluster is started so; but what is announced there may go at once."""
        settings = self.actor_system.journal_settings
        relaxed = self.config.partition_sync is PartitionSync.INTERVAL
        if relaxed and not is_deletion_topic(self.key.topic_name):
            return replace(settings, sync_interval_ms=self.config.sync_interval_ms)
        return settings

    async def needless_ledgers(self) -> set[int]:
        """Those that were trimmed, as far as that is durable."""
        return await self.runtime.read(lambda state: set(state.trimmed))

    async def ledgers_dropped(self, ledger_ids: Collection[int]) -> None:
        """What was trimmed and isn't listed any more is forgotten."""
        if ledger_ids:
            await self.runtime.ask(ForgetTrimmed(tuple(ledger_ids)))

    async def ask_whether_it_exists(self) -> None:
        """Ask the catalog, which tells the policies as well."""
        try:
            found = await self.actor_system.call(ActorKey.catalog(), "serving", self._serving)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(error.kind, error.message) from error
            raise
        self.policies = TopicPolicies.of(found["policies"])
        self._replicates_to = found.get("replication", {})
        self._pulled_from = found.get("pull", {})
        self.home = found.get("home")
        self._set_publish_rate(self.policies.publish_rate)

    def _apply(self, found: dict[str, Any]) -> None:
        """What the catalog says about this topic now."""
        policies = TopicPolicies.of(found["policies"])
        if policies.raw != self.policies.raw:
            self._apply_policies(policies)
        self.replication.apply(found.get("replication", {}))
        self.inbound.apply(found.get("pull", {}))
        self._apply_home(found.get("home"))

    def _apply_home(self, home: str | None) -> None:
        left, self.home = home not in (None, self.home), home
        if left:
            for session in list(self.sessions):
                session.send_home()

    def _apply_policies(self, policies: TopicPolicies) -> None:
        if policies.publish_rate != self.policies.publish_rate:
            self._set_publish_rate(policies.publish_rate)
        told, self.policies = self.policies.for_dispatchers(), policies
        self._apply_delays()
        if policies.for_dispatchers() != told:
            for channel in list(self.channels.values()):
                channel.tell(SetPolicies(self._for_dispatchers(channel.durable)))

    def _accept(self) -> WireConnection:
        session = PartitionSession(self.clients)
        return WireConnection(session, max_message_size=self.config.max_message_size)

    def idle(self) -> bool:
        """Whether nobody produces or consumes here, no caller is connected, nothing compacts, and
        replicators have nothing to do.

        Clients keep connections that they don't use; those alone keep nothing in memory.
        """
        movers = [channel.mover for channel in self.channels.values()]
        if self.rpc_connections.rpc_connections or self.compactor.running:
            return False
        if any(mover is not None and mover.busy for mover in movers):
            return False
        if self.inbound.active or not self.replication.quiet:
            return False
        return all(session.idle or session.only_replicates for session in self.sessions)

    async def stop(self) -> None:
        """Close every client, then what every body closes."""
        self.replication.rest()
        self.inbound.close()
        self.delayed.close()
        self.schemas.close()
        with contextlib.suppress(Stopped, JournalError):  # what broke it, it has told
            await self.sync()  # so that acknowledgements that wait for it are told
        self._close_clients()
        await super().stop()

    def abort(self) -> None:
        """As a crash would."""
        if hasattr(self, "delayed"):
            self.delayed.close()
        self.schemas.close()
        for session in list(self.sessions):
            session.connection.abort()
        if self._server is not None:
            self._server.close()
        for channel in list(self.channels.values()):
            channel.close()
        super().abort()

    def _close_clients(self) -> None:
        if self._server is not None:
            self._server.close()
        for channel in list(self.channels.values()):
            channel.retire()
        for session in list(self.sessions):
            session.connection.close()

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_CHECK_S)
            before = self.actor_system.clock_ms() - PRODUCER_EXPIRY_MS
            couriers = {
                name for name in self.runtime.state.producers if name.startswith(PRODUCER_PREFIX)
            }
            connected = self.registry.names() | couriers
            await self.runtime.ask(ExpireProducers(before, connected=connected))

    # -- the log -------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        return self.cache.end

    @property
    def readable_end(self) -> int:
        """Consumers get nothing at or beyond this offset: no transaction that has something
        below it is open."""
        return min(self.cache.end, self.runtime.state.max_read_offset)

    @property
    def active_for_schemas(self) -> bool:
        """Whether a consumer's schema may not become the topic's first one: something is stored,
        somebody produces, or a consumer is there that expects something."""
        if self.table().first_offset < self.end_offset or self.registry.names():
            return True
        return any(session.expects_some_schema for session in self.sessions)

    def next_hidden(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that nobody gets, as its transaction was aborted;
        ``end`` if there is none before it."""
        hidden = self.runtime.state.transactions.hidden
        return hidden.next_acked(first, end) if hidden else end

    def hidden_within(self, first: int, end: int) -> list[tuple[int, int]]:
        """All such offsets, as ascending (first, last + 1)."""
        return self.runtime.state.transactions.hidden.within(first, end)

    def next_remote(self, origins: Collection[str] | None, first: int, end: int) -> int:
        """The first offset from ``first`` on that came from one of these clusters (None: from any);
        ``end`` if there is none before it."""
        known = self.runtime.state.origins.by_cluster
        for name in known if origins is None else origins:
            if name in known and first < end:
                end = known[name].next_offset(first, end)
        return end

    async def settle(self, channel: SubscriptionChannel) -> None:
        """Have acknowledged what of all that came waits at a channel's brain."""
        await self.progress.settle_channel(channel)

    def last_readable(self) -> int:
        """The offset of the newest entry that consumers get; -1 if there is none."""
        state, at = self.runtime.state, self.readable_end
        while (at := state.table.kept_before(at)) >= 0 and at in state.transactions.hidden:
            at = self.hidden_within(max(0, at - _BACK), at + 1)[-1][0]
        return at

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that no loss of power takes back."""
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        return journal.synced_offset

    def ask_for_sync(self) -> None:
        """Have `synced_offset` reach the end soon; channels are told."""
        self.runtime.ask_for_sync()

    async def sync(self) -> None:
        """Return when no loss of power takes back any entry that there is now.

        To be awaited before anything that is kept elsewhere is made to depend on an entry.
        """
        await self.runtime.sync()

    def _synced(self) -> None:
        for channel in list(self.channels.values()):
            channel.log_synced()

    @property
    def ledgers(self) -> tuple[LedgerInfo, ...]:
        """Every ledger of the journal, trimmed ones too, oldest first."""
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        return journal.ledgers

    def table(self, compacted: bool = False) -> LedgerTable:
        """Where which entry is; with all that the compacted view has, for who reads that."""
        return self.compactor.table() if compacted else self.runtime.state.table

    def position_of(self, offset: int) -> Position:
        """The position that clients see."""
        return self.runtime.state.table.position_of(offset)

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds an entry."""
        return self.runtime.state.table.span_of(offset)

    async def read_log(
        self, offset: int, max_entries: int, max_bytes: int
    ) -> Sequence[CachedEntry]:
        """Durable entries from ``offset`` on, one at least. Raises what `Journal.read` raises."""
        position = self.runtime.state.table.position_of(offset)
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        found = await journal.read(position, max_entries, max_bytes)
        if not found or found[0].position != position:
            raise NotStored(f"{self.topic}: entry {position}")
        entries = []
        for _, raw, blob in found:
            event = decode(bytes(raw))
            assert isinstance(event, EntryAppended)
            entries.append(CachedEntry(blob, event.messages or 1, event.chunk_uuid))
        return entries

    async def entry(self, offset: int) -> CachedEntry:
        """One entry, from memory or disk."""
        while (found := self.cache.get(offset)) is None:
            await self.cache.load(offset)
        return found

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed away."""
        return self.runtime.state.table.kept_from(offset)

    def flat_gone(self) -> list[int]:
        """The offsets that are trimmed away: first, last + 1, first, ..."""
        return _flat(self.runtime.state)

    async def _durably_gone(self, *, compacted: bool) -> list[int]:
        """What is trimmed away for a subscription. For who reads compacted that is nothing
        once there is a view, since only what the view covers is trimmed then."""
        return await self.runtime.read(
            lambda state: [] if compacted and state.compactions.current else _flat(state)
        )

    async def offset_at_time(self, publish_ms: int) -> int:
        """The first offset whose publish time isn't before ``publish_ms``, by bisection."""
        low, high = self.runtime.state.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            kept = self.kept_from(middle)
            if kept >= high or known_publish_time((await self.entry(kept)).data) >= publish_ms:
                high = middle
            else:
                low = kept + 1
        return self.kept_from(low)

    def reading_failed(self, offset: int, error: Exception) -> str:
        """An entry of the log can't be read; returns why, for clients.

        An error of the journal concerns the entry's readers alone. Any other error ends this
        activation.
        """
        problem = f"entry {self._told_position(offset)} can't be read: {reason_of(error)}"
        if isinstance(error, JournalError):
            self.meter.failed_reads += 1
            logger.error("%s: entry at offset %d can't be read: %s", self.topic, offset, error)
        else:
            self.actor_system.fatal(self.key, error)
        return problem

    def _told_position(self, offset: int) -> str:
        """As clients name an entry, also one that is trimmed away and was compacted."""
        with contextlib.suppress(NoSuchEntryError):
            return str(self.compactor.table().position_of(offset))
        return f"at offset {offset}"

    # -- limits --------------------------------------------------------------------

    def connect_producer(self, spec: ProducerSpec) -> Accepted | Waiting | Refusal:
        """As `ProducerRegistry.connect`; refused BUSY beyond the topic's limit as well."""
        if self.fence.up:
            return Refusal(Reason.UNAVAILABLE, "the topic is moving to another cluster")
        if self.maintenance.held_back is not None:
            return Refusal(self.maintenance.held_back, "the topic's backlog exceeds its quota")
        limit = self.policies.max_producers
        if limit and len(self.registry.names() - {spec.name}) >= limit:
            return Refusal(Reason.BUSY, f"the topic has reached its limit of {limit} producers")
        return self.registry.connect(spec, self.runtime.state.topic_epoch)

    def check_consumers(self, subscription: str) -> None:
        """Raise `RemoteError` (BUSY) if the subscription, or the topic, may have no more."""
        channel = self.channels.get(subscription)
        here = 0 if channel is None else len(channel.consumers)
        everywhere = sum(len(other.consumers) for other in self.channels.values())
        for what, count, limit in (
            ("subscription", here, self.policies.max_consumers_per_subscription),
            ("topic", everywhere, self.policies.max_consumers),
        ):
            if 0 < limit <= count:
                problem = f"the {what} has reached its limit of {limit} consumers"
                raise RemoteError(Reason.BUSY, problem)

    # -- publishing ----------------------------------------------------------------

    def producer_name(self) -> str:
        """A name for a producer that brought none. It is never given again: neither by another
        owner of this journal, nor by another incarnation of the topic, nor from other data."""
        config, epoch = self.config, self.runtime.journal.epoch
        cluster = f"{config.name}-{config.data_id[:8]}" if config.data_id else config.name
        return f"{cluster}-{self.key.topic_incarnation}-{epoch}-{next(self._names)}"

    def publish(self, producer: Publisher, send: Send, entry: bytes) -> None:
        """Append an entry; the receipt goes out when it is durable, in order."""
        chunk = None
        if send.is_chunk:
            metadata = read_metadata(entry)
            chunk = Chunk(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        command = Publish(
            producer.name,
            send.sequence_id,
            send.sequence_id if send.highest_sequence_id is None else send.highest_sequence_id,
            send.num_messages,
            entry,
            self.policies.deduplicate,
            chunk,
            transaction=None if send.txn_id is None else TransactionId(*send.txn_id),
            exact=producer.exact,
        )
        self.submit(producer, send, command, entry, delivery_time(entry))

    def submit(
        self, producer: Publisher, send: Send, command: Publish, entry: bytes, deliver_at: int
    ) -> None:
        """As `publish`, with the command that stores the entry, and when it is to be delivered
        (0: at once)."""
        chunk = command.chunk
        uuid = chunk.uuid if chunk is not None else ""
        release = partial(self._published, producer, send, entry, uuid)
        if deliver_at:
            self._delay(command, deliver_at, entry)
            release = partial(self._published_later, command, release)
        self.runtime.submit(command, release)
        self.pending_bytes += len(entry)
        if self._publish_rate is not None:
            self._throttle(self._publish_rate, producer, command.messages, len(entry))
        if self.pending_bytes > PENDING_HIGH:
            self._pause(producer.connection)

    def _delay(self, command: Publish, deliver_at_ms: int, entry: bytes) -> None:
        command.deliver_at_ms = deliver_at_ms
        command.key_hash = key_hash(entry)
        delays = self.policies.raw["delayedDelivery"]
        if delays["active"]:
            command.max_delay_ms = delays.get("maxDeliveryDelayInMillis", 0)

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        return self.actor_system.clock_ms()

    def _published_later(
        self,
        command: Publish,
        release: Callable[[Any, tuple[Any, ...]], None],
        reply: Any,
        effects: tuple[Any, ...],
    ) -> None:
        if type(reply) is Published:
            messages = reply.messages if command.chunk is None else 0
            later = DelayedEntry(command.deliver_at_ms, reply.offset, messages, command.key_hash)
            self.delayed.add(later)
        release(reply, effects)

    def _due(self, entries: list[DelayedEntry], until_ms: int) -> None:
        offsets = sorted(entry.offset for entry in entries)
        for channel in list(self.channels.values()):
            channel.due(offsets)
        if until_ms:
            with contextlib.suppress(Stopped):  # what it keeps in the index is looked at again
                self.runtime.submit(ReleaseDelayed(until_ms), lambda reply, effects: None)

    def _apply_delays(self) -> None:
        delays = self.policies.raw["delayedDelivery"]
        self.delayed.apply(delays["active"], delays["tickTime"])

    async def append(self, command: Publish) -> Any:
        """Append an entry that no client sent; the reply, durable."""
        appended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def release(reply: Any, effects: Any) -> None:
            if type(reply) is Published:
                uuid = command.chunk.uuid if command.chunk is not None else ""
                self.cache.append(CachedEntry(command.blob, reply.messages, uuid))
                self._schedule_feed()
            if not appended.done():
                appended.set_result(reply)

        self.runtime.submit(command, release)
        return await appended

    async def end_transaction(
        self,
        transaction: TransactionId,
        subscription: str | None,
        *,
        commit: bool,
        alone: bool = False,
    ) -> tuple[str, ...]:
        """Apply a verdict, durably; again, and of one that has nothing here, changes nothing.

        ``alone``: no other partition is a participant. Returns the clusters that it goes to from
        here, which are to know its participants. Raises `RemoteError`: its coordinator tries again.
        """
        await self.admission.end(transaction, subscription)
        if subscription is not None:
            await self._end_acks(transaction, subscription, commit=commit)
            return ()
        reply = await self.runtime.ask(EndTransaction(transaction, commit, alone))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if reply.ranges:
            self.meter.transaction_ended(commit=commit)
        else:
            await self._confirm()
        self._schedule_feed()
        if commit and alone and self.runtime.state.outgoing:
            self.replication.tell_transactions()
        clusters: tuple[str, ...] = reply.clusters
        return clusters

    async def _confirm(self) -> None:
        """Return if this is the partition's newest activation: where nothing is to be written, a
        newer one may have what this one knows nothing of."""
        await self.read_certain(lambda state: None)

    async def _end_acks(
        self, transaction: TransactionId, subscription: str, *, commit: bool
    ) -> None:
        ended = EndPendingAcks(*transaction, commit)
        try:
            async with self._lock(subscription):
                found = self.runtime.state.subscriptions.get(subscription)
                if found is None:
                    await self._confirm()
                    return  # it was deleted: nothing is left that could be acknowledged
                channel = self.channels.get(subscription)
                if channel is None:
                    await self._end_acks_alone(found.ref, ended)
                    return
            # Without the lock: the brain syncs those that come together at once. If the channel
            # goes meanwhile, the coordinator asks again.
            await channel.ask(ended)
        except NO_ANSWER as error:
            problem = f"subscription {subscription!r} can't be had now: {error}"
            raise RemoteError(Reason.UNAVAILABLE, problem) from error

    async def _end_acks_alone(self, ref: SubscriptionRef, ended: EndPendingAcks) -> None:
        """Be the hand of a subscription without consumers for this.

        Not by a call: the link of the last consumers' channel might still bring acknowledgements.
        Of what is trimmed away the brain isn't told: it isn't known who will read it, perhaps
        compacted.
        """
        key = self.key.of_subscription(ref.name, ref.incarnation)
        with self.superseded_if_fenced():
            rpc_connection = await self.actor_system.open_rpc(key, _ShortLivedPartition())
            try:
                epoch, end = self.runtime.journal.epoch, self.end_offset
                log = OpenDispatcher(ref.start_offset, self.terminated_at, end, (), epoch)
                await rpc_connection.ask(log)
                await rpc_connection.ask(ended)
            finally:
                rpc_connection.close()
                self.meter.changed(ref.name)
                self.changes.note(ref.name)

    async def create_subscription_at_start(self, name: str) -> None:
        """Make sure that a durable subscription exists that gets everything."""
        await self.create_subscription(name, StartAt.EARLIEST, {})

    async def resume_dead_letters(self, name: str, incarnation: int) -> None:
        """Connect a subscription whose dead letters were under way before a crash."""
        async with self._lock(name):
            found = self.runtime.state.subscriptions.get(name)
            if found is None or found.ref.incarnation != incarnation:
                raise RemoteError(Reason.NOT_FOUND, f"no subscription {name!r}")
            if name not in self.channels:
                self.drop_if_unused(await self._connect_dispatcher(found.ref, compacted=False))

    def _for_dispatchers(self, durable: bool = True) -> dict[str, Any]:
        told = self.policies.for_dispatchers()
        if not durable or is_for_dead_letters(self.key.topic_name):
            told["deadLetter"] = None
        return told

    def _published(
        self,
        producer: Publisher,
        send: Send,
        entry: bytes,
        chunk_uuid: str,
        reply: Any,
        effects: tuple[Any, ...],
    ) -> None:
        self.pending_bytes -= len(entry)
        if type(reply) is Published:
            cached = tuple.__new__(CachedEntry, (entry, reply.messages, chunk_uuid))
            self.cache.append(cached)
            now_ms = self.actor_system.clock_ms()
            self.meter.published.count(reply.messages, len(entry), now_ms)
            producer.traffic.count(reply.messages, len(entry), now_ms)
            if producer.source is not None:
                self.replication.count_received(producer.source, reply.messages, len(entry))
            self._schedule_feed()
            producer.stored(send, reply.position)
        elif isinstance(reply, Duplicate):
            producer.stored(send, NOWHERE)
        else:
            producer.refuse(send, reply)
        if self._paused and self._throttling is None and self.pending_bytes < PENDING_LOW:
            self._resume()

    def _set_publish_rate(self, rate: tuple[int, int]) -> None:
        self._publish_rate = PublishRate(*rate) if max(rate) > 0 else None

    def _throttle(self, rate: PublishRate, producer: Publisher, messages: int, size: int) -> None:
        """Read nothing more of this client while the topic's publishers are ahead of their rate."""
        loop = asyncio.get_running_loop()
        wait_s = rate.take(messages, size, loop.time())
        if wait_s > 0:
            self._pause(producer.connection)
            if self._throttling is None:
                self._throttling = loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._throttling = None
        if self.pending_bytes < PENDING_LOW:
            self._resume()

    def _pause(self, connection: WireConnection) -> None:
        if connection not in self._paused:
            self._paused.add(connection)
            connection.pause_reading()

    def _resume(self) -> None:
        for connection in self._paused:
            connection.resume_reading()
        self._paused.clear()

    def forget_connection(self, connection: WireConnection) -> None:
        """Note that a connection is closed, so that it isn't paused or resumed any more."""
        self._paused.discard(connection)

    def _schedule_feed(self) -> None:
        if not self._feed_scheduled:
            self._feed_scheduled = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        self._feed_scheduled = False
        for channel in self.channels.values():
            channel.feed()
        self.progress.came()

    def end_topic(self, end_offset: int) -> None:
        """The topic is terminated, durably: tell the subscriptions, close the producers."""
        self.terminated_at = end_offset
        for channel in self.channels.values():
            channel.tell(TopicTerminated(end_offset))
        for session in list(self.sessions):
            session.close_producers()

    # -- subscriptions -------------------------------------------------------------

    def _lock(self, name: str) -> asyncio.Lock:
        """Held by whoever opens, closes, resets or deletes the subscription of this name."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _new_channel(self, name: str, *, durable: bool, compacted: bool) -> SubscriptionChannel:
        if compacted:
            return CompactedChannel(
                name, self, self.compactor, self._channel_closed, durable=durable
            )
        return SubscriptionChannel(name, self, self._channel_closed, durable=durable)

    async def _connected(self, name: str, *, compacted: bool) -> SubscriptionChannel | None:
        """The channel that there is, if it serves such consumers.

        Raises `RemoteError` (NOT_ALLOWED) if there are others of the other kind.
        """
        channel = self.channels.get(name)
        if channel is None or channel.compacted == compacted:
            return channel
        if channel.consumers:
            problem = f"the consumers of {name!r} must all read compacted, or none of them"
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        with contextlib.suppress(RpcConnectionClosed, TimeoutError, RemoteError):  # as in `_retire`
            await channel.ask(GetMark())
        channel.close()
        return None

    async def durable_channel(
        self,
        name: str,
        start: StartAt | int,
        properties: dict[str, str],
        *,
        compacted: bool = False,
    ) -> SubscriptionChannel:
        """The channel of a durable subscription, created and connected if need be.

        Raises `RemoteError` if the subscription may not be, `Unreachable` if its brain
        can't be had.
        """
        async with self._lock(name):
            self.fence.check(name)
            channel = await self._connected(name, compacted=compacted)
            if channel is not None:
                if not channel.durable:
                    raise RemoteError(Reason.BUSY, f"a reader is connected as {name!r}")
                return channel
            if not (self.policies.create_subscriptions or self._has(name)):
                raise RemoteError(Reason.NO_SUBSCRIPTION, f"no subscription {name!r}")
            ref = await self.create_subscription(name, start, properties, compacted=compacted)
            self.maintenance.touched(name)
            await self._note_use(ref)
            return await self._connect_dispatcher(ref, compacted=compacted)

    async def _note_use(self, ref: SubscriptionRef) -> None:
        """A subscription that was counted as unused is in use again."""
        known = self.runtime.state.subscriptions.get(ref.name)
        if known is not None and known.idle_since_ms:
            await self.runtime.ask(NoteActivity(ref.name, ref.incarnation, active=True))

    def _has(self, name: str) -> bool:
        return name in self.runtime.state.subscriptions

    async def create_subscription(
        self,
        name: str,
        start: StartAt | int,
        properties: dict[str, str],
        *,
        compacted: bool = False,
    ) -> SubscriptionRef:
        """Make sure that a durable subscription exists; its actor starts when it's needed."""
        limit = self.policies.max_subscriptions
        create = CreateSubscription(name, start, properties, limit, compacted)
        reply = await self.runtime.ask(create)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        assert isinstance(reply, SubscriptionRef)
        return reply

    async def set_replicated(self, name: str, *, replicated: bool) -> None:
        """Whether a durable subscription's progress is to go to other clusters, durably.

        Raises `RemoteError` (NOT_FOUND) if there is no such subscription.
        """
        value = "true" if replicated else None
        reply = await self.runtime.ask(SetProperty(name, REPLICATED_SUBSCRIPTION, value))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)

    async def _connect_dispatcher(
        self, ref: SubscriptionRef, *, compacted: bool
    ) -> SubscriptionChannel:
        channel = self._new_channel(ref.name, durable=True, compacted=compacted)
        key = self.key.of_subscription(ref.name, ref.incarnation)
        channel.mover = DeadLetterMover(self, channel, key, partial(self.drop_if_unused, channel))
        channel.on_progress = partial(self.changes.note, ref.name)
        with self.superseded_if_fenced():
            channel.port = await self.actor_system.open_rpc(key, _DispatcherConnection(channel))
        terminated_at = self.terminated_at
        epoch = self.runtime.journal.epoch
        try:
            with self.superseded_if_fenced():
                gone = await self._durably_gone(compacted=compacted)
                start, end = ref.start_offset, self.end_offset
                await channel.port.ask(OpenDispatcher(start, terminated_at, end, gone, epoch))
                channel.tell(SetPolicies(self._for_dispatchers()))  # as they are by now
            if channel.closed:
                raise RpcConnectionClosed(f"the link to subscription {ref.name!r} broke")
            self.channels[ref.name] = channel
        finally:
            if self.channels.get(ref.name) is not channel:
                channel.close()
        if self.terminated_at != terminated_at:
            channel.tell(TopicTerminated(self.terminated_at))
        channel.feed()
        return channel

    @contextlib.contextmanager
    def superseded_if_fenced(self) -> Iterator[None]:
        """End this activation if a brain refuses it: there is a newer one of this partition,
        or it was deleted. Raises `Unreachable` then, as that isn't the caller's fault."""
        try:
            yield
        except RemoteError as error:
            if error.kind != Reason.FENCED:
                raise
            self.actor_system.fatal(self.key, Fenced(self.key.text(), self.runtime.journal.epoch))
            raise Unreachable(f"{self.topic} is served elsewhere by now") from error

    async def volatile_channel(
        self, name: str, start: int, *, compacted: bool = False
    ) -> SubscriptionChannel:
        """The channel of a subscription that leaves no trace, for readers.

        Raises `RemoteError` if there is a durable one of this name.
        """
        async with self._lock(name):
            self.fence.check(name)
            if self._has(name):
                raise RemoteError(Reason.NOT_ALLOWED, f"subscription {name!r} is durable")
            channel = await self._connected(name, compacted=compacted)
            return channel or await self._open_volatile(name, start, compacted=compacted)

    async def _open_volatile(
        self, name: str, start: int, *, compacted: bool
    ) -> SubscriptionChannel:
        channel = self._new_channel(name, durable=False, compacted=compacted)
        runtime = await Runtime.volatile(
            SubscriptionMachine(), name, self.actor_system.clock_ms, self._reader_failed
        )
        dispatcher = SubscriptionDispatcher(runtime, self.partition_index, channel.on_notice)
        channel.port = LocalPort(dispatcher, runtime.abort)
        gone = await self._durably_gone(compacted=compacted)
        await channel.port.ask(OpenDispatcher(start, self.terminated_at, self.end_offset, gone))
        channel.tell(SetPolicies(self._for_dispatchers(durable=False)))
        self.channels[name] = channel
        if gone := self.flat_gone():
            channel.trimmed(gone)  # some may have gone meanwhile
        return channel

    def tell_trimmed(self) -> None:
        """Ledgers were let go of: nobody gets anything of them any more."""
        gone = self.flat_gone()
        for channel in list(self.channels.values()):
            consumers = len(channel.consumers)
            channel.trimmed(gone)
            if len(channel.consumers) < consumers:
                self.drop_if_unused(channel)

    def _reader_failed(self, error: BaseException) -> None:
        self.actor_system.fatal(self.key, error)

    def _channel_closed(
        self, channel: SubscriptionChannel, consumers: list[ChannelConsumer]
    ) -> None:
        self.meter.closed(channel)
        self.changes.note(channel.name)
        if self.channels.get(channel.name) is channel:
            del self.channels[channel.name]
            self.progress.unread(channel.name, channel.waits)
        for consumer in consumers:
            consumer.session.consumer_closed(consumer)

    def drop_if_unused(self, channel: SubscriptionChannel) -> None:
        """A subscription without consumers needs no brain connected."""
        moving = channel.mover is not None and channel.mover.busy
        if channel.consumers or channel.closed or moving:
            return
        if channel.durable:
            self.spawn(self._retire(channel))
        else:
            channel.close()

    async def _retire(self, channel: SubscriptionChannel) -> None:
        """Close an unused channel once its brain has handled all that it was told.

        Else the next channel's link could overtake acknowledgements on this one's.
        """
        async with self._lock(channel.name):
            if channel.consumers or channel.closed or channel.port is None:
                return
            with contextlib.suppress(
                RpcConnectionClosed, TimeoutError, RemoteError
            ):  # its disk is full
                await channel.ask(GetMark())
            if not channel.consumers and not (channel.mover and channel.mover.busy):
                channel.close()

    async def empty_channel(self, name: str) -> None:
        """Close a channel whatever consumers it has, once its brain has handled all that it was
        told; they are told to come again."""
        async with self._lock(name):
            channel = self.channels.get(name)
            if channel is None:
                return
            with contextlib.suppress(
                RpcConnectionClosed, TimeoutError, RemoteError
            ):  # as in `_retire`
                await channel.ask(GetMark())
            channel.retire()

    async def reset_subscription(self, name: str, offset: int, reason: str) -> None:
        """Move a subscription's cursor, durably; its consumers are closed and come again.

        Done again if its brain restarts meanwhile. Raises `RemoteError` if there is none,
        `Unreachable` if its brain can't be had.
        """
        async with self._lock(name), self.maintenance.moving(name):
            self.fence.check()
            await self.sync()
            # Durable: what is trimmed only in words must come again.
            channel = self.channels.get(name)
            # Without a channel it isn't known who will read it: opening one tells the rest.
            gone = await self._durably_gone(compacted=channel is None or channel.compacted)
            if channel is not None:
                with contextlib.suppress(RpcConnectionClosed):
                    await channel.reset(offset, reason, gone, shared=self.shares_progress)
                    return
            await self._call_dispatcher(
                name, ResetCursor(offset, reason, gone, self.shares_progress)
            )

    async def plan_undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any] | None:
        """What `undo` would change; None if nothing moved since. Raises as `undo` does."""
        await self.sync()
        channel = self.channels.get(name)
        compacted = channel is not None and channel.compacted
        gone = await self._durably_gone(compacted=compacted)
        sequence, at_ms = point_in_time
        return await self.ask_subscription(name, PlanUndo(sequence, at_ms, gone))

    async def undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any]:
        """Move a subscription's cursor back to what it was at a moment (event number and time;
        neither: before it was moved last); its consumers are closed and come again. Not to be
        repeated without a moment.

        Returns what changed. Raises as `reset_subscription` does, and `RemoteError` if
        nothing is to be undone, or can be.
        """
        async with self._lock(name), self.maintenance.moving(name):
            await self.sync()
            channel = self.channels.get(name)
            # Without a channel it isn't known who will read it: nothing that is gone may return.
            compacted = channel is not None and channel.compacted
            gone = await self._durably_gone(compacted=compacted)
            if channel is not None:
                return await channel.undo(point_in_time, gone, shared=self.shares_progress)
            sequence, at_ms = point_in_time
            request = UndoMoves(sequence, at_ms, gone, self.shares_progress)
            return await self._call_dispatcher(name, request)

    @property
    def shares_progress(self) -> bool:
        """Whether other clusters may know, and tell, how far subscriptions are."""
        return bool(self.runtime.state.origins) or self.replication.active

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Ask a subscription's brain, connected or not; the method must be idempotent.

        Raises `RemoteError` if there is no such subscription, `Unreachable` if its brain
        can't be had.
        """
        channel = self.channels.get(name)
        if channel is not None:
            with contextlib.suppress(RpcConnectionClosed):
                return await channel.ask(request)
        async with self._lock(name):
            return await self._call_dispatcher(name, request)

    async def _call_dispatcher(self, name: str, request: Request[ReplyT]) -> ReplyT:
        found = await self.runtime.read(lambda state: state.subscriptions.get(name))
        if found is None:
            raise RemoteError(Reason.NOT_FOUND, f"{self.topic} has no subscription {name!r}")
        key = self.key.of_subscription(name, found.ref.incarnation)
        epoch = self.runtime.journal.epoch
        try:
            with self.superseded_if_fenced():
                call = call_of(epoch, found.ref.start_offset, request)
                encoded = await self.actor_system.request(key, call)
        finally:
            self.changes.called(name, request)
        answer = decode_reply(request, encoded)
        self.meter.told(name, request, answer)
        return answer

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription: its name first, then its actor; its journal is buried.

        Once begun it goes on, even if the caller is cancelled. Raises `RemoteError` if there
        is none.
        """
        deletion = asyncio.ensure_future(self._delete_subscription(command))
        self._tasks.add(deletion)
        deletion.add_done_callback(self._tasks.discard)
        await asyncio.shield(deletion)

    async def _delete_subscription(self, command: DeleteSubscription) -> None:
        async with self._lock(command.name):
            channel = self.channels.get(command.name)
            if command.idle_before_ms and channel is not None and channel.consumers:
                raise RemoteError(Reason.BUSY, f"{command.name!r} has connected consumers")
            reply = await self.runtime.ask(command)
            if isinstance(reply, Refusal):
                raise RemoteError(reply.reason, reply.message)
            channel = self.channels.get(command.name)
            if channel is not None and channel.durable:
                channel.close()
            try:
                await self._sweep(reply.name, reply.incarnation)
            except TRANSIENT_OR_STORE:  # it is decided: whoever asks is told so
                self.spawn(self._finish_deletion(reply.name, reply.incarnation))

    async def _sweep(self, name: str, incarnation: int) -> None:
        key = self.key.of_subscription(name, incarnation)
        await self.actor_system.dismiss(key)
        await purge_journal(self.actor_system, key)
        await self.runtime.ask(ConfirmSwept(incarnation))

    async def _finish_deletion(self, name: str, incarnation: int) -> None:
        """Finish what was begun, here or by a former activation."""
        backoff = self.actor_system.backoff()
        while True:
            try:
                await self._sweep(name, incarnation)
            except TRANSIENT_OR_STORE:
                await backoff.wait()
            else:
                return

    # -- calls ---------------------------------------------------------------------

    async def metrics(self) -> list[Sample]:
        """What the partition and the subscriptions that are connected to it measure."""
        return [*await super().metrics(), *await self.meter.samples()]

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """What `velaray.broker.partition.partition_admin` offers, what replication and migration
        add, and what every actor answers."""
        handler = partition_admin.METHODS.get(method)
        bound = self.geo.methods.get(method) if handler is None else partial(handler, self)
        if bound is None:
            return await super().call(method, args)
        with self.fence.passing(method):
            return await bound(args)

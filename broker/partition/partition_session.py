"""One client's connection to a topic partition: its producers and consumers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from velaray.actors.dispatch.consumers import KeySharedMode, KeySharedPolicy, SubscriptionType
from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.machine import (
    Damaged,
    DeleteSubscription,
    FindProducer,
    ForgetProducer,
    RaiseTopicEpoch,
    StartAt,
)
from velaray.actors.partition.producers import (
    Accepted,
    AccessMode,
    ProducerSpec,
    Promotion,
    Waiting,
)
from velaray.actors.runtime import Stopped
from velaray.broker.coordinator.coordinators import check_not_systems
from velaray.broker.partition import remote_ids
from velaray.broker.partition.compacted_channel import GONE
from velaray.broker.partition.read_bounds import span
from velaray.broker.partition.replicated_publish import (
    Receipts,
    read_replicated,
    replicated_publish,
)
from velaray.broker.partition.subscription_channel import (
    ChannelConsumer,
    SubscriptionChannel,
    flat_ranges,
)
from velaray.broker.schema_registry.schema_session import (
    get_or_create_schema,
    get_schema,
    schema_of,
)
from velaray.broker.session import Session
from velaray.broker.wire_errors import code_of, code_of_reason
from velaray.events.ids import (
    ActorKey,
    InvalidNameError,
    MessageId,
    Position,
    TopicName,
    TransactionId,
)
from velaray.events.ids_pb2 import MessageIdData
from velaray.journal.errors import JournalError
from velaray.journal.manifest import cluster_number_of
from velaray.schemas import SchemaInfo, SchemaType
from velaray.topology.auth import AuthenticationFailed, check_replicator_proof
from velaray.topology.flow import Flow
from velaray.topology.rpc import RemoteError, RpcConnectionClosed, reason_of
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Send, send_receipt
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.plausible import fault_of
from velaray.wire.replication import (
    DATA_ID,
    PROOF,
    REPLICATED_SUBSCRIPTION,
    REPLICATOR_PREFIX,
    source_of,
)
from velaray.wire.schemas import NO_VERSION, version_bytes
from velaray.wire.stamping import labelled

if TYPE_CHECKING:
    from velaray.broker.partition.partition_actor import PartitionActor

CLOSED_KEPT = 1000
"""Closed producers of a connection whose late sends are ignored; others' close it."""

MOST_MESSAGES = 1 << 20
"""Ack sets of an entry that isn't in memory have at most so many bits."""

BEYOND = 1 << 32
"""No producer holds entries with so many sequence ids."""

MAX_SEQUENCE_ID = (1 << 63) - 2
"""The highest one that leaves its successor within the range that clients count in."""

_IN_ORDER = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)

_CALL_ERRORS: tuple[type[Exception], ...] = (
    *TRANSIENT_OR_STORE,
    InvalidNameError,
    Stopped,
    NoSuchEntryError,
)

_FINAL = (Reason.NOT_FOUND, Reason.CONFLICT, Reason.NOT_ALLOWED)
"""Why a coordinator says that a transaction takes nothing, whoever asks again."""
_TRANSACTION_CODES: dict[str, pb.ServerError] = {
    Reason.NOT_FOUND: pb.TransactionNotFound,
    Reason.CONFLICT: pb.InvalidTxnStatus,
}


class _Conflict(Exception):
    """Something is acknowledged already, or pending in another transaction."""


class Producing:
    """A producer of this connection."""

    def __init__(self, session: PartitionSession, producer_id: int, name: str) -> None:
        self.session = session
        self.producer_id = producer_id
        self.name = name
        #: The cluster whose replicator this is, if it is one.
        self.source = source_of(name)
        #: What answers its entries if it is one.
        self.receipts = Receipts(producer_id, lambda frame: session.connection.write(frame))
        #: Where its newest entry is in that cluster; None if it has sent none.
        self.replicated: Position | None = None
        #: Why nothing more is taken of it: an entry was refused, and those behind it mustn't come
        #: before it.
        self.refused = ""
        self.connected_ms = session.clock_ms()
        self.traffic = Flow(self.connected_ms)
        self.metadata: dict[str, str] = {}
        self.access = AccessMode.SHARED
        self.request_id = 0
        self.generated = False
        #: Whether its client had a connection for it before, and may hold entries.
        self.reconnected = False
        self.ready = False
        self.schema_version: int | None = None
        # What waits for its transaction to be known as open, and what is behind it.
        self.held: deque[tuple[Send, bytes]] = deque()

    def stored(self, send: Send, position: Position) -> None:
        """An entry is durable: its receipt goes out; at `NOWHERE` if it was there before."""
        number, highest = send.sequence_id, send.highest_sequence_id
        if self.source is not None:
            self.receipts.add(number, position)
        else:
            receipt = send_receipt(self.producer_id, number, *position, highest)
            self.session.connection.write(receipt)


class PartitionSession(Session):
    """Serves one client connection of a partition."""

    def __init__(self, partition: PartitionActor) -> None:
        super().__init__(partition.config)
        self._partition = partition
        self._producers: dict[int, Producing] = {}
        self._consumers: dict[int, ChannelConsumer] = {}
        # Sends to these may be under way; the newest of them, as a dict to keep their order.
        self._closed_producers: dict[int, None] = {}
        # What a producer or consumer id is being connected by; a newer command replaces it.
        self._connecting: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._sought: set[SubscriptionChannel] = set()
        self.handlers = {
            pb.CommandProducer: self._on_producer,
            pb.CommandCloseProducer: self._on_close_producer,
            pb.CommandSubscribe: self._on_subscribe,
            pb.CommandCloseConsumer: self._on_close_consumer,
            pb.CommandFlow: self._on_flow,
            pb.CommandAck: self._on_ack,
            pb.CommandRedeliverUnacknowledgedMessages: self._on_redeliver,
            pb.CommandUnsubscribe: partial(self._request, self._on_unsubscribe),
            pb.CommandSeek: partial(self._request, self._on_seek),
            pb.CommandGetLastMessageId: partial(self._request, self._on_last_id),
            pb.CommandConsumerStats: partial(self._request, self._on_stats),
            pb.CommandGetSchema: partial(self._request, self._on_get_schema),
            pb.CommandGetOrCreateSchema: partial(self._request, self._on_get_or_create_schema),
        }

    # -- the connection ------------------------------------------------------------

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        return self._partition.clock_ms()

    def on_connected(self, connection: WireConnection) -> None:
        """Remember the connection, so that stopping closes it."""
        super().on_connected(connection)
        self._partition.sessions.add(self)

    def on_frame(self, connection: WireConnection, command: Any, entry: bytes | None) -> None:
        """SEND is the hot path; all else goes through the table of handlers."""
        if type(command) is Send and self._connected:
            producing = self._producers.get(command.producer_id)
            if producing is not None and producing.ready and entry is not None:
                self._on_send(producing, command, entry)
            elif command.producer_id not in self._closed_producers:
                connection.close()
            return
        super().on_frame(connection, command, entry)

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """The entry was damaged on its way: only that publish fails, in its turn."""
        self._refuse_in_turn(error.command, pb.ChecksumError, str(error))

    def on_writable(self, connection: WireConnection) -> None:
        """Go on with deliveries that waited for the socket."""
        for consumer in self._consumers.values():
            consumer.channel.deliver(consumer)

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """The client is gone: so are its producers and consumers."""
        super().on_closed(connection, error)
        for producing in list(self._producers.values()):
            self._drop_producer(producing)
        for consumer in list(self._consumers.values()):
            self._drop_consumer(consumer, lost=True)
        for channel in self._sought:
            self._partition.drop_if_unused(channel)
        self._partition.forget_connection(self)

    def _spawn(self, work: Coroutine[Any, Any, None], request_id: int) -> asyncio.Task[None]:
        task = self.spawn(self._guard(work, request_id))
        task.add_done_callback(lambda _: work.close())  # in case it was cancelled before it began
        return task

    def _request(
        self, answer: Callable[[Any], Coroutine[Any, Any, None]], command: Command
    ) -> None:
        self._spawn(answer(command), command.request_id)

    def _connect_as(
        self, kind: str, number: int, work: Coroutine[Any, Any, None], request_id: int
    ) -> None:
        """Run ``work``, which connects a producer or consumer, in place of any older one."""
        self._stop_connecting(kind, number)
        task = self._connecting[kind, number] = self._spawn(work, request_id)

        def done(_: asyncio.Task[None]) -> None:
            if self._connecting.get((kind, number)) is task:
                del self._connecting[kind, number]

        task.add_done_callback(done)

    def _stop_connecting(self, kind: str, number: int) -> None:
        task = self._connecting.pop((kind, number), None)
        if task is not None:
            task.cancel()

    async def _guard(self, work: Coroutine[Any, Any, None], request_id: int) -> None:
        try:
            await work
        except _CALL_ERRORS as error:
            self.error(request_id, code_of(error), reason_of(error))

    def _check_topic(self, text: str) -> None:
        if str(TopicName.parse(text)) != self._partition.topic:
            raise RemoteError(Reason.UNAVAILABLE, f"{text} is not served here; look it up again")
        if not self.is_system:
            check_not_systems(self._partition.key.topic_name)  # the front door isn't the only way

    def _check_replicators(self, name: str, what: str) -> None:
        if name.startswith(REPLICATOR_PREFIX) and not self.is_system:
            why = f"only replicators may {what} {name!r}: take a name without {REPLICATOR_PREFIX!r}"
            raise RemoteError(Reason.NOT_ALLOWED, why)

    def _check_source(self, source: str, name: str, told: Mapping[str, str]) -> None:
        """Check that a producer is a replicator of cluster ``source``: its entries move what is
        known of that cluster's positions. Raises `RemoteError` (NOT_ALLOWED)."""
        own = self.config.name
        if source == own:
            why = f"{name!r} replicates from cluster {own!r}, which this is"
            raise RemoteError(Reason.NOT_ALLOWED, why)
        if self.is_system:  # it pulls
            return
        secret, proof = self.config.replication_secret, told.get(PROOF, "")
        try:
            check_replicator_proof(secret, source, own, told.get(DATA_ID, ""), proof)
        except AuthenticationFailed as error:
            raise RemoteError(Reason.NOT_ALLOWED, str(error)) from error

    # -- the tenant's home ---------------------------------------------------------

    def _check_at_home(self) -> None:
        """Raise `RemoteError` (ELSEWHERE) if a client is to look up again, as its tenant is at
        home in another cluster. Replicators and the cluster's actors mean this one."""
        home = self._partition.home
        if home is not None and not (self.is_system or self.means_this_cluster):
            topic = self._partition.topic
            why = f"its tenant is at home in cluster {home}; look {topic} up again"
            raise RemoteError(Reason.ELSEWHERE, why)

    def send_home(self) -> None:
        """The tenant is at home elsewhere by now: a client's producers and consumers are closed,
        so that it looks up again."""
        if self.is_system or self.means_this_cluster:
            return
        for producing in sorted(self.producers(), key=lambda each: each.ready):
            self._drop_producer(producing)  # first those that would be next
            if producing.ready:
                self.spawn(self._say_closed(producing))
            else:
                self.error(producing.request_id, pb.ServiceNotReady, "look the topic up again")
        for consumer in list(self._consumers.values()):
            consumer.channel.remove(consumer)
            self.consumer_closed(consumer)
            self._partition.drop_if_unused(consumer.channel)

    async def _say_closed(self, producing: Producing) -> None:
        """After all receipts: what has none is sent again, where the tenant is at home."""
        with contextlib.suppress(JournalError):
            await self._partition.runtime.ask(FindProducer(producing.name))
        close = pb.CommandCloseProducer(producer_id=producing.producer_id, request_id=0)
        self.connection.send(close)

    # -- producers -----------------------------------------------------------------

    def _on_producer(self, command: pb.CommandProducer) -> None:
        work = self._connect_producer(command)
        self._connect_as("producer", command.producer_id, work, command.request_id)

    async def _connect_producer(self, command: pb.CommandProducer) -> None:
        partition = self._partition
        self._check_topic(command.topic)
        source = source_of(command.producer_name)
        told = {item.key: item.value for item in command.metadata}
        if source is None:
            self._check_replicators(command.producer_name, "publish as")
        else:
            self._check_source(source, command.producer_name, told)
        self._check_takes_entries()
        known = self._producers.get(command.producer_id)
        if known is not None:
            known.request_id = command.request_id
            known.reconnected = known.reconnected or _reconnected(command)
            if partition.registry.is_ready(known):
                await self._producer_success(known)
            else:
                self._tell_waiting(known)
            return
        schema, version = schema_of(command), None
        if schema is not None or source is None:  # entries come with their own versions
            version = await partition.schemas.of_producer(schema, self.role)
        if command.initial_subscription_name:
            await partition.create_subscription(
                command.initial_subscription_name, StartAt.EARLIEST, {}
            )
        name = command.producer_name or partition.producer_name()
        if source is not None:
            await self._meet(source, told.get(DATA_ID, ""))
        producing = Producing(self, command.producer_id, name)
        producing.request_id = command.request_id
        producing.metadata = {key: value for key, value in told.items() if key != PROOF}
        producing.access = AccessMode(command.producer_access_mode)
        producing.schema_version = version
        producing.generated = not command.producer_name or not command.user_provided_producer_name
        producing.reconnected = _reconnected(command)
        spec = ProducerSpec(
            producing,
            name,
            producing.access,
            command.epoch,
            command.topic_epoch if command.HasField("topic_epoch") else None,
        )
        self._check_at_home()  # as it is by now
        answer = partition.connect_producer(spec)
        if isinstance(answer, Refusal):
            code = code_of_reason(answer.reason)
            if code == pb.ConsumerBusy:
                code = pb.ProducerBusy
            self.error(command.request_id, code, answer.message)
            return
        self._producers[command.producer_id] = producing
        self._closed_producers.pop(command.producer_id, None)
        await self._admit(producing, answer)

    def _check_takes_entries(self) -> None:
        self._check_at_home()
        if self._partition.terminated_at is not None:
            raise RemoteError(Reason.TERMINATED, "the topic is terminated")
        self._partition.fence.check()

    async def _admit(self, producing: Producing, answer: Accepted | Waiting) -> None:
        if isinstance(answer.replaced, Producing):
            answer.replaced.session.replace_producer(answer.replaced, self)
        if isinstance(answer, Waiting):
            self._tell_waiting(producing)
            return
        for fenced in answer.fenced:
            assert isinstance(fenced, Producing)
            fenced.session.fence_producer(fenced)
        for refused in answer.refused:
            assert isinstance(refused, Producing)
            refused.session.forget_producer(refused)
            refused.session.error(refused.request_id, pb.ProducerFenced, "another one took over")
        if answer.raise_epoch:
            await self._raise_epoch(producing)
        await self._producer_success(producing)

    async def _raise_epoch(self, producing: Producing) -> None:
        reply = await self._partition.runtime.ask(RaiseTopicEpoch(producing.name))
        if isinstance(reply, Refusal):
            self._drop_producer(producing)  # else its next attempt would find it connected
            raise RemoteError(reply.reason, reply.message)

    async def _meet(self, source: str, data_id: str) -> None:
        """Refuse a cluster that has lost its data: positions there mean other messages now."""
        if data_id:
            told = {"cluster": source, "data_id": data_id}
            await self._partition.fabric.call(ActorKey.catalog(), "meet_cluster", told)

    def _tell_waiting(self, producing: Producing) -> None:
        self.connection.send(
            pb.CommandProducerSuccess(
                request_id=producing.request_id,
                producer_name=producing.name,
                schema_version=NO_VERSION,
                producer_ready=False,
            )
        )

    async def _producer_success(self, producing: Producing) -> None:
        # Behind all that an earlier connection of this name sent: it counts as sent before.
        anew = not (producing.generated or producing.reconnected)
        found = await self._partition.runtime.ask(FindProducer(producing.name, anew=anew))
        if isinstance(found, Refusal):
            self._drop_producer(producing)  # else its next attempt would find it connected
            raise RemoteError(found.reason, found.message)
        if self._producers.get(producing.producer_id) is not producing:
            self._check_takes_entries()
            raise RemoteError(Reason.FENCED, f"producer {producing.name!r} was replaced")
        producing.ready = True
        self.connection.send(
            pb.CommandProducerSuccess(
                request_id=producing.request_id,
                producer_name=producing.name,
                last_sequence_id=self._reported_id(producing, found.last_sequence_id),
                # Java's client counts on being told, also that there is none.
                schema_version=version_bytes(producing.schema_version),
                topic_epoch=found.topic_epoch,
                producer_ready=True,
            )
        )

    def _reported_id(self, producing: Producing, last: int) -> int:
        """The last sequence id to report to a producer.

        After a reconnect a client may hold entries, and restart its numbers from the reported id.
        So this is an id above those of all entries. A producer with a name of its own gets it
        only from a client that is known to restart: programs read the last stored id.
        """
        if producing.reconnected and (producing.generated or self.restarts_ids):
            return min(last + BEYOND, MAX_SEQUENCE_ID)
        return last if self._partition.policies.deduplicate else -1

    async def promote(self, producing: Producing) -> None:
        """The producer waited for exclusivity and has it now."""
        await self._raise_epoch(producing)
        await self._producer_success(producing)

    @property
    def idle(self) -> bool:
        """Whether the client has no producer and no consumer here, and waits for nothing."""
        return not (self._producers or self._consumers or self._tasks)

    @property
    def only_replicates(self) -> bool:
        """Whether a replicator of this cluster reads here, and nobody does anything else."""
        busy = self._producers or self._tasks or not self.is_system
        names = (consumer.channel.name for consumer in self._consumers.values())
        return not busy and all(name.startswith(REPLICATOR_PREFIX) for name in names)

    @property
    def expects_some_schema(self) -> bool:
        """Whether a consumer here doesn't take messages of whatever schema."""
        return any(not consumer.auto_consume for consumer in self._consumers.values())

    def producers(self) -> list[Producing]:
        """The producers connected here."""
        return list(self._producers.values())

    def close_producers(self) -> None:
        """Producers are closed; their next attempt is refused with the reason."""
        for producing in self.producers():
            self.fence_producer(producing)
            self._partition.registry.disconnect(producing)

    def forget_producer(self, producing: Producing) -> None:
        """The registry has replaced this producer."""
        if self._producers.get(producing.producer_id) is producing:
            del self._producers[producing.producer_id]
            self._closed_producers[producing.producer_id] = None
            if len(self._closed_producers) > CLOSED_KEPT:
                del self._closed_producers[next(iter(self._closed_producers))]

    def replace_producer(self, producing: Producing, by: PartitionSession) -> None:
        """Its client has connected it anew. A replicator hears of that: whoever came may have been
        another one, which leaves again, and nobody would answer the first one any more."""
        if producing.source is not None and by is not self:
            self.fence_producer(producing)
        else:
            self.forget_producer(producing)

    def fence_producer(self, producing: Producing) -> None:
        """Another producer took exclusivity: this one is closed."""
        self.forget_producer(producing)
        self.connection.send(
            pb.CommandCloseProducer(producer_id=producing.producer_id, request_id=0)
        )

    def _drop_producer(self, producing: Producing) -> None:
        self.forget_producer(producing)
        promotion = self._partition.registry.disconnect(producing)
        if isinstance(promotion, Promotion):
            waiting = promotion.key
            assert isinstance(waiting, Producing)
            waiting.session._spawn(waiting.session.promote(waiting), waiting.request_id)

    def _on_close_producer(self, command: pb.CommandCloseProducer) -> None:
        self._stop_connecting("producer", command.producer_id)
        producing = self._producers.get(command.producer_id)
        if producing is None:
            self.succeed(command.request_id)
        else:
            self._drop_producer(producing)
            self._spawn(self._close_producer(producing, command.request_id), command.request_id)

    async def _close_producer(self, producing: Producing, request_id: int) -> None:
        """Answer after all receipts: clients fail what is pending when a producer is closed."""
        runtime = self._partition.runtime
        if producing.generated:
            # Nobody comes back under a name that was made up for one connection.
            await runtime.ask(ForgetProducer(producing.name))
        else:
            await runtime.ask(FindProducer(producing.name))
        self.succeed(request_id)

    def _on_send(self, producing: Producing, send: Send, entry: bytes) -> None:
        fault = fault_of(send, entry)
        if fault:
            self._refuse_numbers(producing, send, fault)
            return
        transaction = None if send.txn_id is None else TransactionId(*send.txn_id)
        if producing.held or not (transaction is None or self._partition.gate.is_open(transaction)):
            self._hold(producing, send, entry)
        else:
            self._take(producing, send, entry)

    def _refuse_numbers(self, producing: Producing, send: Send, fault: str) -> None:
        problem = f"producer {producing.name!r} sent an entry that can't be: {fault}"
        if producing.source is None:
            self._refuse_in_turn(send, pb.NotAllowedError, problem)
        else:
            self._refuse_replicated(producing, send, pb.NotAllowedError, problem)

    def _hold(self, producing: Producing, send: Send, entry: bytes) -> None:
        """Keep an entry until its transaction is known to be open, and those behind it."""
        producing.held.append((send, entry))
        self._partition.pending_bytes += len(entry)
        if len(producing.held) == 1:
            self.spawn(self._release(producing))

    async def _release(self, producing: Producing) -> None:
        partition, held = self._partition, producing.held
        try:
            while held:
                send, entry = held[0]
                refusal = await self._refusal(send)
                held.popleft()
                partition.pending_bytes -= len(entry)
                if self._producers.get(producing.producer_id) is not producing:
                    continue  # it was closed meanwhile
                if refusal is None:
                    self._take(producing, send, entry)
                else:
                    self._refuse_in_turn(send, *refusal)
        finally:
            partition.pending_bytes -= sum(len(entry) for _, entry in held)
            held.clear()

    async def _refusal(self, send: Send) -> tuple[pb.ServerError, str] | None:
        """Why the entry's transaction doesn't take it; None if it does."""
        if send.txn_id is None:
            return None
        try:
            await self._partition.gate.pass_through(TransactionId(*send.txn_id))
        except _CALL_ERRORS as error:
            # Of a refusal clients know this code alone; with others they come again.
            final = isinstance(error, RemoteError) and error.kind in _FINAL
            return (pb.NotAllowedError if final else code_of(error)), reason_of(error)
        return None

    def _take(self, producing: Producing, send: Send, entry: bytes) -> None:
        limit = self._partition.policies.max_message_size
        if limit and len(entry) > limit:
            problem = f"the topic takes messages of at most {limit} bytes, not {len(entry)}"
            if producing.source is None:
                self._refuse_in_turn(send, pb.NotAllowedError, problem)
            else:
                self._refuse_replicated(producing, send, pb.NotAllowedError, problem)
        elif producing.source is not None:
            self._take_replicated(producing, producing.source, send, entry)
        else:
            if send.txn_id is not None and self._partition.runtime.state.outgoing.replicators:
                entry = labelled(entry, TransactionId(*send.txn_id))
            self._partition.publish(producing, send, entry)

    def _take_replicated(self, producing: Producing, source: str, send: Send, entry: bytes) -> None:
        partition = self._partition
        try:
            metadata, start = read_replicated(entry)
            if metadata.HasField("marker_type"):
                handler = partition.geo.marker_handler(metadata.marker_type)
                taken = partial(handler, source, entry[start:])
                self.spawn(self._take_marker(producing, send, taken))
                return
            if producing.refused:
                raise RemoteError(Reason.UNAVAILABLE, producing.refused)
            after = producing.replicated
            command = replicated_publish(
                partition, source, metadata, entry, len(entry) - start, after
            )
        except RemoteError as error:
            self._refuse_replicated(producing, send, code_of(error), error.message)
        else:
            assert command.replicated is not None
            producing.replicated = command.replicated.position
            deliver_at = max(metadata.deliver_at_time, 0)
            partition.submit(producing, send, command, entry, deliver_at)

    def _refuse_replicated(
        self, producing: Producing, send: Send, code: pb.ServerError, problem: str
    ) -> None:
        """Refuse an entry, and all entries that its replicator sends behind it."""
        producing.refused = producing.refused or f"an entry before it was refused: {problem}"
        self._refuse_in_turn(send, code, problem)

    async def _take_marker(
        self, producing: Producing, send: Send, taken: Callable[[], Awaitable[None]]
    ) -> None:
        """Answer a marker: with a receipt once what it says is durable."""
        try:
            await taken()
        except _CALL_ERRORS as error:
            number = producing.producer_id, send.sequence_id
            self._send_error(*number, code_of(error), reason_of(error))
        else:
            receipt = send_receipt(producing.producer_id, send.sequence_id, -1, -1)
            self.connection.write(receipt)

    def _refuse_in_turn(self, command: Send, code: pb.ServerError, problem: str) -> None:
        """Refuse a publish after all that came before it is answered."""
        producer_id, sequence_id = command.producer_id, command.sequence_id

        def release(reply: Refusal, effects: Any) -> None:
            self._send_error(producer_id, sequence_id, code, reply.message)

        self._partition.runtime.submit(Damaged(problem), release)

    def send_error(self, producer_id: int, sequence_id: int, refusal: Refusal) -> None:
        """A publish was refused."""
        code = code_of_reason(refusal.reason)
        self._send_error(producer_id, sequence_id, code, refusal.message)

    def _send_error(
        self, producer_id: int, sequence_id: int, code: pb.ServerError, message: str
    ) -> None:
        if self._partition.fence.up:
            return  # the producer was closed: it sends all this again, elsewhere
        producing = self._producers.get(producer_id)
        if producing is not None:
            producing.receipts.send()
        self.connection.send(
            pb.CommandSendError(
                producer_id=producer_id, sequence_id=sequence_id, error=code, message=message
            )
        )

    # -- consumers -----------------------------------------------------------------

    def _on_subscribe(self, command: pb.CommandSubscribe) -> None:
        live = self._consumers.get(command.consumer_id)
        if live is not None and live.subscribed:
            self.succeed(command.request_id)
            return
        work = self._subscribe(command)
        self._connect_as("consumer", command.consumer_id, work, command.request_id)

    async def _subscribe(self, command: pb.CommandSubscribe) -> None:
        self._check_topic(command.topic)
        self._check_replicators(command.subscription, "subscribe as")
        self._check_at_home()
        self._partition.fence.check(command.subscription)
        if command.read_compacted and command.subType not in _IN_ORDER:
            refusal = "readCompacted only allowed on failover or exclusive subscriptions"
            raise RemoteError(Reason.NOT_ALLOWED, refusal)
        if not self.means_this_cluster:
            self._partition.check_consumers(command.subscription)
        schema = schema_of(command)
        active = self._partition.active_for_schemas
        await self._partition.schemas.of_consumer(schema, active=active, role=self.role)
        channel = await self._open_channel(command)
        self._check_again(channel)
        name = command.consumer_name or f"{self._partition.producer_name()}-consumer"
        consumer = channel.add(self, command.consumer_id, name, command.subType)
        consumer.request_id = command.request_id
        consumer.metadata = {item.key: item.value for item in command.metadata}
        consumer.auto_consume = schema is not None and schema.type is SchemaType.AUTO_CONSUME
        if command.subType in _IN_ORDER and command.HasField("consumer_epoch"):
            consumer.epoch = command.consumer_epoch
        self._consumers[command.consumer_id] = consumer
        try:
            await channel.attach(consumer, command.priority_level, _key_shared_policy(command))
            if consumer.closed:
                raise RpcConnectionClosed(
                    "the subscription let go of its consumers: subscribe again"
                )
            consumer.answered()
        finally:
            if not consumer.subscribed:
                self._drop_consumer(consumer)
        self.succeed(command.request_id)

    def _check_again(self, channel: SubscriptionChannel) -> None:
        """Another consumer may have come while the channel was opened, the tenant gone, or the
        fence: that closes the channels which are there when it goes up."""
        try:
            self._check_at_home()
            self._partition.fence.check(channel.name)
            if not self.means_this_cluster:
                self._partition.check_consumers(channel.name)
        except RemoteError:
            self._partition.drop_if_unused(channel)
            raise

    async def _open_channel(self, command: pb.CommandSubscribe) -> SubscriptionChannel:
        partition, compacted = self._partition, command.read_compacted
        if compacted:
            await partition.compactor.open_view()
        if command.durable:
            start: StartAt | int = StartAt.LATEST
            if command.initialPosition == pb.CommandSubscribe.Earliest:
                start = StartAt.EARLIEST
            properties = {item.key: item.value for item in command.subscription_properties}
            if command.replicate_subscription_state:
                properties[REPLICATED_SUBSCRIPTION] = "true"
            channel = await partition.durable_channel(
                command.subscription, start, properties, compacted=compacted
            )
            if command.replicate_subscription_state:  # it may have been there before
                await partition.set_replicated(command.subscription, replicated=True)
            return channel
        if command.HasField("start_message_id"):
            offset = self._seek_target(command.start_message_id, compacted)
        elif command.initialPosition == pb.CommandSubscribe.Earliest:
            offset = partition.table(compacted).first_offset
        else:
            offset = partition.end_offset
        return await partition.volatile_channel(command.subscription, offset, compacted=compacted)

    def _seek_target(self, data: MessageIdData, compacted: bool) -> int:
        """The offset to go on at: the named entry itself; the client skips what it must."""
        position = MessageId.from_proto(data).position
        return remote_ids.at_or_after(self._partition, position, compacted=compacted)

    def _consumer(self, consumer_id: int) -> ChannelConsumer:
        consumer = self._consumers.get(consumer_id)
        if consumer is None:
            raise RemoteError(Reason.CONFLICT, f"consumer {consumer_id} not found")
        return consumer

    def _drop_consumer(self, consumer: ChannelConsumer, lost: bool = False) -> None:
        if self._consumers.get(consumer.consumer_id) is consumer:
            del self._consumers[consumer.consumer_id]
        consumer.channel.remove(consumer, lost)
        self._partition.drop_if_unused(consumer.channel)

    def consumer_closed(self, consumer: ChannelConsumer) -> None:
        """The subscription let go of the consumer: the client may subscribe again."""
        if self._consumers.get(consumer.consumer_id) is consumer:
            del self._consumers[consumer.consumer_id]
            if consumer.subscribed:
                self.connection.send(
                    pb.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=0)
                )

    def _on_close_consumer(self, command: pb.CommandCloseConsumer) -> None:
        self._stop_connecting("consumer", command.consumer_id)
        consumer = self._consumers.get(command.consumer_id)
        if consumer is not None:
            self._drop_consumer(consumer)
        self.succeed(command.request_id)

    def _on_flow(self, command: pb.CommandFlow) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if consumer is not None:
            consumer.flow(command.messagePermits)

    # -- schemas -------------------------------------------------------------------

    async def _on_get_schema(self, command: pb.CommandGetSchema) -> None:
        async def find(version: int | None) -> dict[str, Any]:
            self._check_same_topic(command.topic)
            return await self._partition.schemas.find(version)

        self.connection.send(await get_schema(command, find))

    def _check_same_topic(self, text: str) -> None:
        """Partitions of a topic share its schemas, others don't."""
        topic = TopicName.parse(text).topic
        if topic != self._partition.key.topic_name.topic:
            raise RemoteError(Reason.UNAVAILABLE, f"{text} is not served here; look it up again")

    async def _on_get_or_create_schema(self, command: pb.CommandGetOrCreateSchema) -> None:
        async def register(info: SchemaInfo) -> int | None:
            self._check_same_topic(command.topic)
            self._partition.fence.check()
            return await self._partition.schemas.of_producer(info, self.role)

        self.connection.send(await get_or_create_schema(command, register))

    # -- acknowledgements ----------------------------------------------------------

    def _on_ack(self, command: pb.CommandAck) -> None:
        consumer = self._consumers.get(command.consumer_id)
        in_transaction = command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits")
        if consumer is None:
            # Java's client knows no class for ConsumerNotFound, and fails a transaction for it.
            code = pb.ServiceNotReady if in_transaction else pb.ConsumerNotFound
            why = "the consumer is not connected: subscribe again and repeat the acknowledgement"
            self._refuse_ack(command, code, why)
            return
        individual = command.ack_type == pb.CommandAck.Individual
        if not individual and consumer.type not in _IN_ORDER:
            refusal = "cumulative acknowledgement needs an Exclusive or Failover subscription"
            self._refuse_ack(command, pb.NotAllowedError, refusal)
            return
        if consumer.channel.resetting:
            # The cursor is moving: this would acknowledge again what was just sought back to.
            self._refuse_ack(command, pb.ServiceNotReady, "the subscription is being moved")
            return
        if in_transaction:
            self.spawn(self._ack_in_transaction(consumer, command))
            return
        if not individual and remote_ids.is_foreign(self._partition, _position(command)):
            self._ack_up_to_foreign(consumer, command)
            return
        consumer.acknowledges()
        if individual:
            self._ack_individually(consumer, command)
        else:
            self._ack_cumulatively(consumer, command)

    async def _ack_in_transaction(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        transaction = TransactionId(command.txnid_most_bits, command.txnid_least_bits)
        answer = pb.CommandAckResponse(
            consumer_id=command.consumer_id,
            request_id=command.request_id,
            txnid_most_bits=transaction.coordinator,
            txnid_least_bits=transaction.sequence,
        )
        try:
            await self._transact(consumer, transaction, command)
        except _Conflict as error:
            answer.error, answer.message = pb.TransactionConflict, str(error)
        except _CALL_ERRORS as error:
            kind = error.kind if isinstance(error, RemoteError) else ""
            answer.error = _TRANSACTION_CODES.get(kind, code_of(error))
            answer.message = reason_of(error)
        self.connection.send(answer)

    async def _transact(
        self, consumer: ChannelConsumer, transaction: TransactionId, command: pb.CommandAck
    ) -> None:
        channel, partition = consumer.channel, self._partition
        if not channel.durable:
            why = "a reader has nothing that a transaction could acknowledge"
            raise RemoteError(Reason.NOT_ALLOWED, why)
        async with partition.gate.through(transaction, channel.name):
            if command.ack_type == pb.CommandAck.Individual:
                method = "ack_in_transaction"
                last, args = await self._acked_one_by_one(channel, command)
            else:
                method = "ack_before_in_transaction"
                last, args = await self._acked_up_to(channel, command)
            channel.acknowledging(last)
            if last > partition.synced_offset:
                await partition.sync()
            if consumer.closed or channel.resetting:
                raise RpcConnectionClosed(
                    "the subscription let go of its consumers: subscribe again"
                )
            consumer.acknowledges()
            try:
                await channel.ask(method, [consumer.number, list(transaction), *args])
            except RemoteError as error:
                if error.kind == Reason.CONFLICT:
                    raise _Conflict(error.message) from error
                raise

    async def _acked_one_by_one(
        self, channel: SubscriptionChannel, command: pb.CommandAck
    ) -> tuple[int, list[Any]]:
        span = self._partition.table(channel.compacted).span
        offsets: list[int] = []
        partial: list[tuple[int, list[int], int]] = []
        for data in command.message_id:
            _, first, limit = span(data.ledgerId)
            offset = first + data.entryId
            if offset >= limit:
                position = Position(data.ledgerId, data.entryId)
                offset = remote_ids.offset_of(self._partition, position, -1)
                if offset != self._partition.kept_from(offset):
                    raise _Conflict(f"{position} is trimmed away: it was acknowledged long ago")
            if fault := self._fault_of_ack_set(offset, len(data.ack_set)):
                raise RemoteError(Reason.INVALID, fault)
            if data.ack_set:  # else the entry is meant, whatever is acknowledged of it
                words = [word & (1 << 64) - 1 for word in data.ack_set]
                entry = await channel.entry(offset)
                messages = data.batch_size if entry is GONE else entry.messages
                partial.append((offset, words, messages))
            else:
                offsets.append(offset)
        last = max([*offsets, *(at for at, _, _ in partial)], default=-1) + 1
        return last, [self._partition.end_offset, flat_ranges(offsets), partial]

    async def _acked_up_to(
        self, channel: SubscriptionChannel, command: pb.CommandAck
    ) -> tuple[int, list[Any]]:
        if len(command.message_id) != 1:
            why = "a cumulative acknowledgement in a transaction names one message"
            raise RemoteError(Reason.NOT_ALLOWED, why)
        partition, position = self._partition, _position(command)
        words = _words(command.message_id[0])
        if remote_ids.is_foreign(partition, position):
            offset, words = await remote_ids.before(partition, channel, position, words)
        else:
            offset = partition.table(channel.compacted).at_or_before(position)
            if words is None or offset < 0:
                offset, words = offset + 1, None
            elif fault := self._fault_of_ack_set(offset, len(words)):
                raise RemoteError(Reason.INVALID, fault)
        last = offset if words is None else offset + 1
        return last, [partition.end_offset, offset, words]

    def _refuse_ack(self, command: pb.CommandAck, code: pb.ServerError, message: str) -> None:
        if command.request_id:
            answer = pb.CommandAckResponse(
                consumer_id=command.consumer_id,
                request_id=command.request_id,
                error=code,
                message=message,
            )
            if command.HasField("txnid_most_bits"):
                answer.txnid_most_bits = command.txnid_most_bits
                answer.txnid_least_bits = command.txnid_least_bits
            self.connection.send(answer)

    def _ack_individually(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        span = self._partition.table(consumer.channel.compacted).span
        ledger_id, first, limit = -1, 0, 0
        offsets: list[int] = []
        partial: list[tuple[int, list[int]]] = []
        for data in command.message_id:
            if data.ledgerId != ledger_id:
                ledger_id, first, limit = span(data.ledgerId)
            offset = first + data.entryId
            if offset >= limit:
                position = Position(data.ledgerId, data.entryId)
                offset = remote_ids.offset_of(self._partition, position, -1)
                if offset < 0 and remote_ids.is_nobodys(self._partition, position):
                    why = (
                        f"nothing is known of message {position}: it was of another topic, or moved"
                    )
                    self._refuse_ack(command, pb.NotAllowedError, why)
                    return
                if offset < 0:
                    continue  # trimmed away: acknowledged long ago
            words = data.ack_set
            if words and any(words):
                fault = self._fault_of_ack_set(offset, len(words))
                if fault:
                    self._refuse_ack(command, pb.NotAllowedError, fault)
                    return
                partial.append((offset, [word & (1 << 64) - 1 for word in words]))
            else:
                offsets.append(offset)
        self._ack_here(consumer, command.request_id, flat_ranges(offsets), partial)

    def _fault_of_ack_set(self, offset: int, words: int) -> str:
        """Why an ack set of so many words can't be of the entry; "" if it can."""
        entry = self._partition.cache.get(offset)
        messages = MOST_MESSAGES if entry is None else entry.messages
        if words <= (messages + 63) // 64:
            return ""
        return f"an ack_set of {words} words: a batch there has at most {messages} messages"

    def _ack_here(
        self,
        consumer: ChannelConsumer,
        request_id: int,
        ranges: list[int],
        partial: list[tuple[int, list[int]]],
    ) -> None:
        if request_id:
            consumer.channel.expect_receipt(consumer, request_id)
        end = self._partition.end_offset
        ends = [at + 1 for at, _ in partial] + ranges[-1:]
        last = max(ends, default=0)
        consumer.channel.acknowledging(last)
        args = [consumer.number, request_id, end, ranges, partial]
        consumer.channel.acknowledge("ack", args, min(last, end))

    def _ack_up_to_foreign(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        position, words = _position(command), _words(command.message_id[0])
        # What this consumer acknowledged so before needn't be again: who moves the cursor back
        # closes all consumers.
        number = cluster_number_of(position.ledger_id)
        first = consumer.acked_up_to.get(number, self._partition.table().first_offset)
        found = remote_ids.up_to(self._partition, first, position, words)
        if found is None:
            self.spawn(self._ack_slowly(consumer, command))
            return
        consumer.acked_up_to[number] = found.end
        self._ack_parts(consumer, command, found)

    def _ack_parts(
        self, consumer: ChannelConsumer, command: pb.CommandAck, found: remote_ids.UpTo
    ) -> None:
        self._ack_here(consumer, command.request_id, remote_ids.flat(found.ranges), found.partial)

    async def _ack_slowly(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        channel, position = consumer.channel, _position(command)
        words = _words(command.message_id[0])
        try:
            found = await remote_ids.up_to_slowly(self._partition, channel, position, words)
            if consumer.closed or channel.resetting:
                raise RpcConnectionClosed(
                    "the subscription let go of its consumers: subscribe again"
                )
        except _CALL_ERRORS as error:
            self._refuse_ack(command, code_of(error), reason_of(error))
            return
        consumer.acked_up_to[cluster_number_of(position.ledger_id)] = found.end
        self._ack_parts(consumer, command, found)

    def _ack_cumulatively(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        table = self._partition.table(consumer.channel.compacted)
        offset, words = table.at_or_before(_position(command)), _words(command.message_id[0])
        if words is None or offset < 0:
            offset, words = offset + 1, None
        elif fault := self._fault_of_ack_set(offset, len(words)):
            self._refuse_ack(command, pb.NotAllowedError, fault)
            return
        if command.request_id:
            consumer.channel.expect_receipt(consumer, command.request_id)
        end = self._partition.end_offset
        last = offset if words is None else offset + 1
        consumer.channel.acknowledging(last)
        args = [consumer.number, command.request_id, end, offset, words]
        consumer.channel.acknowledge("ack_before", args, min(last, end))

    def _on_redeliver(self, command: pb.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if consumer is None:
            return
        ranges = None
        if command.message_ids:
            table = self._partition.table(consumer.channel.compacted)
            offsets = []
            for data in command.message_ids:
                position = Position(data.ledgerId, data.entryId)
                try:
                    offset = table.offset_of(position)
                except NoSuchEntryError:
                    offset = remote_ids.offset_of(self._partition, position, -1)
                if offset >= 0:  # else there's nothing to deliver again
                    offsets.append(offset)
            ranges = flat_ranges(offsets)
        epoch = None
        if consumer.type in _IN_ORDER and command.HasField("consumer_epoch"):
            epoch = command.consumer_epoch
        consumer.notify("redeliver", [consumer.number, ranges, epoch])

    # -- requests about a subscription ----------------------------------------------

    async def _on_unsubscribe(self, command: pb.CommandUnsubscribe) -> None:
        consumer = self._consumer(command.consumer_id)
        channel = consumer.channel
        if len(channel.consumers) > 1 and not command.force:
            others = len(channel.consumers) - 1
            raise RemoteError(Reason.NOT_ALLOWED, f"{others} other consumers are connected")
        self._consumers.pop(command.consumer_id, None)
        channel.remove(consumer)
        if not channel.durable:
            channel.close()
        else:
            await self._unsubscribe(consumer)
        self.succeed(command.request_id)

    async def _unsubscribe(self, consumer: ChannelConsumer) -> None:
        channel = consumer.channel
        deleted = False
        try:
            await self._partition.delete_subscription(DeleteSubscription(channel.name))
            deleted = True
        finally:
            if not deleted:  # it is detached by now: have it subscribe again
                close = pb.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=0)
                self.connection.send(close)
                self._partition.drop_if_unused(channel)

    async def _on_seek(self, command: pb.CommandSeek) -> None:
        channel = self._consumer(command.consumer_id).channel
        if command.HasField("message_publish_time"):
            where = self._partition.compactor if channel.compacted else self._partition
            offset = await where.offset_at_time(command.message_publish_time)
        else:
            offset = self._seek_target(command.message_id, channel.compacted)
        self._sought.add(channel)
        await self._partition.reset_subscription(channel.name, offset, "seek")
        self.succeed(command.request_id)

    async def _on_last_id(self, command: pb.CommandGetLastMessageId) -> None:
        partition = self._partition
        channel = self._consumer(command.consumer_id).channel
        mark = await channel.ask("cursor", None)
        last = await partition.compactor.last_message_id(channel.horizon)
        before = partition.table(channel.compacted).position_before(mark)
        index = partition.partition_index
        answer = pb.CommandGetLastMessageIdResponse(
            request_id=command.request_id,
            last_message_id=last.to_proto(),
            consumer_mark_delete_position=MessageId(*before, index).to_proto(),
        )
        if command.HasField("span"):
            answer.span.CopyFrom(await span(partition, channel.name, mark, command.span))
        self.connection.send(answer)

    async def _on_stats(self, command: pb.CommandConsumerStats) -> None:
        consumer = self._consumer(command.consumer_id)
        stats = await consumer.channel.ask("stats", self._partition.end_offset)
        own: dict[str, Any] = next(
            (c for c in stats["consumers"] if c["number"] == consumer.number), {}
        )
        self.connection.send(
            pb.CommandConsumerStatsResponse(
                request_id=command.request_id,
                consumerName=consumer.name,
                availablePermits=max(own.get("permits", 0), 0),
                unackedMessages=own.get("unacked", 0),
                blockedConsumerOnUnackedMsgs=own.get("blocked", False),
                address=self.connection.peer,
                type=SubscriptionType(consumer.type).name.capitalize(),
                msgBacklog=stats["backlog"],
            )
        )


def _reconnected(command: pb.CommandProducer) -> bool:
    """Whether this producer was connected before. The command then contains what the answer to the
    first one did: the generated name, or the topic epoch."""
    name_is_ours = command.producer_name and not command.user_provided_producer_name
    return bool(name_is_ours) or command.HasField("topic_epoch")


def _position(command: pb.CommandAck) -> Position:
    return MessageId.from_proto(command.message_id[0]).position


def _words(data: MessageIdData) -> list[int] | None:
    """What remains of a batch; None if nothing does, or all of the entry is meant."""
    return [word & (1 << 64) - 1 for word in data.ack_set] if any(data.ack_set) else None


def _key_shared_policy(command: pb.CommandSubscribe) -> KeySharedPolicy:
    meta = command.keySharedMeta
    ranges = tuple((each.start, each.end) for each in meta.hashRanges)
    return KeySharedPolicy(KeySharedMode(meta.keySharedMode), ranges, meta.allowOutOfOrderDelivery)

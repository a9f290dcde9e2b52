"""One client's connection to a topic partition: its producers and consumers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from velaray.actors.consumers import KeySharedMode, KeySharedPolicy, SubscriptionType
from velaray.actors.ledger_table import NoSuchEntryError
from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition import (
    Damaged,
    DeleteSubscription,
    FindProducer,
    ForgetProducer,
    RaiseTopicEpoch,
    StartAt,
)
from velaray.actors.producers import Accepted, AccessMode, ProducerSpec, Promotion, Waiting
from velaray.actors.runtime import Stopped
from velaray.events.ids import InvalidNameError, MessageId, Position, TopicName, TransactionId
from velaray.events.ids_pb2 import MessageIdData
from velaray.journal.errors import JournalError
from velaray.schemas import SchemaInfo, SchemaType
from velaray.topology.channel import Channel, ChannelConsumer, flat_ranges
from velaray.topology.compacted_channel import GONE
from velaray.topology.coordinators import check_not_systems
from velaray.topology.fabric import Unreachable
from velaray.topology.links import LinkClosed, RemoteError, reason_of
from velaray.topology.schema_session import get_or_create_schema, get_schema, schema_of
from velaray.topology.session import Session
from velaray.topology.spans import span
from velaray.topology.wire_errors import code_of, code_of_reason
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Command, Send
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.schemas import NO_VERSION, version_bytes

if TYPE_CHECKING:
    from velaray.topology.partition_body import PartitionBody

CLOSED_KEPT = 1000
"""Closed producers of a connection whose late sends are ignored; others' close it."""

_IN_ORDER = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Failover)

_CALL_ERRORS = (
    InvalidNameError,
    RemoteError,
    Unreachable,
    LinkClosed,
    TimeoutError,
    JournalError,
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
        self.request_id = 0
        self.generated = False
        self.ready = False
        self.schema_version: int | None = None
        # What waits for its transaction to be known as open, and what is behind it.
        self.held: deque[tuple[Send, bytes]] = deque()


class PartitionSession(Session):
    """Serves one client connection of a partition."""

    def __init__(self, partition: PartitionBody) -> None:
        super().__init__(partition.config)
        self._partition = partition
        self._producers: dict[int, Producing] = {}
        self._consumers: dict[int, ChannelConsumer] = {}
        # Sends to these may be under way; the newest of them, as a dict to keep their order.
        self._closed_producers: dict[int, None] = {}
        # What a producer or consumer id is being connected by; a newer command replaces it.
        self._connecting: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._sought: set[Channel] = set()
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

    # -- producers -----------------------------------------------------------------

    def _on_producer(self, command: pb.CommandProducer) -> None:
        work = self._connect_producer(command)
        self._connect_as("producer", command.producer_id, work, command.request_id)

    async def _connect_producer(self, command: pb.CommandProducer) -> None:
        partition = self._partition
        self._check_topic(command.topic)
        self._check_not_terminated()
        known = self._producers.get(command.producer_id)
        if known is not None:
            known.request_id = command.request_id
            if partition.registry.is_ready(known):
                await self._producer_success(known)
            else:
                self._tell_waiting(known)
            return
        version = await partition.schemas.of_producer(schema_of(command), self.role)
        if command.initial_subscription_name:
            await partition.create_subscription(
                command.initial_subscription_name, StartAt.EARLIEST, {}
            )
        name = command.producer_name or partition.producer_name()
        producing = Producing(self, command.producer_id, name)
        producing.request_id = command.request_id
        producing.schema_version = version
        producing.generated = not command.producer_name or not command.user_provided_producer_name
        spec = ProducerSpec(
            producing,
            name,
            AccessMode(command.producer_access_mode),
            command.epoch,
            command.topic_epoch if command.HasField("topic_epoch") else None,
        )
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

    def _check_not_terminated(self) -> None:
        if self._partition.terminated_at is not None:
            raise RemoteError(Reason.TERMINATED, "the topic is terminated")

    async def _admit(self, producing: Producing, answer: Accepted | Waiting) -> None:
        if isinstance(answer.replaced, Producing):
            answer.replaced.session.forget_producer(answer.replaced)
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
        found = await self._partition.runtime.ask(FindProducer(producing.name))
        if isinstance(found, Refusal):
            self._drop_producer(producing)  # else its next attempt would find it connected
            raise RemoteError(found.reason, found.message)
        if self._producers.get(producing.producer_id) is not producing:
            self._check_not_terminated()
            raise RemoteError(Reason.FENCED, f"producer {producing.name!r} was replaced")
        producing.ready = True
        deduplicate = self._partition.policies.deduplicate
        self.connection.send(
            pb.CommandProducerSuccess(
                request_id=producing.request_id,
                producer_name=producing.name,
                last_sequence_id=found.last_sequence_id if deduplicate else -1,
                # Java's client counts on being told, also that there is none.
                schema_version=version_bytes(producing.schema_version),
                topic_epoch=found.topic_epoch,
                producer_ready=True,
            )
        )

    async def promote(self, producing: Producing) -> None:
        """The producer waited for exclusivity and has it now."""
        await self._raise_epoch(producing)
        await self._producer_success(producing)

    @property
    def idle(self) -> bool:
        """Whether the client has no producer and no consumer here, and waits for nothing."""
        return not (self._producers or self._consumers or self._tasks)

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
        transaction = None if send.txn_id is None else TransactionId(*send.txn_id)
        if producing.held or not (transaction is None or self._partition.gate.is_open(transaction)):
            self._hold(producing, send, entry)
        else:
            self._take(producing, send, entry)

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
            return (pb.NotAllowedError if final else code_of(error)), str(error)
        return None

    def _take(self, producing: Producing, send: Send, entry: bytes) -> None:
        limit = self._partition.policies.max_message_size
        if limit and len(entry) > limit:
            problem = f"the topic takes messages of at most {limit} bytes, not {len(entry)}"
            self._refuse_in_turn(send, pb.NotAllowedError, problem)
            return
        self._partition.publish(producing, send, entry)

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
        if command.read_compacted and command.subType not in _IN_ORDER:
            refusal = "readCompacted only allowed on failover or exclusive subscriptions"
            raise RemoteError(Reason.NOT_ALLOWED, refusal)
        self._partition.check_consumers(command.subscription)
        schema = schema_of(command)
        active = self._partition.active_for_schemas
        await self._partition.schemas.of_consumer(schema, active=active, role=self.role)
        channel = await self._open_channel(command)
        self._check_again(channel)
        name = command.consumer_name or f"{self._partition.producer_name()}-consumer"
        consumer = channel.add(self, command.consumer_id, name, command.subType)
        consumer.auto_consume = schema is not None and schema.type is SchemaType.AUTO_CONSUME
        if command.subType in _IN_ORDER and command.HasField("consumer_epoch"):
            consumer.epoch = command.consumer_epoch
        self._consumers[command.consumer_id] = consumer
        try:
            await channel.attach(consumer, command.priority_level, _key_shared_policy(command))
            if consumer.closed:
                raise LinkClosed("the subscription let go of its consumers: subscribe again")
            consumer.subscribed = True
        finally:
            if not consumer.subscribed:
                self._drop_consumer(consumer)
        self.succeed(command.request_id)

    def _check_again(self, channel: Channel) -> None:
        """Another consumer may have come while the channel was opened."""
        try:
            self._partition.check_consumers(channel.name)
        except RemoteError:
            self._partition.drop_if_unused(channel)
            raise

    async def _open_channel(self, command: pb.CommandSubscribe) -> Channel:
        partition, compacted = self._partition, command.read_compacted
        if compacted:
            await partition.compactor.open_view()
        if command.durable:
            start: StartAt | int = StartAt.LATEST
            if command.initialPosition == pb.CommandSubscribe.Earliest:
                start = StartAt.EARLIEST
            properties = {item.key: item.value for item in command.subscription_properties}
            return await partition.durable_channel(
                command.subscription, start, properties, compacted=compacted
            )
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
        table = self._partition.table(compacted)
        return min(table.at_or_after(position), self._partition.end_offset)

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
            return await self._partition.schemas.of_producer(info, self.role)

        self.connection.send(await get_or_create_schema(command, register))

    # -- acknowledgements ----------------------------------------------------------

    def _on_ack(self, command: pb.CommandAck) -> None:
        consumer = self._consumers.get(command.consumer_id)
        if consumer is None:
            self._refuse_ack(command, pb.ConsumerNotFound, "the consumer is not connected")
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
        if command.HasField("txnid_most_bits") or command.HasField("txnid_least_bits"):
            self.spawn(self._ack_in_transaction(consumer, command))
            return
        if command.request_id:
            consumer.channel.expect_receipt(consumer, command.request_id)
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
            answer.message = str(error)
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
                last, args = self._acked_up_to(channel, command)
            channel.acknowledging(last)
            if last > partition.synced_offset:
                await partition.sync()
            if consumer.closed or channel.resetting:
                raise LinkClosed("the subscription let go of its consumers: subscribe again")
            try:
                await channel.ask(method, [consumer.number, list(transaction), *args])
            except RemoteError as error:
                if error.kind == Reason.CONFLICT:
                    raise _Conflict(error.message) from error
                raise

    async def _acked_one_by_one(
        self, channel: Channel, command: pb.CommandAck
    ) -> tuple[int, list[Any]]:
        span = self._partition.table(channel.compacted).span
        offsets: list[int] = []
        partial: list[tuple[int, list[int], int]] = []
        for data in command.message_id:
            _, first, limit = span(data.ledgerId)
            offset = first + data.entryId
            if offset >= limit:
                position = Position(data.ledgerId, data.entryId)
                raise _Conflict(f"{position} is trimmed away: it was acknowledged long ago")
            if data.ack_set:  # else the entry is meant, whatever is acknowledged of it
                words = [word & (1 << 64) - 1 for word in data.ack_set]
                entry = await channel.entry(offset)
                messages = data.batch_size if entry is GONE else entry.messages
                partial.append((offset, words, messages))
            else:
                offsets.append(offset)
        last = max([*offsets, *(at for at, _, _ in partial)], default=-1) + 1
        return last, [self._partition.end_offset, flat_ranges(offsets), partial]

    def _acked_up_to(self, channel: Channel, command: pb.CommandAck) -> tuple[int, list[Any]]:
        if len(command.message_id) != 1:
            why = "a cumulative acknowledgement in a transaction names one message"
            raise RemoteError(Reason.NOT_ALLOWED, why)
        data = command.message_id[0]
        table = self._partition.table(channel.compacted)
        offset = table.at_or_before(MessageId.from_proto(data).position)
        words = None
        if any(data.ack_set) and offset >= 0:
            words = [word & (1 << 64) - 1 for word in data.ack_set]
        else:
            offset += 1
        last = offset if words is None else offset + 1
        return last, [self._partition.end_offset, offset, words]

    def _refuse_ack(self, command: pb.CommandAck, code: pb.ServerError, message: str) -> None:
        if command.request_id:
            answer = pb.CommandAckResponse(
                consumer_id=command.consumer_id,
                request_id=command.request_id,
                error=code,
                message=message,
            )
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
                continue  # trimmed away: acknowledged long ago
            words = data.ack_set
            if words and any(words):
                partial.append((offset, [word & (1 << 64) - 1 for word in words]))
            else:
                offsets.append(offset)
        end = self._partition.end_offset
        ranges = flat_ranges(offsets)
        ends = [at + 1 for at, _ in partial] + ranges[-1:]
        last = max(ends, default=0)
        consumer.channel.acknowledging(last)
        args = [consumer.number, command.request_id, end, ranges, partial]
        consumer.channel.acknowledge("ack", args, min(last, end))

    def _ack_cumulatively(self, consumer: ChannelConsumer, command: pb.CommandAck) -> None:
        data = command.message_id[0]
        position = MessageId.from_proto(data).position
        offset = self._partition.table(consumer.channel.compacted).at_or_before(position)
        words = None
        if any(data.ack_set) and offset >= 0:
            words = [word & (1 << 64) - 1 for word in data.ack_set]
        else:
            offset += 1
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
                try:
                    offsets.append(table.offset_of(Position(data.ledgerId, data.entryId)))
                except NoSuchEntryError:
                    continue  # nothing to deliver again
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


def _key_shared_policy(command: pb.CommandSubscribe) -> KeySharedPolicy:
    meta = command.keySharedMeta
    ranges = tuple((each.start, each.end) for each in meta.hashRanges)
    return KeySharedPolicy(KeySharedMode(meta.keySharedMode), ranges, meta.allowOutOfOrderDelivery)

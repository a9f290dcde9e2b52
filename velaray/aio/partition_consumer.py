"""A consumer on one topic partition: subscribing, permits, acknowledging, reconnecting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from velaray.aio.acks import (
    AckTracker,
    PendingAck,
    PendingAcks,
    Where,
    bits_at,
    bits_of,
    indexes_of,
    words,
)
from velaray.aio.backoff import Backoff
from velaray.aio.blocks import Block
from velaray.aio.connection import Connection
from velaray.aio.core import Core
from velaray.aio.entries import EntryReader
from velaray.aio.lookup import RETRIABLE
from velaray.aio.redelivery import RedeliveryTimer
from velaray.enums import ConsumerType, InitialPosition
from velaray.events.ids import UINT64_MAX, TopicName
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids_pb2 import MessageIdData
from velaray.exceptions import (
    AlreadyClosed,
    ConsumerBusy,
    NotConnected,
    Timeout,
    VelarayError,
    from_server,
)
from velaray.message import EntryInfo, Message
from velaray.message_id import MessageId
from velaray.policies import ConsumerKeySharedPolicy
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message as Delivery

logger = logging.getLogger("velaray")

MAX_ACK_GROUP = 1000
"""Acknowledgements that are sent at once, without waiting for the group's time."""

REDELIVERY_GROUP = 0.01
"""Seconds that a due redelivery waits for others to share its request."""

_END_OF_BATCH = (1 << 31) - 1

_PASSING: tuple[type[VelarayError], ...] = (*RETRIABLE, ConsumerBusy)
"""What a consumer that was subscribed before tries to get over: its old self may linger."""


@dataclass(frozen=True)
class Subscription:
    """What to subscribe to and how; the same for all partitions of a consumer."""

    name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    consumer_name: str | None = None
    initial_position: InitialPosition = InitialPosition.Latest
    start: MessageId | None = None
    start_inclusive: bool = False
    properties: Mapping[str, str] | None = None
    read_compacted: bool = False
    key_shared: ConsumerKeySharedPolicy | None = None
    batch_index_ack: bool = False
    queue_size: int = 1000
    ack_group_seconds: float = 0.1
    nack_delay_seconds: float = 60.0
    ack_timeout_seconds: float | None = None
    max_chunked: int = 10

    @property
    def durable(self) -> bool:
        """Whether the service keeps the subscription when its consumers are gone."""
        return self.start is None

    def with_queue_size(self, size: int) -> Subscription:
        """The same with another bound on the messages that wait."""
        return replace(self, queue_size=size)


class Inbox(Protocol):
    """Where a partition's messages go to wait for the user."""

    def put(self, block: Block) -> None:
        """Messages arrived."""

    def drop(self, part: PartitionConsumer) -> int:
        """Forget the partition's messages that wait; returns how many there were."""

    def attached(self, part: PartitionConsumer) -> None:
        """The partition is subscribed (again) and may be asked for messages."""

    def failed(self, part: PartitionConsumer, error: VelarayError) -> None:
        """The partition will deliver nothing more."""


class PartitionConsumer:
    """Keeps a subscription on one topic partition alive and in step.

    After a lost connection it subscribes again, with backoff, until it is closed or the
    service refuses for good; messages that waited in the inbox are dropped then, since the
    service delivers them again.
    """

    def __init__(
        self, core: Core, topic: TopicName, subscription: Subscription, inbox: Inbox
    ) -> None:
        self.topic = str(topic)
        self.partition = topic.partition
        self.error: VelarayError | None = None
        self.name = subscription.consumer_name or ""
        self.uncredited = 0
        self.generation = 0
        self.taken: Message | None = None
        self._core = core
        self._subscription = subscription
        self._inbox = inbox
        self._id = core.next_id()
        self._connection: Connection | None = None
        self._ready = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self._start = subscription.start
        self._inclusive = subscription.start_inclusive
        self._seek: MessageId | int | None = None
        self._fetching = False
        self._acks = AckTracker(subscription.batch_index_ack)
        self._moves = 0  # how often a seek made void what was acknowledged
        self._reader = EntryReader(self.topic, self.partition, subscription.max_chunked)
        self._ack_timer: asyncio.TimerHandle | None = None
        self._receipt: asyncio.Task[None] | None = None
        self._nacks = RedeliveryTimer(subscription.nack_delay_seconds)
        self._overdue = RedeliveryTimer(subscription.ack_timeout_seconds or 0)
        self._redelivery: asyncio.TimerHandle | None = None

    # --- subscribing ---

    @property
    def connected(self) -> bool:
        """Whether the subscription is attached at the moment."""
        return self._connection is not None

    @property
    def refill_at(self) -> int:
        """How many messages the user takes before the service is asked for as many more."""
        return max(self._subscription.queue_size // 2, 1)

    async def start(self) -> None:
        """Subscribe. Raises the service's refusal, or `Timeout`."""
        what = f"subscribing {self._subscription.name} to {self.topic}"
        await self._core.retrying(what, self._subscribe)

    def start_in_background(self) -> None:
        """Subscribe as soon as possible, trying until it works or is refused for good."""
        self._reconnecting = self._core.spawn(self._reconnect())

    async def _subscribe(self) -> None:
        """One attempt to subscribe, then ask for messages."""
        connection = await self._core.lookup.server_of(self.topic)
        self._restart()
        connection.consumers[self._id] = self
        try:
            await connection.request(self._command(), self._core.attempt_timeout)
        except (Timeout, asyncio.CancelledError):
            # The service may subscribe us all the same: undo that.
            if not self._core.closed:
                self._core.spawn(self._leave(connection))
            raise
        finally:
            attached = connection.consumers.pop(self._id, None) is self
        if not attached or self.error is not None:
            raise self.error or NotConnected(f"{connection.address} closed the new consumer")
        connection.consumers[self._id] = self
        self._connection = connection
        self._ready.set()
        if len(self._acks):
            self._flush_acks()
        if self._subscription.queue_size:
            self._flow(self._subscription.queue_size)
        self._inbox.attached(self)

    def _restart(self) -> None:
        """Begin a new generation: what was delivered before and not taken comes again."""
        self.generation += 1
        self._inbox.drop(self)
        self.uncredited = 0
        self._fetching = False
        self._reader.forget_chunks()
        self._nacks.clear()
        self._overdue.clear()
        self._acks.subscribed_again()
        if self._seek is not None:
            self._acks.reset()
            self._moves += 1
            self.taken = None
            self._start = self._seek if isinstance(self._seek, MessageId) else None
            self._inclusive = self._subscription.start_inclusive
            self._seek = None
        elif not self._subscription.durable and self.taken is not None:
            self._start, self._inclusive = self.taken.message_id(), False
        self._reader.skip_until(self._start, self._inclusive)

    def _command(self) -> pb.CommandSubscribe:
        subscription = self._subscription
        subscribe = pb.CommandSubscribe(
            topic=self.topic,
            subscription=subscription.name,
            subType=int(subscription.consumer_type),  # type: ignore[arg-type]
            consumer_id=self._id,
            durable=subscription.durable,
            read_compacted=subscription.read_compacted,
            initialPosition=int(subscription.initial_position),  # type: ignore[arg-type]
        )
        if subscription.consumer_name is not None:
            subscribe.consumer_name = subscription.consumer_name
        if not subscription.durable and self._start is not None:
            subscribe.start_message_id.CopyFrom(self._start.to_stored().to_proto())
        for key, value in (subscription.properties or {}).items():
            subscribe.metadata.add(key=key, value=value)
        if subscription.key_shared is not None:
            policy = subscription.key_shared
            subscribe.keySharedMeta.keySharedMode = int(policy.key_shared_mode)  # type: ignore[assignment]
            subscribe.keySharedMeta.allowOutOfOrderDelivery = policy.allow_out_of_order_delivery
            for first, last in policy.sticky_ranges:
                subscribe.keySharedMeta.hashRanges.add(start=first, end=last)
        return subscribe

    async def _leave(self, connection: Connection) -> None:
        try:
            close = pb.CommandCloseConsumer(consumer_id=self._id)
            await connection.request(close, self._core.attempt_timeout)
        except VelarayError as error:
            logger.debug("closing a consumer of %s: %s", self.topic, error)

    # --- permits and messages ---

    def _flow(self, permits: int) -> None:
        if self._connection is not None and permits > 0:
            self._connection.send(pb.CommandFlow(consumer_id=self._id, messagePermits=permits))

    def taken_now(self, count: int) -> int:
        """Count what the user took: how many to `credit` now, 0 if that can wait."""
        self.uncredited += count
        if self.uncredited < self.refill_at:
            return 0
        due, self.uncredited = self.uncredited, 0
        return due

    def credit(self, count: int, generation: int) -> None:
        """The user took ``count`` messages that came in ``generation``: ask for as many."""
        if generation == self.generation:
            self._flow(count)

    def fetch_one(self) -> None:
        """Ask for one message, if none is on its way: how a consumer without queue receives."""
        if not self._fetching and self._connection is not None:
            self._fetching = True
            self._flow(1)

    def on_message(self, delivery: Delivery, entry: bytes) -> None:
        """An entry arrived: hand its messages to the inbox."""
        where = (delivery.ledger_id, delivery.entry_id)
        opened = self._reader.read(delivery, entry)
        if opened is None:
            self._settle(1, 0)
            self._nack_abandoned()
            return
        known = bits_of(delivery.ack_set) if delivery.ack_set else None
        indexes, permits = opened.indexes, 1
        if opened.batch_size:
            permits = opened.batch_size if known is None else known.bit_count()
            open_bits = self._acks.batch_arrived(where, opened.batch_size, known)
            if not open_bits:
                self._finished(where)
                self._schedule_acks()
                self._settle(permits, 0)
                return
            if open_bits != (1 << opened.batch_size) - 1:
                indexes = [index for index in indexes_of(open_bits) if index in indexes]
        elif opened.chunks:
            self._acks.chunks_arrived(where, opened.chunks)
        for skipped in opened.skipped:
            if self._subscription.durable:
                self.acknowledge(skipped)
        self._nack_abandoned()
        self._settle(permits, len(indexes))
        if indexes:
            self._inbox.put(Block(self, opened.info, opened.layout, indexes))

    def _settle(self, permits: int, delivered: int) -> None:
        """Give back the permits of an entry that the user won't give back by receiving."""
        if self._subscription.queue_size:
            self._flow(permits - delivered)
        elif delivered:
            self._fetching = False
            self._flow(permits - 1)
        else:
            self._flow(permits)

    def _nack_abandoned(self) -> None:
        for abandoned in self._reader.take_abandoned():
            self._nack(abandoned)

    def on_end_of_topic(self) -> None:
        """Nothing more will come; whoever waits keeps waiting, as the topic may be reset."""
        logger.info("%s is terminated and was delivered completely", self.topic)

    def received(self, where: Where) -> None:
        """The user got a message of this entry: its acknowledgement is due."""
        if self._subscription.ack_timeout_seconds is not None:
            self._overdue.add(where, self._core.loop.time())
            self._arm_redelivery()

    # --- acknowledging ---

    def acknowledge(self, message_id: MessageId) -> None:
        """Put an acknowledgement into the next group."""
        if self._acks.individual(message_id):
            self._finished((message_id.ledger_id(), message_id.entry_id()))
        self._schedule_acks()

    def acknowledge_indexes(self, info: EntryInfo, indexes: Sequence[int]) -> None:
        """Put an acknowledgement of several messages of one entry into the next group."""
        bits = bits_at(indexes) if info.batch_size else 0
        if self._acks.individual_bits(info.where, info.batch_size, bits):
            self._finished(info.where)
        self._schedule_acks()

    def _finished(self, where: Where) -> None:
        """All of an entry is acknowledged: it needn't come again."""
        self._overdue.remove(where)
        self._nacks.remove(where)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Put an acknowledgement of everything up to ``message_id`` into the next group."""
        done = self._acks.cumulative(message_id)
        self._overdue.remove_until(done)
        self._nacks.remove_until(done)
        self._schedule_acks()

    def _schedule_acks(self) -> None:
        group = self._subscription.ack_group_seconds
        if not len(self._acks):
            return
        if group == 0 or len(self._acks) >= MAX_ACK_GROUP:
            self._flush_acks()
        elif self._ack_timer is None:
            self._ack_timer = self._core.loop.call_later(group, self._flush_acks)

    def _flush_acks(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self._connection is None or self._receipt is not None:
            return  # they go when the subscription is back, or with the receipt being asked for
        for command in self._ack_commands(self._acks.take()):
            self._connection.send(command)

    def _ack_commands(self, acks: PendingAcks) -> list[pb.CommandAck]:
        commands = []
        if acks.cumulative is not None:
            command = pb.CommandAck(consumer_id=self._id, ack_type=pb.CommandAck.Cumulative)
            command.message_id.append(_acked(acks.cumulative))
            commands.append(command)
        for start in range(0, len(acks.individual), MAX_ACK_GROUP):
            command = pb.CommandAck(consumer_id=self._id, ack_type=pb.CommandAck.Individual)
            group = acks.individual[start : start + MAX_ACK_GROUP]
            command.message_id.extend(map(_acked, group))
            commands.append(command)
        return commands

    async def receipt(self) -> None:
        """Wait until every acknowledgement given so far is durable.

        Calls of one turn of the event loop share one request. Raises the service's refusal,
        or `Timeout` after one operation timeout, in which it tries again over reconnects.
        """
        if self._receipt is None:
            self._receipt = self._core.spawn(self._ask_receipts())
        await asyncio.shield(self._receipt)

    async def _ask_receipts(self) -> None:
        what = f"acknowledging to {self._subscription.name} on {self.topic}"
        await asyncio.sleep(0)  # let the other acknowledgements of this turn in
        acks, moves = self._acks.take(receipt=True), self._moves
        self._receipt = None

        async def attempt() -> None:
            nonlocal acks
            connection = await self._attached()
            if moves != self._moves:
                return  # a seek has made void what was acknowledged before it
            for command in self._ack_commands(acks):
                answer = await connection.request(command, self._core.attempt_timeout)
                if answer.HasField("error"):
                    raise from_server(answer.error, answer.message)
            if moves == self._moves:
                self._acks.durable(acks)

        try:
            await self._core.retrying(what, attempt)
        except VelarayError:
            # They were acknowledged all the same, by calls that asked for no receipt perhaps.
            if moves == self._moves:
                self._acks.put_back(acks)
                self._schedule_acks()
            raise

    # --- redelivery ---

    def negative_acknowledge(self, message_id: MessageId) -> None:
        """Have the message's entry delivered again after the configured delay."""
        where = (message_id.ledger_id(), message_id.entry_id())
        self._overdue.remove(where)
        self._nack(where)

    def _nack(self, where: Where) -> None:
        self._nacks.add(where, self._core.loop.time())
        self._arm_redelivery()

    def _arm_redelivery(self) -> None:
        deadlines = (self._nacks.next_deadline(), self._overdue.next_deadline())
        known = [deadline for deadline in deadlines if deadline is not None]
        if known and self._redelivery is None:
            when = min(known) + REDELIVERY_GROUP
            self._redelivery = self._core.loop.call_at(when, self._redeliver_due)

    def _redeliver_due(self) -> None:
        self._redelivery = None
        now = self._core.loop.time()
        due = self._nacks.due(now) + self._overdue.due(now)
        if due:
            self._redeliver(due)
        self._arm_redelivery()

    def _redeliver(self, entries: list[Where]) -> None:
        if self._subscription.consumer_type not in (ConsumerType.Shared, ConsumerType.KeyShared):
            self.redeliver_all()
            return
        if self._connection is None:
            return  # subscribing again brings them back
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        for ledger, entry in entries:
            request.message_ids.add(ledgerId=ledger, entryId=entry)
        self._connection.send(request)

    def redeliver_all(self) -> None:
        """Have everything delivered again that isn't acknowledged."""
        self._nacks.clear()
        self._overdue.clear()
        self._reader.forget_chunks()
        self._flush_acks()
        if self._connection is None:
            return
        dropped = self._inbox.drop(self)
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self._id)
        self._connection.send(request)
        if self._subscription.queue_size:
            self._flow(dropped)

    # --- requests ---

    async def _attached(self) -> Connection:
        while self._connection is None:
            if self.error is not None:
                raise self.error
            self._ready.clear()
            await self._ready.wait()
        return self._connection

    async def _request(self, what: str, make: Callable[[], Any]) -> Any:
        async def attempt() -> Any:
            connection = await self._attached()
            return await connection.request(make(), self._core.attempt_timeout)

        return await self._core.retrying(f"{what} on {self.topic}", attempt)

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription to a message id, or a publish time in milliseconds."""

        async def attempt() -> None:
            connection = await self._attached()
            seek = pb.CommandSeek(consumer_id=self._id)
            if isinstance(target, MessageId):
                seek.message_id.CopyFrom(target.to_stored().to_proto())
            else:
                seek.message_publish_time = target
            # The service closes the consumer before it answers; subscribing again must know.
            self._seek = target
            try:
                await connection.request(seek, self._core.attempt_timeout)
            except VelarayError:
                self._seek = None
                raise
            if self._connection is connection:
                await self._leave(connection)
                connection.consumers.pop(self._id, None)
                self.on_closed(connection)

        await self._core.retrying(f"seeking on {self.topic}", attempt)
        try:
            async with asyncio.timeout(self._core.timeout):
                await self._attached()
        except TimeoutError as error:
            raise Timeout(f"{self.topic}: not subscribed again after the seek") from error
        if not self._subscription.durable and not isinstance(target, MessageId):
            # The service forgets a non-durable position with the connection; this is it.
            marked = (await self.last_message_id())[1]
            at = (self.partition, marked.ledger_id(), marked.entry_id())
            self._start, self._inclusive = MessageId(*at, batch_index=_END_OF_BATCH), False

    async def last_message_id(self) -> tuple[MessageId, MessageId]:
        """The topic's last message (entry -1: none), and what is acknowledged up to."""
        answer = await self._request(
            "asking for the last message",
            lambda: pb.CommandGetLastMessageId(consumer_id=self._id),
        )
        return _message_id(answer.last_message_id, self.topic), _message_id(
            answer.consumer_mark_delete_position, self.topic
        )

    async def has_message_available(self) -> bool:
        """Whether the topic has a message after the last that was taken, or the start."""
        last, marked = await self.last_message_id()
        if last.entry_id() < 0:
            return False
        if self.taken is not None:
            return last > self.taken.message_id()
        if self._start is None or self._start == MessageId.latest:
            return last.position > marked.position
        return last >= self._start if self._inclusive else last > self._start

    async def unsubscribe(self) -> None:
        """Delete the subscription on this partition."""
        await self._request("unsubscribing", lambda: pb.CommandUnsubscribe(consumer_id=self._id))
        self.stop()

    # --- losing and regaining the connection ---

    def on_closed(self, connection: Connection) -> None:
        """The connection or the subscription's hold is gone: subscribe again."""
        if connection is not self._connection:
            return  # lost while subscribing: whoever subscribes finds out
        self._connection = None
        if self.error is None and not self._core.closed:
            self._reconnecting = self._core.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        backoff = Backoff()
        while self.error is None:
            try:
                await self._subscribe()
            except _PASSING as error:
                logger.info("consumer of %s can't subscribe yet: %s", self.topic, error)
            except VelarayError as error:
                logger.warning("consumer of %s is out: %s", self.topic, error)
                self._fail(error)
            else:
                break
            await asyncio.sleep(backoff.delay())
        self._reconnecting = None

    # --- the end ---

    def _fail(self, error: VelarayError) -> None:
        if self.error is None:
            self.error = error
        self._ready.set()
        for timer in (self._ack_timer, self._redelivery):
            if timer is not None:
                timer.cancel()
        self._inbox.failed(self, error)

    def stop(self) -> None:
        """Leave at once; what is not acknowledged goes to other consumers."""
        self._fail(AlreadyClosed(f"the consumer of {self.topic} is closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.consumers.pop(self._id, None)

    async def close(self) -> None:
        """Make acknowledgements durable if the service can be reached, then leave."""
        connection = self._connection
        if connection is not None and len(self._acks):
            try:
                await self.receipt()
            except VelarayError as error:
                logger.warning("consumer of %s closes with acks unsent: %s", self.topic, error)
        connection = self._connection
        self.stop()
        if connection is not None:
            await self._leave(connection)


def _acked(ack: PendingAck) -> MessageIdData:
    (ledger, entry), bits, size = ack
    data = MessageIdData(ledgerId=ledger, entryId=entry & UINT64_MAX)
    if bits is not None:
        data.ack_set.extend(words(bits, size))
        data.batch_size = size
    return data


def _message_id(data: MessageIdData, topic: str) -> MessageId:
    return MessageId.from_stored(StoredId.from_proto(data), topic)

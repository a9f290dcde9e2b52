"""A consumer on one topic partition: subscribing, permits, acknowledging, reconnecting."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from velaray.client import read_bounds
from velaray.client.acknowledging import Acknowledger, Part, place_of
from velaray.client.acks import Where, bits_at, bits_of, indexes_of, of_one_cluster
from velaray.client.blocks import Block
from velaray.client.connection import Connection
from velaray.client.consumer_extras import Extras
from velaray.client.core import Core
from velaray.client.dead_letters import Addressed
from velaray.client.entries import EntryReader, origin_of
from velaray.client.exceptions import (
    AlreadyClosed,
    ConsumerAssignError,
    ConsumerBusy,
    InvalidMessage,
    NotConnected,
    OperationNotSupported,
    Timeout,
    VelarayError,
)
from velaray.client.message import EntryInfo, Message
from velaray.client.message_id import MessageId
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.redelivering import Redeliverer
from velaray.client.retry import TRANSIENT, Backoff
from velaray.client.subscription import Subscription
from velaray.client.tail import Tail
from velaray.client.topic_schemas import Decoders
from velaray.client.transactions import Transaction
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TopicName
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message as Delivery
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import message_count

logger = logging.getLogger("velaray")

_END_OF_BATCH = (1 << 31) - 1
CHUNKED_KEPT = 100
"""Chunked messages that a reader knows of; then it looks which of them were taken."""

_TRANSIENT: tuple[type[VelarayError], ...] = (*TRANSIENT, ConsumerBusy, ConsumerAssignError)
"""What a consumer that was subscribed before tries to get over: its old self may linger."""


class Inbox(Protocol):
    """Where a partition's messages go to wait for the user."""

    def __len__(self) -> int:
        """How many messages wait."""

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
        self,
        core: Core,
        topic: TopicName,
        subscription: Subscription,
        inbox: Inbox,
        extras: Extras,
    ) -> None:
        self.topic = str(topic)
        self.partition = topic.partition
        self.error: VelarayError | None = None
        self.name = subscription.consumer_name or ""
        self.uncredited = 0
        self.generation = 0
        self._paused = False
        self._withheld = 0  # permits that are for when it's resumed
        self._epoch = 0  # how often everything was asked for again
        self.taken: Message[Any] | None = None
        self._core = core
        self._subscription = subscription
        self._inbox = inbox
        self.consumer_id = core.next_id()
        self.connection: Connection | None = None
        self._ready = asyncio.Event()
        self._reconnecting: asyncio.Task[None] | None = None
        self._start = subscription.start
        self._inclusive = subscription.start_inclusive
        self._chunked: dict[Where, Where] = {}  # without a cursor: last chunk to first
        self._back_to: Where | None = None
        self._seek: MessageId | int | None = None
        self._delivered = False  # something, since the last seek
        self._fetching = False
        self._acks = Acknowledger(core, subscription, self)
        self._reader = EntryReader(self.topic, self.partition, subscription.max_chunked)
        self._letters = extras.letters
        self._interceptors = extras.interceptors
        self._schema = extras.schema
        self._switches = core.switches
        self._decoders = self._made_decoders()
        self._held: deque[tuple[Block, int]] = deque()  # with permits, until they can be decoded
        self._learning: asyncio.Task[None] | None = None
        self._tail = Tail()
        self._again = Redeliverer(core, subscription, self, self._acks.tracker, extras)

    # --- subscribing ---

    @property
    def connected(self) -> bool:
        """Whether the subscription is attached at the moment."""
        return self.connection is not None

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
        connection.consumers[self.consumer_id] = self
        try:
            await connection.request(self._command(), self._core.attempt_timeout)
        except (Timeout, asyncio.CancelledError):
            # The service may subscribe us all the same: undo that.
            if not self._core.closed:
                self._core.spawn(self._leave(connection))
            raise
        finally:
            attached = connection.consumers.pop(self.consumer_id, None) is self
        if not attached or self.error is not None:
            raise self.error or NotConnected(f"{connection.address} closed the new consumer")
        connection.consumers[self.consumer_id] = self
        self.connection = connection
        self._ready.set()
        if len(self._acks):
            self._acks.flush()
        if self._subscription.queue_size:
            self._flow(self._subscription.queue_size)
        self._inbox.attached(self)

    def _restart(self) -> None:
        """Begin a new generation: what was delivered before and not taken comes again."""
        self.generation += 1
        self._inbox.drop(self)
        self.uncredited = self._withheld = 0
        self._fetching = False
        oldest = self._reader.oldest_chunk()
        self._reader.forget_chunks()
        self._tail.restart()
        self._again.clear()
        self._held.clear()
        self._acks.tracker.subscribed_again()
        if self._switches != self._core.switches:
            self._switches = self._core.switches
            self._decoders = self._made_decoders()  # versions of schemas are others there
        if self._seek is not None:
            self._acks.moved()
            self._back_to = None
            self._chunked.clear()
            self.taken = None
            self._start = self._seek if isinstance(self._seek, MessageId) else None
            self._inclusive = self._subscription.start_inclusive
            self._seek = None
            self._delivered = False
        elif self._subscription.durable and self._delivered:
            # Others may have moved the subscription back meanwhile, to before what we sought.
            self._start = None
        origin = None
        if not self._subscription.durable and self.taken is not None:
            self._start, self._inclusive = self.taken.message_id(), False
            origin = origin_of(self.taken.info.metadata)
            self._go_back(oldest)
        self._reader.skip_until(self._start, self._inclusive, origin)

    def _go_back(self, oldest: Where | None) -> None:
        """Begin at the first chunk of what is not taken, though others were taken behind it."""
        assert self._start is not None
        taken = self._start.position
        self._chunked = {
            last: first
            for last, first in self._chunked.items()
            if last > taken and of_one_cluster(last, taken)
        }
        firsts = [*self._chunked.values(), *filter(None, (oldest, self._back_to))]
        back = min(firsts, default=taken)
        self._back_to = back if back < taken else None
        if self._back_to is not None:
            self._acks.moved()  # acknowledged up to what was taken, it wouldn't come

    def _command(self) -> pb.CommandSubscribe:
        subscription = self._subscription
        subscribe = subscription.command(self.topic, self.consumer_id)
        if not subscription.shared:
            subscribe.consumer_epoch = self._epoch
        if not subscription.durable and self._start is not None:
            start = self._start.to_stored()
            if self._back_to is not None:
                start = StoredId(*self._back_to, self.partition)
            subscribe.start_message_id.CopyFrom(start.to_proto())
        return subscribe

    def _made_decoders(self) -> Decoders | None:
        if self._schema is None:
            return None
        return Decoders(self._core.schemas, self.topic, self._schema)

    async def _leave(self, connection: Connection) -> None:
        try:
            close = pb.CommandCloseConsumer(consumer_id=self.consumer_id)
            await connection.request(close, self._core.attempt_timeout)
        except VelarayError as error:
            logger.debug("closing a consumer of %s: %s", self.topic, error)

    # --- permits and messages ---

    def pause(self, paused: bool) -> None:
        """Ask for no more messages, or for all that were not asked for meanwhile."""
        self._paused = paused
        if not paused:
            permits, self._withheld = self._withheld, 0
            self._flow(permits)
            if self.connection is not None:
                self._inbox.attached(self)

    def _flow(self, permits: int) -> None:
        if self._paused:
            self._withheld += permits
        elif self.connection is not None and permits > 0:
            self.connection.send(
                pb.CommandFlow(consumer_id=self.consumer_id, messagePermits=permits)
            )

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
        if not (self._fetching or self._paused) and self.connection is not None:
            self._fetching = True
            self._flow(1)

    def on_message(self, delivery: Delivery, entry: bytes) -> None:
        """An entry arrived: hand its messages to the inbox."""
        where = (delivery.ledger_id, delivery.entry_id)
        if delivery.consumer_epoch is not None and delivery.consumer_epoch < self._epoch:
            self._settle(_debited(delivery, entry), 0)
            return  # it was under way when everything was asked for again, and comes again
        self._tail.came(where)
        self._delivered = True
        opened = self._reader.read(delivery, entry)
        if opened is None:
            self._settle(1, 0)
            self._nack_abandoned()
            return
        if self._back_to is not None:
            start = where if self._start is None else self._start.position
            if where < start and of_one_cluster(where, start):
                self._settle(opened.batch_size or 1, 0)
                return  # it was taken before; what comes between are chunks of what wasn't
            self._back_to = None
        known = bits_of(delivery.ack_set) if delivery.ack_set else None
        indexes, permits = opened.indexes, 1
        if opened.batch_size:
            permits = opened.batch_size if known is None else known.bit_count()
            open_bits = self._acks.tracker.batch_arrived(where, opened.batch_size, known)
            if not open_bits:
                self._finished(where)
                self._acks.schedule()
                self._settle(permits, 0)
                return
            if open_bits != (1 << opened.batch_size) - 1:
                indexes = [index for index in indexes_of(open_bits) if index in indexes]
        elif opened.chunks:
            self._acks.tracker.chunks_arrived(where, opened.chunks)
            if not self._subscription.durable:
                self._note_chunked(where, min(opened.chunks))
        for skipped in opened.skipped:
            if self._subscription.durable:
                self._note(skipped)
        self._nack_abandoned()
        block = Block(self, opened.info, opened.layout, indexes)
        if self._decoders is not None and (self._held or not self._decoders.set(opened.info)):
            self._held.append((block, permits))
            if self._learning is None:
                self._learning = self._core.spawn(self._learn(self._decoders))
            return
        self._hand_over(block, permits)

    def _hand_over(self, block: Block, permits: int) -> None:
        delivered = len(block)
        if self._letters is not None and delivered:
            block.info.generation = self.generation
            block = self._again.sifted(block)
            delivered = len(block)
            if delivered and not self._again.arrived(block):
                delivered = 0
        self._settle(permits, delivered)
        if delivered:
            self._inbox.put(block)

    def _note_chunked(self, last: Where, first: Where) -> None:
        if self.taken is not None and len(self._chunked) > CHUNKED_KEPT:
            taken = self.taken.message_id().position
            self._chunked = {at: begin for at, begin in self._chunked.items() if at > taken}
        self._chunked[last] = first

    async def _learn(self, decoders: Decoders) -> None:
        """Find out how to decode what is held, in order."""
        backoff = Backoff()
        try:
            while self._held:
                info = self._held[0][0].info
                if decoders.set(info):
                    self._hand_over(*self._held.popleft())
                    self._tail.wake()
                    continue
                try:
                    await decoders.learn(info.metadata.schema_version)
                except TRANSIENT as error:
                    logger.warning("consumer of %s waits for a schema: %s", self.topic, error)
                    await backoff.wait()
        finally:
            self._learning = None
            self._tail.wake()

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
            self._again.nack(abandoned)

    def on_end_of_topic(self) -> None:
        """Nothing more will come; whoever waits keeps waiting, as the topic may be reset."""
        logger.info("%s is terminated and was delivered completely", self.topic)

    def received(self, info: EntryInfo) -> None:
        """The user got a message of this entry: its acknowledgement is due."""
        if self._subscription.ack_timeout_seconds is not None:
            self._again.received(info)

    # --- acknowledging ---

    def acknowledge(self, message_id: MessageId) -> None:
        """Put an acknowledgement into the next group. Raises as `AckTracker.individual`."""
        try:
            self._note(message_id)
        except InvalidMessage as error:
            if self._interceptors is not None:
                self._interceptors.failed(message_id, error)
            raise
        if self._interceptors is not None:
            self._interceptors.acknowledged([message_id])

    def _note(self, message_id: MessageId) -> None:
        if self._acks.tracker.individual(message_id):
            self._finished((message_id.ledger_id(), message_id.entry_id()))
        self._acks.schedule()

    def acknowledge_indexes(self, info: EntryInfo, indexes: Sequence[int]) -> None:
        """Put an acknowledgement of several messages of one entry into the next group."""
        bits = bits_at(indexes) if info.batch_size else 0
        if self._acks.tracker.individual_bits(info.where, info.batch_size, bits):
            self._finished(info.where)
        self._acks.schedule()
        if self._interceptors is not None:
            places = indexes if info.batch_size else [-1]
            self._interceptors.acknowledged(map(info.message_id, places))

    def _finished(self, where: Where) -> None:
        """All of an entry is acknowledged: it needn't come again."""
        self._again.finished(where)
        start = self._start
        if start is not None and self._subscription.durable and start.position == where:
            self._start = None  # who moves the subscription back wants all of that entry

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Put an acknowledgement of everything up to ``message_id`` into the next group."""
        done = self._acks.tracker.cumulative(message_id)
        self._again.finished_until(done)
        self._acks.schedule()
        if self._interceptors is not None:
            self._interceptors.acknowledged_cumulatively(message_id)

    async def acknowledge_in(self, txn: Transaction, acks: Mapping[Where, Part]) -> None:
        """Acknowledge messages of these entries in a transaction; all of them, or none.

        Returns when the service has it. Raises its refusal, or `Timeout` if the outcome is
        unknown.
        """
        interceptors, moves = self._interceptors, self._acks.moves
        try:
            await self._acks.in_transaction(txn, acks)
        except VelarayError as error:
            if interceptors is not None:
                for message_id in self._ids(acks):
                    interceptors.failed(message_id, error)
            raise
        if interceptors is not None:
            interceptors.acknowledged(self._ids(acks))
        tracker = self._acks.tracker
        for where, (size, bits) in acks.items():
            if tracker.in_transaction(where, size, bits):
                self._again.finished(where)

        def ended(committed: bool) -> None:
            if moves != self._acks.moves:
                return  # a seek has made it void
            for where, (size, bits) in acks.items():
                if tracker.out_of_transaction(where, size, bits, committed):
                    self._finished(where)
            self._acks.schedule()

        txn.when_ended(ended)

    def _ids(self, acks: Mapping[Where, Part]) -> Iterator[MessageId]:
        for where, (size, bits) in acks.items():
            for index in indexes_of(bits) if size else [-1]:
                at = (self.partition, *where, index)
                yield MessageId(*at, batch_size=size, topic=self.topic)

    async def acknowledge_until_in(self, txn: Transaction, message_id: MessageId) -> None:
        """Acknowledge everything up to ``message_id``; as `acknowledge_in`."""
        moves = self._acks.moves
        await self._acks.until_in_transaction(txn, message_id)
        if self._interceptors is not None:
            self._interceptors.acknowledged_cumulatively(message_id)
        self._again.finished_until((message_id.ledger_id(), message_id.entry_id()))

        def ended(committed: bool) -> None:
            if committed and moves == self._acks.moves:
                self._again.finished_until(self._acks.tracker.committed_until(message_id))

        txn.when_ended(ended)

    async def receipt(self) -> None:
        """Wait until every acknowledgement given so far is durable; as `Acknowledger.receipt`."""
        await self._acks.receipt()

    # --- redelivery ---

    def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Have the message's entry delivered again after the configured delay."""
        if isinstance(message, Message):
            info = message.info
            self._again.nack(info.where, info.redelivery_count, message.index)
        else:
            where = (message.ledger_id(), message.entry_id())
            self._again.nack(where, index=message.batch_index())

    def ask_again(self, entries: Sequence[Where]) -> None:
        """Ask the service for these entries, or for all if it gives them in order."""
        if not self._subscription.shared:
            self.redeliver_all()
            return
        if self.connection is None:
            return  # subscribing again brings them back
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.consumer_id)
        for entry in entries:
            for ledger, number in self._acks.tracker.parts_of(entry):
                request.message_ids.add(ledgerId=ledger, entryId=number)
        self.connection.send(request)

    def entry_id(self, where: Where) -> MessageId:
        """The id of an entry, of no message of it in particular."""
        return MessageId(self.partition, *where, topic=self.topic)

    async def move(self, message: Message[Any], letter: Addressed, txn: Transaction | None) -> None:
        """Send the message's copy where it goes, and acknowledge the message."""
        letters = self._letters
        assert letters is not None
        if txn is None:
            await letters.move(message, letter, partial(self.settle, message))
            return
        where, size, bits = place_of(message.message_id())
        await letters.send_in(txn, message, letter)
        await self.acknowledge_in(txn, {where: (size, bits)})

    async def settle(self, message: Message[Any]) -> bool:
        """Acknowledge a message that went elsewhere and return when that is durable.

        True if no other consumer can have got it meanwhile.
        """
        info = message.info
        if self._acks.elsewhere(info, message.index):
            self._finished(info.where)
        if self._interceptors is not None:
            self._interceptors.acknowledged([message.message_id()])
        await self._acks.receipt()
        return info.generation == self.generation

    def redeliver_all(self) -> None:
        """Have everything delivered again that isn't acknowledged.

        To consumers that get messages in order nothing comes before it that was under way.
        """
        self._again.clear()
        self._reader.forget_chunks()
        self._acks.flush()
        if self.connection is None:
            return
        dropped = self._inbox.drop(self) + sum(permits for _, permits in self._held)
        self._held.clear()
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.consumer_id)
        if not self._subscription.shared:
            self._epoch += 1
            request.consumer_epoch = self._epoch
        self.connection.send(request)
        if self._subscription.queue_size:
            self._flow(dropped)

    # --- requests ---

    async def attached(self) -> Connection:
        """The connection, as soon as there is one. Raises the error that ended the consumer."""
        while self.connection is None:
            if self.error is not None:
                raise self.error
            self._ready.clear()
            await self._ready.wait()
        return self.connection

    async def _request(self, what: str, make: Callable[[], Any]) -> Any:
        async def attempt() -> Any:
            connection = await self.attached()
            return await connection.request(make(), self._core.attempt_timeout)

        return await self._core.retrying(f"{what} on {self.topic}", attempt)

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription to a message id, or a publish time in milliseconds."""

        async def attempt() -> None:
            connection = await self.attached()
            seek = pb.CommandSeek(consumer_id=self.consumer_id)
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
            if self.connection is connection:
                await self._leave(connection)
                connection.consumers.pop(self.consumer_id, None)
                self.on_closed(connection)

        await self._core.retrying(f"seeking on {self.topic}", attempt)
        try:
            async with asyncio.timeout(self._core.timeout):
                await self.attached()
        except TimeoutError as error:
            raise Timeout(f"{self.topic}: not subscribed again after the seek") from error
        if not isinstance(target, MessageId) or target == MessageId.latest:
            await self.hold_position()

    async def hold_position(self) -> None:
        """Note where a subscription that isn't durable begins.

        The service forgets that with the connection; what is published meanwhile isn't to be
        missed.
        """
        if not self._subscription.durable and self.taken is None:
            marked = (await self.last_message_id())[1]
            at = (self.partition, marked.ledger_id(), marked.entry_id())
            self._start, self._inclusive = MessageId(*at, batch_index=_END_OF_BATCH), False

    async def last_message_id(self) -> tuple[MessageId, MessageId]:
        """The topic's last message (entry -1: none), and what is acknowledged up to."""
        answer = await self._request(
            "asking for the last message",
            lambda: pb.CommandGetLastMessageId(consumer_id=self.consumer_id),
        )
        return _message_id(answer.last_message_id, self.topic), _message_id(
            answer.consumer_mark_delete_position, self.topic
        )

    async def span(self, start: Spot, limits: SpanLimits) -> Span:
        """The next step of who goes in steps."""
        answer = await self._request(
            "asking what comes next",
            lambda: pb.CommandGetLastMessageId(
                consumer_id=self.consumer_id, span=read_bounds.to_proto(start, limits)
            ),
        )
        if not answer.HasField("span"):
            raise OperationNotSupported(f"{self.topic}: its service can't be read in steps")
        return read_bounds.from_proto(answer.span, start, self.topic)

    async def has_message_available(self) -> bool:
        """Whether the topic has a message after the last that was taken, or the start.

        Raises `Timeout` if the service delivers nothing of what it has.
        """
        last, marked = await self.last_message_id()
        if last.entry_id() < 0 or not self._is_ahead(last, marked):
            return False
        # What was never completed, or can't be read, is there but isn't a message.
        return not self._subscription.queue_size or await self._comes(last)

    def _is_ahead(self, last: MessageId, marked: MessageId) -> bool:
        at = self._start if self.taken is None else self.taken.message_id()
        if at is None or at == MessageId.latest or not of_one_cluster(at.position, last.position):
            return last.position > marked.position
        return last >= at if self._inclusive and self.taken is None else last > at

    async def _comes(self, last: MessageId) -> bool:
        try:
            async with asyncio.timeout(self._core.timeout):
                while not len(self._inbox):
                    if self._tail.last >= last.position and not self._held:
                        return False
                    if self.error is not None:
                        raise self.error
                    await self._tail.change()
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            raise Timeout(f"{self.topic}: {last} is there, but doesn't come") from error
        return True

    async def unsubscribe(self) -> None:
        """Delete the subscription on this partition."""
        await self._request(
            "unsubscribing", lambda: pb.CommandUnsubscribe(consumer_id=self.consumer_id)
        )
        self.stop()

    # --- losing and regaining the connection ---

    def on_closed(self, connection: Connection) -> None:
        """The connection or the subscription's hold is gone: subscribe again."""
        if connection is not self.connection:
            return  # lost while subscribing: whoever subscribes finds out
        self.connection = None
        if self.error is None and not self._core.closed:
            self._reconnecting = self._core.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        backoff = Backoff()
        while self.error is None:
            try:
                await self._subscribe()
            except _TRANSIENT as error:
                logger.info("consumer of %s can't subscribe yet: %s", self.topic, error)
            except VelarayError as error:
                logger.warning("consumer of %s is out: %s", self.topic, error)
                self._fail(error)
            else:
                break
            await backoff.wait()
        self._reconnecting = None

    # --- the end ---

    def _fail(self, error: VelarayError) -> None:
        if self.error is None:
            self.error = error
        self._ready.set()
        if self._learning is not None:
            self._learning.cancel()
        self._acks.stop()
        self._again.stop()
        self._tail.wake()
        self._inbox.failed(self, error)

    def stop(self) -> None:
        """Leave at once; what is not acknowledged goes to other consumers."""
        self._fail(AlreadyClosed(f"the consumer of {self.topic} is closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.consumers.pop(self.consumer_id, None)

    async def close(self) -> None:
        """Make acknowledgements durable if the service can be reached, then leave."""
        connection = self.connection
        if connection is not None and len(self._acks):
            try:
                await self._acks.receipt()
            except VelarayError as error:
                logger.warning("consumer of %s closes with acks unsent: %s", self.topic, error)
        connection = self.connection
        self.stop()
        if connection is not None:
            await self._leave(connection)


def _debited(delivery: Delivery, entry: bytes) -> int:
    """How many permits a delivery took."""
    if delivery.ack_set:
        return bits_of(delivery.ack_set).bit_count()
    try:
        return message_count(entry)
    except MalformedEntryError:
        return 1  # the reader would say so, and take one


def _message_id(data: MessageIdData, topic: str) -> MessageId:
    return MessageId.from_stored(StoredId.from_proto(data), topic)

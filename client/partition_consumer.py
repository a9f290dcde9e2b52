"""A consumer on one topic partition: subscribing, permits, acknowledging, reconnecting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from velaray.client.acknowledging import Acknowledger, place_of
from velaray.client.acks import Where, bits_of, indexes_of
from velaray.client.blocks import Block
from velaray.client.connection import Connection
from velaray.client.consumer_extras import Extras
from velaray.client.core import Core
from velaray.client.dead_letters import Addressed
from velaray.client.decoding import Decoding
from velaray.client.entries import EntryReader, Opened
from velaray.client.enums import ConsumerCryptoFailureAction
from velaray.client.exceptions import (
    AlreadyClosed,
    ConsumerAssignError,
    ConsumerBusy,
    NotConnected,
    Timeout,
    VelarayError,
)
from velaray.client.message import EntryInfo, Message
from velaray.client.message_id import MessageId
from velaray.client.partition_acks import PartitionAcks
from velaray.client.permits import Permits
from velaray.client.read_position import ReadPosition
from velaray.client.reconnecting import Reconnection
from velaray.client.redelivering import Redeliverer
from velaray.client.retry import TRANSIENT
from velaray.client.subscription import Subscription
from velaray.client.tail import Tail
from velaray.client.topic_queries import TopicQueries
from velaray.client.transactions import Transaction
from velaray.events.ids import TopicName
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message as Delivery
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import message_count

logger = logging.getLogger("velaray")

_TRANSIENT: tuple[type[VelarayError], ...] = (*TRANSIENT, ConsumerBusy, ConsumerAssignError)
"""Errors that a formerly subscribed consumer retries: its former session may still exist."""


class Inbox(Protocol):
    """The queue of a partition's messages for the user."""

    def __len__(self) -> int:
        """Number of waiting messages."""

    def put(self, block: Block) -> None:
        """Add messages."""

    def drop(self, part: PartitionConsumer) -> int:
        """Drop the partition's waiting messages; return their number."""

    def attached(self, part: PartitionConsumer) -> None:
        """Handle a new subscribing: the partition may be asked for messages."""

    def failed(self, part: PartitionConsumer, error: VelarayError) -> None:
        """Handle a permanent failure: the partition delivers nothing more."""


class PartitionConsumer:
    """Maintains the subscription of a consumer on one topic partition.

    After a lost connection it subscribes again, with back-off, until it is closed or the service
    refuses permanently. Messages that wait in the inbox are dropped then, since the service
    redelivers them.
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
        self.consumer_id = core.next_id()
        self.connection: Connection | None = None
        self.permits = Permits(self, subscription.queue_size)
        self.position = ReadPosition(subscription)
        self.queries = TopicQueries(core, subscription, self, self.position)
        self._core = core
        self._subscription = subscription
        self._inbox = inbox
        self._dead_letters = extras.dead_letters
        self._epoch = 0  # number of requests to redeliver everything
        self._ready = asyncio.Event()
        self._reconnection = Reconnection(
            core, self._subscribe, self._attempt_failed, lambda: self.error is not None
        )
        self._sending = Acknowledger(core, subscription, self)
        self._again = Redeliverer(core, subscription, self, self._sending.tracker, extras)
        self.acks = PartitionAcks(
            topic, self._sending, self._again, self.position, extras.interceptors
        )
        self._reader = EntryReader(
            self.topic, self.partition, subscription.max_chunked, subscription.key_reader
        )
        self._tail = Tail()
        self._decoding = Decoding(core, self.topic, extras.schema, self._hand_over, self._tail)

    # --- subscribing ---

    @property
    def connected(self) -> bool:
        """Whether the subscription is attached at the moment."""
        return self.connection is not None

    async def start(self) -> None:
        """Subscribe. Raises the service's refusal, or `Timeout`."""
        what = f"subscribing {self._subscription.name} to {self.topic}"
        await self._core.retrying(what, self._subscribe)

    def start_in_background(self) -> None:
        """Subscribe in the background; repeat until it succeeds or is refused permanently."""
        self._reconnection.start()

    async def _subscribe(self) -> None:
        """Make one attempt to subscribe, then ask for messages."""
        connection = await self._core.lookup.server_of(self.topic)
        self._restart()
        connection.consumers[self.consumer_id] = self
        try:
            await connection.request(self._command(), self._core.attempt_timeout)
        except (Timeout, asyncio.CancelledError):
            # The service may still subscribe this consumer: undo that.
            if not self._core.closed:
                self._core.spawn(self._core.close_quietly(connection, self._close_command()))
            raise
        finally:
            attached = connection.consumers.pop(self.consumer_id, None) is self
        if not attached or self.error is not None:
            raise self.error or NotConnected(f"{connection.address} closed the new consumer")
        connection.consumers[self.consumer_id] = self
        self.connection = connection
        self._ready.set()
        if len(self._sending):
            self._sending.flush()
        self.permits.refill()
        self._inbox.attached(self)

    def _restart(self) -> None:
        """Begin a new generation: delivered messages that the user didn't take are redelivered."""
        self._inbox.drop(self)
        self.permits.restart()
        oldest = self._reader.oldest_chunk()
        self._reader.forget_chunks()
        self._tail.restart()
        self._again.clear()
        self._sending.tracker.subscribed_again()
        self._decoding.restart()
        position = self.position
        if position.restart(oldest):
            self._sending.moved()
        self._reader.skip_until(position.start, position.inclusive, position.origin)

    def _command(self) -> pb.CommandSubscribe:
        subscription = self._subscription
        subscribe = subscription.command(self.topic, self.consumer_id)
        if not subscription.shared:
            subscribe.consumer_epoch = self._epoch
        start = self.position.start_for_service(self.partition)
        if start is not None:
            subscribe.start_message_id.CopyFrom(start)
        return subscribe

    def _close_command(self) -> pb.CommandCloseConsumer:
        return pb.CommandCloseConsumer(consumer_id=self.consumer_id)

    # --- permits and messages ---

    def pause(self, paused: bool) -> None:
        """Withhold permits, or send those that were withheld."""
        self.permits.pause(paused)
        if not paused and self.connection is not None:
            self._inbox.attached(self)

    def on_message(self, delivery: Delivery, entry: bytes) -> None:
        """Add the messages of a delivered entry to the inbox."""
        where = (delivery.ledger_id, delivery.entry_id)
        if delivery.consumer_epoch is not None and delivery.consumer_epoch < self._epoch:
            self.permits.settle(_debited(delivery, entry), 0)
            return  # sent before everything was requested again; it is redelivered
        self._tail.came(where)
        self.position.delivered = True
        opened = self._reader.read(delivery, entry)
        if opened is None:
            self.permits.settle(1, 0)
            self._nack_abandoned()
            return
        if opened.info.sealed:
            self._sealed(opened, _debited(delivery, entry))
            return
        if self.position.was_read(where):
            self.permits.settle(opened.batch_size or 1, 0)
            return
        known = bits_of(delivery.ack_set) if delivery.ack_set else None
        indexes, permits = opened.indexes, 1
        if opened.batch_size:
            permits = opened.batch_size if known is None else known.bit_count()
            open_bits = self._sending.tracker.batch_arrived(where, opened.batch_size, known)
            if not open_bits:
                self.acks.finished(where)
                self._sending.schedule()
                self.permits.settle(permits, 0)
                return
            if open_bits != (1 << opened.batch_size) - 1:
                indexes = [index for index in indexes_of(open_bits) if index in indexes]
        elif opened.chunks:
            self._sending.tracker.chunks_arrived(where, opened.chunks)
            self.position.note_chunked(where, min(opened.chunks))
        for skipped in opened.skipped:
            if self._subscription.durable:
                self.acks.note(skipped)
        self._nack_abandoned()
        block = Block(self, opened.info, opened.layout, indexes)
        if not self._decoding.holds(block, permits):
            self._hand_over(block, permits)

    def _hand_over(self, block: Block, permits: int) -> None:
        delivered = len(block)
        if self._dead_letters is not None and delivered:
            block.info.generation = self.permits.generation
            block = self._again.sifted(block)
            delivered = len(block)
            if delivered and not self._again.arrived(block):
                delivered = 0
        self.permits.settle(permits, delivered)
        if delivered:
            self._inbox.put(block)

    def _sealed(self, opened: Opened, permits: int) -> None:
        """Deliver, discard or keep back an entry that can't be decrypted."""
        info, action = opened.info, self._subscription.crypto_failure_action
        if self.position.was_read(info.where) or not opened.indexes:
            self.permits.settle(permits, 0)
        elif action is ConsumerCryptoFailureAction.CONSUME:
            block = Block(self, info, opened.layout, opened.indexes)
            if not self._decoding.holds(block, permits):
                self._hand_over(block, permits)
        else:
            if action is ConsumerCryptoFailureAction.FAIL:
                self.received(info)
            elif self._subscription.durable:
                self.acks.note(info.message_id(-1))
            self.permits.settle(permits, 0)

    def _nack_abandoned(self) -> None:
        for abandoned in self._reader.take_abandoned():
            self._again.nack(abandoned)

    def on_end_of_topic(self) -> None:
        """Handle the end of the topic. Waiting calls keep waiting, as the topic may be reset."""
        logger.info("%s is terminated and was delivered completely", self.topic)

    def received(self, info: EntryInfo) -> None:
        """Note that the user got a message of this entry, and begin its acknowledgement timeout."""
        if self._subscription.ack_timeout_seconds is not None:
            self._again.received(info)

    # --- redelivery ---

    def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Request redelivery of the message's entry after the configured delay."""
        if isinstance(message, Message):
            info = message.info
            self._again.nack(info.where, info.redelivery_count, message.index)
        else:
            where = (message.ledger_id(), message.entry_id())
            self._again.nack(where, index=message.batch_index())

    def ask_again(self, entries: Sequence[Where]) -> None:
        """Request redelivery of these entries, or of all if the subscription keeps order."""
        if not self._subscription.shared:
            self.redeliver_all()
            return
        if self.connection is None:
            return  # subscribing again redelivers them
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.consumer_id)
        for entry in entries:
            for ledger, number in self._sending.tracker.parts_of(entry):
                request.message_ids.add(ledgerId=ledger, entryId=number)
        self.connection.send(request)

    def entry_id(self, where: Where) -> MessageId:
        """The id of an entry, without a batch index."""
        return MessageId(self.partition, *where, topic=self.topic)

    async def move(
        self, message: Message[Any], dead_letter: Addressed, txn: Transaction | None
    ) -> None:
        """Send the message's copy to its target, and acknowledge the message."""
        dead_letters = self._dead_letters
        assert dead_letters is not None
        if txn is None:
            await dead_letters.move(message, dead_letter, partial(self.settle, message))
            return
        where, size, bits = place_of(message.message_id())
        await dead_letters.send_in(txn, message, dead_letter)
        await self.acks.acknowledge_in(txn, {where: (size, bits)})

    async def settle(self, message: Message[Any]) -> bool:
        """Acknowledge a moved message; returns when the acknowledgement is durable.

        True if no other consumer can have received the message meanwhile.
        """
        self.acks.acknowledge_elsewhere(message.info, message.index)
        await self.acks.receipt()
        return message.info.generation == self.permits.generation

    def redeliver_all(self) -> None:
        """Request redelivery of everything unacknowledged.

        Consumers that get messages in order drop the deliveries that are still under way.
        """
        self._again.clear()
        self._reader.forget_chunks()
        self._sending.flush()
        if self.connection is None:
            return
        dropped = self._inbox.drop(self) + self._decoding.drop()
        request = pb.CommandRedeliverUnacknowledgedMessages(consumer_id=self.consumer_id)
        if not self._subscription.shared:
            self._epoch += 1
            request.consumer_epoch = self._epoch
        self.connection.send(request)
        self.permits.refill(dropped)

    # --- requests ---

    async def attached(self) -> Connection:
        """Return the connection, as soon as there is one.

        Raises the error that ended the consumer.
        """
        while self.connection is None:
            if self.error is not None:
                raise self.error
            self._ready.clear()
            await self._ready.wait()
        return self.connection

    async def seek(self, target: MessageId | int) -> None:
        """Move the subscription to a message id, or a publish time in milliseconds."""

        async def attempt() -> None:
            connection = await self.attached()
            seek = pb.CommandSeek(consumer_id=self.consumer_id)
            if isinstance(target, MessageId):
                seek.message_id.CopyFrom(target.to_stored().to_proto())
            else:
                seek.message_publish_time = target
            # The service closes the consumer before it answers, so set the target before
            # subscribing again.
            self.position.sought = target
            try:
                await connection.request(seek, self._core.attempt_timeout)
            except VelarayError:
                self.position.sought = None
                raise
            if self.connection is connection:
                await self._core.close_quietly(connection, self._close_command())
                connection.consumers.pop(self.consumer_id, None)
                self.on_closed(connection)

        await self._core.retrying(f"seeking on {self.topic}", attempt)
        try:
            async with asyncio.timeout(self._core.timeout):
                await self.attached()
        except TimeoutError as error:
            raise Timeout(f"{self.topic}: not subscribed again after the seek") from error
        if not isinstance(target, MessageId) or target == MessageId.latest:
            await self.queries.hold_position()

    async def comes(self, last: MessageId) -> bool:
        """Wait until a message waits in the inbox, or all up to ``last`` was delivered without one.

        Returns whether a message waits. Raises the error that ended the consumer.
        """
        while not len(self._inbox):
            if self._tail.last >= last.position and not len(self._decoding):
                return False
            if self.error is not None:
                raise self.error
            await self._tail.change()
        return True

    async def unsubscribe(self) -> None:
        """Delete the subscription on this partition."""
        await self.queries.request(
            "unsubscribing", lambda: pb.CommandUnsubscribe(consumer_id=self.consumer_id)
        )
        self.stop()

    # --- losing and regaining the connection ---

    def on_closed(self, connection: Connection) -> None:
        """Subscribe again after the loss of the connection or of the subscription."""
        if connection is not self.connection:
            return  # lost while subscribing: that attempt fails
        self.connection = None
        if self.error is None and not self._core.closed:
            self._reconnection.start()

    def _attempt_failed(self, error: VelarayError) -> None:
        if isinstance(error, _TRANSIENT):
            logger.info("consumer of %s can't subscribe yet: %s", self.topic, error)
        else:
            logger.warning("consumer of %s failed: %s", self.topic, error)
            self._fail(error)

    # --- the end ---

    def _fail(self, error: VelarayError) -> None:
        if self.error is None:
            self.error = error
        self._ready.set()
        self._decoding.stop()
        self._sending.stop()
        self._again.stop()
        self._tail.wake()
        self._inbox.failed(self, error)

    def stop(self) -> None:
        """Leave at once; unacknowledged messages go to other consumers."""
        self._fail(AlreadyClosed(f"the consumer of {self.topic} is closed"))
        self._reconnection.stop()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.consumers.pop(self.consumer_id, None)

    async def close(self) -> None:
        """Make acknowledgements durable if the service can be reached, then leave."""
        connection = self.connection
        if connection is not None and len(self._sending):
            try:
                await self.acks.receipt()
            except VelarayError as error:
                logger.warning(
                    "consumer of %s is closed with unsent acknowledgements: %s", self.topic, error
                )
        connection = self.connection
        self.stop()
        if connection is not None:
            await self._core.close_quietly(connection, self._close_command())


def _debited(delivery: Delivery, entry: bytes) -> int:
    """The number of permits that a delivery used."""
    if delivery.ack_set:
        return bits_of(delivery.ack_set).bit_count()
    try:
        return message_count(entry)
    except MalformedEntryError:
        return 1  # the reader would report it, and use one permit

"""The public asyncio consumer: of one topic, of several topics, or of a pattern."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self

from velaray.client.consumer_base import SeekTarget, SubscribedTopics, described_topics
from velaray.client.core import Core
from velaray.client.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    Timeout,
    VelarayError,
)
from velaray.client.inbox import AsyncInbox
from velaray.client.listening import Listening
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ConsumerOptions
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.policies import DEFAULT_BATCH_RECEIVE
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T
from velaray.client.transactions import Transaction

EVERYTHING = sys.maxsize


def many(max_messages: int | None) -> int:
    """Return ``max_messages`` as a number. Raises `InvalidConfiguration` for one below 1."""
    if max_messages is None:
        return EVERYTHING
    if not isinstance(max_messages, int) or max_messages < 1:
        raise InvalidConfiguration(f"max_messages must be at least 1: {max_messages!r}")
    return max_messages


class Consumer(Generic[T]):
    """Receives and acknowledges messages. Made by `velaray.aio.Client.subscribe`.

    Delivery is at least once: unacknowledged messages are redelivered, also after a reconnect. A
    message that was acknowledged with a receipt is never redelivered, unless the subscription is
    moved.
    """

    def __init__(
        self, core: Core, options: ConsumerOptions[Any], on_close: Callable[[Consumer[Any]], None]
    ) -> None:
        self._options = options
        fetch = options.receiver_queue_size == 0
        self._inbox = AsyncInbox(lambda: self._base.topics.parts.values(), fetch)
        self._base = SubscribedTopics(core, options, self._inbox)
        self._on_close = on_close
        self._watch = self._base.extras.interceptors
        if self._watch is not None:
            self._watch.owner = self
        self._listening: Listening | None = None

    async def start(self) -> None:
        """Subscribe; called by the client."""
        await self._base.start()
        listener = self._options.message_listener
        if listener is not None:
            self._listening = Listening(self._base.core, self._inbox, self._hear(listener))

    def _hear(self, listener: Callable[[Any, Any], Any]) -> Callable[[Message[Any]], Any]:
        def hear(message: Message[Any]) -> Any:
            if self._watch is not None:
                message = self._watch.before_consume(message)
            return listener(self, message)

        return hear

    def pause_message_listener(self) -> None:
        """Stop calling the listener, after the current call."""
        self._listener().pause()

    def resume_message_listener(self) -> None:
        """Continue after `pause_message_listener`."""
        self._listener().resume()

    def _listener(self) -> Listening:
        if self._listening is None:
            raise InvalidConfiguration("this consumer has no message_listener")
        return self._listening

    def pause(self) -> None:
        """Ask the service for no more messages; messages that wait already can be received."""
        self._base.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._base.resume()

    async def receive(self, timeout_millis: int | None = None) -> Message[T]:
        """Return the next message, as soon as there is one.

        Cancelling loses no message. Raises `Timeout` if no message comes in time (by default there
        is no timeout), and `AlreadyClosed` when the consumer is closed.
        """
        self._refuse_beside_listener()
        message = self._inbox.pop()
        if message is None:
            message = await self._next(timeout_millis)
        return message if self._watch is None else self._watch.before_consume(message)

    async def _next(self, timeout_millis: int | None) -> Message[T]:
        if timeout_millis is None:
            return await self._inbox.get()
        try:
            async with asyncio.timeout(timeout_millis / 1000):
                return await self._inbox.get()
        except TimeoutError as error:
            raise Timeout(f"no message in {timeout_millis} ms") from error

    def _refuse_beside_listener(self) -> None:
        if self._options.message_listener is not None:
            raise InvalidConfiguration("this consumer's messages go to its message_listener")

    async def batch_receive(self) -> list[Message[T]]:
        """Return messages up to the limits of ``batch_receive_policy``.

        The result may be empty if the policy's timeout elapses.
        """
        self._refuse_beside_listener()
        policy = self._options.batch_receive_policy or DEFAULT_BATCH_RECEIVE
        messages: list[Message[Any]] = []
        size = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        try:
            async with asyncio.timeout_at(end):
                while not policy.full(len(messages), size, self._inbox.next_size()):
                    message = self._inbox.pop()
                    if message is None:
                        await self._inbox.arrival()
                        continue
                    messages.append(message)
                    size += len(message)
        except TimeoutError:
            pass
        return messages if self._watch is None else list(map(self._watch.before_consume, messages))

    async def receive_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch[T]:
        """Return all messages that wait, or ``max_messages`` of them, as soon as there is one.

        `ReceivedBatch` is a sequence of their values; objects for single messages are made when
        they are needed. ``receiver_queue_size`` limits how many messages wait. Raises `Timeout` and
        `AlreadyClosed` as `receive` does, `InvalidConfiguration` for a ``max_messages`` below 1.
        Cancelling loses no message.
        """
        limit = many(max_messages)
        self._refuse_beside_listener()
        if self._watch is not None:
            raise OperationNotSupported(
                "receive_many creates no Message objects: it can't be used with interceptors"
            )
        try:
            async with asyncio.timeout(None if timeout_millis is None else timeout_millis / 1000):
                return ReceivedBatch(await self._inbox.get_many(limit))
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            raise Timeout(f"no message in {timeout_millis} ms") from error

    async def acknowledge_many(
        self,
        batch: ReceivedBatch | Iterable[Message[Any] | MessageId],
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge all messages of a batch, or any messages; guarantees as `acknowledge`.

        A `ReceivedBatch` is acknowledged without a step per message. In a transaction (``txn``)
        each partition gets one request per thousand entries. The service accepts or refuses a
        request as a whole.
        """
        if txn is not None:
            await self._base.acknowledge_many_in(txn, batch)
            return
        parts = self._base.acknowledge_many(batch)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await asyncio.gather(*(part.acks.receipt() for part in parts))

    async def acknowledge(
        self,
        message: Message[Any] | MessageId,
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge one message.

        In a transaction (``txn``) the acknowledgement counts when the transaction is committed. If
        it is aborted, the message is redelivered. The call returns when the service has recorded
        the acknowledgement. Raises `TransactionConflict` if the message is already acknowledged, or
        acknowledged in another transaction, `InvalidTxnStatusError` if the transaction isn't open,
        and `InvalidConfiguration` if the transaction is another client's.

        Without a receipt the call returns at once. The acknowledgement is sent within
        ``ack_group_time_ms``, and after a crash before that the message is redelivered. With
        ``receipt=True`` (or the consumer's ``ack_receipt_enabled``) it returns when the
        acknowledgement is durable: no crash causes a redelivery after that. This holds for a
        message of a batch once the whole batch is acknowledged, or with
        ``batch_index_ack_enabled``. Raises `InvalidMessage` for an id of another topic, and with a
        receipt `Timeout` if the outcome is unknown.
        """
        if txn is not None:
            await self._base.acknowledge_in(txn, message)
            return
        part = self._base.acknowledge(message)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await part.acks.receipt()

    async def acknowledge_cumulative(
        self,
        message: Message[Any] | MessageId,
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge all messages of the partition up to and including this one.

        Guarantees as `acknowledge`, with one exception: if a transaction is aborted, its messages
        are redelivered only after `redeliver_unacknowledged_messages`, which keeps their order.
        Raises `CumulativeAcknowledgementNotAllowedError` unless the consumer is Exclusive or
        Failover.
        """
        if txn is not None:
            await self._base.acknowledge_until_in(txn, message)
            return
        part = self._base.acknowledge_cumulative(message)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await part.acks.receipt()

    async def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Request redelivery of the message after ``negative_ack_redelivery_delay_ms``.

        An Exclusive or Failover subscription redelivers everything unacknowledged.
        """
        part, message_id = self._base.located(message)
        part.negative_acknowledge(message if isinstance(message, Message) else message_id)

    async def reconsume_later(
        self,
        message: Message[Any],
        delay_millis: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Schedule redelivery of the message after ``delay_millis``, without delaying the others.

        A copy is published to the retry topic, with ``properties`` added, and the message is
        acknowledged; both are durable when this returns. When the message has been retried as often
        as the ``dead_letter_policy`` allows (16 times by default), the copy goes to the dead-letter
        topic. Needs ``enable_retry=True``. If this raises, the message is still unacknowledged;
        calling it again doesn't store a second copy.

        In a transaction (``txn``) copy and acknowledgement count when the transaction is committed.
        The copy isn't delivered before. If the transaction is aborted, the message itself is
        redelivered.
        """
        await self._base.reconsume_later(message, delay_millis, properties, txn)

    async def dead_letter(
        self,
        message: Message[Any],
        properties: Mapping[str, str] | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Move the message to the dead-letter topic now.

        A copy is published there, with ``properties`` added, and the message is acknowledged; both
        are durable when this returns. Needs a ``dead_letter_policy`` or ``enable_retry=True``.
        Failures, and transactions (``txn``), are as with `reconsume_later`.
        """
        await self._base.dead_letter(message, properties, txn)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Request redelivery of everything unacknowledged; returns at once."""
        for part in self._base.topics.parts.values():
            part.redeliver_all()

    async def seek(self, messageid: SeekTarget) -> None:
        """Move the subscription: the next message is the one after ``messageid``.

        With ``start_message_id_inclusive`` it is that message itself. An int is a publish time in
        milliseconds: the next message is the first published then or later. On return the position
        is durable, and messages received from now on are from there. A function gets the name of
        every topic partition and returns its target.
        """
        await self._base.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the topic's last message; entry id -1 if the topic is empty."""
        return await self._base.topics.last_message_id()

    async def get_positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Return the last readable message and the consumer's position, for every topic partition.

        Both are message ids, by full name of the partition. The next message is the one after the
        position. The entry id of a position before the first entry of a ledger is -1. The entry id
        of the last message is -1 if there is no message.
        """
        return await self._base.topics.positions()

    async def get_spans(self, steps: Mapping[str, tuple[Spot, SpanLimits]]) -> dict[str, Span]:
        """Return the next step of a reader that reads these topic partitions in steps.

        The keys are full names of partitions. A step begins at a `Spot` and is bounded by its
        `SpanLimits`; nothing of it is stored.
        """
        return await self._base.topics.spans(steps)

    async def get_last_message_ids(self) -> list[MessageId]:
        """Return the id of every topic partition's last message; entry id -1 if there is none."""
        return await self._base.topics.last_message_ids()

    async def unsubscribe(self) -> None:
        """Delete the subscription and close: its position and backlog are lost."""
        await self._base.unsubscribe()
        self._on_close(self)

    async def close(self) -> None:
        """Leave the subscription; acknowledgements are made durable before, if possible.

        Messages that were received and not acknowledged are redelivered to other consumers, now or
        later.
        """
        self._stop_listening()
        await self._base.close()
        self._on_close(self)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.stop()

    def stop(self) -> None:
        """Leave at once, without sending the last acknowledgements."""
        self._stop_listening()
        self._base.stop()

    def topic(self) -> str:
        """The topic, or the topics joined by commas."""
        return ",".join(described_topics(self._base))

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._options.subscription_name

    def consumer_name(self) -> str:
        """The configured name; "" if there is none."""
        return self._options.consumer_name or ""

    @property
    def parts(self) -> list[PartitionConsumer]:
        """Its topic partitions; not for users."""
        return list(self._base.topics.parts.values())

    def is_connected(self) -> bool:
        """Whether the subscription is attached on every partition at the moment."""
        return all(part.connected for part in self._base.topics.parts.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message[T]]:
        """Yield messages as they come, until the consumer is closed."""
        while True:
            try:
                message = await self.receive()
            except AlreadyClosed:
                return
            yield message

    def __repr__(self) -> str:
        return f"<Consumer {self.subscription_name()} of {self.topic()}>"

"""The public asyncio consumer: of one topic, of several topics, or of a pattern."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Generic

from velaray.client.calls import ConsumerCalls
from velaray.client.closing import each_until_closed
from velaray.client.consumer_base import SubscribedTopics
from velaray.client.core import Core
from velaray.client.exceptions import (
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


class Consumer(ConsumerCalls[Transaction], Generic[T]):
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
        base = SubscribedTopics(core, options, self._inbox)
        super().__init__(base, on_close, lambda txn: txn)
        self._watch = self._base.extras.interceptors
        if self._watch is not None:
            self._watch.owner = self

    async def start(self) -> None:
        """Subscribe; called by the client."""
        await self._base.start()
        listener = self._options.message_listener
        if listener is not None:
            self.listening = Listening(self._base.core, self._inbox, self._hear(listener))

    def _hear(self, listener: Callable[[Any, Any], Any]) -> Callable[[Message[Any]], Any]:
        def hear(message: Message[Any]) -> Any:
            if self._watch is not None:
                message = self._watch.before_consume(message)
            return listener(self, message)

        return hear

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

    @property
    def parts(self) -> list[PartitionConsumer]:
        """Its topic partitions; not for users."""
        return list(self._base.topics.parts.values())

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        """Yield messages as they come, until the consumer is closed."""
        return each_until_closed(self.receive)

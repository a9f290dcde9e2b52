"""The synchronous consumer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple

from velaray.client.calls import ConsumerCalls
from velaray.client.closing import until_closed
from velaray.client.consumer import many
from velaray.client.consumer_base import SubscribedTopics
from velaray.client.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    Timeout,
)
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ConsumerOptions
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.policies import DEFAULT_BATCH_RECEIVE
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T
from velaray.sync.face import blocking, direct, on_loop
from velaray.sync.inbox import ThreadInbox
from velaray.sync.listeners import Listening, Worker
from velaray.sync.loop import LoopThread
from velaray.sync.topic_face import TopicFace, deadline_of
from velaray.sync.transaction import Transaction, inner_of


class _Note(NamedTuple):
    note: Callable[[Any], object]
    what: Message[Any] | MessageId | ReceivedBatch


class Consumer(TopicFace[ConsumerCalls[Transaction]], Generic[T]):
    """Receives and acknowledges messages. Created by `velaray.Client.subscribe`; thread-safe.

    Delivery is at least once: un-acknowledged messages are redelivered, also after a reconnect. A
    message that was acknowledged with a receipt is never redelivered, unless the subscription is
    moved.
    """

    def __init__(
        self,
        thread: LoopThread,
        base: SubscribedTopics,
        inbox: ThreadInbox,
        options: ConsumerOptions[Any],
        on_close: Callable[[SubscribedTopics], None],
    ) -> None:
        calls = ConsumerCalls(base, lambda _: on_close(base), inner_of)
        super().__init__(thread, base, inbox, calls, self._note_all)
        self._options = options
        self._parts = base.topics.parts
        self._with_receipt = options.ack_receipt_enabled
        self._watch = base.extras.interceptors
        if self._watch is not None:
            self._watch.owner = self

    # --- receiving ---

    def receive(self, timeout_millis: int | None = None) -> Message[T]:
        """Wait for the next message and return it.

        Raises `Timeout` after ``timeout_millis`` (default: no limit), and `AlreadyClosed` when the
        consumer is closed.
        """
        inbox = self._inbox
        if inbox.simple:
            try:
                ready = inbox.queue.current
                message = ready.popleft()
            except IndexError:
                pass
            else:
                if not ready:
                    inbox.settle()
                return message
        self._refuse_beside_listener()
        found = inbox.get(deadline_of(timeout_millis))
        if found is None:
            raise Timeout(f"no message in {timeout_millis} ms")
        return found if self._watch is None else self._watch.before_consume(found)

    def batch_receive(self) -> list[Message[T]]:
        """Messages up to the limits of ``batch_receive_policy``; may be empty at timeout."""
        self._refuse_beside_listener()
        policy = self._options.batch_receive_policy or DEFAULT_BATCH_RECEIVE
        messages = self._inbox.get_many(policy)
        return messages if self._watch is None else list(map(self._watch.before_consume, messages))

    def receive_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch[T]:
        """Receive all queued messages, up to ``max_messages``; waits for the first one.

        `ReceivedBatch` is a sequence of the messages' values; message objects are created on
        demand. ``receiver_queue_size`` bounds the number of queued messages. Raises `Timeout` and
        `AlreadyClosed` as `receive` does, `InvalidConfiguration` for a ``max_messages`` below 1.
        """
        limit = many(max_messages)
        self._refuse_beside_listener()
        if self._watch is not None:
            raise OperationNotSupported(
                "receive_many creates no Message objects: it can't be used with interceptors"
            )
        segments = self._inbox.get_segments(limit, deadline_of(timeout_millis))
        if not segments:
            raise Timeout(f"no message in {timeout_millis} ms")
        return ReceivedBatch(segments)

    def __iter__(self) -> Iterator[Message[T]]:
        """Iterate over messages as they arrive, until the consumer is closed."""
        return until_closed(self.receive)

    # --- listeners and pausing ---

    def listen(self, worker: Worker, listener: Callable[[Any, Any], Any]) -> None:
        """Pass all messages to ``listener``; called by the client."""

        def hear(message: Message[Any]) -> None:
            listener(self, message if self._watch is None else self._watch.before_consume(message))

        self._inner.listening = Listening(worker, self._inbox, hear)

    def _refuse_beside_listener(self) -> None:
        if self._options.message_listener is not None:
            raise InvalidConfiguration("this consumer's messages go to its message_listener")

    pause_message_listener = direct(ConsumerCalls.pause_message_listener)
    resume_message_listener = direct(ConsumerCalls.resume_message_listener)
    pause = on_loop(ConsumerCalls.pause)
    resume = on_loop(ConsumerCalls.resume)

    # --- acknowledging ---

    def acknowledge(
        self,
        message: Message[Any] | MessageId,
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge one message.

        In a transaction (``txn``) the acknowledgement takes effect with the commit, and an abort
        redelivers the message. The call returns when the service has recorded the acknowledgement.
        Raises `TransactionConflict` if the message is acknowledged already, or in another
        transaction, `InvalidTxnStatusError` if the transaction isn't open, and
        `InvalidConfiguration` if it is another client's.

        Without a receipt the call returns at once. The acknowledgement is sent within
        ``ack_group_time_ms``, and a crash before that redelivers the message. With ``receipt=True``
        (or the consumer's ``ack_receipt_enabled``) the call returns when the acknowledgement is
        durable: no later crash redelivers the message. For a message of a batch this holds once the
        whole batch is acknowledged, or with ``batch_index_ack_enabled``. Raises `InvalidMessage`
        for an id of another topic, and with a receipt `Timeout` if the outcome is unknown.
        """
        if txn is not None:
            self._run(self._base.acknowledge_in(inner_of(txn), message))
            return
        if (
            type(message) is Message
            and message.info.topic in self._parts
            and not (self._with_receipt if receipt is None else receipt)
            and not self._base.closed
        ):
            self._notes.put(message)
            return
        part, message_id = self._base.located(message)
        self._note(part, part.acks.acknowledge, message_id, receipt)

    def acknowledge_many(
        self,
        batch: ReceivedBatch | Iterable[Message[Any] | MessageId],
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge all messages of a batch, or any messages; guarantees as `acknowledge`.

        A `ReceivedBatch` is acknowledged without a step per message. In a transaction (``txn``)
        each partition gets one request per thousand entries. Each request takes effect completely
        or not at all.
        """
        if txn is not None:
            self._run(self._base.acknowledge_many_in(inner_of(txn), batch))
            return
        wanted = self._with_receipt if receipt is None else receipt
        if wanted or not isinstance(batch, ReceivedBatch):
            self._run(self._acknowledged(batch, wanted))
            return
        if self._base.closed:
            raise AlreadyClosed("the consumer is closed")
        self._base.check_batch(batch)
        self._notes.put(_Note(self._base.acknowledge_many, batch))

    async def _acknowledged(
        self, batch: ReceivedBatch | Iterable[Message[Any] | MessageId], receipt: bool
    ) -> None:
        parts = self._base.acknowledge_many(batch)
        if receipt:
            await asyncio.gather(*(part.acks.receipt() for part in parts))

    def acknowledge_cumulative(
        self,
        message: Message[Any] | MessageId,
        *,
        receipt: bool | None = None,
        txn: Transaction | None = None,
    ) -> None:
        """Acknowledge all messages of the partition up to and including this one.

        Guarantees as `acknowledge`, with one exception: after an aborted transaction, only
        `redeliver_unacknowledged_messages` redelivers its messages, which keeps their order. Raises
        `CumulativeAcknowledgementNotAllowedError` unless the consumer is Exclusive or Failover.
        """
        self._base.check_cumulative()
        if txn is not None:
            self._run(self._base.acknowledge_until_in(inner_of(txn), message))
            return
        part, message_id = self._base.located(message)
        self._note(part, part.acks.acknowledge_cumulative, message_id, receipt)

    def _note(
        self,
        part: PartitionConsumer,
        note: Callable[[MessageId], None],
        message_id: MessageId,
        receipt: bool | None,
    ) -> None:
        if self._with_receipt if receipt is None else receipt:
            self._run(self._noted(part, note, message_id, True))
        elif message_id.batch_index() >= message_id.batch_size():
            # The loop's thread decides whether the batch is known; otherwise it refuses.
            self._run(self._noted(part, note, message_id, False))
        else:
            self._notes.put(_Note(note, message_id))

    def _note_all(self, items: deque[Any]) -> None:
        while items:
            item = items.popleft()
            if type(item) is Message:
                self._base.acknowledge_run(items, item)
            else:
                item.note(item.what)

    async def _noted(
        self,
        part: PartitionConsumer,
        note: Callable[[MessageId], None],
        message_id: MessageId,
        receipt: bool,
    ) -> None:
        note(message_id)
        if receipt:
            await part.acks.receipt()

    def negative_acknowledge(self, message: Message[Any] | MessageId) -> None:
        """Request redelivery of the message after ``negative_ack_redelivery_delay_ms``.

        On an Exclusive or Failover subscription all un-acknowledged messages are redelivered.
        """
        part, message_id = self._base.located(message)
        whole = message if isinstance(message, Message) else message_id
        self._notes.put(_Note(part.negative_acknowledge, whole))

    reconsume_later = blocking(ConsumerCalls[Transaction].reconsume_later)
    dead_letter = blocking(ConsumerCalls[Transaction].dead_letter)
    redeliver_unacknowledged_messages = blocking(ConsumerCalls.redeliver_unacknowledged_messages)

    # --- the subscription ---

    get_last_message_id = blocking(ConsumerCalls.get_last_message_id)
    get_last_message_ids = blocking(ConsumerCalls.get_last_message_ids)
    unsubscribe = blocking(ConsumerCalls.unsubscribe)
    subscription_name = direct(ConsumerCalls.subscription_name)
    consumer_name = direct(ConsumerCalls.consumer_name)

"""The synchronous consumer."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self

from velaray.client.blocks import Block, BlockQueue, Receiver, Segment
from velaray.client.consumer import many
from velaray.client.consumer_base import SeekTarget, SubscribedTopics, described_topics
from velaray.client.exceptions import (
    AlreadyClosed,
    InvalidConfiguration,
    OperationNotSupported,
    Timeout,
    VelarayError,
)
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ConsumerOptions
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.policies import DEFAULT_BATCH_RECEIVE, ConsumerBatchReceivePolicy
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T
from velaray.sync.listeners import Listening, Worker
from velaray.sync.loop import Funnel, LoopThread
from velaray.sync.transaction import Transaction, inner_of


class ThreadInbox:
    """Queue of received messages for threads other than the loop's, bounded by permits.

    ``fetch``: each message is requested individually. ``track``: partitions are notified of each
    message that is taken. ``special``: a partition's ``taken`` must be current at any time, or the
    user must not take messages from the queue directly.
    """

    def __init__(
        self, thread: LoopThread, fetch: bool, track: bool = False, special: bool = False
    ) -> None:
        self.parts: Callable[[], list[PartitionConsumer]] = list
        self.on_arrival: Callable[[], object] | None = None
        self._thread = thread
        self._fetch = fetch
        self._track = track
        self.simple = not (fetch or track or special)
        self.queue = BlockQueue(self._taken)
        self._arrived = threading.Condition()
        self._waiting = 0
        self._error: VelarayError | None = None

    def __len__(self) -> int:
        return len(self.queue)

    # --- called by partitions, on the loop's thread ---

    def put(self, block: Block) -> None:
        """Enqueue received messages."""
        with self._arrived:
            self.queue.put(block)
            if self._waiting:
                self._arrived.notify(len(block))
        if self.on_arrival is not None:
            self.on_arrival()

    def drop(self, part: PartitionConsumer) -> int:
        """Discard the partition's queued messages; returns their number."""
        with self._arrived:
            return self.queue.drop(part)

    def attached(self, part: PartitionConsumer) -> None:
        """Handle the (re)subscription of a partition."""
        if self._fetch and (self._waiting or self.on_arrival is not None):
            part.permits.fetch_one()

    def failed(self, part: PartitionConsumer, error: VelarayError) -> None:
        """Handle the failure of a partition; wakes waiting threads, unless it was closed."""
        if not isinstance(error, AlreadyClosed):
            self.close(error)

    def close(self, error: VelarayError) -> None:
        """Close the queue: current and later waits raise ``error`` once the queue is empty."""
        with self._arrived:
            if self._error is None or isinstance(error, AlreadyClosed):
                self._error = error
            if isinstance(error, AlreadyClosed):
                self.queue.clear()
            self._arrived.notify_all()

    # --- called by users ---

    def settle(self) -> None:
        """Count the messages taken from the queue's ``current``, which is allowed if `simple`."""
        with self._arrived:
            self.queue.settle()

    def get(self, deadline: float | None) -> Message[Any] | None:
        """The next message; None if none comes before ``deadline``, a `monotonic` time."""
        with self._arrived:
            while (message := self._pop()) is None:
                if not self._wait(deadline):
                    return None
            return message

    def get_segments(self, limit: int, deadline: float | None) -> list[Segment]:
        """Up to ``limit`` queued messages; empty if none arrives before ``deadline``."""
        with self._arrived:
            while not (segments := self.queue.take(limit)):
                if not self._wait(deadline):
                    return []
            if not self.simple:
                for segment in segments:
                    segment.block.part.position.taken = segment.last
        if self._track:
            for segment in segments:
                block = segment.block
                self._thread.call(block.part.received, block.info)
        return segments

    def get_many(self, policy: ConsumerBatchReceivePolicy) -> list[Message[Any]]:
        """Messages until the limits or the timeout of ``policy`` are reached."""
        deadline = monotonic() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        messages: list[Message[Any]] = []
        size = 0
        with self._arrived:
            while not policy.full(len(messages), size, self._next_size()):
                message = self._pop()
                if message is not None:
                    messages.append(message)
                    size += len(message)
                elif not self._wait(deadline):
                    break
        return messages

    def _next_size(self) -> int:
        current = self.queue.current
        if not current and self.queue.refill():
            current = self.queue.current
        try:
            return len(current[0])
        except IndexError:
            return 0  # the queue is empty, or another thread took the message without the lock

    def _wait(self, deadline: float | None) -> bool:
        self._thread.forbid_here()
        self._waiting += 1
        try:
            while not len(self.queue):
                if self._error is not None:
                    raise self._error
                if self._fetch:
                    self._thread.call(self._fetch_now)
                seconds = None if deadline is None else deadline - monotonic()
                if seconds is not None and seconds <= 0:
                    return False
                self._arrived.wait(seconds)
        finally:
            self._waiting -= 1
        return True

    def _fetch_now(self) -> None:
        for part in self.parts():
            part.permits.fetch_one()

    def _pop(self) -> Message[Any] | None:
        queue = self.queue
        while queue.current or queue.refill():
            try:
                message = queue.current.popleft()
            except IndexError:
                continue  # another thread took the last one, without the lock
            if not self.simple:
                part = queue.part
                part.position.taken = message
                if self._track:
                    self._thread.call(part.received, message.info)
            if not queue.current:
                queue.settle()
            return message
        return None

    def _taken(self, part: Receiver, count: int) -> None:
        if not self._fetch and (due := part.permits.taken_now(count)):
            self._thread.call(part.permits.credit, due, part.permits.generation)


class _Note(NamedTuple):
    note: Callable[[Any], object]
    what: Message[Any] | MessageId | ReceivedBatch


class Consumer(Generic[T]):
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
        self._thread = thread
        self._base = base
        self._inbox = inbox
        self._options = options
        self._on_close = on_close
        self._parts = base.topics.parts
        self._with_receipt = options.ack_receipt_enabled
        self._notes = Funnel(thread, self._note_all)
        self._watch = base.extras.interceptors
        if self._watch is not None:
            self._watch.owner = self
        self._listening: Listening | None = None

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
        deadline = None if timeout_millis is None else monotonic() + timeout_millis / 1000
        self._refuse_beside_listener()
        found = inbox.get(deadline)
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
        deadline = None if timeout_millis is None else monotonic() + timeout_millis / 1000
        segments = self._inbox.get_segments(limit, deadline)
        if not segments:
            raise Timeout(f"no message in {timeout_millis} ms")
        return ReceivedBatch(segments)

    def __iter__(self) -> Iterator[Message[T]]:
        """Iterate over messages as they arrive, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except AlreadyClosed:
                return
            yield message

    # --- listeners and pausing ---

    def listen(self, worker: Worker, listener: Callable[[Any, Any], Any]) -> None:
        """Pass all messages to ``listener``; called by the client."""

        def hear(message: Message[Any]) -> None:
            listener(self, message if self._watch is None else self._watch.before_consume(message))

        self._listening = Listening(worker, self._inbox, hear)

    def _refuse_beside_listener(self) -> None:
        if self._options.message_listener is not None:
            raise InvalidConfiguration("this consumer's messages go to its message_listener")

    def pause_message_listener(self) -> None:
        """Stop calling the listener, after the current call."""
        self._listener().pause()

    def resume_message_listener(self) -> None:
        """Resume calling the listener after `pause_message_listener`."""
        self._listener().resume()

    def _listener(self) -> Listening:
        if self._listening is None:
            raise InvalidConfiguration("this consumer has no message_listener")
        return self._listening

    def pause(self) -> None:
        """Stop requesting messages from the service; queued messages can still be received."""
        self._run(self._paused(True))

    def resume(self) -> None:
        """Resume requesting messages after `pause`."""
        self._run(self._paused(False))

    async def _paused(self, paused: bool) -> None:
        if paused:
            self._base.pause()
        else:
            self._base.resume()

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

    def reconsume_later(
        self,
        message: Message[Any],
        delay_millis: int = 0,
        properties: Mapping[str, str] | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Redeliver the message after ``delay_millis``; other messages continue meanwhile.

        A copy is published to the retry topic, with ``properties`` added, and the message is
        acknowledged. When the call returns, both are durable. After the maximum number of
        redeliveries of the ``dead_letter_policy`` (16 by default) the copy goes to the dead-letter
        topic. Needs ``enable_retry=True``. If the call raises, the message is still
        un-acknowledged. Repeating the call doesn't store a second copy.

        In a transaction (``txn``) the copy and the acknowledgement take effect with the commit.
        Until then no consumer gets the copy. An abort redelivers the message itself.
        """
        inner = None if txn is None else inner_of(txn)
        self._run(self._base.reconsume_later(message, delay_millis, properties, inner))

    def dead_letter(
        self,
        message: Message[Any],
        properties: Mapping[str, str] | None = None,
        *,
        txn: Transaction | None = None,
    ) -> None:
        """Move the message to the dead-letter topic now.

        A copy is published there, with ``properties`` added, and the message is acknowledged. When
        the call returns, both are durable. Needs a ``dead_letter_policy`` or ``enable_retry=True``.
        Failures and transactions (``txn``) are as with `reconsume_later`.
        """
        inner = None if txn is None else inner_of(txn)
        self._run(self._base.dead_letter(message, properties, inner))

    def redeliver_unacknowledged_messages(self) -> None:
        """Request redelivery of all un-acknowledged messages."""
        self._run(self._redeliver())

    async def _redeliver(self) -> None:
        for part in self._base.topics.parts.values():
            part.redeliver_all()

    # --- seeking and closing ---

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._thread.run(self._after_notes(work))

    async def _after_notes(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._notes.drain()
        return await work

    def seek(self, messageid: SeekTarget) -> None:
        """Move the subscription: the next message is the one after ``messageid``.

        With ``start_message_id_inclusive`` the next message is that message itself. An int is a
        publish time in milliseconds: the next message is the first one published at or after it. On
        return the position is durable, and messages received from now on start there. A function
        takes the name of each topic partition and returns its position.
        """
        self._run(self._base.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; entry id -1 if the topic is empty."""
        last: MessageId = self._run(self._base.topics.last_message_id())
        return last

    def get_positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        """The last readable message and the consumer's position, for every topic partition.

        Both are message ids, by the full name of the partition. The next message is after the
        position. An entry id of -1 in the position means the start of a ledger; in the last message
        it means that there is none.
        """
        found: dict[str, tuple[MessageId, MessageId]] = self._run(self._base.topics.positions())
        return found

    def get_spans(self, steps: Mapping[str, tuple[Spot, SpanLimits]]) -> dict[str, Span]:
        """Bounds of the next step of a stepwise read, by the full name of the topic partition.

        A step continues from a `Spot` within its `SpanLimits`. The service stores no state for it.
        """
        found: dict[str, Span] = self._run(self._base.topics.spans(steps))
        return found

    def get_last_message_ids(self) -> list[MessageId]:
        """The id of every topic partition's last message; entry id -1 if a partition is empty."""
        last: list[MessageId] = self._run(self._base.topics.last_message_ids())
        return last

    def unsubscribe(self) -> None:
        """Delete the subscription, with its position and backlog, and close the consumer."""
        self._run(self._base.unsubscribe())
        self._on_close(self._base)

    def close(self) -> None:
        """Leave the subscription. Acknowledgements are made durable before, if possible.

        Un-acknowledged messages go to other consumers, or stay in the backlog. Closing twice has no
        effect.
        """
        if self._base.closed:
            return
        if self._listening is not None:
            self._listening.stop()
        self._run(self._base.close())
        self._on_close(self._base)

    # --- properties ---

    def topic(self) -> str:
        """The topic, or the topics joined by commas."""
        return ",".join(described_topics(self._base))

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._base.subscription.name

    def consumer_name(self) -> str:
        """The name that was given; "" if none."""
        return self._base.subscription.consumer_name or ""

    def is_connected(self) -> bool:
        """Whether every partition's subscription is currently attached."""
        return all(part.connected for part in self._base.topics.parts.values())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self.subscription_name()} of {self.topic()}>"

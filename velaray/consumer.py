"""The synchronous consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Self

from velaray.aio.consumer import SubscribedTopics, described_topics
from velaray.aio.partition_consumer import PartitionConsumer
from velaray.exceptions import AlreadyClosed, Timeout, VelarayError
from velaray.loop import Funnel, LoopThread
from velaray.message import Message
from velaray.message_id import MessageId
from velaray.options import ConsumerOptions
from velaray.policies import DEFAULT_BATCH_RECEIVE, ConsumerBatchReceivePolicy


class ThreadInbox:
    """Messages that wait for other threads than the loop's. Holds what permits allow."""

    def __init__(self, thread: LoopThread, fetch: bool, track: bool) -> None:
        self.parts: Callable[[], list[PartitionConsumer]] = list
        self._thread = thread
        self._fetch = fetch
        self._track = track
        self._queue: deque[tuple[PartitionConsumer, Message]] = deque()
        self._arrived = threading.Condition()
        self._waiting = 0
        self._error: VelarayError | None = None

    def __len__(self) -> int:
        return len(self._queue)

    # --- called by partitions, on the loop's thread ---

    def put(self, part: PartitionConsumer, messages: list[Message]) -> None:
        """Messages arrived."""
        with self._arrived:
            self._queue.extend((part, message) for message in messages)
            if self._waiting:
                self._arrived.notify(len(messages))

    def drop(self, part: PartitionConsumer) -> int:
        """Forget the partition's messages that wait; returns how many there were."""
        with self._arrived:
            kept = deque(item for item in self._queue if item[0] is not part)
            dropped = len(self._queue) - len(kept)
            self._queue = kept
            return dropped

    def attached(self, part: PartitionConsumer) -> None:
        """The partition is subscribed (again)."""
        if self._fetch and self._waiting:
            part.fetch_one()

    def failed(self, part: PartitionConsumer, error: VelarayError) -> None:
        """The partition will deliver nothing more; tell who waits, unless it was closed."""
        if not isinstance(error, AlreadyClosed):
            self.close(error)

    def close(self, error: VelarayError) -> None:
        """Everyone who waits, now or later, gets ``error`` once the queue is empty."""
        with self._arrived:
            if self._error is None or isinstance(error, AlreadyClosed):
                self._error = error
            if isinstance(error, AlreadyClosed):
                self._queue.clear()
            self._arrived.notify_all()

    # --- called by users ---

    def get(self, deadline: float | None) -> Message | None:
        """The next message; None if none comes before ``deadline``, a `monotonic` time."""
        with self._arrived:
            if not self._queue and not self._wait(deadline):
                return None
            return self._pop()

    def get_many(self, policy: ConsumerBatchReceivePolicy) -> list[Message]:
        """Messages until ``policy`` has enough or its time is up."""
        deadline = monotonic() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        messages: list[Message] = []
        size = 0
        with self._arrived:
            while not policy.full(len(messages), size):
                if not self._queue and not self._wait(deadline):
                    break
                message = self._pop()
                messages.append(message)
                size += len(message)
        return messages

    def _wait(self, deadline: float | None) -> bool:
        self._thread.forbid_here()
        self._waiting += 1
        try:
            while not self._queue:
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
            part.fetch_one()

    def _pop(self) -> Message:
        part, message = self._queue.popleft()
        part.taken = message
        if not self._fetch:
            part.uncredited += 1
            if part.uncredited >= part.refill_at:
                count, part.uncredited = part.uncredited, 0
                self._thread.call(part.credit, count, part.generation)
        if self._track:
            self._thread.call(part.received, message)
        return message


class _Note(NamedTuple):
    note: Callable[[MessageId], None]
    message_id: MessageId


class Consumer:
    """Receives and acknowledges messages. Made by `velaray.Client.subscribe`; thread-safe.

    Delivery is at least once: what isn't acknowledged comes again, after a reconnect as
    well. What was acknowledged with a receipt never does, unless the subscription is moved.
    """

    def __init__(
        self,
        thread: LoopThread,
        base: SubscribedTopics,
        inbox: ThreadInbox,
        options: ConsumerOptions,
        on_close: Callable[[SubscribedTopics], None],
    ) -> None:
        self._thread = thread
        self._base = base
        self._inbox = inbox
        self._options = options
        self._on_close = on_close
        self._notes = Funnel(thread, lambda item: item.note(item.message_id))

    # --- receiving ---

    def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message. Raises `Timeout` if none comes in time, by default waits for ever.

        Raises `AlreadyClosed` when the consumer is closed.
        """
        deadline = None if timeout_millis is None else monotonic() + timeout_millis / 1000
        message = self._inbox.get(deadline)
        if message is None:
            raise Timeout(f"no message in {timeout_millis} ms")
        return message

    def batch_receive(self) -> list[Message]:
        """Messages up to the limits of ``batch_receive_policy``; maybe none, if time is up."""
        return self._inbox.get_many(self._options.batch_receive_policy or DEFAULT_BATCH_RECEIVE)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while True:
            try:
                message = self.receive()
            except AlreadyClosed:
                return
            yield message

    # --- acknowledging ---

    def acknowledge(self, message: Message | MessageId, *, receipt: bool | None = None) -> None:
        """Acknowledge one message.

        Without a receipt it returns at once; the acknowledgement is sent within
        ``ack_group_time_ms``, and a crash before that brings the message back. With
        ``receipt=True`` (or the consumer's ``ack_receipt_enabled``) it returns when the
        acknowledgement is durable: no crash brings the message back after that. For a
        message of a batch this holds once all of the batch is acknowledged, or with
        ``batch_index_ack_enabled``. Raises `InvalidMessage` for an id of another topic, and
        with a receipt `Timeout` if the outcome is unknown.
        """
        part, message_id = self._base.located(message)
        self._note(part, part.acknowledge, message_id, receipt)

    def acknowledge_cumulative(
        self, message: Message | MessageId, *, receipt: bool | None = None
    ) -> None:
        """Acknowledge all messages of the partition up to and including this one.

        Guarantees as `acknowledge`. Raises `CumulativeAcknowledgementNotAllowedError`
        unless the consumer is Exclusive or Failover.
        """
        self._base.check_cumulative()
        part, message_id = self._base.located(message)
        self._note(part, part.acknowledge_cumulative, message_id, receipt)

    def _note(
        self,
        part: PartitionConsumer,
        note: Callable[[MessageId], None],
        message_id: MessageId,
        receipt: bool | None,
    ) -> None:
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            self._run(self._noted(part, note, message_id, True))
        elif message_id.batch_index() >= message_id.batch_size():
            # Refused unless the batch is known; that's for the loop's thread to say.
            self._run(self._noted(part, note, message_id, False))
        else:
            self._notes.put(_Note(note, message_id))

    async def _noted(
        self,
        part: PartitionConsumer,
        note: Callable[[MessageId], None],
        message_id: MessageId,
        receipt: bool,
    ) -> None:
        note(message_id)
        if receipt:
            await part.receipt()

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have the message delivered again after ``negative_ack_redelivery_delay_ms``.

        On an Exclusive or Failover subscription everything unacknowledged comes again.
        """
        part, message_id = self._base.located(message)
        self._notes.put(_Note(part.negative_acknowledge, message_id))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that isn't acknowledged."""
        self._run(self._redeliver())

    async def _redeliver(self) -> None:
        for part in self._base.topics.parts.values():
            part.redeliver_all()

    # --- moving, and the end ---

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._thread.run(self._after_notes(work))

    async def _after_notes(self, work: Coroutine[Any, Any, Any]) -> Any:
        self._notes.drain()
        return await work

    def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription: the next message is the one after ``messageid``.

        (Or that message itself, with ``start_message_id_inclusive``.) An int is a publish
        time in milliseconds: the next message is the first published then or later. On
        return the position is durable and messages received from now on are from there.
        """
        self._run(self._base.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; entry id -1 if the topic is empty."""
        last: MessageId = self._run(self._base.last_message_id())
        return last

    def unsubscribe(self) -> None:
        """Delete the subscription and close: its position and backlog are gone for good."""
        self._run(self._base.unsubscribe())
        self._on_close(self._base)

    def close(self) -> None:
        """Leave the subscription. Acknowledgements are made durable before, if possible.

        What was received and not acknowledged goes to other consumers, or waits. Closing
        twice does nothing.
        """
        if self._base.closed:
            return
        self._run(self._base.close())
        self._on_close(self._base)

    # --- what there is to know ---

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
        """Whether every partition's subscription is attached at the moment."""
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

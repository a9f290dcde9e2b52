"""The queue of received messages of a synchronous consumer or reader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from velaray.client.blocks import Block, BlockQueue, Receiver, Segment
from velaray.client.exceptions import AlreadyClosed, VelarayError
from velaray.client.message import Message
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.policies import ConsumerBatchReceivePolicy
from velaray.sync.loop import LoopThread


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

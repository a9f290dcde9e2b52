"""The queue of messages for an asyncio consumer's ``receive``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from velaray.client.blocks import Block, BlockQueue, Receiver, Segment
from velaray.client.exceptions import AlreadyClosed, VelarayError
from velaray.client.message import Message
from velaray.client.partition_consumer import PartitionConsumer


class AsyncInbox:
    """A queue for the event loop's thread only. Permits bound its size."""

    def __init__(self, parts: Callable[[], Iterable[PartitionConsumer]], fetch: bool) -> None:
        self._parts = parts
        self._fetch = fetch
        self._queue = BlockQueue(self._taken)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._error: VelarayError | None = None

    def __len__(self) -> int:
        return len(self._queue)

    # --- called by partitions ---

    def put(self, block: Block) -> None:
        """Add messages."""
        self._queue.put(block)
        self._wake(len(block))

    def drop(self, part: PartitionConsumer) -> int:
        """Drop the partition's waiting messages; return their number."""
        return self._queue.drop(part)

    def attached(self, part: PartitionConsumer) -> None:
        """Handle a new subscribing of the partition."""
        if self._fetch and self._waiting:
            part.permits.fetch_one()

    def failed(self, part: PartitionConsumer, error: VelarayError) -> None:
        """Fail the waiting calls: the partition delivers nothing more.

        A normal close is ignored.
        """
        if not isinstance(error, AlreadyClosed):
            self.close(error)

    # --- called by the consumer ---

    def close(self, error: VelarayError) -> None:
        """Raise ``error`` in waiting and later calls, once the queue is empty."""
        if self._error is None or isinstance(error, AlreadyClosed):
            self._error = error
        if isinstance(error, AlreadyClosed):
            self._queue.clear()
        self._wake(len(self._waiting))

    def pop(self) -> Message[Any] | None:
        """Return the next message; None if there is none."""
        queue = self._queue
        if not queue.current and not queue.refill():
            return None
        part = queue.part
        message = part.position.taken = queue.current.popleft()
        if not queue.current:
            queue.settle()
        part.received(message.info)
        return message

    def next_size(self) -> int:
        """Bytes of the next message; 0 if there is none."""
        queue = self._queue
        return len(queue.current[0]) if queue.current or queue.refill() else 0

    async def get(self) -> Message[Any]:
        """Return the next message, as soon as there is one.

        Raises the error that ended the consumer.
        """
        while (message := self.pop()) is None:
            await self.arrival()
        return message

    async def get_many(self, limit: int) -> list[Segment]:
        """Return up to ``limit`` waiting messages, as soon as there is one."""
        while not (segments := self._queue.take(limit)):
            await self.arrival()
        for segment in segments:
            segment.block.part.position.taken = segment.last
            segment.block.part.received(segment.block.info)
        return segments

    async def arrival(self) -> None:
        """Wait until there may be a message. Raises the error that ended the consumer."""
        if self._error is not None:
            raise self._error
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if self._fetch:
            for part in self._parts():
                part.permits.fetch_one()
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            elif not waiting.cancelled():
                self._wake(1)  # another waiter takes the message that woke this one
            raise

    def _taken(self, part: Receiver, count: int) -> None:
        if not self._fetch and (due := part.permits.taken_now(count)):
            part.permits.credit(due, part.permits.generation)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1
        if self._fetch and self._waiting:
            for part in self._parts():
                part.permits.fetch_one()

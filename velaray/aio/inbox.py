"""Messages that wait for an asyncio consumer's ``receive``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from velaray.aio.partition_consumer import PartitionConsumer
from velaray.exceptions import AlreadyClosed, VelarayError
from velaray.message import Message


class AsyncInbox:
    """Used on the event loop's thread only. Holds what permits allow, no more."""

    def __init__(self, parts: Callable[[], Iterable[PartitionConsumer]], fetch: bool) -> None:
        self._parts = parts
        self._fetch = fetch
        self._queue: deque[tuple[PartitionConsumer, Message]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._error: VelarayError | None = None

    def __len__(self) -> int:
        return len(self._queue)

    # --- called by partitions ---

    def put(self, part: PartitionConsumer, messages: list[Message]) -> None:
        """Messages arrived."""
        self._queue.extend((part, message) for message in messages)
        self._wake(len(messages))

    def drop(self, part: PartitionConsumer) -> int:
        """Forget the partition's messages that wait; returns how many there were."""
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

    # --- called by the consumer ---

    def close(self, error: VelarayError) -> None:
        """Everyone who waits, now or later, gets ``error`` once the queue is empty."""
        if self._error is None or isinstance(error, AlreadyClosed):
            self._error = error
        if isinstance(error, AlreadyClosed):
            self._queue.clear()
        self._wake(len(self._waiting))

    def pop(self) -> Message | None:
        """The next message, None if none waits."""
        if not self._queue:
            return None
        part, message = self._queue.popleft()
        part.taken = message
        if not self._fetch:
            part.uncredited += 1
            if part.uncredited >= part.refill_at:
                count, part.uncredited = part.uncredited, 0
                part.credit(count, part.generation)
        part.received(message)
        return message

    async def get(self) -> Message:
        """The next message, as soon as there is one. Raises the error that ended it."""
        while (message := self.pop()) is None:
            if self._error is not None:
                raise self._error
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            if self._fetch:
                for part in self._parts():
                    part.fetch_one()
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                elif not waiting.cancelled():
                    self._wake(1)  # the message that woke this one is for somebody else
                raise
        return message

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1
        if self._fetch and self._waiting:
            for part in self._parts():
                part.fetch_one()

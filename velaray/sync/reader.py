"""The synchronous reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self

from velaray.client.consumer import many
from velaray.client.consumer_base import SeekTarget, described_topics
from velaray.client.exceptions import AlreadyClosed, InvalidConfiguration, Timeout
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.reader import ReaderBase, last_of
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T
from velaray.sync.consumer import ThreadInbox
from velaray.sync.listeners import Listening, Worker
from velaray.sync.loop import Funnel, LoopThread


class Reader(Generic[T]):
    """Reads a topic from any position. Created by `velaray.Client.create_reader`; thread-safe.

    A reader acknowledges nothing and the service stores no position: a new reader begins at its
    start message. Reconnects neither skip nor repeat messages.
    """

    def __init__(
        self,
        thread: LoopThread,
        base: ReaderBase,
        inbox: ThreadInbox,
        on_close: Callable[[ReaderBase], None],
    ) -> None:
        self._thread = thread
        self._base = base
        self._inbox = inbox
        self._on_close = on_close
        self._read = Funnel(thread, base.read_all)
        self._listening: Listening | None = None

    def listen(self, worker: Worker, listener: Callable[[Any, Any], Any]) -> None:
        """Pass all messages to ``listener``; called by the client."""

        def hear(message: Message[Any]) -> None:
            self._read.put(message)
            listener(self, message)

        self._listening = Listening(worker, self._inbox, hear)

    def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        """Wait for the next message and return it.

        Raises `Timeout` after ``timeout_millis`` (default: no limit), and `AlreadyClosed` when the
        reader is closed.
        """
        if self._listening is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        deadline = None if timeout_millis is None else monotonic() + timeout_millis / 1000
        message = self._inbox.get(deadline)
        if message is None:
            raise Timeout(f"no message in {timeout_millis} ms")
        self._read.put(message)
        return message

    def read_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch[T]:
        """Receive all queued messages, up to ``max_messages``; waits for the first one.

        As `velaray.Consumer.receive_many`, and raises as that does.
        """
        limit = many(max_messages)
        if self._listening is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        deadline = None if timeout_millis is None else monotonic() + timeout_millis / 1000
        segments = self._inbox.get_segments(limit, deadline)
        if not segments:
            raise Timeout(f"no message in {timeout_millis} ms")
        for message in last_of(segments):
            self._read.put(message)
        return ReceivedBatch(segments)

    def __iter__(self) -> Iterator[Message[T]]:
        """Iterate over messages as they arrive, until the reader is closed."""
        while True:
            try:
                message = self.read_next()
            except AlreadyClosed:
                return
            yield message

    def has_message_available(self) -> bool:
        """Whether `read_next` would return without waiting for a new message."""
        return len(self._inbox) > 0 or self._thread.run(self._has_more())

    async def _has_more(self) -> bool:
        self._read.drain()
        return await self._base.has_message_available()

    def get_positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        """The last readable message and the reader's position, for every topic partition.

        Both are message ids, by the full name of the partition. The next message is after the
        position. An entry id of -1 in the position means the start of a ledger; in the last message
        it means that there is none.
        """
        return self._thread.run(self._positions())

    async def _positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        self._read.drain()
        return await self._base.topics.positions()

    def get_spans(self, steps: Mapping[str, tuple[Spot, SpanLimits]]) -> dict[str, Span]:
        """As `velaray.Consumer.get_spans`."""
        return self._thread.run(self._base.topics.spans(steps))

    def seek(self, messageid: SeekTarget) -> None:
        """Continue after ``messageid``, or at a publish time in milliseconds.

        A function takes the name of each partition and returns one of these.
        """
        self._thread.run(self._seek(messageid))

    async def _seek(self, target: SeekTarget) -> None:
        self._read.drain()
        await self._base.seek(target)

    def close(self) -> None:
        """Stop reading; closing twice has no effect."""
        if self._base.closed:
            return
        if self._listening is not None:
            self._listening.stop()
        self._thread.run(self._base.close())
        self._on_close(self._base)

    def topic(self) -> str:
        """The full name of the topic."""
        return ",".join(described_topics(self._base))

    def is_connected(self) -> bool:
        """Whether every partition is currently attached."""
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
        return f"<Reader of {self.topic()}>"

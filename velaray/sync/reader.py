"""The synchronous reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from velaray.client.calls import TopicCalls
from velaray.client.closing import until_closed
from velaray.client.consumer import many
from velaray.client.exceptions import InvalidConfiguration, Timeout
from velaray.client.message import Message
from velaray.client.reader import ReaderBase, last_of
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T
from velaray.sync.inbox import ThreadInbox
from velaray.sync.listeners import Listening, Worker
from velaray.sync.loop import LoopThread
from velaray.sync.topic_face import TopicFace, deadline_of


class Reader(TopicFace[TopicCalls], Generic[T]):
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
        calls = TopicCalls(base, lambda _: on_close(base))
        super().__init__(thread, base, inbox, calls, base.read_all)
        self._base: ReaderBase = base

    def listen(self, worker: Worker, listener: Callable[[Any, Any], Any]) -> None:
        """Pass all messages to ``listener``; called by the client."""

        def hear(message: Message[Any]) -> None:
            self._notes.put(message)
            listener(self, message)

        self._inner.listening = Listening(worker, self._inbox, hear)

    def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        """Wait for the next message and return it.

        Raises `Timeout` after ``timeout_millis`` (default: no limit), and `AlreadyClosed` when the
        reader is closed.
        """
        if self._inner.listening is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        message = self._inbox.get(deadline_of(timeout_millis))
        if message is None:
            raise Timeout(f"no message in {timeout_millis} ms")
        self._notes.put(message)
        return message

    def read_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch[T]:
        """Receive all queued messages, up to ``max_messages``; waits for the first one.

        As `velaray.Consumer.receive_many`, and raises as that does.
        """
        limit = many(max_messages)
        if self._inner.listening is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        segments = self._inbox.get_segments(limit, deadline_of(timeout_millis))
        if not segments:
            raise Timeout(f"no message in {timeout_millis} ms")
        for message in last_of(segments):
            self._notes.put(message)
        return ReceivedBatch(segments)

    def __iter__(self) -> Iterator[Message[T]]:
        """Iterate over messages as they arrive, until the reader is closed."""
        return until_closed(self.read_next)

    def has_message_available(self) -> bool:
        """Whether `read_next` would return without waiting for a new message."""
        return len(self._inbox) > 0 or self._run(self._base.has_message_available())

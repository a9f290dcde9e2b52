"""Reading a topic from a chosen position, without a durable subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from secrets import token_hex
from typing import Any, Generic

from velaray.client.blocks import Segment
from velaray.client.calls import TopicCalls
from velaray.client.closing import each_until_closed
from velaray.client.consumer import many
from velaray.client.consumer_base import ConsumerBase
from velaray.client.consumer_extras import Extras
from velaray.client.core import Core
from velaray.client.exceptions import InvalidConfiguration, Timeout, VelarayError
from velaray.client.inbox import AsyncInbox
from velaray.client.listening import Listening
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ReaderOptions
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import T, typed
from velaray.client.subscription import Subscription
from velaray.client.topics import ConsumerInbox

QUEUE_LIMIT = 50000
"""Limit of messages that wait in a reader, over all partitions of its topic."""


class ReaderBase(ConsumerBase):
    """Base of the asyncio and synchronous readers; on the loop's thread."""

    def __init__(self, core: Core, options: ReaderOptions[Any], inbox: ConsumerInbox) -> None:
        prefix = f"{options.subscription_role_prefix}-" if options.subscription_role_prefix else ""
        subscription = Subscription(
            name=f"{prefix}reader-{token_hex(5)}",
            consumer_name=options.reader_name,
            start=options.start_message_id,
            start_inclusive=options.start_message_id_inclusive,
            read_compacted=options.is_read_compacted,
            queue_size=options.receiver_queue_size,
            max_chunked=options.max_pending_chunked_message,
            schema=options.schema,
            key_reader=options.crypto_key_reader,
            crypto_failure_action=options.crypto_failure_action,
        )
        extras = Extras(schema=typed(options.schema))
        super().__init__(core, subscription, QUEUE_LIMIT, inbox, extras)
        self._topic = options.topic

    async def start(self) -> None:
        """Subscribe. "Latest, inclusive" begins with the last existing message."""
        await self.add_topics(self._topic, create=False)
        if self.subscription.start == MessageId.latest:
            parts = self.topics.parts.values()
            await asyncio.gather(*(self._begin_at_the_end(part) for part in parts))

    async def _begin_at_the_end(self, part: PartitionConsumer) -> None:
        await part.queries.hold_position()
        if self.subscription.start_inclusive:
            last, _ = await part.queries.last_message_id()
            if last.entry_id() >= 0:
                await part.seek(last)

    def read(self, message: Message[Any]) -> None:
        """Acknowledge ``message``, which the user got, so that the service may release it."""
        part = self.topics.parts[message.topic_name()]
        part.acks.acknowledge_cumulative(message.message_id())

    def read_all(self, messages: deque[Message[Any]]) -> None:
        """Acknowledge ``messages``, which the user got in this order."""
        newest: dict[str, Message] = {}
        while messages:
            message = messages.popleft()
            newest[message.topic_name()] = message
        for message in newest.values():
            self.read(message)

    async def has_message_available(self) -> bool:
        """Whether the service has a message after the last one that was read."""
        parts = self.topics.parts.values()
        return any(await asyncio.gather(*(part.queries.has_message_available() for part in parts)))


def last_of(segments: list[Segment]) -> Iterator[Message[Any]]:
    """The last message of each partition in ``segments``."""
    newest = {segment.block.part: segment for segment in segments}
    return (segment.last for segment in newest.values())


class Reader(TopicCalls, Generic[T]):
    """Reads a topic from any position. Made by `velaray.aio.Client.create_reader`.

    The user acknowledges nothing, and the service stores no position: a new reader begins at its
    start position. After a reconnect no message is skipped and none is read twice.
    """

    _base: ReaderBase

    def __init__(
        self, core: Core, options: ReaderOptions[Any], on_close: Callable[[Reader[Any]], None]
    ) -> None:
        fetch = options.receiver_queue_size == 0
        self._inbox = AsyncInbox(lambda: self._base.topics.parts.values(), fetch)
        super().__init__(ReaderBase(core, options, self._inbox), on_close)
        self._listener = options.reader_listener

    async def start(self) -> None:
        """Begin reading; called by the client."""
        await self._base.start()
        if self._listener is not None:
            self.listening = Listening(self._base.core, self._inbox, self._hear)

    def _hear(self, message: Message[Any]) -> Any:
        assert self._listener is not None
        self._base.read(message)
        return self._listener(self, message)

    async def read_next(self, timeout_millis: int | None = None) -> Message[T]:
        """Return the next message, as soon as there is one.

        Cancelling loses no message. Raises `Timeout` if no message comes in time (by default there
        is no timeout), and `AlreadyClosed` when the reader is closed.
        """
        if self._listener is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        message = self._inbox.pop()
        if message is None:
            seconds = None if timeout_millis is None else timeout_millis / 1000
            try:
                async with asyncio.timeout(seconds):
                    message = await self._inbox.get()
            except TimeoutError as error:
                raise Timeout(f"no message in {timeout_millis} ms") from error
        self._base.read(message)
        return message

    async def read_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch[T]:
        """Return all messages that wait, or ``max_messages`` of them, as soon as there is one.

        Works and raises as `velaray.aio.Consumer.receive_many`.
        """
        limit = many(max_messages)
        if self._listener is not None:
            raise InvalidConfiguration("this reader's messages go to its reader_listener")
        seconds = None if timeout_millis is None else timeout_millis / 1000
        try:
            async with asyncio.timeout(seconds):
                segments = await self._inbox.get_many(limit)
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            raise Timeout(f"no message in {timeout_millis} ms") from error
        self._base.read_all(deque(last_of(segments)))
        return ReceivedBatch(segments)

    async def has_message_available(self) -> bool:
        """Whether `read_next` returns without waiting for a new publication."""
        return len(self._inbox) > 0 or await self._base.has_message_available()

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        """Yield messages as they come, until the reader is closed."""
        return each_until_closed(self.read_next)

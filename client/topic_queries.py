"""A consumer's requests about its topic partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from velaray.client import read_bounds
from velaray.client.connection import Connection
from velaray.client.core import Core
from velaray.client.exceptions import OperationNotSupported, Timeout, VelarayError
from velaray.client.message_id import MessageId
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.read_position import ReadPosition
from velaray.client.subscription import Subscription
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids_pb2 import MessageIdData
from velaray.wire import pulsar_pb2 as pb


class Asking(Protocol):
    """What the requests need from the consumer."""

    topic: str
    partition: int
    consumer_id: int

    async def attached(self) -> Connection:
        """Return the connection, as soon as there is one.

        Raises the error that ended the consumer.
        """
        ...

    async def comes(self, last: MessageId) -> bool:
        """Return when a message waits, or everything up to ``last`` was delivered without one."""
        ...


class TopicQueries:
    """Requests about one topic partition, repeated after reconnects for one operation timeout."""

    def __init__(
        self, core: Core, subscription: Subscription, consumer: Asking, position: ReadPosition
    ) -> None:
        self._core = core
        self._subscription = subscription
        self._consumer = consumer
        self._position = position

    async def request(self, what: str, make: Callable[[], Any]) -> Any:
        """Return the response to the command that ``make`` builds."""

        async def attempt() -> Any:
            connection = await self._consumer.attached()
            return await connection.request(make(), self._core.attempt_timeout)

        return await self._core.retrying(f"{what} on {self._consumer.topic}", attempt)

    async def last_message_id(self) -> tuple[MessageId, MessageId]:
        """Return the topic's last message (entry -1: none) and the acknowledged position."""
        consumer = self._consumer
        answer = await self.request(
            "asking for the last message",
            lambda: pb.CommandGetLastMessageId(consumer_id=consumer.consumer_id),
        )
        return _message_id(answer.last_message_id, consumer.topic), _message_id(
            answer.consumer_mark_delete_position, consumer.topic
        )

    async def hold_position(self) -> None:
        """Store where a subscription that isn't durable begins.

        The service loses this position with the connection. The consumer must not miss messages
        that are published before the next connection.
        """
        if not self._subscription.durable and self._position.taken is None:
            marked = (await self.last_message_id())[1]
            self._position.hold(marked, self._consumer.partition)

    async def span(self, start: Spot, limits: SpanLimits) -> Span:
        """Return the next step of a reader that reads in steps."""
        consumer = self._consumer
        answer = await self.request(
            "asking for the bounds of the next step",
            lambda: pb.CommandGetLastMessageId(
                consumer_id=consumer.consumer_id, span=read_bounds.to_proto(start, limits)
            ),
        )
        if not answer.HasField("span"):
            raise OperationNotSupported(
                f"{consumer.topic}: this service doesn't support reading in steps"
            )
        return read_bounds.from_proto(answer.span, start, consumer.topic)

    async def has_message_available(self) -> bool:
        """Whether the topic has a message after the last taken one, or after the start.

        Raises `Timeout` if the service delivers none of its messages.
        """
        last, marked = await self.last_message_id()
        if last.entry_id() < 0 or not self._position.is_before(last, marked):
            return False
        if not self._subscription.queue_size:
            return True
        # Incomplete chunked messages and unreadable entries are in the topic but aren't messages.
        try:
            async with asyncio.timeout(self._core.timeout):
                return await self._consumer.comes(last)
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            topic = self._consumer.topic
            raise Timeout(f"{topic}: message {last} exists but wasn't delivered") from error


def _message_id(data: MessageIdData, topic: str) -> MessageId:
    return MessageId.from_stored(StoredId.from_proto(data), topic)

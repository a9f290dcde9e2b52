"""The state that all producers and consumers of one client share."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message as ProtobufMessage

from velaray.client.connection import Connection
from velaray.client.exceptions import AlreadyClosed, InvalidTopicName, VelarayError
from velaray.client.lookup import ATTEMPTS_PER_OPERATION, Lookup, retrying
from velaray.client.options import ClientOptions
from velaray.client.patience import Patience
from velaray.client.pool import ConnectionPool
from velaray.client.topic_schemas import Schemas
from velaray.events.ids import InvalidNameError, TopicName
from velaray.wire.allocation import keep_freed_memory

logger = logging.getLogger("velaray")

T = TypeVar("T")

PARTITIONS_UPDATE_SECONDS = 60.0
"""Seconds between checks for new partitions."""


def topic_name(text: str) -> TopicName:
    """Return the full name of ``text``. Raises `InvalidTopicName`."""
    if not isinstance(text, str):
        raise InvalidTopicName(f"a topic name must be a str, not {type(text).__name__}")
    try:
        return TopicName.parse(text)
    except InvalidNameError as error:
        raise InvalidTopicName(str(error)) from error


class Core:
    """Connections, lookups, ids and background tasks of one client."""

    def __init__(self, options: ClientOptions) -> None:
        keep_freed_memory()
        self.options = options
        self.timeout = float(options.operation_timeout_seconds)
        self.attempt_timeout = self.timeout / ATTEMPTS_PER_OPERATION
        self.loop = asyncio.get_running_loop()
        self.pool = ConnectionPool(options)
        self.lookup = Lookup(options, self.pool)
        self._patience = Patience(lambda: self.pool.connecting)
        self.schemas = Schemas(self)
        self.closed = False
        self.switches = 0
        """Number of switches to another cluster."""
        self.when_switched: set[Callable[[], None]] = set()
        """Called at a switch, while the former connections still exist."""
        self._ids = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()

    def next_id(self) -> int:
        """Return an id for a producer or consumer; ids are never reused by this client."""
        return next(self._ids)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` in the background; it is cancelled when the client closes."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, VelarayError):  # its awaiters get the exception
            logger.error("a background task of the client failed", exc_info=error)

    async def retrying(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `velaray.client.lookup.retrying` for at most one operation timeout."""
        if self.closed:
            raise AlreadyClosed("the client is closed")
        return await retrying(what, self.timeout, attempt, self._patience)

    async def partitions_of(self, topic: str, create: bool = True) -> int:
        """Run `velaray.client.lookup.Lookup.partitions_of` with retries."""
        return await self.retrying(
            f"looking up the partitions of {topic}",
            lambda: self.lookup.partitions_of(topic, create),
        )

    async def close_quietly(self, connection: Connection, command: ProtobufMessage) -> None:
        """Send the command that closes a producer or consumer; log a failure."""
        try:
            await connection.request(command, self.attempt_timeout)
        except VelarayError as error:
            logger.debug("%s: %s", type(command).__name__, error)

    def switch(self, options: ClientOptions) -> None:
        """Use the service of ``options`` from now on, and drop all connections.

        Producers and consumers look up and connect again, as after a lost connection.
        """
        if self.closed:
            return
        elsewhere = options.service_url != self.options.service_url
        self.options, left = options, self.pool
        self.pool = ConnectionPool(options)
        self.lookup = Lookup(options, self.pool)
        if elsewhere:
            self.switches += 1
            self.schemas = Schemas(self)
            for tell in list(self.when_switched):
                tell()
        self.spawn(left.leave())

    async def close(self) -> None:
        """Cancel the background tasks and close the connections."""
        self.closed = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.pool.close()

    def abort(self, users: Sequence[Stoppable]) -> None:
        """Cut the connections, stop ``users`` and cancel the background tasks."""
        self.closed = True
        self.pool.abort()
        for user in users:
            user.stop()
        for task in list(self._tasks):
            task.cancel()


class Stoppable(Protocol):
    """A user of the connections."""

    def stop(self) -> None:
        """Stop at once."""


class Part(Protocol):
    """A partition's producer or consumer."""

    async def start(self) -> None:
        """Register with the service."""

    async def close(self) -> None:
        """Close in good order."""


async def start_all(core: Core, parts: Sequence[Part]) -> None:
    """Start all of ``parts``; if one fails, close all and raise its error."""
    try:
        results = await asyncio.gather(*(part.start() for part in parts), return_exceptions=True)
    except asyncio.CancelledError:
        if not core.closed:
            for part in parts:
                core.spawn(part.close())
        raise
    errors = [result for result in results if result is not None]
    if errors:
        await asyncio.gather(*(part.close() for part in parts))
        raise errors[0]


async def watch_partitions(
    core: Core, topic: str, known: int, grow: Callable[[int, int], Awaitable[None]]
) -> None:
    """Call ``grow(before, now)`` whenever the number of partitions of ``topic`` grows.

    Runs until it is cancelled. A failed check or a failed ``grow`` is logged and repeated at the
    next check.
    """
    while True:
        await asyncio.sleep(PARTITIONS_UPDATE_SECONDS)
        try:
            now = await core.partitions_of(topic, create=False)
            if now > known:
                await grow(known, now)
                known = now
        except VelarayError as error:
            logger.warning("can't update the partitions of %s: %s", topic, error)

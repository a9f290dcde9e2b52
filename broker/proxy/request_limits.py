"""Limits of the requests that cost a proxy much: lists, and new topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from velaray.broker.wire_errors import TooManyRequestsError
from velaray.wire.connection import WireConnection
from velaray.wire.turns import CREATION, GroupQueue, Turns

MAX_REQUESTS = 200
"""The requests of a connection to a proxy that may be in work, with those that wait for a place.
Each takes some 60 objects; whenever there are 200,000 new ones, Python looks for cycles in them,
which stops the process for 0.1 s."""

MAX_LISTS = 100
"""The lists of topics that a connection may wait for. They are made one after the other."""

CREATIONS_PER_S = 1000
"""The topics that the requests of a connection may create in a second, on average."""

CREATION_BURST = 10_000
"""The topics that they may create at once."""

MAX_ENSURED = 16
"""The topics that a proxy asks the catalog for at once, if each may be created. The catalog answers
those of one commit together, and the loop handles these answers without a pause."""


class Lists:
    """The lists that a connection waits for: one at a time, when the client reads the answers."""

    def __init__(self, connection: WireConnection) -> None:
        self._connection = connection
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._writable = asyncio.Event()

    def written(self) -> None:
        """Note that the connection is writable again."""
        self._writable.set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn of a list. Raises `TooManyRequestsError`."""
        if self._waiting >= MAX_LISTS:
            problem = f"this connection waits for {MAX_LISTS} lists of topics: ask again later"
            raise TooManyRequestsError(problem)
        self._waiting += 1
        try:
            async with self._turn:
                while not self._connection.writable:
                    self._writable.clear()
                    await self._writable.wait()
                yield
        finally:
            self._waiting -= 1


class Creations:
    """Counts the topics that the requests of a connection create."""

    def __init__(self, turns: Turns) -> None:
        """``turns`` counts the work for each."""
        self._turns = turns
        self._left = float(CREATION_BURST)
        self._counted_s = 0.0

    def exhausted(self, now_s: float) -> bool:
        """Whether no further topic may be created now."""
        more = (now_s - self._counted_s) * CREATIONS_PER_S
        self._left = min(self._left + more, CREATION_BURST)
        self._counted_s = now_s
        return self._left < 1

    def created(self) -> None:
        """Note a new topic."""
        self._left -= 1
        self._turns.spend(CREATION)


class Places:
    """The places for a kind of work. Groups of connections that wait for one take turns."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: GroupQueue[asyncio.Future[None]] = GroupQueue()

    @asynccontextmanager
    async def place(self, group: Hashable, within_s: float) -> AsyncIterator[None]:
        """Wait for a place, and keep it during the context. Raises `TimeoutError`."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._next(group, within_s)
        try:
            yield
        finally:
            self._leave()

    async def _next(self, group: Hashable, within_s: float) -> None:
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(group, came)
        try:
            async with asyncio.timeout(within_s):
                await came
        except (asyncio.CancelledError, TimeoutError):
            if came.done() and not came.cancelled():
                self._leave()  # it had just come
            raise

    def _leave(self) -> None:
        while self._waiting:
            came = self._waiting.popleft()
            if not came.done():  # it may have been cancelled
                came.set_result(None)
                return
        self._free += 1

"""Limits of the requests of one connection that cost a proxy much: lists, and new topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from velaray.broker.wire_errors import TooManyRequestsError
from velaray.wire.turns import CREATION, Turns

MAX_LISTS = 100
"""The lists of topics that a connection may wait for. They are made one after the other."""

CREATIONS_PER_S = 1000
"""The topics that the requests of a connection may create in a second, on average."""

CREATION_BURST = 10_000
"""The topics that they may create at once."""


class Lists:
    """The lists that a connection waits for: one at a time, when the client reads the answers."""

    def __init__(self, is_writable: Callable[[], bool]) -> None:
        self._is_writable = is_writable
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
                while not self._is_writable():
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

"""Producers and consumers of handles: opened at first use, closed after a time without use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from velaray.client.exceptions import (
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTxnStatusError,
    MessageTooBig,
    Timeout,
    TransactionConflict,
    TransactionNotFound,
    VelarayError,
)

OF_ONE_CALL = (
    IncompatibleSchema,
    InvalidConfiguration,
    InvalidMessage,
    InvalidTxnStatusError,
    MessageTooBig,
    Timeout,
    TransactionConflict,
    TransactionNotFound,
)
"""Errors that concern one call. After another error the producer or consumer isn't used again."""


class Closable(Protocol):
    """A producer or consumer."""

    async def close(self) -> None:
        """Leave the service. Closing twice has no effect."""


C = TypeVar("C", bound=Closable)


class _Session(Generic[C]):
    def __init__(self, opening: asyncio.Task[C]) -> None:
        self.opening = opening
        self.users = 0
        self.closing: asyncio.TimerHandle | None = None


class Sessions(Generic[C]):
    """Producers, or consumers, by key."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, _Session[C]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def use(
        self, key: Hashable, open_it: Callable[[], Awaitable[C]], idle_s: float
    ) -> AsyncIterator[C]:
        """The producer or consumer of a key. It is closed once it wasn't used for ``idle_s``.

        Raises what opening it raised.
        """
        loop = asyncio.get_running_loop()
        session = self._by_key.get(key)
        if session is None:
            session = self._by_key[key] = _Session(loop.create_task(_opened(open_it)))
        session.users += 1
        if session.closing is not None:
            session.closing.cancel()
        try:
            await asyncio.wait([session.opening])  # a cancelled call doesn't cancel it for others
            if session.opening.exception() is not None:
                self._forget(key, session)
            yield session.opening.result()
        except OF_ONE_CALL:
            raise
        except VelarayError:
            self._forget(key, session)
            raise
        finally:
            session.users -= 1
            if not session.users:
                unused = idle_s if self._by_key.get(key) is session else 0
                session.closing = loop.call_later(unused, self._close_later, key, session)

    async def close(self, key: Hashable) -> None:
        """Close the producer or consumer of a key, if there is one. Calls under way fail."""
        session = self._by_key.get(key)
        if session is not None:
            self._forget(key, session)
            await _close(session)

    def _forget(self, key: Hashable, session: _Session[C]) -> None:
        if self._by_key.get(key) is session:
            del self._by_key[key]

    def _close_later(self, key: Hashable, session: _Session[C]) -> None:
        self._forget(key, session)
        closing = asyncio.get_running_loop().create_task(_close(session))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _opened(open_it: Callable[[], Awaitable[C]]) -> C:
    return await open_it()


async def _close(session: _Session[C]) -> None:
    await asyncio.wait([session.opening])
    if session.opening.exception() is None:
        await session.opening.result().close()

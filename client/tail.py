"""The service's progress in delivering a topic partition."""

from __future__ import annotations

import asyncio

from velaray.client.acks import Where

_NOTHING = (-1, -1)


class Tail:
    """The last entry that was delivered over this connection."""

    def __init__(self) -> None:
        self.last: Where = _NOTHING
        self._waiting: list[asyncio.Future[None]] = []

    def restart(self) -> None:
        """Start a new delivery."""
        self.last = _NOTHING

    def came(self, where: Where) -> None:
        """Note a delivered entry."""
        self.last = where
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Wake all waiters to check again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def change(self) -> None:
        """Wait until an entry is delivered or another event wakes the waiters."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

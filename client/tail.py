"""How far the service has delivered a topic partition."""

from __future__ import annotations

import asyncio

from velaray.client.acks import Where

_NOTHING = (-1, -1)


class Tail:
    """The last entry that came over this connection, whatever was in it."""

    def __init__(self) -> None:
        self.last: Where = _NOTHING
        self._waiting: list[asyncio.Future[None]] = []

    def restart(self) -> None:
        """Delivery begins anew."""
        self.last = _NOTHING

    def came(self, where: Where) -> None:
        """An entry was delivered."""
        self.last = where
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Have everyone who waits look again."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def change(self) -> None:
        """Return when an entry came, or something else happened."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

"""The delay of a process's event loop: how late a timer fires."""

from __future__ import annotations

import asyncio
from collections import deque

PERIOD_S = 0.25
_KEPT = int(60 / PERIOD_S)


class LoopLag:
    """Measures the delays of the last minute."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=_KEPT)

    async def measure(self) -> None:
        """Sleep and note how late it ends. Never returns."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self._delays.append(max(loop.time() - due, 0.0))

    def longest(self) -> float:
        """The longest delay of the last minute in seconds."""
        return max(self._delays, default=0.0)

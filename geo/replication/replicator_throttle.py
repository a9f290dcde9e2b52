"""Rate limit of a replicator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from velaray.actors.rates import PublishRate


class Throttle:
    """Pauses a sender while the rate limit is exceeded."""

    def __init__(self, rate: tuple[float, float]) -> None:
        """``rate`` is messages and bytes a second, 0 or less without limit."""
        self._limit = _limit(rate)
        self._resume: Callable[[], None]
        self._timer: asyncio.TimerHandle | None = None

    @property
    def paused(self) -> bool:
        """Whether the next entry must wait."""
        return self._timer is not None

    def take(self, messages: int, size: int, resume: Callable[[], None]) -> None:
        """Count a sent entry. If the limit is exceeded, pause, and call ``resume`` afterwards."""
        if self._limit is None:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._limit.take(messages, size, loop.time())
        if wait_s > 0:
            self._resume = resume
            self._timer = loop.call_later(wait_s, self._end)

    def change(self, rate: tuple[float, float]) -> None:
        """Apply another rate. It starts without a pause."""
        self._limit = _limit(rate)
        if self._timer is not None:
            self._timer.cancel()
            self._end()

    def cancel(self) -> None:
        """End the pause without resuming."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._resume()


def _limit(rate: tuple[float, float]) -> PublishRate | None:
    return PublishRate(*rate) if max(rate) > 0 else None

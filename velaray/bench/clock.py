"""The time of the load generator: precise, and comparable with that of other processes."""

from __future__ import annotations

import asyncio
import select
import selectors
import time
from collections.abc import Callable


def wall_clock() -> Callable[[], int]:
    """A clock of nanoseconds since 1970, set now, that never jumps afterwards."""
    offset = time.time_ns() - time.perf_counter_ns()
    return lambda: offset + time.perf_counter_ns()


class PreciseSelector(selectors.EpollSelector):
    """A selector whose time limits are exact to some microseconds.

    epoll counts milliseconds. The open loop must not be late by that, so waiting is left to
    ``select``, on epoll's own descriptor.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, as soon as something is or ``timeout`` seconds have passed."""
        if timeout is not None and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)


def precise_loop() -> asyncio.AbstractEventLoop:
    """A new event loop whose timers are exact to some microseconds."""
    return asyncio.SelectorEventLoop(PreciseSelector())

"""Warnings for the user of a client that keeps retrying."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("velaray")

TELL_AFTER_S = 1.0
TELL_NEXT_S = 2.0
"""The pause before the second warning of an operation; it doubles for each further one."""


class Patience:
    """The warnings of all operations of a client: at most one in a second."""

    def __init__(self, connecting: Callable[[], str | None]) -> None:
        """``connecting``: the address of the current connection attempt, if there is one."""
        self._connecting = connecting
        self._quiet_until = float("-inf")

    def tell(self, what: str, passed: float, seconds: float, error: Exception | None) -> None:
        """Warn that an operation isn't complete, unless a reachable server is only slow."""
        address = self._connecting()
        now = asyncio.get_running_loop().time()
        if (error is None and address is None) or now < self._quiet_until:
            return
        self._quiet_until = now + TELL_NEXT_S / 2
        reason = error or f"{address} doesn't answer"
        text = "%s: not done after %.0f s, retrying for up to %g s: %s"
        logger.warning(text, what, passed, seconds, reason)


class Wait:
    """One operation: warns after 1, 3, 7, 15 seconds without completion, and so on."""

    def __init__(self, what: str, seconds: float, patience: Patience) -> None:
        self.error: Exception | None = None
        """The error of the last failed attempt."""
        self._what = what
        self._seconds = seconds
        self._patience = patience
        self._pause_s = TELL_NEXT_S
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if logger.isEnabledFor(logging.WARNING):
            self._timer = self._loop.call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        passed = self._loop.time() - self._began
        self._patience.tell(self._what, passed, self._seconds, self.error)
        self._timer = self._loop.call_later(self._pause_s, self._tell)
        self._pause_s *= 2

    def end(self) -> None:
        """Stop the warnings."""
        if self._timer is not None:
            self._timer.cancel()

"""Telling the user of a client that it keeps trying."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("velaray")

TELL_AFTER_S = 1.0
TELL_EVERY_S = 2.0


class Patience:
    """What a client's operations share: one warning every two seconds, however many wait."""

    def __init__(self, connecting: Callable[[], str | None]) -> None:
        """``connecting``: the address that is being connected to, if any."""
        self._connecting = connecting
        self._quiet_until = float("-inf")

    def tell(self, what: str, passed: float, seconds: float, error: Exception | None) -> None:
        """Warn that an operation isn't done; not if a server that is there takes its time."""
        address = self._connecting()
        now = asyncio.get_running_loop().time()
        if (error is None and address is None) or now < self._quiet_until:
            return
        self._quiet_until = now + TELL_EVERY_S / 2
        reason = error or f"{address} doesn't answer"
        text = "%s: not done after %.0f s, trying for %g s: %s"
        logger.warning(text, what, passed, seconds, reason)


class Wait:
    """One operation: it tells after a second that it isn't done, and then every two seconds."""

    def __init__(self, what: str, seconds: float, patience: Patience) -> None:
        self.error: Exception | None = None
        """Of the last attempt that failed."""
        self._what = what
        self._seconds = seconds
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if logger.isEnabledFor(logging.WARNING):
            self._timer = self._loop.call_later(TELL_AFTER_S, self._tell)

    def _tell(self) -> None:
        passed = self._loop.time() - self._began
        self._patience.tell(self._what, passed, self._seconds, self.error)
        self._timer = self._loop.call_later(TELL_EVERY_S, self._tell)

    def end(self) -> None:
        """Tell no more."""
        if self._timer is not None:
            self._timer.cancel()

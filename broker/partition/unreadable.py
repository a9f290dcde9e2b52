"""Entries that can't be read, at which the delivery of a subscription stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""The first and the longest pause before a failed read is repeated. Each pause is twice the one
before."""


@dataclass(slots=True)
class _Failed:
    """An entry whose last read failed."""

    why: str
    delay_s: float
    retry: asyncio.TimerHandle | None = None
    trying: bool = False


class Unreadable:
    """The unreadable entries of one subscription, and the times of their next attempts.

    ``again`` is called when a read may be repeated.
    """

    def __init__(self, again: Callable[[], None]) -> None:
        self._again = again
        self._failed: dict[int, _Failed] = {}

    def may_try(self, offset: int) -> bool:
        """Whether the entry may be read now; if so, the caller must read it."""
        known = self._failed.get(offset)
        if known is None:
            return True
        if known.retry is not None:
            return False
        known.trying = True
        return True

    def failed(self, offset: int, problem: str) -> None:
        """Note that a read of the entry failed."""
        before = self._failed.get(offset)
        if before is not None and before.retry is not None:
            return  # a read for another consumer failed at the same time
        delay_s = FIRST_RETRY_S if before is None else min(2 * before.delay_s, LONGEST_RETRY_S)
        found = self._failed[offset] = _Failed(problem, delay_s)
        found.retry = asyncio.get_running_loop().call_later(delay_s, self._retry, offset)

    def read(self, offset: int) -> None:
        """Note that the entry was read."""
        known = self._failed.pop(offset, None)
        if known is not None and known.retry is not None:
            known.retry.cancel()

    def gave_up(self, offset: int) -> None:
        """Note that the consumer that would read the entry is gone."""
        known = self._failed.get(offset)
        if known is not None and known.retry is None:
            del self._failed[offset]

    def _retry(self, offset: int) -> None:
        known = self._failed[offset]
        known.retry = None
        self._again()
        if not known.trying:
            self._failed.pop(offset, None)  # not needed: the cursor has moved

    def described(self) -> list[str]:
        """The reasons why entries can't be read, in the order of the log."""
        return [known.why for _, known in sorted(self._failed.items())]

    def close(self) -> None:
        """Cancel all further attempts."""
        for offset in list(self._failed):
            self.read(offset)

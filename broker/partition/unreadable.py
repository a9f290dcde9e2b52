"""Where the delivery of a subscription stops, as an entry of the log can't be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""A read that failed is tried again after the first time, then after twice as long, up to this."""


@dataclass(slots=True)
class _Failed:
    """An entry whose last read failed."""

    why: str
    delay_s: float
    retry: asyncio.TimerHandle | None = None
    trying: bool = False


class Unreadable:
    """The entries of one subscription that couldn't be read, and when each is tried again.

    ``again`` is called when a read may be tried again. `may_try` tells whether an entry may be read
    now.
    """

    def __init__(self, again: Callable[[], None]) -> None:
        self._again = again
        self._failed: dict[int, _Failed] = {}

    def may_try(self, offset: int) -> bool:
        """Whether the entry may be read now; a caller that is told so reads it."""
        known = self._failed.get(offset)
        if known is None:
            return True
        if known.retry is not None:
            return False
        known.trying = True
        return True

    def failed(self, offset: int, problem: str) -> None:
        """A read of the entry failed."""
        before = self._failed.get(offset)
        if before is not None and before.retry is not None:
            return  # another consumer's read of it failed at the same time
        delay_s = FIRST_RETRY_S if before is None else min(2 * before.delay_s, LONGEST_RETRY_S)
        found = self._failed[offset] = _Failed(problem, delay_s)
        found.retry = asyncio.get_running_loop().call_later(delay_s, self._retry, offset)

    def read(self, offset: int) -> None:
        """The entry was read."""
        known = self._failed.pop(offset, None)
        if known is not None and known.retry is not None:
            known.retry.cancel()

    def gave_up(self, offset: int) -> None:
        """The consumer that was to read the entry is gone."""
        known = self._failed.get(offset)
        if known is not None and known.retry is None:
            del self._failed[offset]

    def _retry(self, offset: int) -> None:
        known = self._failed[offset]
        known.retry = None
        self._again()
        if not known.trying:
            self._failed.pop(offset, None)  # nobody needs it any more: the subscription has moved

    def described(self) -> list[str]:
        """Why each entry couldn't be read, in the order of the log."""
        return [known.why for _, known in sorted(self._failed.items())]

    def close(self) -> None:
        """Try nothing again."""
        for offset in list(self._failed):
            self.read(offset)

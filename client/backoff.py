"""How long to wait before trying again."""

from __future__ import annotations

import random

FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0


class Backoff:
    """Delays in seconds that double from 0.1 to 5, each shortened by up to a fifth.

    The random part keeps the clients of a server that comes back from arriving together.
    """

    def __init__(self, first: float = FIRST_DELAY, longest: float = LONGEST_DELAY) -> None:
        self._first = first
        self._longest = longest
        self._next = first

    def delay(self) -> float:
        """The next delay."""
        delay = self._next
        self._next = min(delay * 2, self._longest)
        return delay * random.uniform(0.8, 1.0)

    def reset(self) -> None:
        """Begin anew after a success."""
        self._next = self._first

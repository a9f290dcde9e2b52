"""The delays between attempts.

Every loop in the tree that waits between attempts uses this module. docs/decisions/0036-retries.md
explains why this isn't a library.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Protocol

FIRST_S = 0.1
LONGEST_S = 5.0
SHORTEST_PART = 0.8
"""The smallest factor that jitter applies to a delay."""


class RandomSource(Protocol):
    """A source of jitter, such as a `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between ``a`` and ``b``."""


class Backoff:
    """Delays in seconds that double from ``first`` to ``longest``, each shortened by up to a fifth.

    This jitter spreads the attempts of the clients of a restarted server. It comes from ``source``;
    actors pass the source of their actor system (`ActorSystem.backoff`), so simulations repeat.
    """

    def __init__(
        self, first: float = FIRST_S, longest: float = LONGEST_S, source: RandomSource = random
    ) -> None:
        self._first = first
        self._longest = longest
        self._source = source
        self._next = first

    def delay(self) -> float:
        """Return the next delay."""
        delay = self._next
        self._next = min(delay * 2, self._longest)
        return delay * self._source.uniform(SHORTEST_PART, 1.0)

    async def wait(self, until: float = math.inf) -> bool:
        """Sleep for the next delay and return True.

        Return False at once if the delay reaches ``until``, a time of the event loop's clock.
        """
        delay = self.delay()
        if asyncio.get_running_loop().time() + delay >= until:
            return False
        await asyncio.sleep(delay)
        return True

    def reset(self) -> None:
        """Start from the first delay again, after a success."""
        self._next = self._first

"""Retries: the back-off between attempts, and the errors after which another attempt makes sense.

Every loop of the tree that waits between attempts waits here; docs/decisions/0036-retries.md says
why this isn't a library.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Protocol

from velaray.client.exceptions import (
    BrokerMetadataError,
    BrokerPersistenceError,
    ConnectError,
    NotConnected,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TooManyLookupRequestException,
    UnknownError,
    VelarayError,
)

FIRST_S = 0.1
LONGEST_S = 5.0
SHORTEST_PART = 0.8
"""The least part of a delay that remains of it after jitter."""

TRANSIENT: tuple[type[VelarayError], ...] = (
    BrokerMetadataError,
    BrokerPersistenceError,
    ConnectError,
    NotConnected,
    ReadError,
    ServiceUnitNotReady,
    Timeout,
    TooManyLookupRequestException,
    UnknownError,
)
"""The client's errors that may go away by themselves; all others are final."""


class RandomSource(Protocol):
    """Where jitter comes from, such as a `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """A number between ``a`` and ``b``."""


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
        """The next delay."""
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

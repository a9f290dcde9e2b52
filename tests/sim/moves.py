"""When a history's subscriptions are being moved: by seeks, resets and deletions."""

from __future__ import annotations

import math
from collections import defaultdict


class Moves:
    """Tracks the moves of subscriptions from ``seek`` and ``sought`` events.

    Moves overlap: an administrator resets a subscription while its consumer seeks. An
    administrator's move whose answer was lost never ends.
    """

    def __init__(self, late_s: float) -> None:
        """``late_s``: how long after its answer a move may still be carried out again."""
        self._late_s = late_s
        self._under_way: dict[str, int] = defaultdict(int)
        self._over: dict[str, float] = defaultdict(float)

    def note(self, kind: str, subscription: str, time: float) -> None:
        """Take in an event: ``seek`` or ``sought``."""
        self._under_way[subscription] += 1 if kind == "seek" else -1
        self._over[subscription] = time + self._late_s

    def over(self, subscription: str) -> float:
        """The time at which all moves so far are over; infinite while one is under way."""
        return math.inf if self._under_way[subscription] else self._over[subscription]

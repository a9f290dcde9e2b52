"""Counters of a transform's workers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from time import monotonic


@dataclass
class TransformCounts:
    """Counters of completed work, without aborted work.

    consumed: messages that were acknowledged.
    produced: messages that were published.
    retried: consumed messages that went to the retry topic.
    dead: consumed messages that went to the dead-letter topic.
    committed, aborted: transactions. Those of a worker that died, and those with an unknown result,
        aren't counted.
    failures: how often a worker had to subscribe again.
    """

    consumed: int = 0
    produced: int = 0
    retried: int = 0
    dead: int = 0
    committed: int = 0
    aborted: int = 0
    failures: int = 0

    def __add__(self, other: TransformCounts) -> TransformCounts:
        sums = (getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        return TransformCounts(*sums)


@dataclass(frozen=True)
class TransformProgress:
    """The progress of a transform.

    counts: the workers' counters. Those of a killed worker are up to half a second old.
    workers: the process ids of the running workers.
    deaths: workers that died and were replaced.
    backlog: unacknowledged entries of the source; None until it is known.
    rate: recently consumed messages per second.
    running: whether it runs.
    """

    counts: TransformCounts
    workers: tuple[int, ...]
    deaths: int
    backlog: int | None
    rate: float
    running: bool


class Rate:
    """The growth rate of a counter over the last seconds."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, count: int) -> None:
        """Record the current count."""
        now = monotonic()
        self._seen.append((now, count))
        while self._seen[0][0] < now - self._seconds:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The growth per second; 0 if nothing is known yet."""
        if len(self._seen) < 2:
            return 0.0
        (begin, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(end - begin, 1e-9)

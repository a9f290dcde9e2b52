"""What the workers of a transform have done."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from time import monotonic


@dataclass
class TransformCounts:
    """What has been done; of what is undone by an abort, nothing.

    consumed: messages that were acknowledged.
    produced: messages that were published.
    retried: of the consumed, those that went to the retry topic.
    dead: of the consumed, those that went to the dead-letter topic.
    committed, aborted: transactions. Of those of a worker that died, and of those whose verdict
        nobody told it, none is counted.
    failures: how often a worker had to begin anew, by subscribing again.
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
    """How far a transform is.

    counts: what its workers have done. A worker that was killed could tell what it had done
        half a second before.
    workers: the process ids of those that run.
    deaths: workers that died and were replaced.
    backlog: entries of the source that aren't acknowledged; None before that is known.
    rate: messages consumed per second, lately.
    running: whether it runs.
    """

    counts: TransformCounts
    workers: tuple[int, ...]
    deaths: int
    backlog: int | None
    rate: float
    running: bool


class Rate:
    """How fast a count has grown in the last seconds."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, count: int) -> None:
        """The count of this moment."""
        now = monotonic()
        self._seen.append((now, count))
        while self._seen[0][0] < now - self._seconds:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """Its growth per second; 0 if nothing is known yet."""
        if len(self._seen) < 2:
            return 0.0
        (begin, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / max(end - begin, 1e-9)

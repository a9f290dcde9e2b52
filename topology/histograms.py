"""Counts of durations in classes: Prometheus's histograms, and Pulsar's rates of each class."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from velaray.topology.metrics import Rates, Sample


class Durations:
    """Durations in seconds, counted in classes, and their sum."""

    __slots__ = ("counts", "steps_s", "total_s")

    def __init__(self, steps_s: Sequence[float]) -> None:
        """``steps_s``: the upper bounds of the classes; one more class has none."""
        self.steps_s = steps_s
        self.counts = [0] * (len(steps_s) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.steps_s, seconds)] += 1
        self.total_s += seconds

    def samples(self, name: str, labels: dict[str, str]) -> list[Sample]:
        """The samples of the histogram of this name."""
        return histogram(name, labels, self.steps_s, self.counts, self.total_s)


def histogram(
    name: str,
    labels: dict[str, str],
    steps_s: Sequence[float],
    counts: Sequence[int],
    total_s: float,
) -> list[Sample]:
    """The samples of a histogram: cumulative buckets, the count and the sum.

    ``counts`` has one class more than ``steps_s`` has upper bounds.
    """
    ends = [*map(str, steps_s), "+Inf"]
    reached = list(accumulate(counts))
    return [
        *(
            Sample(f"{name}_bucket", {**labels, "le": end}, count)
            for end, count in zip(ends, reached, strict=True)
        ),
        Sample(f"{name}_count", labels, reached[-1]),
        Sample(f"{name}_sum", labels, total_s),
    ]


class ClassRates:
    """Pulsar's metrics of the classes of durations: how many there were per minute."""

    def __init__(self, names: Sequence[str], steps_ms: Sequence[float], rates: Rates) -> None:
        """``names`` has one class more than ``steps_ms`` has upper bounds, in milliseconds."""
        self._names = names
        self._steps_s = [step / 1000 for step in steps_ms]
        self._rates = rates

    def samples(
        self, now_s: float, labels: dict[str, str], steps_s: Sequence[float], counts: Sequence[int]
    ) -> list[Sample]:
        """The rates of the classes, from counts in finer or equal ones: the bounds of the classes
        here are among ``steps_s``."""
        totals = [0] * len(self._names)
        for step, count in zip((*steps_s, inf), counts, strict=True):
            totals[bisect_left(self._steps_s, step)] += count
        return [
            Sample(name, labels, 60 * self._rates.at(now_s, name, total))
            for name, total in zip(self._names, totals, strict=True)
        ]

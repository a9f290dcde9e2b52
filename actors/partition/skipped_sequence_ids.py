"""Sequence ids that a producer has skipped: part of a partition's state of the producer.

Clients don't always send in the order of their sequence ids. The C++ client sends a delayed message
before the batch that it began earlier, whose id is lower. The Go client numbers a message before it
queues it, so messages of several goroutines overtake each other. After a reconnect without a
receipt the C++ client restarts its ids from the reported one, while it still holds entries with
lower ids. A comparison with the highest id alone drops such entries, and still answers them with a
receipt.

So the skipped ids are remembered: an entry that begins with one of them is no duplicate. Only the
first id of an entry is known for certain, unless the client sends the highest one too. So each
batch without it leaves a run of skipped ids behind. The newest runs are kept; ids below all of them
count as seen.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from velaray.actors.machine import require
from velaray.actors.sets.offset_sets import Range, gaps

WINDOW = 1024
"""Runs that are kept for a producer. Clients have at most 1000 entries under way by default."""


class Skipped:
    """Ascending runs of ids, (first, last + 1)."""

    __slots__ = ("_ends", "_firsts")

    def __init__(self, runs: Iterable[Range] = ()) -> None:
        self._firsts = array("Q")
        self._ends = array("Q")
        for first, end in runs:
            self.add(first, end)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._ends, strict=True)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Skipped):
            return NotImplemented
        return self._firsts == other._firsts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]

    @property
    def end(self) -> int:
        """The highest id + 1; 0 if there is none."""
        return self._ends[-1] if self._ends else 0

    def add(self, first: int, end: int) -> None:
        """Add a run above all others; the lowest run is dropped if there are too many."""
        self._firsts.append(first)
        self._ends.append(end)
        if len(self._firsts) > WINDOW:
            del self._firsts[0], self._ends[0]

    def remove(self, first: int, end: int) -> None:
        """Remove the ids of ``first`` to ``end`` - 1 that are in the set."""
        low = max(bisect_right(self._firsts, first) - 1, 0)
        high = bisect_right(self._firsts, end - 1)
        runs = list(zip(self._firsts[low:high], self._ends[low:high], strict=True))
        kept = [run for each in runs for run in gaps(*each, _within(each, first, end))]
        self._firsts[low:high] = array("Q", [run[0] for run in kept])
        self._ends[low:high] = array("Q", [run[1] for run in kept])

    def cut(self, end: int) -> None:
        """Remove everything from ``end`` on."""
        if self.end > end:
            self.remove(end, self.end)

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        previous = -1
        for first, end in self:
            require(previous <= first < end, "skipped ids are ascending runs", f"{first} {end}")
            previous = end


def _within(run: Range, first: int, end: int) -> list[Range]:
    start, stop = max(run[0], first), min(run[1], end)
    return [(start, stop)] if start < stop else []


def to_fields(skipped: Iterable[Range]) -> list[int]:
    """The content of a checkpoint: for each run its distance from the previous one, and its
    length."""
    fields, at = [], 0
    for first, end in skipped:
        fields += [first - at, end - first]
        at = end
    return fields


def from_fields(fields: list[int]) -> Skipped:
    """The inverse of `to_fields`."""
    skipped, at = Skipped(), 0
    for distance, length in zip(fields[::2], fields[1::2], strict=True):
        skipped.add(at + distance, at + distance + length)
        at += distance + length
    return skipped

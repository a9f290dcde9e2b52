"""Who holds which entries: ranges of offsets with an owner, a consumer's number for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from velaray.actors.machine import require
from velaray.actors.sets.ranges import Range

OwnerT = TypeVar("OwnerT")


class Holding(NamedTuple, Generic[OwnerT]):
    """``owner`` holds offsets ``first`` to ``end`` - 1."""

    first: int
    end: int
    owner: OwnerT


class Holdings(Generic[OwnerT]):
    """At most one owner per offset; neighbours of one owner are one holding."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: SortedDict = SortedDict()  # first -> (end, owner)

    def __iter__(self) -> Iterator[Holding[OwnerT]]:
        """All holdings, ascending."""
        for first, (end, owner) in self._runs.items():
            yield Holding(first, end, owner)

    def _at_or_before(self, offset: int) -> Holding[OwnerT] | None:
        runs = self._runs
        if not runs:
            return None
        first, (end, owner) = runs.peekitem(-1)
        if first > offset:
            first = next(runs.irange(maximum=offset, reverse=True), None)
            if first is None:
                return None
            end, owner = runs[first]
        return Holding(first, end, owner)

    def give(self, first: int, end: int, owner: OwnerT) -> None:
        """``owner`` holds a range from now on that nobody holds."""
        runs = self._runs
        before = self._at_or_before(first)
        if before is not None and before.end == first and before.owner == owner:
            first = before.first
        after = runs.get(end)
        if after is not None and after[1] == owner:
            del runs[end]
            end = after[0]
        runs[first] = (end, owner)

    def within(self, first: int, end: int) -> list[Holding[OwnerT]]:
        """Who holds what of the range, ascending, cut to the range."""
        found: list[Holding[OwnerT]] = []
        before = self._at_or_before(first)
        if before is not None and before.end > first:
            found.append(Holding(first, min(before.end, end), before.owner))
            if before.end >= end:
                return found
        for start in self._runs.irange(first + 1, end - 1):
            stop, owner = self._runs[start]
            found.append(Holding(start, min(stop, end), owner))
        return found

    def take(self, first: int, end: int, owner: OwnerT | None = None) -> list[Holding[OwnerT]]:
        """Nobody (or: ``owner`` no longer) holds the range; returns who held what of it."""
        runs = self._runs
        whole = runs.get(first)
        if whole is not None and whole[0] == end and owner in (None, whole[1]):
            del runs[first]  # often exactly what was given is taken
            return [Holding(first, *whole)]
        taken = self.within(first, end)
        if owner is not None:
            taken = [part for part in taken if part.owner == owner]
        for part in taken:
            self._cut(part)
        return taken

    def _cut(self, part: Holding[OwnerT]) -> None:
        runs = self._runs
        whole = self._at_or_before(part.first)
        assert whole is not None
        if whole.first == part.first:
            del runs[whole.first]
        else:
            runs[whole.first] = (part.first, whole.owner)
        if whole.end > part.end:
            runs[part.end] = (whole.end, whole.owner)

    def owner_of(self, offset: int) -> OwnerT | None:
        """Who holds the entry."""
        found = self._at_or_before(offset)
        return found.owner if found is not None and offset < found.end else None

    def end_of(self, offset: int) -> int:
        """Where the holding ends that has the entry; what follows it if nobody holds it."""
        found = self._at_or_before(offset)
        return found.end if found is not None and offset < found.end else offset + 1

    def next_start(self, offset: int, limit: int) -> int:
        """Where the first holding that starts after ``offset`` starts; at most ``limit``."""
        for first in self._runs.irange(offset + 1, limit):
            return int(first)
        return limit

    def of(self, owner: OwnerT) -> list[Range]:
        """What ``owner`` holds, ascending; looks at all holdings."""
        return [(first, end) for first, end, whose in self if whose == owner]

    def end(self) -> int:
        """The highest offset that somebody holds + 1; 0 if there is none."""
        return int(self._runs.peekitem(-1)[1][0]) if self._runs else 0

    def clear(self) -> None:
        """Nobody holds anything."""
        self._runs.clear()

    def check(self) -> None:
        """Raise `InvariantViolation` if an offset has two owners."""
        previous = 0
        for holding in self:
            require(
                previous <= holding.first < holding.end,
                "an entry is un-acknowledged at no more than one consumer",
                str(holding),
            )
            previous = holding.end

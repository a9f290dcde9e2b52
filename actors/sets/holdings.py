"""Ranges of offsets with an owner, such as the consumer that holds the entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from velaray.actors.machine import require
from velaray.actors.sets.ranges import Range

OwnerT = TypeVar("OwnerT")


class Holding(NamedTuple, Generic[OwnerT]):
    """Offsets ``first`` to ``end`` - 1 and their ``owner``."""

    first: int
    end: int
    owner: OwnerT


class Holdings(Generic[OwnerT]):
    """Owners of offsets, at most one per offset; adjacent ranges of one owner are one holding."""

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
        """Give ``owner`` a range that has no owner."""
        runs = self._runs
        if runs:
            last, (stop, whose) = runs.peekitem(-1)
            if last < first:  # nearly always
                runs[last if stop == first and whose == owner else first] = (end, owner)
                return
        before = self._at_or_before(first)
        if before is not None and before.end == first and before.owner == owner:
            first = before.first
        after = runs.get(end)
        if after is not None and after[1] == owner:
            del runs[end]
            end = after[0]
        runs[first] = (end, owner)

    def within(self, first: int, end: int) -> list[Holding[OwnerT]]:
        """The holdings within the range, ascending and cut to it."""
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
        """Remove the range from all owners (or from ``owner`` only); returns the removed
        holdings."""
        runs = self._runs
        whole = runs.get(first)
        if whole is not None and whole[0] == end and owner in (None, whole[1]):
            del runs[first]  # often the removed range is exactly a given one
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
        """The owner of the entry; None if it has none."""
        found = self._at_or_before(offset)
        return found.owner if found is not None and offset < found.end else None

    def end_of(self, offset: int) -> int:
        """The end of the holding that contains the entry; the next offset if it has no owner."""
        found = self._at_or_before(offset)
        return found.end if found is not None and offset < found.end else offset + 1

    def next_start(self, offset: int, limit: int) -> int:
        """The start of the first holding after ``offset``; at most ``limit``."""
        for first in self._runs.irange(offset + 1, limit):
            return int(first)
        return limit

    def of(self, owner: OwnerT) -> list[Range]:
        """The ranges of ``owner``, ascending; visits all holdings."""
        return [(first, end) for first, end, whose in self if whose == owner]

    def end(self) -> int:
        """The highest offset with an owner + 1; 0 if there is none."""
        return int(self._runs.peekitem(-1)[1][0]) if self._runs else 0

    def clear(self) -> None:
        """Remove all holdings."""
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

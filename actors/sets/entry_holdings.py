"""Owners of single offsets, for owners that alternate from offset to offset.

It answers as `velaray.actors.sets.holdings.Holdings` does. That one has an object for each range,
so it is small for long ranges. This one has a place for each offset, in pages: a Key_Shared
subscription's entries of many keys are held one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby

from velaray.actors.machine import require
from velaray.actors.sets.holdings import Holding
from velaray.actors.sets.ranges import Range

PAGE = 1024

Places = Sequence[tuple[int, Sequence[int]]]
"""Offsets as pages, ascending, and places within these."""


def places_of(offsets: Sequence[int]) -> Places:
    """The places of ascending offsets."""
    found = []
    at = 0
    while at < len(offsets):
        number = offsets[at] // PAGE
        base = number * PAGE
        stop = bisect_left(offsets, base + PAGE, at)
        found.append((number, [offset - base for offset in offsets[at:stop]]))
        at = stop
    return found


class EntryHoldings:
    """Owners of offsets, at most one per offset; adjacent offsets of one owner are one holding."""

    __slots__ = ("_owned", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[int | None]] = {}
        self._owned: dict[int, int] = {}  # page -> offsets with an owner, at least 1

    def __iter__(self) -> Iterator[Holding[int]]:
        """All holdings, ascending."""
        if self._pages:
            yield from self.within(min(self._pages) * PAGE, (max(self._pages) + 1) * PAGE)

    def give(self, first: int, end: int, owner: int) -> None:
        """Give ``owner`` a range that has no owner."""
        self.give_each(first, [owner] * (end - first))

    def give_each(self, first: int, owners: Sequence[int | None]) -> None:
        """Give the offsets from ``first`` on, which have no owner, one owner each; None gives it to
        none."""
        given = 0
        while given < len(owners):
            number, at = divmod(first + given, PAGE)
            part = owners[given : given + PAGE - at]
            given += len(part)
            owned = len(part) - part.count(None)
            if not owned:
                continue
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = [None] * PAGE
            page[at : at + len(part)] = part
            self._owned[number] = self._owned.get(number, 0) + owned

    def within(self, first: int, end: int) -> list[Holding[int]]:
        """The holdings within the range, ascending and cut to it."""
        found: list[Holding[int]] = []
        for number in self._numbers(first, end):
            base = number * PAGE
            at = max(first - base, 0)
            for owner, same in groupby(self._pages[number][at : end - base]):
                stop = at + len(list(same))
                if owner is not None:
                    start = base + at
                    if found and found[-1].end == start and found[-1].owner == owner:
                        start = found.pop().first
                    found.append(Holding(start, base + stop, owner))
                at = stop
        return found

    def _numbers(self, first: int, end: int) -> Sequence[int]:
        """The pages within a range, ascending."""
        lowest, highest = first // PAGE, (end - 1) // PAGE
        if lowest == highest:
            return [lowest] if lowest in self._pages else []
        return sorted(number for number in self._pages if lowest <= number <= highest)

    def take(self, first: int, end: int, owner: int | None = None) -> list[Holding[int]]:
        """Remove the range from all owners (or from ``owner`` only); returns the removed
        holdings."""
        taken = self.within(first, end)
        if owner is not None:
            taken = [part for part in taken if part.owner == owner]
        for part in taken:
            for number in self._numbers(part.first, part.end):
                base = number * PAGE
                at, stop = max(part.first - base, 0), min(part.end - base, PAGE)
                self._pages[number][at:stop] = [None] * (stop - at)
                self._released(number, stop - at)
        return taken

    def take_each(self, places: Places) -> list[int | None]:
        """Remove single offsets, given by their places, from their owners; returns these owners,
        None for an offset without one."""
        found: list[int | None] = []
        for number, within in places:
            page = self._pages.get(number)
            if page is None:
                found += [None] * len(within)
                continue
            owners = list(map(page.__getitem__, within))
            for at in within:
                page[at] = None
            self._released(number, len(owners) - owners.count(None))
            found += owners
        return found

    def _released(self, number: int, count: int) -> None:
        """Count offsets of a page that lost their owner, and drop the page if none has one."""
        left = self._owned[number] - count
        if left:
            self._owned[number] = left
        else:
            del self._pages[number], self._owned[number]

    def owner_of(self, offset: int) -> int | None:
        """The owner of the entry; None if it has none."""
        page = self._pages.get(offset // PAGE)
        return None if page is None else page[offset % PAGE]

    def of(self, owner: int) -> list[Range]:
        """The ranges of ``owner``, ascending; visits all holdings."""
        return [(first, end) for first, end, whose in self if whose == owner]

    def clear(self) -> None:
        """Remove all holdings."""
        self._pages.clear()
        self._owned.clear()

    def check(self) -> None:
        """Raise `InvariantViolation` if the counts aren't those of the owned offsets."""
        counted = {number: PAGE - page.count(None) for number, page in self._pages.items()}
        require(
            counted == self._owned and 0 not in counted.values(),
            "held entries are counted",
            f"{counted}, not {self._owned}",
        )

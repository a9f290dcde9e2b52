"""A set of offsets as ranges; long runs are cheap.

Ranges are (first, last + 1), ascending, and never touch: ranges that would touch are joined. Every
operation costs a few look-ups per range that it visits, independent of the ranges' lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from sortedcontainers import SortedDict

from velaray.actors.machine import require
from velaray.actors.sets.offset_sets import Members, gaps, pack_bits, unpack_bits
from velaray.actors.sets.offset_sets import Range as Range

_RANGE_BYTES = 200
_SET_BYTES = 2_000


def normalized(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets as ascending ranges that don't touch; empty ranges are left out."""
    merged: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return merged


class RangeSet:
    """A set of integers that tend to come in runs."""

    __slots__ = ("_ends", "_size")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ends: SortedDict = SortedDict()
        self._size = 0
        for first, end in ranges:
            self.add(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return bool(self._ends == other._ends)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def __iter__(self) -> Iterator[Range]:
        """The ranges, ascending. The set must not be changed meanwhile."""
        return iter(self._ends.items())

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __contains__(self, offset: int) -> bool:
        found = self._at_or_before(offset)
        return found is not None and offset < found[1]

    def size(self) -> int:
        """The number of integers in the set."""
        return self._size

    def range_count(self) -> int:
        """The number of ranges in the set."""
        return len(self._ends)

    def first(self) -> Range | None:
        """The lowest range."""
        return self._ends.peekitem(0) if self._ends else None

    def lowest(self, limit: int) -> int:
        """The lowest integer; at most ``limit``."""
        return min(self._ends.peekitem(0)[0], limit) if self._ends else limit

    def end(self) -> int:
        """The highest integer + 1; 0 if there is none."""
        return int(self._ends.peekitem(-1)[1]) if self._ends else 0

    def _at_or_before(self, offset: int) -> Range | None:
        """The range that holds ``offset``, or else the one before it."""
        ends = self._ends
        if not ends:
            return None
        last: Range = ends.peekitem(-1)
        if last[0] <= offset:  # most look-ups are at the end, where this is faster
            return last
        for first in ends.irange(maximum=offset, reverse=True):
            return first, ends[first]
        return None

    def add(self, first: int, end: int) -> None:
        """Add ``first`` to ``end`` - 1."""
        if first >= end:
            return
        ends = self._ends
        before = self._at_or_before(first)
        if before is not None and before[1] >= first:
            if before[1] >= end:
                return
            first = before[0]
            self._size -= before[1] - before[0]
        last = end
        for start in list(ends.irange(first + 1, end)):
            stop = ends.pop(start)
            self._size -= stop - start
            last = max(last, stop)
        ends[first] = last
        self._size += last - first

    def add_each(self, offsets: Sequence[int]) -> None:
        """Add single offsets."""
        for offset in offsets:
            self.add(offset, offset + 1)

    def members(self) -> Members:
        """The offsets, for many questions whether one is in the set. Valid until it changes."""
        return self

    def discard(self, first: int, end: int) -> list[Range]:
        """Remove ``first`` to ``end`` - 1; returns the parts that were in the set, ascending."""
        removed = self.within(first, end)
        ends = self._ends
        for start, stop in removed:
            self._size -= stop - start
            whole = self._at_or_before(start)
            assert whole is not None
            if whole[0] == start:
                del ends[start]
            else:
                ends[whole[0]] = start
            if whole[1] > stop:
                ends[stop] = whole[1]
        return removed

    def within(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that are in the set, ascending."""
        if first >= end or not self._ends:
            return []
        found = []
        before = self._at_or_before(first)
        if before is not None and before[1] > first:
            found.append((first, min(before[1], end)))
            if before[1] >= end:
                return found
        if end - first == 1:
            return found
        ends = self._ends
        found += [(start, min(ends[start], end)) for start in ends.irange(first + 1, end - 1)]
        return found

    def first_within(self, first: int, end: int, most: int) -> list[Range]:
        """The first ``most`` ranges of `within`; the others aren't visited."""
        if first >= end:
            return []
        found = [(first, min(self.next_missing(first), end))] if first in self else []
        starts = islice(self._ends.irange(first + 1, end - 1), most - len(found))
        return found + [(start, min(self._ends[start], end)) for start in starts]

    def overlaps(self, first: int, end: int) -> bool:
        """Whether any of ``first`` to ``end`` - 1 is in the set."""
        return first < end and (first in self or self.next_start(first, end) < end)

    def missing(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that aren't in the set, ascending."""
        return gaps(first, end, self.within(first, end))

    def next_missing(self, offset: int) -> int:
        """The first integer at or after ``offset`` that isn't in the set."""
        found = self._at_or_before(offset)
        return offset if found is None or found[1] < offset else found[1]

    def next_start(self, offset: int, limit: int) -> int:
        """The start of the first range that starts after ``offset``; at most ``limit``."""
        for first in self._ends.irange(offset + 1, limit):
            return int(first)
        return limit

    def clear(self) -> None:
        """Remove everything."""
        self._ends.clear()
        self._size = 0

    def to_bits(self, size: int) -> bytes:
        """A bit for each of the integers 0 to ``size`` - 1, the lowest bit of a byte first."""
        return pack_bits(self, size)

    def add_bits(self, raw: bytes) -> None:
        """Add the integers whose bits are set."""
        for first, end in unpack_bits(raw):
            self.add(first, end)

    def memory(self) -> int:
        """The approximate size of the set in bytes, as measured; small objects take most of it."""
        return _SET_BYTES + _RANGE_BYTES * len(self._ends)

    def check(self) -> None:
        """Raise `InvariantViolation` if the form is broken."""
        previous: int | None = None
        for first, end in self:
            require(first < end, "ranges hold something", f"{first} to {end}")
            apart = previous is None or previous < first
            require(apart, "ranges don't touch", f"{previous} and {first}")
            previous = end
        size = sum(end - first for first, end in self)
        require(size == self._size, "the size is that of the ranges", f"{size} {self._size}")

"""A set of offsets as a compressed bitmap: at most a bit per offset.

A roaring bitmap stores each 65,536 offsets in the smallest of three forms: a bit each, a sorted
list, or runs. So it is small for any pattern, alternating offsets included, and no operation costs
an object per range.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from pyroaring import BitMap

from velaray.actors.machine import require
from velaray.actors.sets.offset_sets import Members, Range, gaps, pack_bits, unpack_bits

_CONTAINER = 1 << 16
"""Integers per container of a roaring bitmap."""
_DENSE = 4096
"""A container of more integers than this, without runs, has a bit for each."""
_BITS_BYTES = _CONTAINER // 8
_SET_BYTES = 250
_ONE_CONTAINER = struct.Struct("<IIHHI")
"""The header of a bitmap with one container in the public format: cookie, count, key and size - 1,
and the container's place (github.com/RoaringBitmap/RoaringFormatSpec)."""
_COOKIE = 12346


class Bitmap:
    """A set of integers from 0 to 2 ** 32 - 2."""

    __slots__ = ("_bits",)

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._bits = BitMap()
        for first, end in ranges:
            self.add(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bitmap):
            return NotImplemented
        return bool(self._bits == other._bits)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Bitmap({list(self)})"

    def __iter__(self) -> Iterator[Range]:
        """The ranges, ascending. The set must not be changed meanwhile."""
        return iter(_ranges(self._bits))

    def __bool__(self) -> bool:
        return bool(self._bits)

    def __contains__(self, offset: int) -> bool:
        return offset in self._bits

    def size(self) -> int:
        """The number of integers in the set."""
        return len(self._bits)

    def range_count(self) -> int:
        """The number of ranges in the set."""
        return self._bits.difference_cardinality(self._bits.shift(1))

    def lowest(self, limit: int) -> int:
        """The lowest integer; at most ``limit``."""
        return min(self._bits.min(), limit) if self._bits else limit

    def end(self) -> int:
        """The highest integer + 1; 0 if there is none."""
        return self._bits.max() + 1 if self._bits else 0

    def add(self, first: int, end: int) -> None:
        """Add ``first`` to ``end`` - 1."""
        if first + 1 == end:
            self._bits.add(first)
        elif first < end:
            self._bits.add_range(first, end)

    def add_each(self, offsets: Sequence[int]) -> None:
        """Add single offsets."""
        self._bits.update(offsets)

    def members(self) -> Members:
        """The offsets, for many questions whether one is in the set. Valid until it changes."""
        return self._bits

    def discard(self, first: int, end: int) -> list[Range]:
        """Remove ``first`` to ``end`` - 1; returns the parts that were in the set, ascending."""
        removed = self.within(first, end)
        if removed:
            self._bits.remove_range(first, end)
        return removed

    def within(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that are in the set, ascending."""
        if first >= end:
            return []
        if first + 1 == end:
            return [(first, end)] if first in self._bits else []
        if self._bits.contains_range(first, end):
            return [(first, end)]
        return _ranges(self._bits & BitMap(range(first, end)))

    def missing(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that aren't in the set, ascending."""
        return gaps(first, end, self.within(first, end))

    def next_missing(self, offset: int) -> int:
        """The first integer at or after ``offset`` that isn't in the set."""
        bits = self._bits
        if offset not in bits:
            return offset
        first, step = offset + 1, 8
        while bits.contains_range(first, first + step):
            first += step
            step *= 2
        end = first + step
        while end - first > 1:  # the first absent one is between them
            middle = (first + end) // 2
            if bits.contains_range(first, middle):
                first = middle
            else:
                end = middle
        return first

    def next_start(self, offset: int, limit: int) -> int:
        """The start of the first range that starts after ``offset``; at most ``limit``."""
        try:
            found = self._bits.next_set_bit(self.next_missing(offset))
        except ValueError:
            return limit
        return min(int(found), limit)

    def clear(self) -> None:
        """Remove everything."""
        self._bits.clear()

    def to_bits(self, size: int) -> bytes:
        """A bit for each of the integers 0 to ``size`` - 1, the lowest bit of a byte first."""
        bits = self._bits
        if size != _CONTAINER or len(bits) <= _DENSE:
            return pack_bits(self, size)
        without_runs = BitMap(bits.to_array(), optimize=False)
        return bytes(without_runs.serialize()[-_BITS_BYTES:])

    def add_bits(self, raw: bytes) -> None:
        """Add the integers whose bits are set."""
        count = int.from_bytes(raw, "little").bit_count()
        if len(raw) == _BITS_BYTES and count > _DENSE:
            head = _ONE_CONTAINER.pack(_COOKIE, 1, 0, count - 1, _ONE_CONTAINER.size)
            self._bits |= BitMap.deserialize(head + raw)
            return
        for first, end in unpack_bits(raw):
            self.add(first, end)

    def memory(self) -> int:
        """The approximate size of the set in bytes, as measured."""
        count = len(self._bits)
        return _SET_BYTES + (2 * count if count <= _DENSE else _BITS_BYTES * self._containers())

    def _containers(self) -> int:
        return self._bits.max() // _CONTAINER + 1

    def check(self) -> None:
        """Raise `InvariantViolation` if the form is broken."""
        ranges = list(self)
        size, count = sum(end - first for first, end in ranges), self.range_count()
        require(size == self.size(), "the size is that of the ranges", f"{size} {self.size()}")
        require(len(ranges) == count, "the ranges are counted", f"{len(ranges)} {count}")


def _ranges(bits: BitMap) -> list[Range]:
    """The ranges of a set: they start after an absent integer and end before one."""
    after = bits.shift(1)
    return list(zip(bits - after, after - bits, strict=True))

"""The interface of sets of offsets.

It has two forms: `velaray.actors.sets.ranges.RangeSet` (an object per range) and
`velaray.actors.sets.bitmaps.Bitmap` (a bit per offset, compressed). They give equal answers;
`velaray.actors.sets.acknowledged_ranges.FORM` chooses the form of acknowledgements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

Range = tuple[int, int]
"""First offset and last + 1."""


class Members(Protocol):
    """Answers whether an offset is in a set."""

    def __contains__(self, offset: int, /) -> bool: ...


class OffsetSet(Protocol):
    """A set of offsets as ascending ranges that never touch."""

    def __iter__(self) -> Iterator[Range]:
        """The ranges, ascending. The set must not be changed meanwhile."""
        ...

    def __bool__(self) -> bool: ...

    def __contains__(self, offset: int) -> bool: ...

    def size(self) -> int:
        """The number of offsets in the set."""
        ...

    def range_count(self) -> int:
        """The number of ranges in the set."""
        ...

    def lowest(self, limit: int) -> int:
        """The lowest offset; at most ``limit``."""
        ...

    def end(self) -> int:
        """The highest offset + 1; 0 if there is none."""
        ...

    def add(self, first: int, end: int) -> None:
        """Add ``first`` to ``end`` - 1."""
        ...

    def add_each(self, offsets: Sequence[int]) -> None:
        """Add single offsets."""
        ...

    def members(self) -> Members:
        """The offsets, for many questions whether one is in the set. Valid until it changes."""
        ...

    def discard(self, first: int, end: int) -> list[Range]:
        """Remove ``first`` to ``end`` - 1; returns the parts that were in the set, ascending."""
        ...

    def within(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that are in the set, ascending."""
        ...

    def missing(self, first: int, end: int) -> list[Range]:
        """The parts of ``first`` to ``end`` - 1 that aren't in the set, ascending."""
        ...

    def next_missing(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't in the set."""
        ...

    def next_start(self, offset: int, limit: int) -> int:
        """The start of the first range that starts after ``offset``; at most ``limit``."""
        ...

    def clear(self) -> None:
        """Remove everything."""
        ...

    def to_bits(self, size: int) -> bytes:
        """A bit for each of the offsets 0 to ``size`` - 1, the lowest bit of a byte first."""
        ...

    def add_bits(self, raw: bytes) -> None:
        """Add the offsets whose bits are set; the inverse of `to_bits`."""
        ...

    def memory(self) -> int:
        """The approximate size of the set in bytes; a function of its content."""
        ...

    def check(self) -> None:
        """Raise `InvariantViolation` if the form is broken."""
        ...


def gaps(first: int, end: int, present: list[Range]) -> list[Range]:
    """The parts of ``first`` to ``end`` - 1 that aren't in ``present``, ascending."""
    missing = []
    for start, stop in present:
        if start > first:
            missing.append((first, start))
        first = stop
    if first < end:
        missing.append((first, end))
    return missing


def pack_bits(ranges: Iterable[Range], size: int) -> bytes:
    """`OffsetSet.to_bits` of any ranges below ``size``."""
    bits = bytearray(size // 8)
    for first, end in ranges:
        low, high = (first + 7) // 8, end // 8
        single: Iterable[int] = range(first, end)
        if low < high:
            bits[low:high] = b"\xff" * (high - low)
            single = (*range(first, low * 8), *range(high * 8, end))
        for offset in single:
            bits[offset >> 3] |= 1 << (offset & 7)
    return bytes(bits)


def unpack_bits(raw: bytes) -> Iterator[Range]:
    """The ranges whose bits are set."""
    first: int | None = None
    for at, byte in enumerate(raw):
        if byte == (0 if first is None else 0xFF):
            continue
        for offset in range(8 * at, 8 * at + 8):
            present = byte >> (offset & 7) & 1
            if present and first is None:
                first = offset
            elif not present and first is not None:
                yield first, offset
                first = None
    if first is not None:
        yield first, 8 * len(raw)

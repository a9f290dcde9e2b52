"""A subscription's cursor: the mark, and the acknowledged ranges and parts of batches beyond it.

`acked_before` is the mark-delete position: every offset below it is acknowledged. Beyond it there
are individually acknowledged ranges. A partly acknowledged batch has a mask of the remaining
messages: bit i set = message i isn't acknowledged. An entry whose mask becomes 0 is acknowledged as
a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import sub

from velaray.actors.sets.ack_segments import Mask
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges
from velaray.actors.sets.offset_sets import Range
from velaray.events.segments import StoredSegment

_WORD = (1 << 64) - 1


class Cursor:
    """The acknowledged part of a log. Ranges are (first, last + 1)."""

    __slots__ = ("_acked_ranges", "acked_before")

    def __init__(
        self,
        acked_before: int = 0,
        acked_ranges: Iterable[Range] = (),
        partial: Iterable[Mask] = (),
        *,
        beyond: AcknowledgedRanges | None = None,
    ) -> None:
        """``beyond`` keeps the acknowledged ranges beyond the mark; it must be empty."""
        self.acked_before = acked_before
        self._acked_ranges = AcknowledgedRanges() if beyond is None else beyond
        for first, end in acked_ranges:
            self.ack_range(first, end)
        for offset, ack_set in partial:
            self.ack_partial(offset, ack_set)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cursor):
            return NotImplemented
        return self.acked_before == other.acked_before and self._acked_ranges == other._acked_ranges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        partial = self.all_partials()
        return f"Cursor({self.acked_before}, holes={list(self._acked_ranges)}, partial={partial})"

    @property
    def beyond(self) -> AcknowledgedRanges:
        """The acknowledged ranges beyond the mark, for checkpoints; change them through the
        cursor."""
        return self._acked_ranges

    def ack_range(self, first: int, end: int) -> None:
        """Acknowledge offsets ``first`` to ``end`` - 1."""
        if first <= self.acked_before:
            self.ack_before(end)
        else:
            self._acked_ranges.add(first, end)

    def ack_ranges(self, ranges: Sequence[Range]) -> None:
        """Acknowledge all these ranges; they are ascending and apart."""
        mark, beyond = self.acked_before, self._acked_ranges
        within = 0  # ranges that the mark passes
        for first, end in ranges:
            if first > mark:
                break
            within += 1
            if end > mark:
                mark = beyond.next_missing(end) if beyond else end
        self.ack_before(mark)
        beyond.add_all(ranges[within:] if within else ranges)

    def ack_partial(self, offset: int, ack_set: int) -> None:
        """Acknowledge the messages of the batch at ``offset`` that aren't in ``remaining``. Earlier
        acknowledgements of other messages stay. 0 acknowledges the whole entry."""
        if self.is_acked(offset):
            return
        known = self._acked_ranges.mask(offset)
        if known is not None:
            ack_set &= known
        if ack_set:
            self._acked_ranges.put_mask(offset, ack_set)
        else:
            self.ack_range(offset, offset + 1)

    def ack_before(self, offset: int) -> None:
        """Acknowledge everything before ``offset``."""
        if offset <= self.acked_before:
            return
        if self._acked_ranges:
            offset = self._acked_ranges.next_missing(offset)
            self._acked_ranges.drop_before(offset)
        self.acked_before = offset

    def reset(self, next_offset: int) -> None:
        """Acknowledge everything before ``next_offset`` and nothing beyond it."""
        self._acked_ranges.clear()
        self.acked_before = next_offset

    def is_acked(self, offset: int) -> bool:
        """Whether the whole entry is acknowledged."""
        return offset < self.acked_before or (
            bool(self._acked_ranges) and offset in self._acked_ranges
        )

    def ack_set(self, offset: int) -> int | None:
        """The mask of a partly acknowledged batch; None for any other entry."""
        return self._acked_ranges.mask(offset) if self._acked_ranges else None

    def partials(self, first: int, end: int) -> list[Mask]:
        """(offset, remaining mask) of the partly acknowledged batches within the range."""
        return (
            self._acked_ranges.masks(max(first, self.acked_before), end)
            if self._acked_ranges
            else []
        )

    def all_partials(self) -> list[Mask]:
        """(offset, remaining mask) of all partly acknowledged batches, ascending."""
        return list(self._acked_ranges.all_masks())

    def partial_count(self) -> int:
        """The number of batches that are acknowledged in part."""
        return self._acked_ranges.partial_count()

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't wholly acknowledged."""
        if offset < self.acked_before:
            offset = self.acked_before
        return self._acked_ranges.next_missing(offset) if self._acked_ranges else offset

    def next_acked(self, offset: int, limit: int) -> int:
        """The first offset after the un-acknowledged ``offset`` that is wholly acknowledged,
        ``limit`` if there is none before it.
        """
        return self._acked_ranges.next_acked(offset, limit)

    def untouched_from(self) -> int:
        """The first offset from which on nothing is acknowledged, not even a part of a batch."""
        return max(self.acked_before, self._acked_ranges.end())

    def unacked_ranges(self, first: int, end: int) -> list[Range]:
        """The parts of the range that aren't wholly acknowledged, ascending."""
        return self._acked_ranges.missing(max(first, self.acked_before), end)

    def unacked_of(self, ranges: Sequence[Range]) -> list[Range]:
        """The parts of all these ranges that aren't wholly acknowledged, in their order."""
        mark = self.acked_before
        if ranges and min(ranges)[0] < mark:
            # Don't look up offsets before the mark: their segment may be cold.
            ranges = [(max(first, mark), end) for first, end in ranges if mark < end > first]
        return self._acked_ranges.missing_of(ranges)

    def acked_ranges(self) -> Iterator[Range]:
        """The acknowledged ranges beyond `acked_before`, ascending, never touching."""
        return iter(self._acked_ranges)

    def acked_range_count(self) -> int:
        """The number of acknowledged ranges beyond the mark."""
        return self._acked_ranges.range_count()

    def acked_count(self) -> int:
        """The number of wholly acknowledged entries."""
        return self.acked_before + self._acked_ranges.size()

    def backlog(self, end_offset: int) -> int:
        """Entries before ``end_offset`` that aren't wholly acknowledged."""
        return max(end_offset - self.acked_before, 0) - self._acked_ranges.size()

    def cold_for_acks(
        self, ranges: Iterable[Range], offsets: Iterable[int] = (), *, full: bool = False
    ) -> list[StoredSegment]:
        """The places of the cold segments that acknowledging these ranges, and batches at these
        offsets, may read. ``full``: also if they may be acknowledged already."""
        beyond, mark = self._acked_ranges, self.acked_before
        if not beyond.cold_count():
            return []
        parts = [*ranges, *((at, at + 1) for at in offsets)]
        found = [
            place
            for first, end in parts
            for place in beyond.cold_within(max(first, mark), end, full=full)
        ]
        if any(first <= mark < end for first, end in parts):  # the mark moves
            found += [place for _, end in parts if end > mark for place in beyond.cold_ahead(end)]
        return found

    def cold_for_mark(self, offset: int) -> list[StoredSegment]:
        """The places of the cold segments that acknowledging everything before ``offset``, and a
        part of the batch there, may read."""
        beyond, mark = self._acked_ranges, self.acked_before
        places = (max(offset, mark), max(offset + 1, mark))
        ahead = [place for each in places for place in beyond.cold_ahead(each)]
        return [*beyond.cold_within(offset, offset + 1), *ahead]

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        self._acked_ranges.check(self.acked_before)


def new_partials(cursor: Cursor, partial: Sequence[Mask]) -> list[Mask]:
    """The masks of the batches that ``partial`` changes, combined with the cursor's, ascending."""
    after: dict[int, int] = {}
    for offset, mask in partial:
        if not cursor.is_acked(offset):
            after[offset] = mask & after.get(offset, mask)
    merged = []
    for offset, mask in sorted(after.items()):
        before = cursor.ack_set(offset)
        mask = mask if before is None else mask & before
        if mask != before:
            merged.append((offset, mask))
    return merged


def pack_ranges(ranges: Iterable[Range]) -> list[int]:
    """Ascending ranges as events hold them: distance from the previous end, length, ..."""
    borders = list(chain.from_iterable(ranges))
    return list(map(sub, borders, [0, *borders[:-1]]))


def unpack_ranges(packed: Sequence[int]) -> list[Range]:
    """The inverse of `pack_ranges`."""
    borders = list(accumulate(packed))
    return list(zip(borders[::2], borders[1::2], strict=True))


def mask_to_words(mask: int) -> list[int]:
    """A mask as little-endian 64-bit words, as events and ack sets on the wire hold it."""
    words = (mask.bit_length() + 63) // 64
    return list(struct.unpack(f"<{words}Q", mask.to_bytes(words * 8, "little")))


def words_to_mask(words: Sequence[int]) -> int:
    """The inverse of `mask_to_words`; takes signed words, as the wire has them, too."""
    unsigned = struct.pack(f"<{len(words)}Q", *(word & _WORD for word in words))
    return int.from_bytes(unsigned, "little")

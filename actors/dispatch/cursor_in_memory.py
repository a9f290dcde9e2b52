"""The part of a cursor that is in memory, as a dispatcher reads it.

A dispatcher decides at once and never waits for the disk. Entries in segments that aren't in memory
(`velaray.actors.sets.acknowledged_ranges`) count as un-acknowledged. So it may not deliver them: it
stops at the first such segment (`CursorInMemory.reach`), and its host loads that. Everything before
stays in memory. That costs little: the un-acknowledged ranges there are in the dispatcher's memory
anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from velaray.actors.sets.ack_segments import Mask
from velaray.actors.sets.acknowledged_ranges import RangesInMemory
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import Cursor
from velaray.events.segments import StoredSegment


class CursorInMemory:
    """Answers as `velaray.actors.subscription.cursor.Cursor` does, without reading the disk."""

    __slots__ = ("_ranges", "whole")

    def __init__(self, whole: Cursor) -> None:
        self.whole = whole
        self._ranges = RangesInMemory(whole.beyond)

    @property
    def acked_before(self) -> int:
        """The mark."""
        return self.whole.acked_before

    @property
    def kept_before(self) -> int:
        """Everything before this offset stays in memory."""
        return self._ranges.kept_before

    def reach(self, offset: int) -> int:
        """Keep everything before ``offset`` in memory from now on, as far as it is there; returns
        the end of that."""
        return self._ranges.reach(offset)

    def release(self) -> None:
        """Keep nothing in memory any longer."""
        self._ranges.release()

    def known_until(self, first: int, end: int) -> int:
        """The first offset from ``first`` on that isn't in memory; ``end`` if there is none before
        it."""
        return self._ranges.known_until(max(first, self.whole.acked_before), end)

    def cold_before(self, offset: int) -> list[StoredSegment]:
        """The places of the segments that `reach` of ``offset`` lacks."""
        first = max(self._ranges.kept_before, self.whole.acked_before)
        return self._ranges.cold_within(first, offset)

    def is_acked(self, offset: int) -> bool:
        """Whether the whole entry is known to be acknowledged."""
        return offset < self.whole.acked_before or (bool(self._ranges) and offset in self._ranges)

    def ack_set(self, offset: int) -> int | None:
        """The mask of a batch that is known to be partly acknowledged; None for any other entry."""
        return self._ranges.mask(offset) if self._ranges else None

    def partials(self, first: int, end: int) -> list[Mask]:
        """(offset, remaining mask) of the batches in the range that are known to be partly
        acknowledged."""
        return self._ranges.masks(max(first, self.whole.acked_before), end) if self._ranges else []

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't known to be acknowledged."""
        mark = self.whole.acked_before
        if offset < mark:
            offset = mark
        return self._ranges.next_missing(offset) if self._ranges else offset

    def next_acked(self, offset: int, limit: int) -> int:
        """The first offset after the un-acknowledged ``offset`` that is known to be acknowledged,
        ``limit`` if there is none before it."""
        return self._ranges.next_acked(offset, limit)

    def unacked_of(self, ranges: Sequence[Range]) -> list[Range]:
        """The parts of all these ranges that aren't known to be acknowledged, in their order."""
        mark = self.whole.acked_before
        found = self._ranges.missing_of(ranges)
        if found and min(found)[0] < mark:
            found = [(max(first, mark), end) for first, end in found if end > mark]
        return found

    def untouched_from(self) -> int:
        """The first offset from which on nothing is acknowledged, not even a part of a batch."""
        return max(self.whole.acked_before, self._ranges.end())

    def unacked_ranges(self, first: int, end: int) -> list[Range]:
        """The parts of the range that aren't known to be acknowledged, ascending."""
        return self._ranges.missing(max(first, self.whole.acked_before), end)

"""Bugs that break the invariants of cursors: see `tests.sim.cursors`."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.actors.sets.bitmaps import Bitmap
from velaray.actors.subscription.cursor import Cursor


def _count_acked_ranges_too(original: Any) -> Any:
    def backlog(self: Cursor, end_offset: int) -> int:
        return max(end_offset - self.acked_before, 0)

    return backlog


def _take_the_newest_ack_set(original: Any) -> Any:
    def ack_partial(self: Cursor, offset: int, ack_set: int) -> None:
        if ack_set and not self.is_acked(offset):
            self._acked_ranges.put_mask(offset, ack_set)
        else:
            original(self, offset, ack_set)

    return ack_partial


def _miss_the_last_of_a_range(original: Any) -> Any:
    def add(self: Bitmap, first: int, end: int) -> None:
        original(self, first, max(first + 1, end - 1))

    return add


def _go_back(original: Any) -> Any:
    def ack_before(self: Cursor, offset: int) -> None:
        original(self, offset)
        self.acked_before = min(self.acked_before, max(offset, self.acked_before - 1))

    return ack_before


def _forget_what_is_beyond(original: Any) -> Any:
    def ack_before(self: Cursor, offset: int) -> None:
        if offset > self.acked_before:
            self.reset(offset)

    return ack_before


MUTANTS: dict[str, Mutant] = {
    "count-ranges-as-backlog": Mutant(
        "a backlog is everything behind the mark",
        ((Cursor, "backlog", _count_acked_ranges_too),),
        within=20,
    ),
    "take-the-newest-ack-set": Mutant(
        "the last acknowledgement of a batch replaces the ack set instead of intersecting it",
        ((Cursor, "ack_partial", _take_the_newest_ack_set),),
        within=300,
    ),
    "miss-the-last-of-a-range": Mutant(
        "a bitmap lacks the last entry of a range",
        ((Bitmap, "add", _miss_the_last_of_a_range),),
        within=50,
    ),
    "move-back-for-repeated-acks": Mutant(
        "a repeated acknowledgement moves the mark back",
        ((Cursor, "ack_before", _go_back),),
        within=50,
    ),
    "lose-ranges-beyond-the-mark": Mutant(
        "a move of the mark drops the acknowledged ranges beyond it",
        ((Cursor, "ack_before", _forget_what_is_beyond),),
        within=50,
    ),
}

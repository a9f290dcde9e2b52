"""A subscription's cursor: what is acknowledged, as a mark, ranges beyond it, parts of batches.

`acked_before` is the mark-delete: every offset below it is acknowledged. Beyond it there are
*holes*: ranges that are acknowledged out of order. A batch that is acknowledged in part has a
mask of what remains: bit i set = message i is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Range = tuple[int, int]


class Cursor:
    """What of a log is acknowledged. Ranges are (first, last + 1)."""

    def __init__(self, acked_before: int = 0) -> None:
        self.acked_before = acked_before

    def ack_range(self, first: int, end: int) -> None:
        """Acknowledge offsets ``first`` to ``end`` - 1."""
        raise NotImplementedError

    def ack_partial(self, offset: int, remaining: int) -> None:
        """Of the batch at ``offset`` at most the messages in ``remaining`` are still to be
        acknowledged; a part acknowledged earlier stays so. 0 acknowledges the whole entry.
        """
        raise NotImplementedError

    def ack_before(self, offset: int) -> None:
        """Acknowledge everything before ``offset``."""
        raise NotImplementedError

    def reset(self, next_offset: int) -> None:
        """Everything before ``next_offset`` is acknowledged, nothing beyond it is."""
        raise NotImplementedError

    def is_acked(self, offset: int) -> bool:
        """Whether the whole entry is acknowledged."""
        raise NotImplementedError

    def remaining(self, offset: int) -> int | None:
        """The mask of a batch that is acknowledged in part; None for any other entry."""
        raise NotImplementedError

    def partials(self, first: int, end: int) -> list[tuple[int, int]]:
        """(offset, remaining mask) of batches acknowledged in part within the range."""
        raise NotImplementedError

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't wholly acknowledged."""
        raise NotImplementedError

    def unacked_ranges(self, first: int, end: int) -> list[Range]:
        """What isn't wholly acknowledged of the range, ascending."""
        raise NotImplementedError

    def holes(self) -> Iterator[Range]:
        """The acknowledged ranges beyond `acked_before`, ascending, never touching."""
        raise NotImplementedError

    def hole_count(self) -> int:
        """How many holes there are."""
        raise NotImplementedError

    def backlog(self, end_offset: int) -> int:
        """Entries before ``end_offset`` that aren't wholly acknowledged."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        raise NotImplementedError


def pack_ranges(ranges: Sequence[Range]) -> list[int]:
    """Ascending ranges as events hold them: distance from the previous end, length, ..."""
    raise NotImplementedError


def unpack_ranges(packed: Sequence[int]) -> list[Range]:
    """The inverse of `pack_ranges`."""
    raise NotImplementedError


def mask_to_words(mask: int) -> list[int]:
    """A mask as little-endian 64-bit words, as events and ack sets on the wire hold it."""
    raise NotImplementedError


def words_to_mask(words: Sequence[int]) -> int:
    """The inverse of `mask_to_words`; takes signed words, as the wire has them, too."""
    raise NotImplementedError

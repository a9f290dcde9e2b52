"""The ledgers of a partition and their offsets: offset <-> position, exact and nearest.

An offset counts the entries of a partition since its creation. A ledger holds a run of consecutive
offsets, with entry ids from 0 on. The table is two sorted lists, ledger ids and the offset of each
ledger's entry 0, so every look-up is a bisection. A ledger without entries that was followed by
another isn't kept.

Ledgers are trimmed as a whole, in any order, except the last one. The offsets of trimmed ledgers
aren't reused and hold no entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from velaray.actors.machine import require
from velaray.events.ids import LEDGER_INDEX_BITS, Position


class NoSuchEntryError(LookupError):
    """No entry has this offset or position: it was never written, or is trimmed."""


class LedgerRun(NamedTuple):
    """Consecutive entries of one ledger, from ``first_entry`` on."""

    ledger_id: int
    first_entry: int
    entries: int


class LedgerSpan(NamedTuple):
    """The offsets of one ledger: from ``first``, its entry 0, up to ``end``, exclusive."""

    ledger_id: int
    first: int
    end: int


class LedgerTable:
    """The ledgers of one partition. Ledger ids grow, as they do within a journal."""

    __slots__ = ("_firsts", "_gone", "_ids", "end_offset")

    def __init__(
        self,
        ledgers: Iterable[tuple[int, int]] = (),
        end_offset: int = 0,
        gone: Iterable[int] = (),
    ) -> None:
        """``ledgers``: (ledger id, offset of its entry 0), ascending; ``gone``: the ids of trimmed
        ones between others."""
        pairs = list(ledgers)
        self._ids = [ledger_id for ledger_id, _ in pairs]
        self._firsts = [first for _, first in pairs]
        self._gone = set(gone)
        self.end_offset = end_offset

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerTable):
            return NotImplemented
        return (
            self.end_offset == other.end_offset
            and self.ledgers() == other.ledgers()
            and self._gone == other._gone
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        gone = f", gone={self.gone()}" if self._gone else ""
        return f"LedgerTable({self.ledgers()}, end_offset={self.end_offset}{gone})"

    def ledgers(self) -> list[tuple[int, int]]:
        """(ledger id, offset of its entry 0) of every ledger, ascending.

        Includes those that are `gone`, but not those that were trimmed before the oldest.
        """
        return list(zip(self._ids, self._firsts, strict=True))

    def gone(self) -> list[int]:
        """The ids of trimmed ledgers between others, ascending."""
        return sorted(self._gone)

    @property
    def first_offset(self) -> int:
        """The offset of the oldest stored entry; `end_offset` if there is none."""
        return self._firsts[0] if self._firsts else self.end_offset

    @property
    def is_open(self) -> bool:
        """Whether there is a ledger to append to."""
        return bool(self._ids)

    def is_closed(self, ledger_id: int) -> bool:
        """Whether a ledger of this journal takes no more entries."""
        return bool(self._ids) and ledger_id < self._ids[-1]

    def may_hold(self, ledger_id: int) -> bool:
        """Whether the id can be one of this journal, by the journal's number; also a trimmed or a
        future ledger's."""
        own = self._ids[-1] if self._ids else -1
        return own >> LEDGER_INDEX_BITS == ledger_id >> LEDGER_INDEX_BITS and own >= 0

    def open(self, ledger_id: int) -> None:
        """Append to ``ledger_id`` from now on, from its entry 0 on."""
        if self._ids and self._firsts[-1] == self.end_offset:
            self._ids[-1] = ledger_id
        else:
            self._ids.append(ledger_id)
            self._firsts.append(self.end_offset)

    def trim(self, ledger_ids: Iterable[int]) -> None:
        """Trim ledgers; the last one, and unknown ones, are ignored."""
        self._gone.update(set(ledger_ids).intersection(self._ids[:-1]))
        while self._ids and self._ids[0] in self._gone:
            self._gone.remove(self._ids.pop(0))
            del self._firsts[0]

    def gone_ranges(self) -> list[tuple[int, int]]:
        """The trimmed offsets, as ascending (first, last + 1) that don't touch."""
        ranges = [(0, self.first_offset)] if self.first_offset else []
        for ledger_id in self.gone():
            _, first, end = self._span(bisect_left(self._ids, ledger_id))
            if ranges and ranges[-1][1] == first:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((first, end))
        return ranges

    def kept_from(self, offset: int) -> int:
        """The first offset at or after ``offset`` that isn't trimmed, or `end_offset`."""
        if offset < self.first_offset:
            return self.first_offset
        if self._gone and offset < self.end_offset:
            index = bisect_right(self._firsts, offset) - 1
            while self._ids[index] in self._gone:
                index += 1
                offset = self._firsts[index]
        return min(offset, self.end_offset)

    def kept_before(self, offset: int) -> int:
        """The last offset before ``offset`` that isn't trimmed; `first_offset` - 1 if there is
        none."""
        offset = min(offset, self.end_offset) - 1
        if offset < self.first_offset:
            return self.first_offset - 1
        index = bisect_right(self._firsts, offset) - 1
        while self._ids[index] in self._gone:
            offset = self._firsts[index] - 1
            index -= 1
        return offset

    def append(self) -> None:
        """Count an entry in the last ledger; the same as ``end_offset += 1``."""
        self.end_offset += 1

    def next_position(self) -> Position | None:
        """The position of the next entry; None if there is no ledger to append to."""
        if not self._ids:
            return None
        # Runs for every entry: without the constructor's own call.
        at = self._ids[-1], self.end_offset - self._firsts[-1]
        return tuple.__new__(Position, at)

    def position_of(self, offset: int) -> Position:
        """The position of the entry at ``offset``. Raises `NoSuchEntryError`."""
        if not self.first_offset <= offset < self.end_offset:
            raise NoSuchEntryError(
                f"no entry at offset {offset}: the partition holds "
                f"{self.first_offset} to {self.end_offset - 1}"
            )
        index = bisect_right(self._firsts, offset) - 1
        if self._ids[index] in self._gone:
            raise NoSuchEntryError(f"the entry at offset {offset} is trimmed away")
        return Position(self._ids[index], offset - self._firsts[index])

    def span_of(self, offset: int) -> LedgerSpan:
        """The ledger that holds the entry at ``offset``. Raises `NoSuchEntryError`.

        For look-ups of many neighbours; the end of the last ledger is the present one.
        """
        self.position_of(offset)
        return self._span(bisect_right(self._firsts, offset) - 1)

    def span(self, ledger_id: int) -> LedgerSpan:
        """The offsets of a ledger; ``first`` and ``end`` are 0 if it holds no entries here."""
        index = bisect_left(self._ids, ledger_id)
        unknown = index == len(self._ids) or self._ids[index] != ledger_id
        if unknown or ledger_id in self._gone:
            return LedgerSpan(ledger_id, 0, 0)
        return self._span(index)

    def _span(self, index: int) -> LedgerSpan:
        ends = self._firsts[index + 1 : index + 2] or [self.end_offset]
        return LedgerSpan(self._ids[index], self._firsts[index], ends[0])

    def offset_of(self, position: Position) -> int:
        """The offset of the entry at ``position``. Raises `NoSuchEntryError`."""
        offset = self.at_or_after(position)
        if offset < self.end_offset and self.position_of(offset) == position:
            return offset
        raise NoSuchEntryError(f"no entry at position {position}")

    def at_or_after(self, position: Position) -> int:
        """The first offset whose position isn't before ``position``; `end_offset` if there is none.

        ``EARLIEST`` gives `first_offset`, ``LATEST`` gives `end_offset`; a position beyond the end
        of its ledger gives the first offset of the next one, a trimmed one that of the next stored
        ledger.
        """
        index = bisect_left(self._ids, position.ledger_id)
        if index == len(self._ids):
            return self.end_offset
        first = self._firsts[index]
        if self._ids[index] != position.ledger_id:
            return self.kept_from(first)
        border = self._firsts[index + 1] if index + 1 < len(self._ids) else self.end_offset
        return self.kept_from(min(first + max(position.entry_id, 0), border))

    def at_or_before(self, position: Position) -> int:
        """The last offset whose position isn't after ``position``; `first_offset` - 1 if there is
        none.

        It may be trimmed: it serves cumulative acknowledgements.
        """
        return self.at_or_after(Position(position.ledger_id, position.entry_id + 1)) - 1

    def position_before(self, offset: int) -> Position:
        """The position of the last stored entry before ``offset``, for example of a mark-delete.

        Without such an entry: the place before the first entry of the oldest ledger, or (-1, -1)
        without a ledger. An ``offset`` beyond `end_offset` counts as that.
        """
        kept = self.kept_before(offset)
        if kept >= self.first_offset:
            return self.position_of(kept)
        return Position(self._ids[0], -1) if self._ids else Position(-1, -1)

    def runs(self, first: int, end: int, *, with_gone: bool = False) -> Iterator[LedgerRun]:
        """The entries at offsets ``first`` to ``end`` - 1, ledger by ledger.

        Offsets without stored entries are left out; those of ledgers that are `gone` are included
        on request.
        """
        first, end = max(first, self.first_offset), min(end, self.end_offset)
        while first < end:
            index = bisect_right(self._firsts, first) - 1
            border = self._firsts[index + 1] if index + 1 < len(self._ids) else end
            stop = min(border, end)
            if with_gone or self._ids[index] not in self._gone:
                yield LedgerRun(self._ids[index], first - self._firsts[index], stop - first)
            first = stop

    def check(self) -> None:
        """Raise `InvariantViolation` if the table is broken."""
        pairs = list(zip(self.ledgers(), self.ledgers()[1:], strict=False))
        require(all(a[0] < b[0] for a, b in pairs), "ledger ids grow", repr(self))
        require(all(a[1] < b[1] for a, b in pairs), "no empty ledger before the last", repr(self))
        inner = self._ids[1:-1]
        require(self._gone <= set(inner), "the oldest and the last ledger are kept", repr(self))
        require(self.first_offset <= self.end_offset, "ledgers start before the end", repr(self))

"""The deliverable part of a log: neither acknowledged nor pending in a transaction.

A dispatcher reads its cursor through this view. It answers as
`velaray.actors.subscription.cursor.Cursor` does, but treats pending messages as acknowledged:
pending entries are passed over, and batches that are pending in part have only the other messages.
Cumulative acknowledgements in transactions hide nothing.
"""

from __future__ import annotations

from velaray.actors.dispatch.cursor_in_memory import CursorInMemory
from velaray.actors.sets.ack_segments import Mask
from velaray.actors.sets.offset_sets import Range, gaps
from velaray.actors.sets.ranges import normalized
from velaray.actors.subscription.pending_sets import PendingAcks


class Deliverable:
    """A view of a cursor and of pending acknowledgements; both may change while it exists."""

    __slots__ = ("_cursor", "_pending")

    def __init__(self, cursor: CursorInMemory, pending: PendingAcks) -> None:
        self._cursor = cursor
        self._pending = pending

    def ack_set(self, offset: int) -> int | None:
        """The mask of the deliverable messages of a batch, if others are acknowledged or pending;
        None for any other entry."""
        known = self._cursor.ack_set(offset)
        messages = self._pending.messages_of(offset) if self._pending else None
        if messages is None:
            return known
        return ((1 << messages) - 1 if known is None else known) & ~self._pending.bits(offset)

    def partials(self, first: int, end: int) -> list[Mask]:
        """(offset, mask of deliverable messages) of such batches within the range, ascending."""
        found = self._cursor.partials(first, end)
        if not self._pending:
            return found
        offsets = {offset for offset, _ in found} | set(self._pending.batches(first, end))
        return [(offset, self.ack_set(offset) or 0) for offset in sorted(offsets)]

    def _pending_batches(self, first: int, end: int) -> list[int]:
        """The batches whose messages are all acknowledged or pending."""
        return [at for at in self._pending.batches(first, end) if not self.ack_set(at)]

    def without_pending_parts(self, first: int, end: int) -> list[Range]:
        """The range without the batches that are pending in part, ascending."""
        batches = self._pending.batches(first, end) if self._pending else ()
        return gaps(first, end, [(at, at + 1) for at in batches])

    def is_acked(self, offset: int) -> bool:
        """Whether no message of the entry may be delivered."""
        return self._cursor.is_acked(offset) or (
            bool(self._pending)
            and (self._pending.owner_of(offset) is not None or self.ack_set(offset) == 0)
        )

    def next_unacked(self, offset: int) -> int:
        """The first offset at or after ``offset`` with a deliverable message."""
        offset = self._cursor.next_unacked(offset)
        while self._pending and self.is_acked(offset):
            offset = self._cursor.next_unacked(self._pending.end_of(offset))
        return offset

    def next_acked(self, offset: int, limit: int) -> int:
        """The first offset after the deliverable ``offset`` without a deliverable message,
        ``limit`` if there is none before it."""
        limit = self._cursor.next_acked(offset, limit)
        if not self._pending:
            return limit
        limit = self._pending.next_owned(offset, limit)
        return min(self._pending_batches(offset, limit), default=limit)

    def unacked_ranges(self, first: int, end: int) -> list[Range]:
        """The deliverable parts of the range, ascending."""
        found = self._cursor.unacked_ranges(first, end)
        if not self._pending:
            return found
        return [
            part for start, stop in found for part in gaps(start, stop, self._hidden(start, stop))
        ]

    def _hidden(self, first: int, end: int) -> list[Range]:
        owned = [(part.first, part.end) for part in self._pending.owned(first, end)]
        return normalized([*owned, *((at, at + 1) for at in self._pending_batches(first, end))])

    def untouched_from(self) -> int:
        """The first offset from which on all entries may be delivered whole."""
        untouched = self._cursor.untouched_from()
        return max(untouched, self._pending.end()) if self._pending else untouched

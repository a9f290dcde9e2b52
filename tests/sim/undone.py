"""Checks what an undo would restore, on every journal of a run that contains a move.

The model consists of sets of offsets; it has no cursors, marks, ranges or bitmaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from velaray.actors.subscription.cursor import unpack_ranges, words_to_mask
from velaray.broker.history import PointInTime
from velaray.broker.subscription.undoing import NothingMoved, plan_undo
from velaray.events.codec import decode
from velaray.events.events_pb2 import (
    CursorCreated,
    CursorReset,
    DeadLettersMoved,
    EntriesAcked,
    EntriesExpired,
    MarkDeleted,
    PartialAck,
)
from velaray.events.ids import ActorKey
from velaray.journal.replay import replay
from velaray.journal.store import LedgerStore


@dataclass
class Acked:
    """What is acknowledged: whole entries, and of batches what is left."""

    whole: set[int] = field(default_factory=set)
    left: dict[int, int] = field(default_factory=dict)

    def take(self, offsets: set[int]) -> None:
        """Acknowledge entries."""
        self.whole |= offsets
        self.left = {at: mask for at, mask in self.left.items() if at not in self.whole}

    def take_part(self, part: PartialAck) -> None:
        """Acknowledge part of a batch."""
        if part.offset in self.whole:
            return
        ack_set = words_to_mask(part.remaining)
        mask = self.left.get(part.offset, ack_set) & ack_set
        if mask:
            self.left[part.offset] = mask
        else:
            self.take({part.offset})

    def copy(self) -> Acked:
        """The same, apart."""
        return Acked(set(self.whole), dict(self.left))


def _offsets(event: Any) -> set[int]:
    return {at for first, end in unpack_ranges(event.ranges) for at in range(first, end)}


def _is_move(event: Message) -> bool:
    match event:
        case CursorReset():
            return True
        case MarkDeleted():
            return event.reason != ""
        case EntriesExpired():
            return event.reason == "administrator"
    return False


def _apply(acked: Acked, event: Message) -> None:
    match event:
        case CursorCreated(start_offset=start):
            acked.take(set(range(start)))
        case CursorReset(next_offset=start):
            acked.whole, acked.left = set(range(start)), {}
        case EntriesAcked():
            acked.take(_offsets(event))
            for part in event.partial:
                acked.take_part(part)
        case MarkDeleted(before_offset=before):
            acked.take(set(range(before)))
            if event.HasField("partial"):
                acked.take_part(event.partial)
        case EntriesExpired() | DeadLettersMoved():
            acked.take(_offsets(event))


def _keep(former: Acked, before: Acked, after: Acked, event: Message) -> None:
    """Apply to ``former`` what the acknowledgement ``event`` changed in ``before``."""
    former.take(after.whole - before.whole)
    if isinstance(event, DeadLettersMoved):
        # They may have been under way at the move, which acknowledged them: they are dead letters.
        former.take(_offsets(event))
    for at, mask in after.left.items():
        if before.left.get(at) != mask and at not in former.whole:
            former.left[at] = former.left.get(at, mask) & mask
    for at in [at for at, mask in former.left.items() if not mask]:
        former.take({at})


async def undoing_restores_exactly(store: LedgerStore, key: ActorKey) -> list[str]:
    """Compare what undoing the last move would restore with the model; nothing is written."""
    live, former = Acked(), None
    async for record in replay(store, key.text()):
        event = decode(bytes(record.event))
        before = live.copy()
        _apply(live, event)
        if _is_move(event):
            former = before
        elif former is not None:
            _keep(former, before, live, event)
    if former is None:
        return []
    try:
        plan = await plan_undo(store, key, PointInTime())
    except NothingMoved as error:
        return [f"{key.text()}: undoing finds no move: {error}"]
    faults = []
    for name, cursor, acked in (("is", plan.expected, live), ("was", plan.restored, former)):
        end = max([cursor.untouched_from(), *(at + 1 for at in acked.whole)])
        found = {at for at in range(end) if cursor.is_acked(at)}
        if found != acked.whole or dict(cursor.all_partials()) != acked.left:
            differing = sorted(found ^ acked.whole)[:5]
            faults.append(f"{key.text()}: undoing finds another cursor than it {name}: {differing}")
    return faults

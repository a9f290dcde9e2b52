"""Undoing moves of a cursor by command: seeks, skips, expiry on request, earlier undoing.

The rule: the cursor is as it was before the move, and what was acknowledged since by consumers
(or expired by policy, or moved to the dead-letter topic) stays acknowledged. Other moves by
command since then are undone with it. What is pending in transactions stays so, if the cursor
doesn't have it then; what a move took from them doesn't come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import (
    Cursor,
    mask_to_words,
    pack_ranges,
    unpack_ranges,
    words_to_mask,
)
from velaray.actors.subscription.expiry import Why, missing
from velaray.events.events_pb2 import (
    CursorReset,
    CursorRestored,
    DeadLettersMoved,
    EntriesAcked,
    EntriesExpired,
    MarkDeleted,
    PartialAck,
)


@dataclass(frozen=True, slots=True)
class Restore:
    """Make the cursor what ``restored`` is, for ``reason``; ``gone`` are ranges (first, last + 1)
    of entries that are trimmed away.

    Reply: `Restored`. Refused CONFLICT if the cursor isn't ``expected`` any more;
    NOT_ALLOWED if an entry that is gone would have to be delivered again; NOT_FOUND before
    the subscription is created.
    """

    expected: Cursor
    restored: Cursor
    gone: Sequence[Range]
    reason: str
    shared: bool = False  # as in `velaray.actors.subscription.machine.Reset`


@dataclass(frozen=True, slots=True)
class Restored:
    """Everything before the offset is acknowledged."""

    acked_before: int


def decide_restore(cursor: Cursor, command: Restore) -> Decision:
    """See `Restore`."""
    restored = command.restored
    if cursor != command.expected:
        return refuse(Reason.CONFLICT, "the cursor moved meanwhile; try again")
    if lost := missing(restored, command.gone):
        first, end = lost[0]
        return refuse(
            Reason.NOT_ALLOWED,
            f"can't be undone: entries at offsets {first} to {end - 1} would have to be "
            "delivered again, but they are trimmed away",
        )
    reply = Restored(restored.acked_before)
    if cursor == restored:
        return Decision(reply=reply)
    event = CursorRestored(
        next_offset=restored.acked_before,
        ranges=pack_ranges(restored.holes()),
        partial=[
            PartialAck(offset=offset, remaining=mask_to_words(mask))
            for offset, mask in restored.all_partials()
        ],
        reason=command.reason,
        shared=command.shared,
    )
    return Decision((event,), reply)


def evolve_restored(cursor: Cursor, event: CursorRestored) -> None:
    """The cursor is what the event says, whatever it was."""
    cursor.reset(event.next_offset)
    for first, end in unpack_ranges(event.ranges):
        cursor.ack_range(first, end)
    for partial in event.partial:
        cursor.ack_partial(partial.offset, words_to_mask(partial.remaining))


def move_of(event: Message) -> str:
    """What an event moved the cursor for, if a command did it; empty for any other event."""
    match event:
        case CursorReset():
            return f"seek: {event.reason}"
        case CursorRestored():
            return f"undo: {event.reason}"
        case MarkDeleted() if event.reason:
            return f"skip: {event.reason}"
        case EntriesExpired(reason=Why.ADMINISTRATOR):
            return "expire: asked for by an administrator"
    return ""


def keep(restored: Cursor, live: Cursor, event: Message) -> None:
    """Acknowledge in ``restored`` what ``event`` acknowledges for good; ``live`` is the cursor
    just before the event."""
    if move_of(event):
        return
    match event:
        case EntriesAcked():
            for first, end in unpack_ranges(event.ranges):
                restored.ack_range(first, end)
            for partial in event.partial:
                restored.ack_partial(partial.offset, words_to_mask(partial.remaining))
        case MarkDeleted(before_offset=offset):
            for first, end in live.unacked_ranges(live.acked_before, offset):
                restored.ack_range(first, end)
            if event.HasField("partial"):
                partial = event.partial
                restored.ack_partial(partial.offset, words_to_mask(partial.remaining))
        case EntriesExpired() | DeadLettersMoved():
            for first, end in unpack_ranges(event.ranges):
                restored.ack_range(first, end)

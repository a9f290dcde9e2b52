"""Undoing of cursor moves by command: seeks, skips, requested expiry, earlier undoing.

The cursor becomes what it was before the move. Entries stay acknowledged if consumers have
acknowledged them since, if a policy expired them, or if they went to the dead-letter topic. Later
moves by command are undone with it. Acknowledgements that are pending in transactions stay pending
unless the restored cursor has them; those that a move dropped aren't restored.
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
from velaray.actors.subscription.expiry import ExpiryReason, missing
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
    """Replace the cursor by ``restored``, for ``reason``; ``gone`` are ranges (first, last + 1) of
    trimmed entries.

    Reply: `Restored`. Refused CONFLICT if the cursor is no longer ``expected``; NOT_ALLOWED if a
    trimmed entry would have to be delivered again; NOT_FOUND before the subscription is created.
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
    """The decision on `Restore`."""
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
        ranges=pack_ranges(restored.acked_ranges()),
        partial=[
            PartialAck(offset=offset, remaining=mask_to_words(mask))
            for offset, mask in restored.all_partials()
        ],
        reason=command.reason,
        shared=command.shared,
    )
    return Decision((event,), reply)


def evolve_restored(cursor: Cursor, event: CursorRestored) -> None:
    """Replace the cursor by the event's."""
    cursor.reset(event.next_offset)
    for first, end in unpack_ranges(event.ranges):
        cursor.ack_range(first, end)
    for partial in event.partial:
        cursor.ack_partial(partial.offset, words_to_mask(partial.remaining))


def move_of(event: Message) -> str:
    """The command and reason of an event that moves the cursor; empty for any other event."""
    match event:
        case CursorReset():
            return f"seek: {event.reason}"
        case CursorRestored():
            return f"undo: {event.reason}"
        case MarkDeleted() if event.reason:
            return f"skip: {event.reason}"
        case EntriesExpired(reason=ExpiryReason.ADMINISTRATOR):
            return "expire: requested by an administrator"
    return ""


def keep(restored: Cursor, live: Cursor, event: Message) -> None:
    """Apply the lasting acknowledgements of ``event`` to ``restored``; ``live`` is the cursor just
    before the event."""
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

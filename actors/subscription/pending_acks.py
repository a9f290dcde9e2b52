"""Acknowledgements in transactions that haven't ended: part of a subscription's state.

An entry, or some messages of a batch, that a transaction acknowledges is *pending* until the
transaction ends: nobody gets it, and the cursor doesn't have it. A commit acknowledges what is
still pending, an abort lets it be delivered again. At most one transaction has a message pending;
who comes second is refused, as is who comes when the message is acknowledged.

A transaction may acknowledge cumulatively as well, one at a time: then it has everything before an
offset, and no other transaction may acknowledge anything there. That hides nothing from consumers,
since it must stay in order what they get again; so its abort makes nothing be delivered again.

What is acknowledged, expired or moved over meanwhile is pending no longer, whatever becomes of the
transaction; a reset forgets all that is pending. So a transaction is known here as long as a
commit of it would change the cursor, and nothing is kept of those that ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.sets.offset_sets import gaps
from velaray.actors.sets.ranges import Range, RangeSet, normalized
from velaray.actors.subscription.cursor import (
    Cursor,
    mask_to_words,
    pack_ranges,
    unpack_ranges,
    words_to_mask,
)
from velaray.actors.subscription.pending_sets import Before, PendingAck, PendingAcks, advances
from velaray.events.events_pb2 import (
    AckedBeforeInTransaction,
    AckedInTransaction,
    CursorReset,
    CursorRestored,
    DeadLettersMoved,
    EntriesAcked,
    EntriesExpired,
    MarkDeleted,
    PartialAck,
    PendingPart,
    TransactionAcksEnded,
)
from velaray.events.ids import TransactionId


class BatchAck(NamedTuple):
    """Of the batch of ``messages`` messages at ``offset`` those whose bits aren't set in
    ``remaining`` are acknowledged."""

    offset: int
    remaining: int
    messages: int


@dataclass(slots=True)
class AckInTransaction:
    """Acknowledge entries (``ranges`` of (first, last + 1)) and parts of batches, in any order,
    if ``transaction`` commits.

    Reply: `NowPending`. Refused as a whole: INVALID if anything is at or beyond ``end_offset``, the
    partition's end, or a batch has another size than was said earlier; CONFLICT if an entry, or
    a message of a batch that is named in part, is acknowledged, on its way to the dead-letter
    topic, or pending in a transaction (``transaction`` itself included; but it may name what it
    acknowledged cumulatively); NOT_FOUND before `Create`. A command all of which is pending in
    ``transaction`` already is a repetition: it changes nothing, and the reply is the same.
    """

    transaction: TransactionId
    end_offset: int
    ranges: Sequence[Range] = ()
    partial: Sequence[BatchAck] = ()
    consumer: int = 0  # who does, for the record (`velaray.actors.subscription.tracing`)


@dataclass(frozen=True, slots=True)
class AckBeforeInTransaction:
    """Acknowledge everything before ``offset`` and, with ``remaining``, all of the batch at
    ``offset`` but the messages whose bits are set, if ``transaction`` commits.

    Reply: `NowPending`, which is empty. Refused INVALID beyond ``end_offset`` (or at it, with
    ``remaining``); CONFLICT if that isn't beyond the mark and what ``transaction`` acknowledged
    so, or if anything there is pending in another one; NOT_FOUND before `Create`. The same again
    is a repetition, which changes nothing.
    """

    transaction: TransactionId
    end_offset: int
    offset: int
    remaining: int | None = None
    consumer: int = 0


@dataclass(frozen=True, slots=True)
class NowPending:
    """What nobody gets from now on: ascending whole entries as (first, last + 1), and offsets of
    batches some messages of which nobody gets."""

    ranges: tuple[Range, ...] = ()
    partial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndTransactionAcks:
    """``transaction`` ended: acknowledge what is pending in it, or let it be delivered again.

    Reply: `AcksEnded`, an empty one if nothing is pending in it, as if this is asked again.
    Refused NOT_FOUND before `Create`.
    """

    transaction: TransactionId
    commit: bool


@dataclass(frozen=True, slots=True)
class AcksEnded:
    """What changed, ascending: as in `velaray.actors.subscription.machine.Acked` what is
    acknowledged since the commit, whole entries and what remains of batches; or, since the abort,
    the entries that are to be delivered again, as (first, last + 1)."""

    ranges: tuple[Range, ...] = ()
    partial: tuple[tuple[int, int], ...] = ()
    returned: tuple[Range, ...] = ()


def decide_ack(
    pending: PendingAcks, cursor: Cursor, leaving: Collection[int], command: AckInTransaction
) -> Decision:
    """See `AckInTransaction`; ``leaving`` are offsets on their way to the dead-letter topic."""
    invalid = _invalid(pending, command)
    if invalid:
        return refuse(Reason.INVALID, invalid)
    ranges = normalized(command.ranges)
    parts = _messages(command.partial, RangeSet(ranges))
    if _is_repetition(pending, cursor, command.transaction, ranges, parts):
        return Decision(reply=NowPending(tuple(ranges), tuple(parts)))
    conflict = _conflict_of_ranges(
        pending, cursor, command.transaction, ranges
    ) or _conflict_of_parts(pending, cursor, command.transaction, parts)
    conflict = conflict or _conflict_with_letters(leaving, command.transaction, ranges, parts)
    if conflict:
        return refuse(Reason.CONFLICT, conflict)
    sizes = {offset: messages for offset, _, messages in command.partial}
    whole = [(at, at + 1) for at, bits in parts.items() if bits == (1 << sizes[at]) - 1]
    ranges = normalized([*ranges, *whole])
    parts = {at: bits for at, bits in parts.items() if (at, at + 1) not in whole}
    if not ranges and not parts:
        return Decision(reply=NowPending())
    event = AckedInTransaction(
        coordinator=command.transaction.coordinator,
        sequence=command.transaction.sequence,
        ranges=pack_ranges(ranges),
        partial=[
            PendingPart(offset=at, acknowledged=mask_to_words(bits), messages=sizes[at])
            for at, bits in parts.items()
        ],
        consumer=command.consumer,
    )
    return Decision((event,), NowPending(tuple(ranges), tuple(parts)))


def _invalid(pending: PendingAcks, command: AckInTransaction) -> str:
    """Why it can't be meant, if so."""
    end_offset = command.end_offset
    for first, end in command.ranges:
        if not 0 <= first < end <= end_offset:
            return f"can't acknowledge {first} to {end - 1}: the log ends at {end_offset}"
    sizes: dict[int, int] = {}
    for offset, remaining, messages in command.partial:
        if not 0 <= offset < end_offset or remaining < 0 or messages < 1:
            return f"can't acknowledge part of {offset}: the log ends at {end_offset}"
        known = pending.messages_of(offset) or sizes.setdefault(offset, messages)
        if messages != known:
            return f"the batch at {offset} has {known} messages, not {messages}"
    return ""


def _messages(partial: Sequence[BatchAck], whole: RangeSet) -> dict[int, int]:
    """What is acknowledged of batches, by offset, ascending; not of those in ``whole``."""
    parts: dict[int, int] = {}
    for offset, remaining, messages in sorted(partial):
        bits = ~remaining & (1 << messages) - 1
        if bits and offset not in whole:
            parts[offset] = parts.get(offset, 0) | bits
    return parts


def _is_repetition(
    pending: PendingAcks,
    cursor: Cursor,
    transaction: TransactionId,
    ranges: Sequence[Range],
    parts: Mapping[int, int],
) -> bool:
    """Whether all of it is pending in the transaction already."""
    for first, end in ranges:
        owned = [part for part in pending.owned(first, end) if part.owner == transaction]
        for start, stop in gaps(first, end, [(part.first, part.end) for part in owned]):
            for offset in range(start, stop):
                known, size = cursor.remaining(offset), pending.messages_of(offset) or 1
                bits = (1 << size) - 1 if known is None else known
                if not pending.has_part(transaction, offset, bits):
                    return False
    for offset, bits in parts.items():
        known = cursor.remaining(offset)
        if known is not None and bits & ~known:
            return False
        if not pending.has_part(transaction, offset, bits):
            return False
    return True


def _conflict_of_ranges(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, ranges: Sequence[Range]
) -> str:
    """Why the transaction can't acknowledge these, if so."""
    for first, end in ranges:
        unacked = cursor.unacked_ranges(first, end)
        if unacked != [(first, end)]:
            acked = unacked[0][1] if unacked and unacked[0][0] == first else first
            return _acked_before(transaction, acked)
        for part in pending.owned(first, end):
            return _pending_in(transaction, part.first, part.owner)
        for offset in pending.batches(first, end):
            return _pending_in(transaction, offset, pending.holder_of(offset, -1))
        known = cursor.remaining(first)
        if conflict := _conflict_with_before(
            pending, transaction, first, -1 if known is None else known
        ):
            return conflict
    return ""


def _conflict_of_parts(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, parts: Mapping[int, int]
) -> str:
    """Why the transaction can't acknowledge these messages of batches, if so."""
    for offset, bits in parts.items():
        known = cursor.remaining(offset)
        if cursor.is_acked(offset) or (known is not None and bits & ~known):
            return _acked_before(transaction, offset)
        holder = pending.holder_of(offset, bits)
        if holder is not None:
            return _pending_in(transaction, offset, holder)
        if conflict := _conflict_with_before(pending, transaction, offset, bits):
            return conflict
    return ""


def _conflict_with_before(
    pending: PendingAcks, transaction: TransactionId, offset: int, bits: int
) -> str:
    """Whether another one acknowledges these messages cumulatively."""
    if pending.advancing is None:
        return ""
    other, (end, remaining) = pending.advancing
    covered = offset < end or (offset == end and remaining is not None and bits & ~remaining)
    return _pending_in(transaction, offset, other) if covered and other != transaction else ""


def _conflict_with_letters(
    leaving: Collection[int],
    transaction: TransactionId,
    ranges: Sequence[Range],
    parts: Mapping[int, int],
) -> str:
    """Whether some of these become dead letters."""
    for offset in sorted(leaving):
        if offset in parts or any(first <= offset < end for first, end in ranges):
            where = "it is on its way to the dead-letter topic"
            return f"{_name(transaction)} can't acknowledge offset {offset}: {where}"
    return ""


def _acked_before(transaction: TransactionId, offset: int) -> str:
    return f"{_name(transaction)} can't acknowledge offset {offset}: it is already acknowledged"


def _pending_in(transaction: TransactionId, offset: int, other: TransactionId | None) -> str:
    assert other is not None
    where = f"it is pending in {_name(other)}"
    return f"{_name(transaction)} can't acknowledge offset {offset}: {where}"


def _name(transaction: TransactionId) -> str:
    return f"transaction ({transaction.coordinator},{transaction.sequence})"


def decide_ack_before(
    pending: PendingAcks, cursor: Cursor, command: AckBeforeInTransaction
) -> Decision:
    """See `AckBeforeInTransaction`."""
    transaction, offset, remaining = command.transaction, command.offset, command.remaining
    end = offset if remaining is None else offset + 1
    if offset < 0 or end > command.end_offset or (remaining or 0) < 0:
        ends = f"the log ends at {command.end_offset}"
        return refuse(Reason.INVALID, f"can't acknowledge before {offset}: {ends}")
    before = Before(offset, remaining) if remaining != 0 else Before(end, None)
    if pending.advancing == (transaction, before):
        return Decision(reply=NowPending())
    if not advances(before, cursor):
        return refuse(Reason.CONFLICT, _acked_before(transaction, max(end - 1, 0)))
    other = _other_before(pending, cursor, transaction, before)
    if other is not None:
        return refuse(Reason.CONFLICT, _pending_in(transaction, *other))
    event = AckedBeforeInTransaction(
        coordinator=transaction.coordinator,
        sequence=transaction.sequence,
        before_offset=before.offset,
        consumer=command.consumer,
    )
    if before.remaining is not None:
        words = mask_to_words(before.remaining)
        event.partial.CopyFrom(PartialAck(offset=before.offset, remaining=words))
    return Decision((event,), NowPending())


def _other_before(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, before: Before
) -> tuple[int, TransactionId] | None:
    """What is in the way of acknowledging everything before a place."""
    if pending.advancing is not None:
        other, known = pending.advancing
        if other != transaction or not _further(before, known):
            return known.offset, other
    return pending.other_before(transaction, before, cursor)


def _further(before: Before, known: Before) -> bool:
    """Whether it acknowledges more than what is known, and all of that."""
    if before.offset != known.offset or before.remaining is None or known.remaining is None:
        at = (known.offset, known.remaining is not None)
        return (before.offset, before.remaining is not None) > at
    both = before.remaining & known.remaining
    return both == before.remaining != known.remaining


def decide_end(pending: PendingAcks, cursor: Cursor, command: EndTransactionAcks) -> Decision:
    """See `EndTransactionAcks`."""
    mine = pending.of(command.transaction)
    if mine is None:
        return Decision(reply=AcksEnded())
    ended = TransactionAcksEnded(
        coordinator=command.transaction.coordinator,
        sequence=command.transaction.sequence,
        commit=command.commit,
    )
    if not command.commit:
        returned = normalized([*mine.ranges, *((at, at + 1) for at in mine.partial)])
        return Decision((ended,), AcksEnded(returned=tuple(returned)))
    # As events that acknowledge, so that whoever reads the journal need know no transactions.
    events: list[Message] = []
    ranges, partial = _committed(pending, cursor, mine)
    if ranges or partial:
        acked = [_partial_ack(offset, mask) for offset, mask in partial.items()]
        events.append(EntriesAcked(ranges=pack_ranges(ranges), partial=acked))
    if mine.before is not None:
        before = _committed_before(cursor, mine.before, RangeSet(ranges), partial)
        moved = MarkDeleted(before_offset=before.offset)
        if before.remaining is not None:
            partial[before.offset] = before.remaining
            moved.partial.CopyFrom(_partial_ack(before.offset, before.remaining))
        events.append(moved)
        ranges = normalized([*ranges, (cursor.acked_before, before.offset)])
        partial = {at: mask for at, mask in partial.items() if at >= before.offset}
    reply = AcksEnded(tuple(ranges), tuple(sorted(partial.items())))
    return Decision((*events, ended), reply)


def _committed(
    pending: PendingAcks, cursor: Cursor, mine: PendingAck
) -> tuple[list[Range], dict[int, int]]:
    """Whole entries, and what remains of others, when these are acknowledged one by one."""
    ranges, partial = list(mine.ranges), {}
    for offset, bits in sorted(mine.partial.items()):
        left = cursor.remaining(offset)
        if left is None:
            left = (1 << (pending.messages_of(offset) or 0)) - 1
        left &= ~bits
        if left:
            partial[offset] = left
        else:
            ranges.append((offset, offset + 1))
    return normalized(ranges), partial


def _committed_before(
    cursor: Cursor, before: Before, acked: RangeSet, partial: Mapping[int, int]
) -> Before:
    """Up to where everything is acknowledged, once ``acked`` and ``partial`` are."""
    offset, remaining = before
    if remaining is None:
        return before
    left = partial.get(offset, cursor.remaining(offset))
    remaining = remaining if left is None else remaining & left
    if offset in acked or cursor.is_acked(offset) or not remaining:
        return Before(offset + 1, None)
    return Before(offset, remaining)


def _partial_ack(offset: int, mask: int) -> PartialAck:
    return PartialAck(offset=offset, remaining=mask_to_words(mask))


Event = AckedInTransaction | AckedBeforeInTransaction | TransactionAcksEnded


def evolve(pending: PendingAcks, event: Event) -> None:
    """Apply the event."""
    transaction = TransactionId(event.coordinator, event.sequence)
    match event:
        case AckedInTransaction():
            pending.hold(transaction, unpack_ranges(event.ranges))
            for part in event.partial:
                bits = words_to_mask(part.acknowledged)
                pending.hold_part(transaction, part.offset, bits, part.messages)
        case AckedBeforeInTransaction(before_offset=offset):
            partial = event.partial if event.HasField("partial") else None
            remaining = None if partial is None else words_to_mask(partial.remaining)
            pending.hold_before(transaction, Before(offset, remaining))
        case TransactionAcksEnded():
            pending.drop(transaction)


def forget_acked(pending: PendingAcks, cursor: Cursor, event: Message) -> None:
    """``event`` changed the cursor to what it is now: what that has is pending no longer."""
    match event:
        case CursorReset():
            pending.clear()
        case EntriesAcked() | CursorRestored():
            _forget_ranges(pending, event.ranges)
            for partial in event.partial:
                _forget_part(pending, cursor, partial.offset)
        case EntriesExpired() | DeadLettersMoved():
            _forget_ranges(pending, event.ranges)
        case MarkDeleted():
            if event.HasField("partial"):
                _forget_part(pending, cursor, event.partial.offset)
        case _:
            return
    pending.forget(0, cursor.acked_before)
    pending.forget_before(cursor)


def _forget_ranges(pending: PendingAcks, packed: Sequence[int]) -> None:
    for first, end in unpack_ranges(packed):
        pending.forget(first, end)


def _forget_part(pending: PendingAcks, cursor: Cursor, offset: int) -> None:
    remaining = cursor.remaining(offset)
    if remaining is not None:
        pending.forget_part(offset, remaining)
    elif cursor.is_acked(offset):
        pending.forget(offset, offset + 1)

"""Acknowledgements in open transactions: part of a subscription's state.

An entry, or a message of a batch, that a transaction acknowledges is *pending* until the
transaction ends: it isn't delivered, and the cursor doesn't include it. A commit acknowledges what
is still pending; an abort makes it deliverable again. A message is pending in at most one
transaction: a second transaction is refused, and so is one that acknowledges an acknowledged
message.

A transaction may also acknowledge cumulatively, one transaction at a time. It then has everything
before an offset, and no other transaction may acknowledge anything there. A cumulative
acknowledgement hides nothing from consumers, because redelivery must stay in order; so its abort
redelivers nothing.

Entries that are meanwhile acknowledged, expired or skipped are no longer pending, however the
transaction ends. A reset drops everything pending. So the state has a transaction exactly as long
as its commit would change the cursor, and keeps nothing of ended ones.
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
from velaray.events.segments import StoredSegment


class BatchAck(NamedTuple):
    """An acknowledgement of those messages of the batch at ``offset`` whose bits aren't set in
    ``remaining``. The batch has ``messages`` messages."""

    offset: int
    ack_set: int
    messages: int


@dataclass(slots=True)
class AckInTransaction:
    """Acknowledge entries (``ranges`` of (first, last + 1)) and parts of batches, in any order, if
    ``transaction`` commits.

    Reply: `NowPending`. Refused as a whole: INVALID if anything is at or beyond ``end_offset``, the
    partition's end, or if an earlier command gave a batch another size; CONFLICT if an entry, or a
    named message of a batch, is acknowledged, on its way to the dead-letter topic, or pending in a
    transaction; NOT_FOUND before `Create`. ``transaction`` itself counts among those transactions,
    except for what it acknowledged cumulatively. With ``may_repeat``, a command all of which is
    pending in ``transaction`` changes nothing and has the same reply. Without it such a command is
    refused, as by Pulsar: the client got the message twice, and used both copies.
    """

    transaction: TransactionId
    end_offset: int
    ranges: Sequence[Range] = ()
    partial: Sequence[BatchAck] = ()
    consumer: int = 0  # for tracing (`velaray.actors.subscription.tracing`)
    may_repeat: bool = True


@dataclass(frozen=True, slots=True)
class AckBeforeInTransaction:
    """Acknowledge everything before ``offset`` if ``transaction`` commits, and with ``remaining``
    also the messages of the batch at ``offset`` whose bits aren't set.

    Reply: an empty `NowPending`. Refused INVALID beyond ``end_offset`` (or at it, with
    ``remaining``); CONFLICT if the place isn't beyond the mark and beyond the transaction's own
    cumulative acknowledgement, or if anything before it is pending in another transaction;
    NOT_FOUND before `Create`. A repeated command changes nothing.
    """

    transaction: TransactionId
    end_offset: int
    offset: int
    remaining: int | None = None
    consumer: int = 0


@dataclass(frozen=True, slots=True)
class NowPending:
    """The entries that are no longer delivered: whole ones as ascending (first, last + 1), and the
    offsets of batches with pending messages."""

    ranges: tuple[Range, ...] = ()
    partial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EndTransactionAcks:
    """End ``transaction``: acknowledge what is pending in it, or make it deliverable again.

    Reply: `AcksEnded`, an empty one if nothing is pending in the transaction, as after a repeated
    command. Refused NOT_FOUND before `Create`.
    """

    transaction: TransactionId
    commit: bool


@dataclass(frozen=True, slots=True)
class AcksEnded:
    """The changes, ascending. After a commit: acknowledged whole entries, and what remains of
    batches, as in `velaray.actors.subscription.machine.Acked`. After an abort: the ``returned``
    entries, which become deliverable again, as (first, last + 1)."""

    ranges: tuple[Range, ...] = ()
    partial: tuple[tuple[int, int], ...] = ()
    returned: tuple[Range, ...] = ()


def decide_ack(
    pending: PendingAcks, cursor: Cursor, leaving: Collection[int], command: AckInTransaction
) -> Decision:
    """The decision on `AckInTransaction`; ``leaving`` are offsets on their way to the dead-letter
    topic."""
    invalid = _invalid(pending, command)
    if invalid:
        return refuse(Reason.INVALID, invalid)
    ranges = normalized(command.ranges)
    parts = _messages(command.partial, RangeSet(ranges))
    if command.may_repeat and _is_repetition(pending, cursor, command.transaction, ranges, parts):
        return Decision(reply=NowPending(tuple(ranges), tuple(parts)))
    conflict = _conflict_of_ranges(
        pending, cursor, command.transaction, ranges
    ) or _conflict_of_parts(pending, cursor, command.transaction, parts)
    conflict = conflict or _conflict_with_dead_letters(leaving, command.transaction, ranges, parts)
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
    """The reason why the command is invalid; empty if it is valid."""
    end_offset = command.end_offset
    for first, end in command.ranges:
        if not 0 <= first < end <= end_offset:
            return f"can't acknowledge {first} to {end - 1}: the log ends at {end_offset}"
    sizes: dict[int, int] = {}
    for offset, ack_set, messages in command.partial:
        if not 0 <= offset < end_offset or ack_set < 0 or messages < 1:
            return f"can't acknowledge part of {offset}: the log ends at {end_offset}"
        known = pending.messages_of(offset) or sizes.setdefault(offset, messages)
        if messages != known:
            return f"the batch at {offset} has {known} messages, not {messages}"
    return ""


def _messages(partial: Sequence[BatchAck], whole: RangeSet) -> dict[int, int]:
    """The acknowledged messages of batches by offset, ascending, without the batches in
    ``whole``."""
    parts: dict[int, int] = {}
    for offset, ack_set, messages in sorted(partial):
        bits = ~ack_set & (1 << messages) - 1
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
    """Whether everything in the command is pending in the transaction already."""
    for first, end in ranges:
        owned = [part for part in pending.owned(first, end) if part.owner == transaction]
        for start, stop in gaps(first, end, [(part.first, part.end) for part in owned]):
            for offset in range(start, stop):
                known, size = cursor.ack_set(offset), pending.messages_of(offset) or 1
                bits = (1 << size) - 1 if known is None else known
                if not pending.has_part(transaction, offset, bits):
                    return False
    for offset, bits in parts.items():
        known = cursor.ack_set(offset)
        if known is not None and bits & ~known:
            return False
        if not pending.has_part(transaction, offset, bits):
            return False
    return True


def _conflict_of_ranges(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, ranges: Sequence[Range]
) -> str:
    """The reason why the transaction can't acknowledge these entries; empty if it can."""
    for first, end in ranges:
        unacked = cursor.unacked_ranges(first, end)
        if unacked != [(first, end)]:
            acked = unacked[0][1] if unacked and unacked[0][0] == first else first
            return _acked_before(transaction, acked)
        for part in pending.owned(first, end):
            return _pending_in(transaction, part.first, part.owner)
        for offset in pending.batches(first, end):
            return _pending_in(transaction, offset, pending.holder_of(offset, -1))
        known = cursor.ack_set(first)
        if conflict := _conflict_with_before(
            pending, transaction, first, -1 if known is None else known
        ):
            return conflict
    return ""


def _conflict_of_parts(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, parts: Mapping[int, int]
) -> str:
    """The reason why the transaction can't acknowledge these messages of batches; empty if it
    can."""
    for offset, bits in parts.items():
        known = cursor.ack_set(offset)
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
    """Whether another transaction acknowledges these messages cumulatively."""
    if pending.advancing is None:
        return ""
    other, (end, ack_set) = pending.advancing
    covered = offset < end or (offset == end and ack_set is not None and bits & ~ack_set)
    return _pending_in(transaction, offset, other) if covered and other != transaction else ""


def _conflict_with_dead_letters(
    leaving: Collection[int],
    transaction: TransactionId,
    ranges: Sequence[Range],
    parts: Mapping[int, int],
) -> str:
    """Whether some of these entries are on their way to the dead-letter topic."""
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
    """The decision on `AckBeforeInTransaction`."""
    transaction, offset, ack_set = command.transaction, command.offset, command.remaining
    end = offset if ack_set is None else offset + 1
    if offset < 0 or end > command.end_offset or (ack_set or 0) < 0:
        ends = f"the log ends at {command.end_offset}"
        return refuse(Reason.INVALID, f"can't acknowledge before {offset}: {ends}")
    before = Before(offset, ack_set) if ack_set != 0 else Before(end, None)
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
    if before.ack_set is not None:
        words = mask_to_words(before.ack_set)
        event.partial.CopyFrom(PartialAck(offset=before.offset, remaining=words))
    return Decision((event,), NowPending())


def _other_before(
    pending: PendingAcks, cursor: Cursor, transaction: TransactionId, before: Before
) -> tuple[int, TransactionId] | None:
    """The first conflict of a cumulative acknowledgement: an offset and the transaction that has
    it."""
    if pending.advancing is not None:
        other, known = pending.advancing
        if other != transaction or not _further(before, known):
            return known.offset, other
    return pending.other_before(transaction, before, cursor)


def _further(before: Before, known: Before) -> bool:
    """Whether ``before`` acknowledges everything that ``known`` does, and more."""
    if before.offset != known.offset or before.ack_set is None or known.ack_set is None:
        at = (known.offset, known.ack_set is not None)
        return (before.offset, before.ack_set is not None) > at
    both = before.ack_set & known.ack_set
    return both == before.ack_set != known.ack_set


def decide_end(pending: PendingAcks, cursor: Cursor, command: EndTransactionAcks) -> Decision:
    """The decision on `EndTransactionAcks`."""
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
    # Plain acknowledgement events, so that readers of the journal need no transactions.
    events: list[Message] = []
    ranges, partial = _committed(pending, cursor, mine)
    if ranges or partial:
        acked = [_partial_ack(offset, mask) for offset, mask in partial.items()]
        events.append(EntriesAcked(ranges=pack_ranges(ranges), partial=acked))
    if mine.before is not None:
        before = _committed_before(cursor, mine.before, RangeSet(ranges), partial)
        moved = MarkDeleted(before_offset=before.offset)
        if before.ack_set is not None:
            partial[before.offset] = before.ack_set
            moved.partial.CopyFrom(_partial_ack(before.offset, before.ack_set))
        events.append(moved)
        ranges = normalized([*ranges, (cursor.acked_before, before.offset)])
        partial = {at: mask for at, mask in partial.items() if at >= before.offset}
    reply = AcksEnded(tuple(ranges), tuple(sorted(partial.items())))
    return Decision((*events, ended), reply)


def needs(pending: PendingAcks, cursor: Cursor, command: EndTransactionAcks) -> list[StoredSegment]:
    """The cold segments of ``cursor`` that the command may read."""
    mine = pending.of(command.transaction)
    if mine is None or not command.commit:
        return []
    found = cursor.cold_for_acks(mine.ranges, mine.partial)
    if mine.before is not None:  # the mark may go on behind what was acknowledged beyond it
        places = [mine.before.offset, *(end - 1 for _, end in mine.ranges), *mine.partial]
        found += [segment for place in places for segment in cursor.cold_for_mark(place)]
    return found


def _committed(
    pending: PendingAcks, cursor: Cursor, mine: PendingAck
) -> tuple[list[Range], dict[int, int]]:
    """The whole entries, and the remaining messages of batches, after individual acknowledgement of
    ``mine``."""
    ranges, partial = list(mine.ranges), {}
    for offset, bits in sorted(mine.partial.items()):
        left = cursor.ack_set(offset)
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
    """The place before which everything is acknowledged once ``acked`` and ``partial`` are."""
    offset, ack_set = before
    if ack_set is None:
        return before
    left = partial.get(offset, cursor.ack_set(offset))
    ack_set = ack_set if left is None else ack_set & left
    if offset in acked or cursor.is_acked(offset) or not ack_set:
        return Before(offset + 1, None)
    return Before(offset, ack_set)


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
            ack_set = None if partial is None else words_to_mask(partial.remaining)
            pending.hold_before(transaction, Before(offset, ack_set))
        case TransactionAcksEnded():
            pending.drop(transaction)


def forget_acked(pending: PendingAcks, cursor: Cursor, event: Message) -> None:
    """Drop pending acknowledgements that ``cursor`` has since ``event`` changed it."""
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
    ack_set = cursor.ack_set(offset)
    if ack_set is not None:
        pending.forget_part(offset, ack_set)
    elif cursor.is_acked(offset):
        pending.forget(offset, offset + 1)

"""The machine of a subscription: which entries of a partition are acknowledged.

Until `Create` the subscription doesn't exist and refuses everything; from then on it has a cursor.
The journal has the changes that an acknowledgement makes, not the request: acknowledgements are
idempotent and commute, and one that changes nothing writes nothing.

The state also counts failed deliveries (`velaray.actors.subscription.redelivery`) and includes the
acknowledgements of other clusters' subscriptions of the same name
(`velaray.actors.subscription.remote_progress`).

Commands: `Create`, `Ack`, `AckBefore`, `Reset`, `velaray.actors.subscription.expiry.Expire`,
`velaray.actors.subscription.undoing.Restore`,
`velaray.actors.subscription.redelivery.NoteDeliveries`, `velaray.actors.subscription.tracing.Note`,
`velaray.actors.subscription.remote_progress.TakeProgress`, and those of
`velaray.actors.subscription.dead_letters` and `velaray.actors.subscription.pending_acks`. Events:
CursorCreated, EntriesAcked, MarkDeleted, CursorReset, CursorRestored, EntriesExpired,
EntriesDelivered, DeliveriesReturned, DeadLettersIntended, DeadLettersMoved, AckedInTransaction,
AckedBeforeInTransaction, TransactionAcksEnded, ProgressTaken (and LedgerOpened and the facts of
`velaray.actors.subscription.tracing`, which change nothing here).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import RangeSet, normalized
from velaray.actors.subscription import (
    dead_letters,
    pending_acks,
    pending_sets,
    redelivery,
    remote_progress,
)
from velaray.actors.subscription.cursor import (
    Cursor,
    mask_to_words,
    new_partials,
    pack_ranges,
    unpack_ranges,
    words_to_mask,
)
from velaray.actors.subscription.dead_letters import ConfirmMoved, DeadLetters, IntendDeadLetters
from velaray.actors.subscription.expiry import (
    Expire,
    ExpiryReason,
    decide_expire,
    evolve_expired,
    expired,
)
from velaray.actors.subscription.pending_acks import (
    AckBeforeInTransaction,
    AckInTransaction,
    EndTransactionAcks,
)
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.actors.subscription.redelivery import CountRuns, NoteDeliveries
from velaray.actors.subscription.remote_progress import Taken, TakenProgress, TakeProgress
from velaray.actors.subscription.tracing import FACTS, Note, decide_note
from velaray.actors.subscription.undoing import Restore, decide_restore, evolve_restored
from velaray.events.events_pb2 import (
    AckedBeforeInTransaction,
    AckedInTransaction,
    CursorCreated,
    CursorReset,
    CursorRestored,
    DeadLettersIntended,
    DeadLettersMoved,
    DeliveriesReturned,
    EntriesAcked,
    EntriesDelivered,
    EntriesExpired,
    LedgerOpened,
    MarkDeleted,
    PartialAck,
    ProgressTaken,
    TransactionAcksEnded,
)
from velaray.events.segments import Segment, StoredSegment

SegmentT = TypeVar("SegmentT")

_ACKED_RANGES = "holes/"
_END = "the log ends at"


@dataclass(frozen=True, slots=True)
class Create:
    """Create the subscription at ``start_offset``. Reply: `CursorAt`. A repetition changes
    nothing."""

    start_offset: int


@dataclass(slots=True)
class Ack:
    """Acknowledge entries (``ranges`` of (first, last + 1)) and parts of batches (``partial``:
    (offset, mask of the un-acknowledged messages: bit i set = message i isn't acknowledged)), in
    any order.

    Reply: `Acked`. Refused INVALID, as a whole, if anything is at or beyond ``end_offset``, the
    partition's end; NOT_FOUND before `Create`.
    """

    end_offset: int
    ranges: Sequence[tuple[int, int]] = ()
    partial: Sequence[tuple[int, int]] = ()
    consumer: int = 0  # for tracing (`velaray.actors.subscription.tracing`)


@dataclass(slots=True)
class AckBefore:
    """Acknowledge everything before ``offset``, and with ``remaining`` also the messages of the
    batch at ``offset`` whose bits aren't set.

    Reply: `Acked`; a place before the mark changes nothing. Refused INVALID beyond ``end_offset``
    (or at it, with ``remaining``); NOT_FOUND before `Create`.
    """

    end_offset: int
    offset: int
    remaining: int | None = None
    reason: str = ""  # of a skip; empty for a consumer's acknowledgement
    consumer: int = 0


@dataclass(slots=True)
class Acked:
    """The new acknowledgements: ascending whole entries as (first, last + 1), and what remains of
    partly acknowledged batches as (offset, mask). Both are empty if nothing was new. After
    `AckBefore` the former may include entries that were acknowledged earlier."""

    ranges: tuple[tuple[int, int], ...] = ()
    partial: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Move the cursor to ``next_offset``, back or forth.

    Drops all acknowledgements beyond it, including those pending in transactions, except ``gone``:
    ranges (first, last + 1) of trimmed entries. Reply: `CursorAt`. Refused INVALID below 0;
    NOT_FOUND before `Create`. The caller must check that the offset isn't beyond the partition's
    end. If the progress is ``shared`` with other clusters, their reports of it don't undo the move.
    """

    next_offset: int
    reason: str
    gone: Sequence[Range] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class CursorAt:
    """Everything before the offset is acknowledged."""

    acked_before: int


@dataclass(slots=True)
class SubscriptionState:
    """A cursor, once it is created; ``expired`` counts entries by the reason of their expiry."""

    created: bool = False
    cursor: Cursor = field(default_factory=Cursor)
    expired: dict[str, int] = field(default_factory=dict)
    # Not compared: counts of acknowledged entries don't matter.
    deliveries: CountRuns = field(default_factory=CountRuns, compare=False)
    dead: DeadLetters = field(default_factory=DeadLetters)
    pending: PendingAcks = field(default_factory=PendingAcks)
    remote: TakenProgress = field(default_factory=TakenProgress)


def _decide_ack(cursor: Cursor, command: Ack) -> Decision:
    end_offset, whole, partial = command.end_offset, list(command.ranges), []
    packed = pack_ranges(whole)
    apart = not whole or (packed[0] >= 0 and min(packed[1:]) > 0 and whole[-1][1] <= end_offset)
    for first, end in () if apart else whole:
        if not 0 <= first < end <= end_offset:
            return refuse(
                Reason.INVALID, f"can't acknowledge {first} to {end - 1}: {_END} {end_offset}"
            )
    for offset, mask in command.partial:
        if not 0 <= offset < end_offset or mask < 0:
            return refuse(
                Reason.INVALID, f"can't acknowledge part of {offset}: {_END} {end_offset}"
            )
    if command.partial:
        partial = new_partials(cursor, command.partial)
        whole += [(offset, offset + 1) for offset, mask in partial if mask == 0]
    if apart and not partial and whole and whole[0][0] >= cursor.acked_before:  # nearly always
        new = cursor.beyond.missing_of(whole)
    else:
        new = cursor.unacked_of(normalized(whole))
    if partial:
        acked = RangeSet(new)
        partial = [(offset, mask) for offset, mask in partial if mask and offset not in acked]
    if not new and not partial:
        return Decision(reply=Acked())
    event = EntriesAcked(
        ranges=packed if new == command.ranges else pack_ranges(new),
        partial=[_partial_ack(offset, mask) for offset, mask in partial],
        consumer=command.consumer,
    )
    return Decision((event,), Acked(tuple(new), tuple(partial)))


def _decide_ack_before(cursor: Cursor, command: AckBefore) -> Decision:
    offset, ack_set = command.offset, command.remaining
    end = offset if ack_set is None else offset + 1
    if offset < 0 or end > command.end_offset or (ack_set or 0) < 0:
        return refuse(
            Reason.INVALID, f"can't acknowledge before {offset}: {_END} {command.end_offset}"
        )
    partial: list[tuple[int, int]] = []
    if ack_set is not None:
        partial = new_partials(cursor, [(offset, ack_set)])
        if partial and partial[0][1] == 0:
            offset, partial = offset + 1, []
    # The event doesn't list the ranges: there may be millions of ranges in between.
    new = [(cursor.acked_before, offset)] if cursor.acked_before < offset else []
    if not new and not partial:
        return Decision(reply=Acked())
    event = MarkDeleted(before_offset=offset, reason=command.reason, consumer=command.consumer)
    for batch, mask in partial:
        event.partial.CopyFrom(_partial_ack(batch, mask))
    return Decision((event,), Acked(tuple(new), tuple(partial)))


def _decide_reset(state: SubscriptionState, command: Reset) -> Decision:
    next_offset = command.next_offset
    if next_offset < 0:
        return refuse(Reason.INVALID, f"reset to offset {next_offset}")
    reply = CursorAt(next_offset)
    gone = [(max(first, next_offset), end) for first, end in command.gone if end > next_offset]
    counted = redelivery.snapshot(state.deliveries, state.cursor) is not None
    forgets = counted or state.dead.intended or state.pending
    if state.cursor == Cursor(next_offset, gone) and not forgets:
        return Decision(reply=reply)
    moved = CursorReset(next_offset=next_offset, reason=command.reason, shared=command.shared)
    events: list[Message] = [moved]
    if gone:
        events.append(expired(gone, ExpiryReason.TRIMMED))
    return Decision(tuple(events), reply)


def _decide_progress(state: SubscriptionState, command: TakeProgress) -> Decision:
    if problem := remote_progress.invalid(command):
        return refuse(Reason.INVALID, problem)
    news = remote_progress.news(state.remote, command)
    if news.event is None:
        return Decision(reply=Taken())
    acked = _decide_ack(state.cursor, Ack(command.end_offset, news.ranges, news.partial))
    for event in acked.events:
        assert isinstance(event, EntriesAcked)
        event.cluster = command.cluster
    reply = Taken(acked.reply.ranges, acked.reply.partial, tuple(news.counts))
    return Decision((*acked.events, news.event), reply)


def _partial_ack(offset: int, mask: int) -> PartialAck:
    return PartialAck(offset=offset, remaining=mask_to_words(mask))


_NEED_CURSOR = (
    *(Ack, AckBefore, Reset, Expire, Restore),
    *(NoteDeliveries, IntendDeadLetters, ConfirmMoved),
    *(AckInTransaction, AckBeforeInTransaction, EndTransactionAcks, TakeProgress),
)


class SubscriptionMachine:
    """The machine of one durable subscription."""

    def initial(self) -> SubscriptionState:
        """Not created."""
        return SubscriptionState()

    def decide(self, state: SubscriptionState, command: Any, now_ms: int) -> Decision:
        """The decision on ``command``. Raises TypeError for a command of another machine."""
        cursor = state.cursor
        match command:
            case Create() if state.created:
                return Decision(reply=CursorAt(cursor.acked_before))
            case Create(start_offset) if start_offset < 0:
                return refuse(Reason.INVALID, f"a subscription can't start at {start_offset}")
            case Create(start_offset):
                return Decision((CursorCreated(start_offset=start_offset),), CursorAt(start_offset))
            case _ if not state.created and isinstance(command, _NEED_CURSOR):
                return refuse(Reason.NOT_FOUND, "the subscription isn't created yet")
            case Ack():
                return _decide_ack(cursor, command)
            case AckBefore():
                return _decide_ack_before(cursor, command)
            case Reset():
                return _decide_reset(state, command)
            case Expire():
                return decide_expire(cursor, command)
            case Restore():
                return decide_restore(cursor, command)
            case NoteDeliveries():
                return redelivery.decide(cursor, command)
            case TakeProgress():
                return _decide_progress(state, command)
            case Note():
                return decide_note(command)
            case IntendDeadLetters():
                return dead_letters.decide_intent(state.dead, cursor, state.pending, command)
            case ConfirmMoved():
                return dead_letters.decide_moved(state.dead, command)
            case AckInTransaction():
                return pending_acks.decide_ack(state.pending, cursor, state.dead.intended, command)
            case AckBeforeInTransaction():
                return pending_acks.decide_ack_before(state.pending, cursor, command)
            case EndTransactionAcks():
                return pending_acks.decide_end(state.pending, cursor, command)
        raise TypeError(f"a subscription doesn't handle {type(command).__name__}")

    def evolve(self, state: SubscriptionState, event: Message) -> None:
        """Apply ``event``. Raises TypeError for an event of another machine."""
        cursor = state.cursor
        match event:
            case EntriesAcked():
                cursor.ack_ranges(unpack_ranges(event.ranges))
                for partial in event.partial:
                    cursor.ack_partial(partial.offset, words_to_mask(partial.remaining))
            case MarkDeleted(before_offset=offset):
                cursor.ack_before(offset)
                if event.HasField("partial"):
                    ack_set = words_to_mask(event.partial.remaining)
                    cursor.ack_partial(event.partial.offset, ack_set)
            case CursorCreated(start_offset=start_offset):
                state.created = True
                cursor.reset(start_offset)
            case CursorReset(next_offset=next_offset, shared=shared):
                remote_progress.moved(state.remote, cursor, state.deliveries, shared=shared)
                cursor.reset(next_offset)
                state.deliveries.clear()
                state.dead.intended.clear()
            case CursorRestored(shared=shared):
                remote_progress.moved(state.remote, cursor, state.deliveries, shared=shared)
                evolve_restored(cursor, event)
                state.deliveries.clear()
                state.dead.intended.clear()
            case EntriesExpired():
                evolve_expired(cursor, state.expired, event)
            case EntriesDelivered(ranges=ranges):
                state.deliveries.forget(0, cursor.acked_before)
                state.deliveries.add(unpack_ranges(ranges), 1)
            case DeadLettersIntended():
                dead_letters.evolve_intended(state.dead, event)
            case DeadLettersMoved():
                dead_letters.evolve_moved(state.dead, cursor, event)
            case DeliveriesReturned(ranges=ranges):
                state.deliveries.add(unpack_ranges(ranges), -1)
            case AckedInTransaction() | AckedBeforeInTransaction() | TransactionAcksEnded():
                pending_acks.evolve(state.pending, event)
            case ProgressTaken():
                remote_progress.evolve(state.remote, state.deliveries, event)
            case LedgerOpened():
                pass
            case _ if isinstance(event, FACTS):
                pass
            case _:
                raise TypeError(f"a subscription doesn't handle {type(event).__name__}")
        if state.pending:
            pending_acks.forget_acked(state.pending, cursor, event)

    def check(self, state: SubscriptionState) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        state.cursor.check()
        state.deliveries.check()
        dead_letters.check(state.dead)
        pending_sets.check(state.pending, state.cursor)
        remote_progress.check(state.remote)
        require(
            state.created or state.cursor == Cursor(),
            "nothing is acknowledged before the subscription is created",
        )

    def snapshot(self, state: SubscriptionState) -> Mapping[str, Segment]:
        """Segments: ``cursor``, and ``holes/<n>``, which are those of
        `velaray.actors.sets.acknowledged_ranges`; and those of
        `velaray.actors.subscription.remote_progress`.

        An acknowledged segment that didn't change since a checkpoint is given by its place in that
        checkpoint.
        """
        cursor = state.cursor
        segments: dict[str, Segment] = {
            "cursor": _to_json([state.created, cursor.acked_before, cursor.beyond.segment_size])
        }
        if state.expired:
            segments["expired"] = _to_json(sorted(state.expired.items()))
        counts = redelivery.snapshot(state.deliveries, cursor)
        if counts is not None:
            segments["deliveries"] = counts
        dead = dead_letters.snapshot(state.dead)
        if dead is not None:
            segments["dead"] = dead
        pending = pending_sets.snapshot(state.pending)
        if pending is not None:
            segments["pending"] = pending
        for number, segment in cursor.beyond.snapshot().items():
            segments[f"{_ACKED_RANGES}{number}"] = segment
        return segments | remote_progress.snapshot(state.remote)

    def restore(self, segments: Mapping[str, bytes]) -> SubscriptionState:
        """The state whose snapshot is ``segments``."""
        created, acked_before, size = json.loads(segments["cursor"])
        cursor = Cursor(acked_before)
        cursor.beyond.restore(size, _numbered(segments))
        gone = dict(json.loads(segments.get("expired", b"[]")))
        counts = redelivery.restore(segments.get("deliveries"))
        dead = dead_letters.restore(segments.get("dead"))
        pending = pending_sets.restore(segments.get("pending"))
        others = remote_progress.restore(segments)
        return SubscriptionState(created, cursor, gone, counts, dead, pending, others)

    def on_checkpoint(self, state: SubscriptionState, stored: Mapping[str, StoredSegment]) -> None:
        """Note where a durable checkpoint of the state has its segments."""
        state.cursor.beyond.on_checkpoint(_numbered(stored))
        remote_progress.on_checkpoint(state.remote, stored)

    def needs_checkpoint(self, state: SubscriptionState) -> bool:
        """Whether a checkpoint is due, so that memory can be freed."""
        return state.cursor.beyond.needs_checkpoint() or remote_progress.needs_checkpoint(
            state.remote
        )

    def needs(self, state: SubscriptionState, command: Any, now_ms: int) -> Sequence[StoredSegment]:
        """The stored segments that ``command`` may read and that aren't in memory."""
        if not state.cursor.beyond.cold_count() and not state.remote:
            return ()
        found = _needs_of_cursor(state, command)
        if state.remote:
            found += remote_progress.needs(state.remote, command)
            if isinstance(command, Reset | Restore):
                found += state.remote.taken.beyond.cold()
        return found

    def provide(self, state: SubscriptionState, name: str, raw: bytes) -> None:
        """Take the bytes of a stored segment into memory."""
        if name.startswith(_ACKED_RANGES):
            state.cursor.beyond.provide(int(name.removeprefix(_ACKED_RANGES)), raw)
        else:
            remote_progress.provide(state.remote, name, raw)

    def evict(self, state: SubscriptionState) -> bool:
        """Release the memory of stored segments until the budgets are kept."""
        cold = state.cursor.beyond.evict()
        return (bool(state.remote) and remote_progress.evict(state.remote)) or cold


def _needs_of_cursor(state: SubscriptionState, command: Any) -> list[StoredSegment]:
    """The cold segments of the cursor that ``command`` may read."""
    cursor, pending = state.cursor, state.pending
    beyond = cursor.beyond
    if not beyond.cold_count():
        return []
    found: list[StoredSegment] = []
    if pending and pending.advancing is not None:
        offset = pending.advancing[1].offset  # compared with the mark after each event
        found += beyond.cold_within(offset, offset + 1)
    match command:
        case Ack() | TakeProgress() | AckInTransaction():
            found += cursor.cold_for_acks(command.ranges, (each[0] for each in command.partial))
        case AckBefore() | AckBeforeInTransaction():
            found += cursor.cold_for_mark(command.offset)
        case Expire() | IntendDeadLetters():
            found += cursor.cold_for_acks(command.ranges)
        case ConfirmMoved():
            found += cursor.cold_for_acks((), command.offsets, full=True)
        case NoteDeliveries():
            mark = cursor.acked_before
            for part in (*command.begun, *command.returned, *command.begun_again):
                found += (place for at in part for place in beyond.cold_ahead(max(at, mark)))
        case EndTransactionAcks():
            found += pending_acks.needs(pending, cursor, command)
        case Reset(shared=True) | Restore():
            found += beyond.cold()
        case Reset():
            gone = Cursor(command.next_offset, command.gone)
            if gone.acked_before == cursor.acked_before:  # compared as a whole
                found += beyond.cold()
    return found


def _numbered(segments: Mapping[str, SegmentT]) -> dict[int, SegmentT]:
    """The segments of acknowledged ranges by their numbers."""
    return {
        int(name.removeprefix(_ACKED_RANGES)): segment
        for name, segment in segments.items()
        if name.startswith(_ACKED_RANGES)
    }


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()

"""Trimming of ledgers: rules of the partition's machine.

A ledger is trimmed as a whole when it is no longer needed: every durable subscription has all of
it, retention doesn't keep it, and no open transaction has entries in it or before it. An earlier
ledger that is still needed doesn't keep it. The current ledger is never trimmed. A trimmed ledger
is unreadable at once; its files are deleted after the journal has removed it from the manifest.

Retention keeps the newest bytes of the log, acknowledged or not, and the entries of the last
milliseconds; a ledger is out of retention when either limit releases it. A limit of -1 keeps
everything; both 0 keep nothing.

Commands: `Trim`, `ForgetTrimmed`, `NoteActivity`. Events: EntriesTrimmed, LedgersUnlisted,
SubscriptionIdle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.partition.state import PartitionState
from velaray.events.events_pb2 import (
    EntriesTrimmed,
    LedgersUnlisted,
    SubscriptionIdle,
    TrimmedLedger,
)
from velaray.events.segments import StoredSegment


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A closed ledger: the bytes of its entries, and its closing time."""

    ledger_id: int
    bytes: int
    closed_ms: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """The acknowledged part of a log for trimming: everything before an offset, and these whole
    ledgers beyond."""

    acked_before: int
    ledgers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Trim:
    """Trim all ledgers that may be trimmed. Reply: `Trimmed`.

    ``ledgers`` are the closed ones, ascending; others stay. ``open_bytes`` are those of the current
    ledger's entries. ``consumed`` has the durable progress of each durable subscription, by
    incarnation; while one is missing, nothing is trimmed. Retention as in the module's docstring.
    If the topic is ``compacting``, or ever was compacted, only compacted ledgers are trimmed.
    """

    ledgers: Sequence[ClosedLedger]
    open_bytes: int
    consumed: Mapping[int, Consumed]
    retention_ms: int
    retention_bytes: int
    compacting: bool = False


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The trimmed ledgers, ascending."""

    ledger_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetTrimmed:
    """Confirm that the manifest doesn't list these trimmed ledgers any more. Reply: `Trimmed`, with
    those that were known."""

    ledger_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class NoteActivity:
    """Note that a subscription has consumers, or has none (``active`` false). Reply: `Activity`.

    Refused NOT_FOUND if there is no subscription of this incarnation.
    """

    name: str
    incarnation: int
    active: bool


@dataclass(frozen=True, slots=True)
class Activity:
    """The time since which a subscription has had no consumers; 0: it has some."""

    idle_since_ms: int


def decide_trim(state: PartitionState, command: Trim, now_ms: int) -> Decision:
    """The decision on `Trim`."""
    table, newer = state.table, command.open_bytes
    going: list[ClosedLedger] = []
    for ledger in reversed(command.ledgers):
        if ledger.ledger_id in state.trimmed or not table.is_closed(ledger.ledger_id):
            continue
        age_ms = now_ms - ledger.closed_ms
        if is_out_of_retention(
            command.retention_ms, command.retention_bytes, newer, age_ms
        ) and _is_needless(state, ledger.ledger_id, command):
            going.append(ledger)
        newer += ledger.bytes
    if not going:
        return Decision(reply=Trimmed())
    going.reverse()
    event = EntriesTrimmed(
        ledgers=[TrimmedLedger(ledger_id=each.ledger_id, bytes=each.bytes) for each in going],
        at_ms=now_ms,
    )
    return Decision((event,), Trimmed(tuple(each.ledger_id for each in going)))


def needs_of_trim(state: PartitionState, command: Trim, now_ms: int) -> list[StoredSegment]:
    """The cold segment of hidden entries that the log begins in after the trim."""
    going = set(decide_trim(state, command, now_ms).reply.ledger_ids) | set(state.table.gone())
    kept = (first for ledger_id, first in state.table.ledgers() if ledger_id not in going)
    first = next(kept, state.end_offset)
    return state.transactions.hidden.cold_within(first, first + 1, full=True)


def decide_forget(state: PartitionState, command: ForgetTrimmed) -> Decision:
    """The decision on `ForgetTrimmed`."""
    known = sorted(state.trimmed.keys() & set(command.ledger_ids))
    events = (LedgersUnlisted(ledger_ids=known),) if known else ()
    return Decision(events, Trimmed(tuple(known)))


def is_out_of_retention(
    retention_ms: int, retention_bytes: int, newer_bytes: int, age_ms: int
) -> bool:
    """Whether retention releases a ledger closed ``age_ms`` ago, before ``newer_bytes``."""
    return 0 <= retention_ms <= age_ms or 0 <= retention_bytes <= newer_bytes


def _is_needless(state: PartitionState, ledger_id: int, command: Trim) -> bool:
    end, views = state.table.span(ledger_id).end, state.compactions
    if end > state.max_read_offset:
        return False
    if (command.compacting or views.current or views.begun) and end > views.horizon:
        return False
    for subscription in state.subscriptions.values():
        known = command.consumed.get(subscription.ref.incarnation)
        if known is None or not (end <= known.acked_before or ledger_id in known.ledgers):
            return False
    return True


def decide_activity(state: PartitionState, command: NoteActivity, now_ms: int) -> Decision:
    """The decision on `NoteActivity`."""
    known = state.subscriptions.get(command.name)
    if known is None or known.ref.incarnation != command.incarnation:
        return refuse(Reason.NOT_FOUND, f"no subscription {command.name!r}")
    if command.active == (known.idle_since_ms == 0):
        return Decision(reply=Activity(known.idle_since_ms))
    since_ms = 0 if command.active else now_ms
    event = SubscriptionIdle(incarnation=command.incarnation, since_ms=since_ms)
    return Decision((event,), Activity(since_ms))


def evolve_trimmed(state: PartitionState, event: EntriesTrimmed) -> None:
    """Apply the event."""
    state.table.trim(ledger.ledger_id for ledger in event.ledgers)
    state.transactions.hidden.drop_before(state.first_offset)
    state.skipped.discard(0, state.first_offset)
    state.origins.trim(state.first_offset)
    state.trimmed.update((ledger.ledger_id, ledger.bytes) for ledger in event.ledgers)


def evolve_unlisted(state: PartitionState, event: LedgersUnlisted) -> None:
    """Apply the event."""
    for ledger_id in event.ledger_ids:
        del state.trimmed[ledger_id]


def evolve_idle(state: PartitionState, event: SubscriptionIdle) -> None:
    """Apply the event."""
    for known in state.subscriptions.values():
        if known.ref.incarnation == event.incarnation:
            known.idle_since_ms = event.since_ms

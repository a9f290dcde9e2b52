"""Which ledgers of a partition may go: rules of the partition's machine.

A ledger goes as a whole, when nobody needs it: every durable subscription has all of it, it is
out of retention, and no transaction that has entries in it or before it is open. That one before
it is still needed otherwise doesn't keep it. The current ledger never goes. What goes can't be
read from then on; what is stored of it waits until the journal lists it no more, and is deleted
then.

Retention keeps the newest so many bytes of the log, whoever has them, and what was written in
the last so many milliseconds: a ledger is out of it when either limit lets it go. A limit of -1
keeps everything; both 0 keep nothing.

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


@dataclass(frozen=True, slots=True)
class ClosedLedger:
    """A ledger that takes no more entries: the bytes of its entries, and when it was closed."""

    ledger_id: int
    bytes: int
    closed_ms: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a subscription has: everything before an offset, and these whole ledgers beyond."""

    acked_before: int
    ledgers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Trim:
    """Let go of what may go. Reply: `Trimmed`.

    ``ledgers`` are the closed ones, ascending; others stay. ``open_bytes`` are those of the
    current ledger's entries. ``consumed`` tells by incarnation what each durable subscription
    has, durably; while one is missing, nothing goes. Retention as in the module's text. Of a
    topic that is ``compacting``, or ever was compacted, only what is compacted goes.
    """

    ledgers: Sequence[ClosedLedger]
    open_bytes: int
    consumed: Mapping[int, Consumed]
    retention_ms: int
    retention_bytes: int
    compacting: bool = False


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The ledgers that went, ascending."""

    ledger_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetTrimmed:
    """The journal doesn't list these trimmed ledgers any more. Reply: `Trimmed`, those that were
    known."""

    ledger_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class NoteActivity:
    """A subscription has consumers, or has none (``active`` false). Reply: `Activity`.

    Refused NOT_FOUND if there is no subscription of this incarnation.
    """

    name: str
    incarnation: int
    active: bool


@dataclass(frozen=True, slots=True)
class Activity:
    """Since when a subscription has had no consumers; 0: it has some."""

    idle_since_ms: int


def decide_trim(state: PartitionState, command: Trim, now_ms: int) -> Decision:
    """See `Trim`."""
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


def decide_forget(state: PartitionState, command: ForgetTrimmed) -> Decision:
    """See `ForgetTrimmed`."""
    known = sorted(state.trimmed.keys() & set(command.ledger_ids))
    events = (LedgersUnlisted(ledger_ids=known),) if known else ()
    return Decision(events, Trimmed(tuple(known)))


def is_out_of_retention(
    retention_ms: int, retention_bytes: int, newer_bytes: int, age_ms: int
) -> bool:
    """Whether retention lets go of a ledger closed ``age_ms`` ago, before ``newer_bytes``."""
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
    """See `NoteActivity`."""
    known = state.subscriptions.get(command.name)
    if known is None or known.ref.incarnation != command.incarnation:
        return refuse(Reason.NOT_FOUND, f"no subscription {command.name!r}")
    if command.active == (known.idle_since_ms == 0):
        return Decision(reply=Activity(known.idle_since_ms))
    since_ms = 0 if command.active else now_ms
    event = SubscriptionIdle(incarnation=command.incarnation, since_ms=since_ms)
    return Decision((event,), Activity(since_ms))


def evolve_trimmed(state: PartitionState, event: EntriesTrimmed) -> None:
    """Ledgers went."""
    state.table.trim(ledger.ledger_id for ledger in event.ledgers)
    state.transactions.hidden.drop_before(state.first_offset)
    state.origins.trim(state.first_offset)
    state.trimmed.update((ledger.ledger_id, ledger.bytes) for ledger in event.ledgers)


def evolve_unlisted(state: PartitionState, event: LedgersUnlisted) -> None:
    """What was trimmed is listed no more."""
    for ledger_id in event.ledger_ids:
        del state.trimmed[ledger_id]


def evolve_idle(state: PartitionState, event: SubscriptionIdle) -> None:
    """A subscription has lost its last consumer, or has one again."""
    for known in state.subscriptions.values():
        if known.ref.incarnation == event.incarnation:
            known.idle_since_ms = event.since_ms

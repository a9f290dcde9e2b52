"""Acknowledgements in transactions, judged from a subscription's journal with a model of sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import Message

from tests.actors import pending_model as model
from tests.actors.pending_model import Conflict, Log, Messages, Seen
from velaray.actors.machine import digest
from velaray.actors.subscription.cursor import unpack_ranges, words_to_mask
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.events.events_pb2 import (
    AckedBeforeInTransaction,
    AckedInTransaction,
    CursorCreated,
    CursorReset,
    DeadLettersMoved,
    EntriesAcked,
    EntriesExpired,
    MarkDeleted,
    TransactionAcksEnded,
)
from velaray.events.ids import TransactionId

JUDGED = 8
"""Aborts of one subscription that are compared, at most."""


def _is_of_transactions(events: Sequence[Message]) -> bool:
    return any(isinstance(e, AckedInTransaction | AckedBeforeInTransaction) for e in events)


def _name(event: Any) -> TransactionId:
    return TransactionId(event.coordinator, event.sequence)


def _whole(log: Log, packed: Any) -> Messages:
    found: Messages = frozenset()
    for first, end in unpack_ranges(packed):
        found = found.union(*(log.messages(at) for at in range(first, end)))
    return found


def _before(log: Log, event: Any) -> Messages:
    ack_set = words_to_mask(event.partial.remaining) if event.HasField("partial") else None
    return log.before(event.before_offset, ack_set)


def _step(seen: Seen, event: Any, log: Log) -> Seen:
    """The state after an event. Raises `Conflict` if the event should have been refused."""
    match event:
        case CursorCreated(start_offset=start) | CursorReset(next_offset=start):
            return Seen(log.before(start, None), {}, {})
        case EntriesAcked():
            parts = [log.messages(p.offset, words_to_mask(p.remaining)) for p in event.partial]
            return model.ack(seen, _whole(log, event.ranges).union(*parts))
        case MarkDeleted():
            return model.ack(seen, _before(log, event))
        case EntriesExpired() | DeadLettersMoved():
            return model.ack(seen, _whole(log, event.ranges))
        case AckedInTransaction():
            for first, end in unpack_ranges(event.ranges):
                for at in range(first, end):
                    seen = model.hold(seen, _name(event), log.messages(at), whole=True)
            for part in event.partial:
                messages = log.messages(part.offset, ~words_to_mask(part.acknowledged))
                seen = model.hold(seen, _name(event), messages, whole=False)
            return seen
        case AckedBeforeInTransaction():
            return model.hold_before(seen, _name(event), _before(log, event))
        case TransactionAcksEnded():
            # The events before it say what a commit acknowledges.
            return model.end(seen, _name(event), commit=False)
    return seen


def holders_are_one(events: Sequence[Message], sizes: tuple[int, ...]) -> Iterator[str]:
    """Violations of single ownership of pending messages; ``sizes``: those of batches."""
    if not _is_of_transactions(events):
        return
    machine = SubscriptionMachine()
    state = machine.initial()
    log, seen = Log(sizes), model.NOTHING
    for number, event in enumerate(events):
        machine.evolve(state, event)
        try:
            seen = _step(seen, event, log)
        except Conflict:
            yield f"event {number} holds what another transaction has, or nobody any more"
            return
        if seen != model.see(state, log):
            yield f"after event {number} other messages are pending than the model has"
            return


def still_pending(events: Sequence[Message]) -> list[str]:
    """The transactions that have something pending after the last event."""
    if not _is_of_transactions(events):
        return []
    machine = SubscriptionMachine()
    state = machine.initial()
    for event in events:
        machine.evolve(state, event)
    return [str(transaction) for transaction in state.pending.transactions()]


def aborts_leave_nothing(events: Sequence[Message]) -> Iterator[str]:
    """Compare the state after an abort with that without the transaction's events."""
    aborts = [
        (number, _name(event))
        for number, event in enumerate(events)
        if isinstance(event, TransactionAcksEnded) and not event.commit
    ]
    for number, transaction in aborts[:: -(-len(aborts) // JUDGED) or 1]:
        until = events[: number + 1]
        without = [event for event in until if not _is_of(event, transaction)]
        if _folded(until) != _folded(without):
            yield f"the abort of {transaction}, event {number}, left something of it behind"


def _is_of(event: Any, transaction: TransactionId) -> bool:
    kinds = AckedInTransaction | AckedBeforeInTransaction | TransactionAcksEnded
    return isinstance(event, kinds) and _name(event) == transaction


def _folded(events: Sequence[Message]) -> bytes:
    machine = SubscriptionMachine()
    state = machine.initial()
    for event in events:
        machine.evolve(state, event)
    return digest(machine.snapshot(state))

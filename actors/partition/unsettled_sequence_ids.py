"""Sequence ids of messages in undecided transactions: part of a partition's state.

A stored message uses its producer's sequence id, so it is stored once. An abort of its transaction
releases the id: the producer can send the message again, in another transaction, under the same id.
So the state keeps the highest id that a producer used outside of a transaction, for each of its
ongoing transactions.

An id stays used if its producer has sent anything else since, or batches by key, since
de-duplication may have compared later entries with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from velaray.actors.machine import require
from velaray.actors.partition.producer_state import Producer
from velaray.events.events_pb2 import EntryAppended, TransactionEnded
from velaray.events.ids import TransactionId


@dataclass(slots=True)
class UnsettledSequenceIds:
    """One producer's transactions: that of its newest entry (None: none), and the producer's
    highest sequence id when each ongoing one began its newest run of entries."""

    newest: TransactionId | None = None
    before: dict[TransactionId, int] = field(default_factory=dict)


def appended(
    known: dict[int, UnsettledSequenceIds], producer: Producer, event: EntryAppended
) -> None:
    """Record an entry before it is counted as its producer's newest one."""
    mine = known.get(producer.index)
    if mine is None:
        if not event.txn_sequence:
            return
        mine = known[producer.index] = UnsettledSequenceIds()
    last = producer.last_sequence_id
    for transaction in mine.before:
        if transaction != mine.newest:
            mine.before[transaction] = last
    mine.newest = None
    if event.txn_sequence:
        mine.newest = TransactionId(event.txn_coordinator, event.txn_sequence)
        mine.before.setdefault(mine.newest, last)


def ended(
    known: dict[int, UnsettledSequenceIds],
    producers: Mapping[int, Producer],
    event: TransactionEnded,
) -> None:
    """End a transaction; an abort releases its ids."""
    transaction = TransactionId(event.coordinator, event.sequence)
    for index, mine in list(known.items()):
        before = mine.before.pop(transaction, None)
        producer = producers.get(index)
        if before is not None and producer is not None and not event.commit:
            _free(mine, producer, transaction, before)
        if not mine.before:
            del known[index]


def _free(
    mine: UnsettledSequenceIds, producer: Producer, transaction: TransactionId, before: int
) -> None:
    if mine.newest == transaction and producer.interleaving is None:
        producer.last_sequence_id = before
        if producer.skipped:
            producer.skipped.cut(before + 1)
            producer.skipped = producer.skipped or None
        producer.chunk_sequence_id, producer.chunk_uuid, producer.chunk_id = -1, "", -1


def check(known: Mapping[int, UnsettledSequenceIds], ongoing: Mapping[TransactionId, Any]) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    for index, mine in known.items():
        require(bool(mine.before), "a producer with nothing undecided isn't listed", str(index))
        gone = [transaction for transaction in mine.before if transaction not in ongoing]
        require(not gone, "sequence ids of ongoing transactions are undecided", repr(gone))


def to_fields(known: Mapping[int, UnsettledSequenceIds]) -> list[Any]:
    """The content of a checkpoint."""
    return [
        [index, mine.newest, [[*transaction, last] for transaction, last in mine.before.items()]]
        for index, mine in sorted(known.items())
    ]


def from_fields(fields: list[Any]) -> dict[int, UnsettledSequenceIds]:
    """The inverse of `to_fields`."""
    return {
        index: UnsettledSequenceIds(
            None if newest is None else TransactionId(*newest),
            {TransactionId(number, sequence): last for number, sequence, last in before},
        )
        for index, newest, before in fields
    }

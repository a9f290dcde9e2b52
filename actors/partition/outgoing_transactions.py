"""Committed transactions whose entries go to other clusters: part of a partition's state.

Another cluster must show all of a transaction's entries, of all partitions, or none. So it needs
the list of partitions, and from each the notice that all its entries have arrived. The partition
keeps each transaction that was committed while replicators had entries of it to read, by a *number*
of its own: the place of its last entry, the clusters that *wait* for it, and its *participants* for
each. The participants are known only when all partitions have applied the commit: then the
coordinator names them, unless this partition is the only one. A cluster is dropped when it has
confirmed that it knows of all entries, or isn't replicated to any more; a transaction without
waiting clusters is dropped.

Nothing is kept of transactions that other clusters began, or that ended before the first replicator
existed.

Commands: `NameParticipants`, `ConfirmReplicated`. Events: ParticipantsNamed,
TransactionsReplicated; TransactionEnded if it names clusters; SubscriptionDeleted of a replicator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any

from velaray.actors.machine import Decision, require
from velaray.events.events_pb2 import (
    ClusterParticipants,
    ParticipantsNamed,
    TransactionEnded,
    TransactionsReplicated,
)
from velaray.events.ids import REPLICATOR_PREFIX, Position, TransactionId
from velaray.events.segments import Segment, StoredSegment

BLOCK = 256
"""Transactions that share a segment."""

_PREFIX = "outgoing/"


@dataclass(frozen=True, slots=True)
class NameParticipants:
    """Name the partitions with entries for each cluster; ``clusters`` are those that wait here.

    All partitions have applied the commit. Reply: `Named`, also if it was known or no cluster waits
    any more.
    """

    transaction: TransactionId
    clusters: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Named:
    """The participants are recorded, as far as a cluster still waits."""


@dataclass(frozen=True, slots=True)
class ConfirmReplicated:
    """Confirm that a cluster knows of all these transactions. Reply: `Confirmed`, also if that was
    known."""

    cluster: str
    numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The confirmation is recorded."""


@dataclass(slots=True)
class OutgoingTransaction:
    """A transaction with its last entry at offset ``last`` and ``position``. ``participants`` by
    cluster: None until they are known; for a cluster that isn't in it this partition is the only
    one."""

    number: int
    transaction: TransactionId
    last: int
    position: Position
    waiting: list[str]
    participants: dict[str, list[str]] | None = None


@dataclass(slots=True)
class Outgoing:
    """Transactions by number, ascending, and numbers by transaction; ``replicators``: the offset at
    which each cluster's replicator began to read, from the partition's subscriptions."""

    by_number: dict[int, OutgoingTransaction] = field(default_factory=dict)
    numbers: dict[TransactionId, int] = field(default_factory=dict)
    next_number: int = 1
    replicators: dict[str, int] = field(default_factory=dict)
    # Which blocks a checkpoint has as they are, and where.
    stored: dict[int, StoredSegment] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def find(self, transaction: TransactionId) -> OutgoingTransaction | None:
        """The transaction, if a cluster waits for it."""
        number = self.numbers.get(transaction)
        return None if number is None else self.by_number[number]

    def unnamed(self, transaction: TransactionId) -> tuple[str, ...]:
        """The clusters that wait for a transaction with unknown participants."""
        found = self.find(transaction)
        return () if found is None or found.participants is not None else tuple(found.waiting)

    def clusters(self, last: int) -> list[str]:
        """The clusters whose replicators must read the entry at offset ``last``."""
        return sorted(name for name, start in self.replicators.items() if start <= last)

    def after(self, number: int, cluster: str) -> Iterator[OutgoingTransaction]:
        """The transactions behind a number that a cluster waits for, ascending."""
        for each in self.by_number.values():  # ascending: numbers are given in order
            if each.number > number and cluster in each.waiting:
                yield each


def decide(state: Outgoing, command: NameParticipants | ConfirmReplicated) -> Decision:
    """The decision on a command of this module."""
    if isinstance(command, NameParticipants):
        waiting = state.unnamed(command.transaction)
        if not waiting:
            return Decision(reply=Named())
        named = [
            ClusterParticipants(cluster=name, topics=command.clusters.get(name, ()))
            for name in waiting
        ]
        coordinator, sequence = command.transaction
        event = ParticipantsNamed(coordinator=coordinator, sequence=sequence, clusters=named)
        return Decision((event,), Named())
    known = (state.by_number.get(number) for number in command.numbers)
    new = [each.number for each in known if each is not None and command.cluster in each.waiting]
    if not new:
        return Decision(reply=Confirmed())
    return Decision((TransactionsReplicated(cluster=command.cluster, numbers=new),), Confirmed())


def ended(state: Outgoing, event: TransactionEnded, last: int, position: Position) -> None:
    """Add a committed transaction that goes to other clusters; ``last`` and ``position`` are those
    of its last entry."""
    transaction = TransactionId(event.coordinator, event.sequence)
    number = state.next_number
    state.next_number += 1
    state.by_number[number] = OutgoingTransaction(
        number, transaction, last, position, list(event.clusters), {} if event.alone else None
    )
    state.numbers[transaction] = number
    _changed(state, number)


def evolve(state: Outgoing, event: ParticipantsNamed | TransactionsReplicated) -> None:
    """Apply an event of this module."""
    if isinstance(event, ParticipantsNamed):
        number = state.numbers[TransactionId(event.coordinator, event.sequence)]
        named = {each.cluster: list(each.topics) for each in event.clusters}
        state.by_number[number].participants = named
        _changed(state, number)
    else:
        _drop(state, event.cluster, event.numbers)


def subscription_created(state: Outgoing, name: str, start_offset: int) -> None:
    """Begin to keep transactions for the cluster of a new replicator's subscription."""
    if name.startswith(REPLICATOR_PREFIX):
        state.replicators[name.removeprefix(REPLICATOR_PREFIX)] = start_offset


def subscription_deleted(state: Outgoing, name: str) -> None:
    """Drop the cluster of a deleted replicator's subscription."""
    if name.startswith(REPLICATOR_PREFIX):
        cluster = name.removeprefix(REPLICATOR_PREFIX)
        del state.replicators[cluster]
        _drop(state, cluster, list(state.by_number))


def _drop(state: Outgoing, cluster: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        known = state.by_number[number]
        if cluster not in known.waiting:
            continue
        known.waiting.remove(cluster)
        if not known.waiting:
            del state.by_number[number], state.numbers[known.transaction]
        _changed(state, number)


def _changed(state: Outgoing, number: int) -> None:
    state.stored.pop(number // BLOCK, None)


def check(state: Outgoing, starts: Mapping[str, int], end_offset: int) -> None:
    """Raise `InvariantViolation` if an invariant is broken; ``starts`` says where subscriptions
    start, the log ends at ``end_offset``."""
    known = {REPLICATOR_PREFIX + name: start for name, start in state.replicators.items()}
    ours = {name: start for name, start in starts.items() if name.startswith(REPLICATOR_PREFIX)}
    require(known == ours, "replicators are subscriptions")
    named = {each.transaction: number for number, each in state.by_number.items()}
    require(named == state.numbers, "outgoing transactions are found by number and name")
    require(list(state.by_number) == sorted(state.by_number), "they are in their order")
    for number, each in state.by_number.items():
        require(number == each.number < state.next_number, "numbers are never reused", str(number))
        apart = len(set(each.waiting)) == len(each.waiting) > 0
        require(apart, "a cluster waits for each of them", str(number))
        require(0 <= each.last < end_offset, "the last entry is stored", str(number))


def snapshot(state: Outgoing) -> dict[str, Segment]:
    """Segments, if there ever was anything: ``outgoing``, and ``outgoing/<n>``."""
    if state.next_number == 1:
        return {}
    segments: dict[str, Segment] = {"outgoing": _to_json(state.next_number)}
    for block, numbers in groupby(state.by_number, key=lambda number: number // BLOCK):
        rows = [_fields(state.by_number[number]) for number in numbers]
        segments[f"{_PREFIX}{block}"] = state.stored.get(block) or _to_json(rows)
    return segments


def restore(segments: Mapping[str, bytes], starts: Mapping[str, int]) -> Outgoing:
    """The inverse of `snapshot`; other segments are ignored. ``starts``: of all subscriptions."""
    state = Outgoing(next_number=json.loads(segments.get("outgoing", b"1")))
    for name, start_offset in starts.items():
        subscription_created(state, name, start_offset)
    for block in map(str, sorted(_blocks(segments))):
        for number, transaction, last, position, *rest in json.loads(segments[_PREFIX + block]):
            known = OutgoingTransaction(
                number, TransactionId(*transaction), last, Position(*position), *rest
            )
            state.by_number[number] = known
            state.numbers[known.transaction] = number
    return state


def on_checkpoint(state: Outgoing, stored: Mapping[str, StoredSegment]) -> None:
    """Note the places of the unchanged blocks in a checkpoint."""
    for block in _blocks(stored):
        state.stored[block] = stored[f"{_PREFIX}{block}"]


def _blocks(names: Iterable[str]) -> list[int]:
    return [int(name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)]


def _fields(known: OutgoingTransaction) -> list[Any]:
    return [getattr(known, each.name) for each in fields(known)]


def _to_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

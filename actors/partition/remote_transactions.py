"""Transactions of other clusters: part of a partition's state.

An entry of such a transaction is stored like any entry of an open transaction, under an id that no
transaction of this cluster has (`remote_id`), so neither it nor later entries are delivered. No
coordinator of this cluster has the transaction, and the other cluster isn't asked. Its replicators
report when a partition has all its entries (then the transaction is *complete* there), and the list
of partitions. The first of those by name is the transaction's *deciding partition*. It collects the
partitions where the transaction *arrived*, and *judges*: when all have it, one event releases the
transaction. So the decision, and everything that it needs, is in this cluster. The deciding
partition then notifies the partitions until they have applied it. A transaction of a single
partition needs no deciding partition: it is released when it is complete.

A transaction that isn't released can be given up when its cluster is lost: by the deciding
partition if it is complete anywhere, else by the partition itself, which then never lets it arrive.
Later entries of it are hidden like earlier ones. A deciding partition that gets a report of it
gives up as well. The outcome never changes.

The last position of completions, as of entries, is kept for each cluster: completions up to it are
duplicates.

Commands: `TakeComplete`, `EndRemote`, `Arrive`, `GiveUp`, `ForgetRemote`. Events:
ForeignTransactionComplete, ForeignTransactionEnded, ForeignTransactionArrived,
ForeignTransactionJudged, ForeignTransactionForgotten; and TransactionEnded of a transaction with
entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from google.protobuf.message import Message

from velaray.actors.machine import Decision, Reason, refuse, require
from velaray.actors.partition.transactions import Transactions
from velaray.events.events_pb2 import (
    ForeignTransactionArrived,
    ForeignTransactionComplete,
    ForeignTransactionEnded,
    ForeignTransactionForgotten,
    ForeignTransactionJudged,
    TransactionEnded,
)
from velaray.events.ids import Position, TransactionId
from velaray.events.segments import Segment

COORDINATORS = 1 << 16
"""The bound of the number of coordinators in a cluster whose transactions are replicated."""

_REMOTE = 1 << 62
_NAME_BITS = 46
_SEGMENT = "arriving"
NOWHERE = Position(-1, -1)


def remote_id(cluster: str, transaction: TransactionId) -> TransactionId:
    """The local id of another cluster's transaction. Raises ValueError if there is none."""
    coordinator, sequence = transaction
    if not 0 <= coordinator < COORDINATORS or sequence < 1:
        raise ValueError(f"no transaction of cluster {cluster!r} is called {transaction}")
    name = int.from_bytes(blake2b(cluster.encode(), digest_size=8).digest()) % (1 << _NAME_BITS)
    return TransactionId(_REMOTE | name << 16 | coordinator, sequence)


def is_remote(transaction: TransactionId) -> bool:
    """Whether the id is that of another cluster's transaction."""
    return transaction.coordinator >= _REMOTE


def called_there(transaction: TransactionId) -> TransactionId:
    """Its id in its own cluster."""
    return TransactionId(transaction.coordinator % COORDINATORS, transaction.sequence)


def name_of(transaction: TransactionId) -> str:
    """The id as text, for people."""
    if is_remote(transaction):
        return f"transaction {called_there(transaction)} of another cluster"
    return f"transaction {transaction}"


@dataclass(frozen=True, slots=True)
class Completion:
    """All entries of a transaction for this partition are stored, the last one at ``position`` in
    its cluster; ``topics`` are the partitions with entries."""

    transaction: TransactionId
    topics: Sequence[str]
    position: Position


@dataclass(frozen=True, slots=True)
class TakeComplete:
    """Completions of one cluster, in the order of their positions. Reply: `Taken`."""

    cluster: str
    completions: Sequence[Completion]


@dataclass(frozen=True, slots=True)
class Taken:
    """The new completions."""

    transactions: tuple[TransactionId, ...]


@dataclass(frozen=True, slots=True)
class EndRemote:
    """Apply the deciding partition's durable verdict; not ``judged``: the transaction is given up
    without one. ``over``: the transaction is complete here according to the deciding partition,
    which holds for every commit.

    Reply: `RemoteEnded`; a repetition changes nothing. Refused CONFLICT for a commit of a
    transaction that was given up, or for a complete one without a verdict.
    """

    transaction: TransactionId
    commit: bool
    over: bool
    judged: bool = True


@dataclass(frozen=True, slots=True)
class RemoteEnded:
    """The transaction is over here; ``entries``: it was ongoing."""

    entries: bool


@dataclass(frozen=True, slots=True)
class Arrive:
    """Report to the deciding partition that the transaction is complete at ``topic``; ``given_up``:
    it was given up there before. Reply: `Judged`. Refused INVALID if the transaction has no entries
    for that partition, or if an earlier report named other partitions."""

    transaction: TransactionId
    topic: str
    topics: Sequence[str]
    given_up: bool


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Make the deciding partition give the transaction up, unless it is released. Reply:
    `Judged`."""

    transaction: TransactionId
    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class Judged:
    """Whether the transaction is released; None while it is open."""

    commit: bool | None


@dataclass(frozen=True, slots=True)
class ForgetRemote:
    """Confirm to the deciding partition that all partitions have applied the verdict, when the
    transaction was complete there. Reply: `Forgotten`; refused CONFLICT if it isn't judged or
    hasn't arrived everywhere."""

    transaction: TransactionId


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The transaction is removed."""


@dataclass(slots=True)
class Kept:
    """The deciding partition's state of a transaction; ``commit`` is the verdict, None before
    it."""

    topics: tuple[str, ...]
    arrived: set[str] = field(default_factory=set)
    commit: bool | None = None

    @property
    def missing(self) -> list[str]:
        """The partitions where it hasn't arrived."""
        return [topic for topic in self.topics if topic not in self.arrived]


@dataclass(slots=True)
class RemoteTransactions:
    """The transactions of other clusters.

    ``complete``: the partitions of open transactions that are complete here; ``given_up``: open
    ones that were given up; ``kept``: those that this partition decides; ``heard``: the newest
    completion's position in each cluster.
    """

    complete: dict[TransactionId, tuple[str, ...]] = field(default_factory=dict)
    given_up: set[TransactionId] = field(default_factory=set)
    kept: dict[TransactionId, Kept] = field(default_factory=dict)
    heard: dict[str, Position] = field(default_factory=dict)


Command = TakeComplete | EndRemote | Arrive | GiveUp | ForgetRemote


def decide(state: RemoteTransactions, entries: Transactions, command: Command) -> Decision:
    """The decision on a command of this module; ``entries`` has the ongoing transactions."""
    match command:
        case TakeComplete():
            return _take(state, command)
        case EndRemote():
            return _end(state, entries, command)
        case Arrive():
            return _arrive(state, command)
        case GiveUp(transaction, topics):
            known = state.kept.get(transaction)
            if known is not None and known.commit is not None:
                return Decision(reply=Judged(known.commit))
            return Decision((_judged(transaction, topics, commit=False),), Judged(False))
        case ForgetRemote(transaction):
            return _forget(state, transaction)


def _take(state: RemoteTransactions, command: TakeComplete) -> Decision:
    events: list[Message] = []
    new: list[TransactionId] = []
    heard = state.heard.get(command.cluster, NOWHERE)
    for each in command.completions:
        if each.position <= heard:
            continue
        heard = each.position
        complete = ForeignTransactionComplete(
            coordinator=each.transaction.coordinator,
            sequence=each.transaction.sequence,
            cluster=command.cluster,
            topics=each.topics,
            source_ledger=heard.ledger_id,
            source_entry=heard.entry_id,
        )
        events.append(complete)
        new.append(each.transaction)
    return Decision(tuple(events), Taken(tuple(new)))


def _end(state: RemoteTransactions, entries: Transactions, command: EndRemote) -> Decision:
    transaction, commit = command.transaction, command.commit
    over = command.over or commit
    complete, given_up = transaction in state.complete, transaction in state.given_up
    if commit and given_up:
        return refuse(Reason.CONFLICT, f"{name_of(transaction)} was given up here")
    if complete and not command.judged:
        return refuse(
            Reason.CONFLICT, f"{name_of(transaction)} is complete: ask its deciding partition"
        )
    events: list[Message] = []
    if transaction in entries.ongoing:
        events.append(_transaction_ended(transaction, commit))
    reply = RemoteEnded(bool(events))
    if complete if over else not given_up:
        coordinator, sequence = transaction
        ended = ForeignTransactionEnded(
            coordinator=coordinator, sequence=sequence, commit=commit, over=over
        )
        events.append(ended)
    return Decision(tuple(events), reply)


def _arrive(state: RemoteTransactions, command: Arrive) -> Decision:
    transaction, topic = command.transaction, command.topic
    known = state.kept.get(transaction) or Kept(tuple(command.topics))
    if topic not in command.topics or known.topics != tuple(command.topics):
        where = f"goes to {known.topics}, not {topic} of {command.topics}"
        problem = f"{name_of(transaction)} {where}"
        return refuse(Reason.INVALID, problem)
    events: list[Message] = []
    if topic not in known.arrived or transaction not in state.kept:
        coordinator, sequence = transaction
        arrived = ForeignTransactionArrived(
            coordinator=coordinator, sequence=sequence, topic=topic, topics=command.topics
        )
        events.append(arrived)
    commit = known.commit
    if commit is None:
        if command.given_up or transaction in state.given_up:
            commit = False
        elif not [other for other in known.missing if other != topic]:
            commit = True
        if commit is not None:
            events.append(_judged(transaction, command.topics, commit))
    return Decision(tuple(events), Judged(commit))


def _forget(state: RemoteTransactions, transaction: TransactionId) -> Decision:
    known = state.kept.get(transaction)
    if known is None:
        return Decision(reply=Forgotten())
    if known.commit is None or known.missing:
        problem = f"{name_of(transaction)} isn't over: it may still come to {known.missing}"
        return refuse(Reason.CONFLICT, problem)
    coordinator, sequence = transaction
    event = ForeignTransactionForgotten(coordinator=coordinator, sequence=sequence)
    return Decision((event,), Forgotten())


def _judged(
    transaction: TransactionId, topics: Sequence[str], commit: bool
) -> ForeignTransactionJudged:
    coordinator, sequence = transaction
    return ForeignTransactionJudged(
        coordinator=coordinator, sequence=sequence, commit=commit, topics=topics
    )


def _transaction_ended(transaction: TransactionId, commit: bool) -> TransactionEnded:
    coordinator, sequence = transaction
    return TransactionEnded(coordinator=coordinator, sequence=sequence, commit=commit)


def evolve(state: RemoteTransactions, event: Message) -> None:
    """Apply an event of this module."""
    match event:
        case ForeignTransactionComplete(topics=topics, cluster=cluster):
            transaction = TransactionId(event.coordinator, event.sequence)
            state.heard[cluster] = Position(event.source_ledger, event.source_entry)
            state.complete[transaction] = tuple(topics)
        case ForeignTransactionEnded(over=over):
            transaction = TransactionId(event.coordinator, event.sequence)
            if over:
                del state.complete[transaction]
                state.given_up.discard(transaction)
            else:
                state.given_up.add(transaction)
        case ForeignTransactionArrived(topic=topic, topics=topics):
            _keep(state, event, topics).arrived.add(topic)
        case ForeignTransactionJudged(commit=commit, topics=topics):
            _keep(state, event, topics).commit = commit
        case ForeignTransactionForgotten():
            del state.kept[TransactionId(event.coordinator, event.sequence)]


def _keep(
    state: RemoteTransactions,
    event: ForeignTransactionArrived | ForeignTransactionJudged,
    topics: Sequence[str],
) -> Kept:
    transaction = TransactionId(event.coordinator, event.sequence)
    return state.kept.setdefault(transaction, Kept(tuple(topics)))


def check(state: RemoteTransactions, entries: Transactions) -> None:
    """Raise `InvariantViolation` if an invariant is broken; ``entries`` has the ongoing
    transactions."""
    for transaction, topics in state.complete.items():
        goes = is_remote(transaction) and bool(topics)
        require(goes, "complete transactions are remote and have participants", str(transaction))
    for transaction in state.given_up:
        over = transaction not in entries.ongoing
        require(over, "abandoned transactions aren't ongoing", str(transaction))
    for transaction, known in state.kept.items():
        known_all = known.arrived <= set(known.topics)
        require(known_all, "it arrives where it goes", str(transaction))
        whole = not known.commit or not known.missing
        require(whole, "released transactions have arrived everywhere", str(transaction))


def snapshot(state: RemoteTransactions) -> dict[str, Segment]:
    """A segment ``arriving``, if there ever was anything."""
    if state == RemoteTransactions():
        return {}
    found: list[Any] = [
        sorted(state.heard.items()),
        [[*transaction, topics] for transaction, topics in state.complete.items()],
        sorted(state.given_up),
        [
            [*transaction, known.topics, sorted(known.arrived), known.commit]
            for transaction, known in state.kept.items()
        ],
    ]
    return {_SEGMENT: json.dumps(found, separators=(",", ":")).encode()}


def restore(segments: Mapping[str, bytes]) -> RemoteTransactions:
    """The inverse of `snapshot`; other segments are ignored."""
    heard, complete, given_up, kept = json.loads(segments.get(_SEGMENT, b"[[],[],[],[]]"))
    return RemoteTransactions(
        complete={TransactionId(number, at): tuple(topics) for number, at, topics in complete},
        given_up={TransactionId(number, at) for number, at in given_up},
        kept={
            TransactionId(number, at): Kept(tuple(topics), set(arrived), commit)
            for number, at, topics, arrived, commit in kept
        },
        heard={cluster: Position(*position) for cluster, position in heard},
    )

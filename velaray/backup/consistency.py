"""Checks that the journals of a backup belong to one moment.

A journal that is sound alone can still contradict another one: an acknowledgement of an entry that
its partition doesn't have, or the end of a transaction that its coordinator hasn't decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from velaray.actors.coordinator.state import CoordinatorState, Status
from velaray.actors.partition.remote_transactions import is_remote
from velaray.actors.partition.state import PartitionState
from velaray.actors.subscription.machine import SubscriptionState
from velaray.backup.stored_backup import BackupStore, JournalReport, verify_journal
from velaray.events.events_pb2 import TransactionAcksEnded, TransactionEnded
from velaray.events.ids import ActorKey, TransactionId
from velaray.journal.checkpoint import Checkpoint
from velaray.journal.replay import Fold
from velaray.journal.scan import Record
from velaray.offline.journal_events import event_of

_DECIDED = {True: (Status.COMMITTING, Status.COMMITTED), False: (Status.ABORTING, Status.ABORTED)}


class StateFold(Fold, Protocol):
    """Recomputes the state of an actor."""

    state: Any


class NotingFold:
    """A fold that notes the ends of transactions on the way; implements `Fold`."""

    def __init__(self, inner: StateFold) -> None:
        self.inner = inner
        self.ended: dict[TransactionId, bool] = {}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Start from the state of a checkpoint."""
        self.inner.restore(checkpoint)

    def apply(self, record: Record) -> None:
        """Apply one record."""
        self.inner.apply(record)
        match event_of(record.sequence, record.event):
            case TransactionEnded() | TransactionAcksEnded() as event:
                self.ended[TransactionId(event.coordinator, event.sequence)] = event.commit
            case _:
                return

    def digest(self) -> bytes:
        """The digest of the state."""
        return self.inner.digest()


@dataclass(frozen=True, slots=True)
class _Participant:
    """What a partition or a subscription knows of transactions."""

    key: str
    open: frozenset[TransactionId]
    ended: dict[TransactionId, bool]


@dataclass(slots=True)
class Consistency:
    """A part of each actor's state, until all of them were read."""

    _ends: dict[str, int] = field(default_factory=dict)
    _cursors: dict[str, int] = field(default_factory=dict)
    _participants: list[_Participant] = field(default_factory=list)
    _coordinators: dict[int, CoordinatorState] = field(default_factory=dict)

    def add(self, key: ActorKey, fold: NotingFold) -> None:
        """Take the newest state of an actor."""
        text, state = key.text(), fold.inner.state
        open_: list[TransactionId] = []
        match state:
            case PartitionState():
                self._ends[text] = state.end_offset
                open_ = [each for each in state.transactions.ongoing if not is_remote(each)]
            case SubscriptionState():
                self._cursors[text] = max(state.cursor.untouched_from(), state.pending.end())
                open_ = state.pending.transactions()
            case CoordinatorState():
                self._coordinators[key.partition] = state
                return
            case _:
                return
        self._participants.append(_Participant(text, frozenset(open_), fold.ended))

    def problems(self) -> dict[str, list[str]]:
        """The contradictions by the actor that has them."""
        found: dict[str, list[str]] = {}
        for key, problem in (*self._cursors_ahead(), *self._transactions()):
            found.setdefault(key, []).append(problem)
        return found

    def _cursors_ahead(self) -> Iterator[tuple[str, str]]:
        for key, cursor in self._cursors.items():
            parsed = ActorKey.parse(key)
            of = ActorKey.of_partition(parsed.topic_name, parsed.topic_incarnation)
            end = self._ends.get(of.text())  # None: the topic was deleted
            if end is not None and cursor > end:
                yield key, f"acknowledges entries up to {cursor}, but its partition ends at {end}"

    def _transactions(self) -> Iterator[tuple[str, str]]:
        for participant in self._participants:
            for transaction in sorted(participant.open):
                status = self._status(transaction)
                if status in (None, Status.COMMITTED, Status.ABORTED):
                    told = "unknown" if status is None else status.lower()
                    yield (
                        participant.key,
                        f"transaction {transaction} is open here, but {told} at its coordinator",
                    )
            for transaction, commit in participant.ended.items():
                if is_remote(transaction):
                    continue  # its coordinator is in another cluster
                status = self._status(transaction)
                if status not in _DECIDED[commit]:
                    told = "unknown" if status is None else status.lower()
                    verb = "committed" if commit else "aborted"
                    yield (
                        participant.key,
                        f"transaction {transaction} is {verb} here, but {told} at its coordinator",
                    )

    def _status(self, transaction: TransactionId) -> Status | None:
        coordinator = self._coordinators.get(transaction.coordinator)
        return None if coordinator is None else coordinator.status(transaction.sequence)


async def verify_backup(
    store: BackupStore, fold_of: Callable[[ActorKey], StateFold]
) -> list[JournalReport]:
    """Read everything in a backup, and compare the states of its actors with each other."""
    consistency = Consistency()
    reports: dict[str, JournalReport] = {}
    for text in store.listing.journals:
        key = ActorKey.parse(text)
        fold = NotingFold(fold_of(key))
        reports[text] = await verify_journal(store, text, fold)
        if not reports[text].problems:
            consistency.add(key, fold)
    for text, problems in consistency.problems().items():
        reports[text].problems += problems
    return list(reports.values())

"""Bugs of the verification of backups that `tests/backup/test_verification.py` finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.sim.mutants.mutant import Mutant
from velaray.actors.coordinator.state import Status
from velaray.backup import consistency
from velaray.backup.consistency import Consistency, NotingFold
from velaray.backup.stored_backup import BackupStore, JournalReport
from velaray.events.events_pb2 import TransactionAcksEnded, TransactionEnded


def _find_nothing(original: Any) -> Any:
    def nothing(self: Any) -> Iterator[tuple[str, str]]:
        return iter(())

    return nothing


def _without(words: str) -> Any:
    """Drop the contradictions with these words."""

    def change(original: Any) -> Any:
        def some(self: Any) -> Iterator[tuple[str, str]]:
            return (found for found in original(self) if words not in found[1])

        return some

    return change


def _do_not_note(kind: type) -> Any:
    """Don't note the ends of transactions in events of this kind."""

    def change(original: Any) -> Any:
        def apply(self: NotingFold, record: Any) -> None:
            before = dict(self.ended)
            original(self, record)
            if isinstance(consistency.event_of(record.sequence, record.event), kind):
                self.ended = before

        return apply

    return change


def _count_marks_only(original: Any) -> Any:
    def add(self: Consistency, key: Any, fold: NotingFold) -> None:
        original(self, key, fold)
        if (text := key.text()) in self._cursors:
            self._cursors[text] = fold.inner.state.cursor.acked_before

    return add


def _count_no_pending(original: Any) -> Any:
    def add(self: Consistency, key: Any, fold: NotingFold) -> None:
        original(self, key, fold)
        if (text := key.text()) in self._cursors:
            self._cursors[text] = fold.inner.state.cursor.untouched_from()

    return add


def _any_outcome(original: Any) -> Any:
    every = tuple(status for statuses in original.values() for status in statuses)
    return dict.fromkeys(original, every)


def _unknown_is_open(original: Any) -> Any:
    return lambda self, transaction: original(self, transaction) or Status.OPEN


def _drop_problems(original: Any) -> Any:
    async def verify(store: BackupStore, key: str, fold: Any) -> JournalReport:
        report: JournalReport = await original(store, key, fold)
        report.problems.clear()
        return report

    return verify


BACKUP_MUTANTS: dict[str, Mutant] = {
    "cursors-not-compared": Mutant(
        "Acknowledgements aren't compared with the end of the partition.",
        ((Consistency, "_cursors_ahead", _find_nothing),),
        1,
    ),
    "single-acknowledgements-not-compared": Mutant(
        "Only the mark of a cursor is compared with the end of the partition.",
        ((Consistency, "add", _count_marks_only),),
        1,
    ),
    "pending-acknowledgements-not-compared": Mutant(
        "Acknowledgements in open transactions aren't compared with the end of the partition.",
        ((Consistency, "add", _count_no_pending),),
        1,
    ),
    "transactions-not-compared": Mutant(
        "Transactions aren't compared with their coordinators.",
        ((Consistency, "_transactions", _find_nothing),),
        1,
    ),
    "open-transactions-not-compared": Mutant(
        "Transactions that are open at a participant aren't compared.",
        ((Consistency, "_transactions", _without("is open here")),),
        1,
    ),
    "ended-transactions-not-compared": Mutant(
        "Transactions that a participant has ended aren't compared.",
        ((Consistency, "_transactions", _without("ted here")),),
        1,
    ),
    "ends-in-partitions-not-noted": Mutant(
        "The ends of transactions in partitions aren't noted.",
        ((NotingFold, "apply", _do_not_note(TransactionEnded)),),
        1,
    ),
    "ends-in-subscriptions-not-noted": Mutant(
        "The ends of transactions in subscriptions aren't noted.",
        ((NotingFold, "apply", _do_not_note(TransactionAcksEnded)),),
        1,
    ),
    "any-outcome": Mutant(
        "A commit here and an abort at the coordinator are one outcome.",
        ((consistency, "_DECIDED", _any_outcome),),
        1,
    ),
    "unknown-is-open": Mutant(
        "A transaction that its coordinator doesn't know is taken for an open one.",
        ((Consistency, "_status", _unknown_is_open),),
        1,
    ),
    "problems-of-journals-dropped": Mutant(
        "The problems of journals aren't reported.",
        ((consistency, "verify_journal", _drop_problems),),
        1,
    ),
}
"""By the name of the bug."""

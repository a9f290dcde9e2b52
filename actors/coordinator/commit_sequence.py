"""Commit sequences: many transactions that are committed together, once per number.

A stream processor writes each batch with many tasks, and each attempt of a task uses its own
transaction, so failed attempts don't count. One event commits a batch: all of its transactions,
under the sequence's name and the batch's number. The sequence remembers its last number. A
repetition of a committed batch is aborted, and so is a batch of a replaced writer. Numbers ascend,
not necessarily by one.

A transaction begins for a number of a commit sequence. A commit of that number, or a later one,
without the transaction aborts it, so the messages of lost attempts block no reader; no transaction
can begin for such a number any more.

One coordinator has a commit sequence and all transactions of its commits. A sequence is kept until
`ForgetCommitSequence`.

Commands: `CommitInSequence`, `LookUpCommitSequence`, `ForgetCommitSequence`. Events:
SeriesCommitted, SeriesForgotten, and TransactionDecided for aborted transactions. If a crash
prevented the abort of a transaction, it times out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velaray.actors.coordinator.state import CoordinatorState, Status, refusal_of
from velaray.actors.machine import Decision, Reason, refuse
from velaray.events.events_pb2 import SeriesCommitted, SeriesForgotten, TransactionDecided


@dataclass(frozen=True, slots=True)
class CommitInSequence:
    """Commit these transactions as number ``number`` (from 0 on) of a commit sequence.

    All other open transactions of that number, or an earlier one, are aborted. If that number, or a
    later one, is committed already, these transactions are aborted, unless they are the ones that
    were committed then. Reply: `InSequence`. Refused INVALID without a name; NOT_ALLOWED to others
    than the owner of the sequence or of a transaction; NOT_FOUND and CONFLICT, the latter naming a
    transaction that isn't open any more: then none is committed, and none is aborted.
    """

    series: str
    number: int
    sequences: Sequence[int]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class InSequence:
    """The number is committed; ``now``: by this command, else earlier. ``dropped`` has the
    sequences of the aborted transactions."""

    number: int
    now: bool
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LookUpCommitSequence:
    """Look up the last committed number. Reply: `LastInSequence`."""

    series: str


@dataclass(frozen=True, slots=True)
class LastInSequence:
    """The number of the last commit; -1: there is no such commit sequence. ``dropped`` has the
    sequences of the aborted transactions."""

    number: int
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetCommitSequence:
    """End a commit sequence and abort its open transactions. Reply: `LastInSequence` with its last
    number; refused NOT_ALLOWED to others than its owner."""

    series: str
    owner: str = ""


def decide_commit_sequence(
    state: CoordinatorState,
    command: CommitInSequence | LookUpCommitSequence | ForgetCommitSequence,
    now_ms: int,
) -> Decision:
    """The decision on a command of this module."""
    known = state.series.get(command.series)
    last = LastInSequence(-1 if known is None else known.last)
    if isinstance(command, LookUpCommitSequence):
        return Decision(reply=last)
    if known is not None and known.owner not in ("", command.owner):
        return refuse(
            Reason.NOT_ALLOWED, f"commit sequence {command.series!r} belongs to another role"
        )
    if isinstance(command, CommitInSequence):
        return _commit(state, command, last.number, now_ms)
    dropped = _waiting(state, command.series, command.owner)
    forgotten = () if known is None else (SeriesForgotten(series=command.series),)
    reply = LastInSequence(last.number, dropped)
    return Decision((*forgotten, *_aborted(dropped, now_ms)), reply)


def refusal_of_number(
    state: CoordinatorState, commit_sequence: str, number: int, owner: str
) -> Decision | None:
    """The reason why no transaction can begin for this number of a commit sequence ("": none); None
    if it can."""
    known = state.series.get(commit_sequence)
    if known is None:
        return None
    if known.owner not in ("", owner):
        return refuse(
            Reason.NOT_ALLOWED, f"commit sequence {commit_sequence!r} belongs to another role"
        )
    if number <= known.last:
        return refuse(
            Reason.CONFLICT,
            f"number {number} of commit sequence {commit_sequence!r} is over: {known.last} is "
            "committed",
        )
    return None


def _waiting(
    state: CoordinatorState, commit_sequence: str, owner: str, number: int | None = None
) -> tuple[int, ...]:
    """The owner's open transactions of a commit sequence, up to this number."""
    return tuple(
        each.sequence
        for each in state.unfinished.values()
        if each.series == commit_sequence
        and each.status == Status.OPEN
        and each.owner in ("", owner)
        and (number is None or each.number <= number)
    )


def _aborted(sequences: Sequence[int], now_ms: int) -> tuple[TransactionDecided, ...]:
    return tuple(
        TransactionDecided(sequence=sequence, commit=False, at_ms=now_ms) for sequence in sequences
    )


def _commit(state: CoordinatorState, command: CommitInSequence, last: int, now_ms: int) -> Decision:
    if not command.series:
        return refuse(Reason.INVALID, "a commit sequence needs a name")
    sequences = tuple(dict.fromkeys(command.sequences))
    for sequence in sequences:
        refusal = refusal_of(state, sequence, command.owner)
        if refusal is not None:
            return refusal
    if command.number <= last:
        again = [each for each in sequences if state.status(each) == Status.OPEN]
        return Decision(_aborted(again, now_ms), InSequence(command.number, now=False))
    for sequence in sequences:
        status = state.status(sequence)
        if status != Status.OPEN:
            return refuse(
                Reason.CONFLICT,
                f"transaction {sequence} is {status}: number {command.number} of commit sequence "
                f"{command.series!r} can't be committed",
            )
    event = SeriesCommitted(
        series=command.series,
        number=command.number,
        sequences=sequences,
        owner=command.owner,
        at_ms=now_ms,
    )
    waiting = _waiting(state, command.series, command.owner, command.number)
    dropped = tuple(each for each in waiting if each not in sequences)
    reply = InSequence(command.number, now=True, dropped=dropped)
    return Decision((event, *_aborted(dropped, now_ms)), reply)

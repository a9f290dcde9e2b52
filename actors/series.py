"""Series of commits: many transactions that count together, once per number.

What processes a stream batch by batch writes each batch with many tasks, and each attempt of a
task in a transaction of its own: an attempt that failed is not to count. A batch is committed by
one event, for all of its transactions, under the name of the series and the batch's number. A
series remembers its last number: a batch that is tried again after it was committed is aborted,
as is one of somebody who doesn't know yet that he was replaced. Numbers ascend, not necessarily
by one.

A series, and the transactions of its commits, are one coordinator's. It is kept until it is
forgotten.

Commands: `CommitInSeries`, `LookUpSeries`, `ForgetSeries`.
Events: SeriesCommitted, SeriesForgotten, and TransactionDecided for what is aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from velaray.actors.coordinator_state import CoordinatorState, Status, refusal_of
from velaray.actors.machine import Decision, Reason, refuse
from velaray.events.events_pb2 import SeriesCommitted, SeriesForgotten, TransactionDecided


@dataclass(frozen=True, slots=True)
class CommitInSeries:
    """Commit these transactions as number ``number`` (from 0 on) of a series.

    If the series has that number, or a later one, they are aborted, unless they are what was
    committed then. Reply: `InSeries`. Refused INVALID without a name; NOT_ALLOWED to others than
    the owner of the series or of a transaction; NOT_FOUND and CONFLICT, the latter naming a
    transaction that isn't open any more: then none is committed, and none is aborted.
    """

    series: str
    number: int
    sequences: Sequence[int]
    owner: str = ""


@dataclass(frozen=True, slots=True)
class InSeries:
    """The number is committed; ``now``: by this command, else it was before."""

    number: int
    now: bool


@dataclass(frozen=True, slots=True)
class LookUpSeries:
    """Which number was committed last. Reply: `LastInSeries`."""

    series: str


@dataclass(frozen=True, slots=True)
class LastInSeries:
    """The number of the last commit; -1: there is no such series."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetSeries:
    """The series is over. Reply: `LastInSeries` with the last number that it had; refused
    NOT_ALLOWED to others than its owner."""

    series: str
    owner: str = ""


def decide_series(
    state: CoordinatorState, command: CommitInSeries | LookUpSeries | ForgetSeries, now_ms: int
) -> Decision:
    """As a machine's ``decide``."""
    known = state.series.get(command.series)
    last = LastInSeries(-1 if known is None else known.last)
    if isinstance(command, LookUpSeries):
        return Decision(reply=last)
    if known is not None and known.owner not in ("", command.owner):
        return refuse(Reason.NOT_ALLOWED, f"series {command.series!r} is another role's")
    if isinstance(command, CommitInSeries):
        return _commit(state, command, last.number, now_ms)
    events = () if known is None else (SeriesForgotten(series=command.series),)
    return Decision(events, last)


def _commit(state: CoordinatorState, command: CommitInSeries, last: int, now_ms: int) -> Decision:
    if not command.series:
        return refuse(Reason.INVALID, "a series needs a name")
    sequences = tuple(dict.fromkeys(command.sequences))
    for sequence in sequences:
        refusal = refusal_of(state, sequence, command.owner)
        if refusal is not None:
            return refusal
    if command.number <= last:
        aborted = tuple(
            TransactionDecided(sequence=sequence, commit=False, at_ms=now_ms)
            for sequence in sequences
            if state.status(sequence) == Status.OPEN
        )
        return Decision(aborted, InSeries(command.number, now=False))
    for sequence in sequences:
        status = state.status(sequence)
        if status != Status.OPEN:
            return refuse(
                Reason.CONFLICT,
                f"transaction {sequence} is {status}: number {command.number} of series "
                f"{command.series!r} can't be committed",
            )
    event = SeriesCommitted(
        series=command.series,
        number=command.number,
        sequences=sequences,
        owner=command.owner,
        at_ms=now_ms,
    )
    return Decision((event,), InSeries(command.number, now=True))

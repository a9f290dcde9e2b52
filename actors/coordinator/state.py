"""The state of a transaction coordinator: its transactions and their status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sortedcontainers import SortedSet

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.sets.acknowledged_ranges import AcknowledgedRanges

TICK_MS = 100
"""Deadlines are multiples of this number of milliseconds."""


class Status(StrEnum):
    """The status of a transaction."""

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


LEGAL: Mapping[Status, frozenset[Status]] = {
    Status.OPEN: frozenset((Status.COMMITTING, Status.ABORTING)),
    Status.COMMITTING: frozenset((Status.COMMITTED,)),
    Status.ABORTING: frozenset((Status.ABORTED,)),
    Status.COMMITTED: frozenset(),
    Status.ABORTED: frozenset(),
}
"""The legal changes of status; keeping a status is always legal, and changes nothing."""


@dataclass(slots=True)
class Transaction:
    """An unfinished transaction. Participants are in the order in which they joined.

    ``series``: the commit sequence to whose ``number`` it belongs; empty: none. ``spread``: the
    partitions whose entries go to other clusters, by cluster, after all participants have applied
    the commit.
    """

    sequence: int
    owner: str
    begun_ms: int
    timeout_ms: int
    status: Status = Status.OPEN
    timed_out: bool = False
    series: str = ""
    number: int = 0
    partitions: dict[str, None] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], None] = field(default_factory=dict)
    spread: dict[str, list[str]] = field(default_factory=dict)

    @property
    def deadline_ms(self) -> int:
        """The time at which it is aborted if it is still open."""
        return -(-(self.begun_ms + self.timeout_ms) // TICK_MS) * TICK_MS

    @property
    def earliest_ms(self) -> int:
        """The earliest plausible time; an earlier clock was set back."""
        return self.begun_ms - self.timeout_ms


@dataclass(frozen=True, slots=True)
class CommitSequence:
    """The owner of a commit sequence ("": any role), and the number of its last commit."""

    owner: str
    last: int


@dataclass(slots=True)
class CoordinatorState:
    """Unfinished transactions by sequence, ascending; the aborted ones among the finished; how many
    of the aborted had reached their deadline; commit sequences by name."""

    next_sequence: int = 1
    unfinished: dict[int, Transaction] = field(default_factory=dict)
    aborted: AcknowledgedRanges = field(default_factory=AcknowledgedRanges)
    timed_out: int = 0
    series: dict[str, CommitSequence] = field(default_factory=dict)
    # Open transactions: (deadline, sequence). A function of the table.
    deadlines: SortedSet = field(default_factory=SortedSet, compare=False)
    # Open transactions: (earliest time, sequence).
    starts: SortedSet = field(default_factory=SortedSet, compare=False)

    def status(self, sequence: int) -> Status | None:
        """The status of any transaction ever begun; None for other sequences."""
        known = self.unfinished.get(sequence)
        if known is not None:
            return known.status
        if not 1 <= sequence < self.next_sequence:
            return None
        return Status.ABORTED if sequence in self.aborted else Status.COMMITTED

    @property
    def low_water(self) -> int:
        """All transactions up to this sequence are finished."""
        return next(iter(self.unfinished), self.next_sequence) - 1

    @property
    def next_deadline_ms(self) -> int | None:
        """The next deadline of an open transaction; None if there is none."""
        return int(self.deadlines[0][0]) if self.deadlines else None

    def decided(self) -> list[Transaction]:
        """The decided transactions whose participants don't all have the verdict yet."""
        return [each for each in self.unfinished.values() if each.status != Status.OPEN]


def refusal_of(
    state: CoordinatorState, sequence: int, owner: str, force: bool = False
) -> Decision | None:
    """The refusal if this owner may not use the transaction; None if it may."""
    known = state.unfinished.get(sequence)
    if known is None:
        if state.status(sequence) is None:
            return refuse(Reason.NOT_FOUND, f"there is no transaction {sequence} here")
        return None
    if known.owner and known.owner != owner and not force:
        return refuse(Reason.NOT_ALLOWED, f"transaction {sequence} belongs to another role")
    return None

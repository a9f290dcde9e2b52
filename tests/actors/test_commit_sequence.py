"""Series of commits: each number's transactions count together, once."""

import json

from velaray.actors.coordinator.commit_sequence import (
    CommitInSequence,
    ForgetCommitSequence,
    InSequence,
    LastInSequence,
    LookUpCommitSequence,
)
from velaray.actors.coordinator.machine import Begin, Begun, CoordinatorMachine, Decide, Finish
from velaray.actors.coordinator.state import CommitSequence, Status
from velaray.actors.machine import Reason
from velaray.actors.testing import given
from velaray.events.events_pb2 import (
    LedgerOpened,
    SeriesCommitted,
    SeriesForgotten,
    TransactionBegun,
    TransactionDecided,
)

MACHINE = CoordinatorMachine()


def begun(count: int, owner: str = ""):
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    for _ in range(count):
        story.when(Begin(10_000, owner))
    return story


def test_one_event_commits_all_transactions_of_a_number() -> None:
    story = begun(3)
    (
        story.when(LookUpCommitSequence("q"))
        .then(events=[], reply=LastInSequence(-1))
        .when(CommitInSequence("q", 0, [1, 3]), now_ms=5)
        .then(
            events=[SeriesCommitted(series="q", number=0, sequences=[1, 3], at_ms=5)],
            reply=InSequence(0, now=True),
        )
        .when(LookUpCommitSequence("q"))
        .then(reply=LastInSequence(0))
    )
    assert [story.state.status(each) for each in (1, 2, 3)] == [
        Status.COMMITTING,
        Status.OPEN,
        Status.COMMITTING,
    ]
    story.when(Decide(1, commit=False)).then_refused(Reason.CONFLICT, "COMMITTING")
    assert [sequence for _, sequence in story.state.deadlines] == [2]


def test_a_number_that_is_committed_is_not_committed_again() -> None:
    """Its answer was lost, or all of it was done again by who didn't know."""
    story = begun(3)
    (
        story.when(CommitInSequence("q", 7, [1]))
        .when(CommitInSequence("q", 7, [1]))
        .then(events=[], reply=InSequence(7, now=False))
        .when(Finish(1))
        .when(CommitInSequence("q", 7, [1, 2]), now_ms=9)
        .then(
            events=[TransactionDecided(sequence=2, commit=False, at_ms=9)],
            reply=InSequence(7, now=False),
        )
        .when(CommitInSequence("q", 6, [3]))
        .then(events=[TransactionDecided(sequence=3, commit=False)], reply=InSequence(6, now=False))
        .when(LookUpCommitSequence("q"))
        .then(reply=LastInSequence(7))
    )
    assert story.state.status(1) == Status.COMMITTED


def test_a_commit_with_a_finished_transaction_changes_nothing() -> None:
    story = begun(2)
    (
        story.when(Decide(2, commit=False))
        .when(CommitInSequence("q", 0, [1, 2]))
        .then_refused(Reason.CONFLICT, "transaction 2 is ABORTING: number 0 of commit sequence 'q'")
        .when(CommitInSequence("q", 0, [1, 3]))
        .then_refused(Reason.NOT_FOUND, "no transaction 3")
        .when(CommitInSequence("", 0, [1]))
        .then_refused(Reason.INVALID, "needs a name")
        .when(CommitInSequence("q", 0, [1]))
        .then(reply=InSequence(0, now=True))
        .when(CommitInSequence("q", 4, []))
        .then(events=[SeriesCommitted(series="q", number=4)], reply=InSequence(4, now=True))
    )


def test_a_commit_sequence_is_used_only_by_its_owner() -> None:
    story = begun(1, owner="me")
    (
        story.when(CommitInSequence("q", 0, [1], owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "transaction 1 belongs to another role")
        .when(CommitInSequence("q", 0, [1], owner="me"))
        .when(CommitInSequence("q", 1, [], owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "commit sequence 'q' belongs to another role")
        .when(ForgetCommitSequence("q", owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "commit sequence 'q' belongs to another role")
        .when(ForgetCommitSequence("q", owner="me"))
        .then(events=[SeriesForgotten(series="q")], reply=LastInSequence(0))
        .when(ForgetCommitSequence("q", owner="me"))
        .then(events=[], reply=LastInSequence(-1))
    )


def test_commit_sequences_survive_a_checkpoint() -> None:
    story = begun(1).when(CommitInSequence("q", 3, [1], owner="")).when(Finish(1))
    again = story.restored()
    assert again == story.state and again.series == {"q": CommitSequence("", 3)}


def begin(number: int, commit_sequence: str = "q", owner: str = "") -> Begin:
    return Begin(10_000, owner, series=commit_sequence, number=number)


def test_a_commit_aborts_other_open_transactions_up_to_its_number() -> None:
    """Attempts of tasks that were lost, of this batch and of earlier ones."""
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    (
        story.when(begin(4))
        .then(
            events=[
                TransactionBegun(sequence=1, timeout_ms=10_000, series="q", number=4),
            ]
        )
        .when(begin(5))
        .when(begin(5))
        .when(begin(6))
        .when(begin(5, commit_sequence="other"))
        .when(Begin(10_000))
        .when(begin(5))
        .when(Decide(7, commit=False))
        .when(CommitInSequence("q", 5, [2]), now_ms=8)
        .then(
            events=[
                SeriesCommitted(series="q", number=5, sequences=[2], at_ms=8),
                TransactionDecided(sequence=1, commit=False, at_ms=8),
                TransactionDecided(sequence=3, commit=False, at_ms=8),
            ],
            reply=InSequence(5, now=True, dropped=(1, 3)),
        )
    )
    assert [story.state.status(each) for each in (4, 5, 6)] == [Status.OPEN] * 3


def test_a_commit_leaves_the_transactions_of_others_alone() -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    (
        story.when(begin(0, owner="you"))
        .when(CommitInSequence("q", 0, [], owner="me"))
        .then(reply=InSequence(0, now=True, dropped=()))
        .when(ForgetCommitSequence("q", owner="me"))
        .then(events=[SeriesForgotten(series="q")], reply=LastInSequence(0, dropped=()))
    )


def test_no_transaction_begins_for_a_committed_number() -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    (
        story.when(CommitInSequence("q", 5, [], owner="me"))
        .when(begin(5, owner="me"))
        .then_refused(Reason.CONFLICT, "number 5 of commit sequence 'q' is over: 5 is committed")
        .when(begin(6, owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "commit sequence 'q' belongs to another role")
        .when(begin(6, owner="me"))
        .then(reply=Begun(1))
        .when(begin(0, commit_sequence="other"))
        .then(reply=Begun(2))
    )


def test_open_transactions_of_a_commit_sequence_end_with_it() -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    (
        story.when(begin(0))
        .when(begin(7))
        .when(ForgetCommitSequence("q"), now_ms=3)
        .then(
            events=[
                TransactionDecided(sequence=1, commit=False, at_ms=3),
                TransactionDecided(sequence=2, commit=False, at_ms=3),
            ],
            reply=LastInSequence(-1, dropped=(1, 2)),
        )
    )


def test_the_commit_sequence_of_a_transaction_survives_a_checkpoint() -> None:
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1)).when(begin(3)).when(Begin(10_000))
    segments = story.segments()
    again = MACHINE.restore(segments)
    assert again == story.state and (again.unfinished[1].series, again.unfinished[1].number) == (
        "q",
        3,
    )
    unfinished = [fields[:-2] for fields in json.loads(segments["unfinished"])]
    older = MACHINE.restore({**segments, "unfinished": json.dumps(unfinished).encode()})
    assert older.unfinished[2] == again.unfinished[2] and older.unfinished[1].series == ""

"""Series of commits: each number's transactions count together, once."""

from velaray.actors.coordinator import Begin, CoordinatorMachine, Decide, Finish
from velaray.actors.coordinator_state import Series, Status
from velaray.actors.kit import given
from velaray.actors.machine import Reason
from velaray.actors.series import CommitInSeries, ForgetSeries, InSeries, LastInSeries, LookUpSeries
from velaray.events.events_pb2 import (
    LedgerOpened,
    SeriesCommitted,
    SeriesForgotten,
    TransactionDecided,
)
from velaray.events.segments import bytes_of

MACHINE = CoordinatorMachine()


def begun(count: int, owner: str = ""):
    story = given(MACHINE, LedgerOpened(ledger_id=1, epoch=1))
    for _ in range(count):
        story.when(Begin(10_000, owner))
    return story


def test_one_event_commits_all_transactions_of_a_number() -> None:
    story = begun(3)
    (
        story.when(LookUpSeries("q"))
        .then(events=[], reply=LastInSeries(-1))
        .when(CommitInSeries("q", 0, [1, 3]), now_ms=5)
        .then(
            events=[SeriesCommitted(series="q", number=0, sequences=[1, 3], at_ms=5)],
            reply=InSeries(0, now=True),
        )
        .when(LookUpSeries("q"))
        .then(reply=LastInSeries(0))
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
        story.when(CommitInSeries("q", 7, [1]))
        .when(CommitInSeries("q", 7, [1]))
        .then(events=[], reply=InSeries(7, now=False))
        .when(Finish(1))
        .when(CommitInSeries("q", 7, [1, 2]), now_ms=9)
        .then(
            events=[TransactionDecided(sequence=2, commit=False, at_ms=9)],
            reply=InSeries(7, now=False),
        )
        .when(CommitInSeries("q", 6, [3]))
        .then(events=[TransactionDecided(sequence=3, commit=False)], reply=InSeries(6, now=False))
        .when(LookUpSeries("q"))
        .then(reply=LastInSeries(7))
    )
    assert story.state.status(1) == Status.COMMITTED


def test_a_number_with_a_transaction_that_is_over_changes_nothing() -> None:
    story = begun(2)
    (
        story.when(Decide(2, commit=False))
        .when(CommitInSeries("q", 0, [1, 2]))
        .then_refused(Reason.CONFLICT, "transaction 2 is ABORTING: number 0 of series 'q'")
        .when(CommitInSeries("q", 0, [1, 3]))
        .then_refused(Reason.NOT_FOUND, "no transaction 3")
        .when(CommitInSeries("", 0, [1]))
        .then_refused(Reason.INVALID, "needs a name")
        .when(CommitInSeries("q", 0, [1]))
        .then(reply=InSeries(0, now=True))
        .when(CommitInSeries("q", 4, []))
        .then(events=[SeriesCommitted(series="q", number=4)], reply=InSeries(4, now=True))
    )


def test_a_series_is_its_owners() -> None:
    story = begun(1, owner="me")
    (
        story.when(CommitInSeries("q", 0, [1], owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "transaction 1 is another role's")
        .when(CommitInSeries("q", 0, [1], owner="me"))
        .when(CommitInSeries("q", 1, [], owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "series 'q' is another role's")
        .when(ForgetSeries("q", owner="you"))
        .then_refused(Reason.NOT_ALLOWED, "series 'q' is another role's")
        .when(ForgetSeries("q", owner="me"))
        .then(events=[SeriesForgotten(series="q")], reply=LastInSeries(0))
        .when(ForgetSeries("q", owner="me"))
        .then(events=[], reply=LastInSeries(-1))
    )


def test_a_checkpoint_has_the_series() -> None:
    story = begun(1).when(CommitInSeries("q", 3, [1], owner="")).when(Finish(1))
    again = MACHINE.restore(bytes_of(MACHINE.snapshot(story.state)))
    assert again == story.state and again.series == {"q": Series("", 3)}

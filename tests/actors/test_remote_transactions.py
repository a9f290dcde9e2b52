"""Transactions of other clusters: stored, complete, arrived, judged, given up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.partition.machine import (
    PartitionMachine,
    Publish,
    Replicated,
)
from velaray.actors.partition.remote_transactions import (
    Arrive,
    Completion,
    EndRemote,
    ForgetRemote,
    Forgotten,
    GiveUp,
    Judged,
    Kept,
    RemoteEnded,
    TakeComplete,
    Taken,
    called_there,
    is_remote,
    name_of,
    remote_id,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.testing import History, drive, given
from velaray.events.events_pb2 import (
    ForeignTransactionArrived,
    ForeignTransactionComplete,
    ForeignTransactionEnded,
    ForeignTransactionForgotten,
    ForeignTransactionJudged,
    LedgerOpened,
    TransactionEnded,
)
from velaray.events.ids import Position, TransactionId

A, B = (remote_id("east", TransactionId(3, sequence)) for sequence in (7, 8))
TOPICS = ("a", "b", "c")
LEDGER = 1 << 52 | 5 << 24


def begun() -> History[PartitionState]:
    return given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))


def entry(at: int, transaction: TransactionId | None = None) -> Publish:
    replicated = Replicated("east", Position(LEDGER, at))
    return Publish("p", at, 0, 1, b"x", True, transaction=transaction, replicated=replicated)


def log(*transactions: TransactionId | None) -> History[PartitionState]:
    history = begun()
    for at, transaction in enumerate(transactions):
        history.when(entry(at, transaction))
    return history


def complete(transaction: TransactionId, at: int, topics=TOPICS) -> TakeComplete:
    return TakeComplete("east", [Completion(transaction, topics, Position(LEDGER, at))])


def of(transaction: TransactionId) -> dict[str, int]:
    return {"coordinator": transaction.coordinator, "sequence": transaction.sequence}


def hidden(state: PartitionState) -> list[tuple[int, int]]:
    return list(state.transactions.hidden)


# ---- names


def test_ids_of_transactions_of_different_clusters_differ() -> None:
    ours = TransactionId(3, 7)
    found = {remote_id(name, ours) for name in ("east", "north", "")} | {ours}
    assert len(found) == 4
    assert is_remote(A) and not is_remote(ours)
    assert not is_remote(TransactionId((1 << 16) - 1, (1 << 64) - 1))
    assert called_there(A) == ours
    assert remote_id("east", ours) == A
    assert A.coordinator < 1 << 63
    assert (name_of(A), name_of(ours)) == (
        "transaction (3,7) of another cluster",
        "transaction (3,7)",
    )


@pytest.mark.parametrize("bad", [(1 << 16, 1), (-1, 1), (0, 0)])
def test_an_invalid_transaction_has_no_remote_id(bad: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="no transaction of cluster 'east'"):
        remote_id("east", TransactionId(*bad))


# ---- a partition


def test_entries_are_undecided_until_the_transaction_ends() -> None:
    history = log(None, A, None, A).then_state(lambda state: state.max_read_offset == 1)
    history.when(complete(A, 3)).then(
        events=[
            ForeignTransactionComplete(
                **of(A), cluster="east", topics=TOPICS, source_ledger=LEDGER, source_entry=3
            )
        ],
        reply=Taken((A,)),
    )
    history.then_state(lambda state: state.max_read_offset == 1)
    history.when(EndRemote(A, commit=True, over=True)).then(
        events=[
            TransactionEnded(**of(A), commit=True),
            ForeignTransactionEnded(**of(A), commit=True, over=True),
        ],
        reply=RemoteEnded(True),
    )
    history.then_state(lambda state: state.max_read_offset == 4 and not state.arriving.complete)
    history.when(EndRemote(A, commit=True, over=True)).then(events=[], reply=RemoteEnded(False))
    history.then_state(lambda state: hidden(state) == [])


def test_a_repeated_completion_changes_nothing() -> None:
    history = log(A, B).when(complete(A, 0)).when(EndRemote(A, commit=True, over=True))
    history.when(complete(A, 0)).then(events=[], reply=Taken(()))
    both = [Completion(A, TOPICS, Position(LEDGER, 0)), Completion(B, TOPICS, Position(LEDGER, 1))]
    history.when(TakeComplete("east", both)).then(reply=Taken((B,)))
    history.when(TakeComplete("east", both)).then(events=[], reply=Taken(()))
    north = remote_id("north", TransactionId(3, 7))
    history.when(TakeComplete("north", [Completion(north, TOPICS, Position(LEDGER, 0))])).then(
        reply=Taken((north,))
    )


def test_a_transaction_of_one_partition_needs_no_deciding_partition() -> None:
    history = log(A, None).when(complete(A, 0, topics=["a"])).then(reply=Taken((A,)))
    history.then_state(lambda state: state.max_read_offset == 0)
    history.when(EndRemote(A, commit=True, over=True))
    history.then_state(lambda state: state.max_read_offset == 2 and not state.arriving.complete)


def test_a_transaction_without_entries_here_completes() -> None:
    history = begun().when(complete(A, 3)).then(reply=Taken((A,)))
    over = ForeignTransactionEnded(**of(A), commit=True, over=True)
    history.when(EndRemote(A, commit=True, over=True)).then(events=[over], reply=RemoteEnded(False))


def test_present_and_later_entries_of_an_abandoned_transaction_are_hidden() -> None:
    history = (
        log(A, None)
        .when(EndRemote(A, commit=False, over=False, judged=False))
        .then(
            events=[TransactionEnded(**of(A)), ForeignTransactionEnded(**of(A))],
            reply=RemoteEnded(True),
        )
    )
    history.then_state(lambda state: state.max_read_offset == 2)
    history.when(entry(2, A)).when(entry(3))
    history.then_state(lambda state: hidden(state) == [(0, 1), (2, 3)])
    history.then_state(lambda state: state.max_read_offset == 4)
    history.when(EndRemote(A, commit=False, over=False)).then(events=[], reply=RemoteEnded(False))
    history.when(EndRemote(A, commit=True, over=True)).then_refused(
        Reason.CONFLICT, "was given up here"
    )
    history.when(complete(A, 2)).then_state(lambda state: A in state.arriving.complete)
    history.then_state(lambda state: A in state.arriving.given_up)
    history.when(EndRemote(A, commit=False, over=False)).then(events=[])
    history.when(EndRemote(A, commit=False, over=True)).then(
        events=[ForeignTransactionEnded(**of(A), over=True)], reply=RemoteEnded(False)
    )
    history.then_state(lambda state: not state.arriving.given_up and not state.arriving.complete)
    history.when(EndRemote(A, commit=False, over=True)).then(events=[])


def test_a_transaction_abandoned_before_its_first_entry_stays_hidden() -> None:
    history = begun().when(EndRemote(A, commit=False, over=False)).when(entry(0, A)).when(entry(1))
    history.then_state(lambda state: hidden(state) == [(0, 1)] and state.max_read_offset == 2)


def test_only_the_deciding_partition_abandons_a_complete_transaction() -> None:
    history = log(A).when(complete(A, 0)).when(EndRemote(A, commit=False, over=False, judged=False))
    history.then_refused(Reason.CONFLICT, "ask its deciding partition")
    history.when(EndRemote(A, commit=False, over=False))
    history.then_state(lambda state: hidden(state) == [(0, 1)])
    history.then_state(lambda state: A in state.arriving.complete)  # still to be reported
    history.when(EndRemote(A, commit=False, over=True))
    history.then_state(lambda state: not state.arriving.given_up and not state.arriving.complete)


# ---- the deciding partition


def arrive(topic: str, *, given_up: bool = False, topics=TOPICS) -> Arrive:
    return Arrive(A, topic, topics, given_up)


def judged(*, commit: bool) -> ForeignTransactionJudged:
    return ForeignTransactionJudged(**of(A), commit=commit, topics=TOPICS)


def arrived(topic: str) -> ForeignTransactionArrived:
    return ForeignTransactionArrived(**of(A), topic=topic, topics=TOPICS)


@pytest.mark.parametrize("order", list(itertools.permutations(TOPICS)))
def test_a_transaction_is_released_when_it_is_complete_everywhere(order: tuple[str, ...]) -> None:
    history = begun()
    for topic in order[:2]:
        history.when(arrive(topic)).then(events=[arrived(topic)], reply=Judged(None))
        history.when(arrive(topic)).then(events=[], reply=Judged(None))
        history.when(ForgetRemote(A)).then_refused(Reason.CONFLICT, "may still come")
    history.when(arrive(order[2])).then(
        events=[arrived(order[2]), judged(commit=True)], reply=Judged(True)
    )
    history.when(GiveUp(A, TOPICS)).then(events=[], reply=Judged(True))
    history.when(arrive(order[0])).then(events=[], reply=Judged(True))
    history.when(ForgetRemote(A)).then(
        events=[ForeignTransactionForgotten(**of(A))], reply=Forgotten()
    )
    history.when(ForgetRemote(A)).then(events=[], reply=Forgotten())
    history.then_state(lambda state: not state.arriving.kept)


def test_an_abandoned_transaction_is_never_released() -> None:
    history = begun().when(arrive("a")).when(GiveUp(A, TOPICS))
    history.then(events=[judged(commit=False)], reply=Judged(False))
    history.when(GiveUp(A, TOPICS)).then(events=[], reply=Judged(False))
    for topic in ("b", "c"):
        history.when(ForgetRemote(A)).then_refused(Reason.CONFLICT)
        history.when(arrive(topic)).then(events=[arrived(topic)], reply=Judged(False))
    history.when(ForgetRemote(A)).then(reply=Forgotten())


def test_a_transaction_can_be_abandoned_before_it_arrives_anywhere() -> None:
    history = begun().when(GiveUp(A, TOPICS)).then(events=[judged(commit=False)])
    history.when(arrive("a")).then(events=[arrived("a")], reply=Judged(False))


def test_one_partition_that_abandons_a_transaction_decides_for_all() -> None:
    history = begun().when(arrive("a")).when(arrive("b", given_up=True))
    history.then(events=[arrived("b"), judged(commit=False)], reply=Judged(False))
    history.when(arrive("c")).then(reply=Judged(False))


def test_a_deciding_partition_that_abandons_a_transaction_decides_for_all() -> None:
    history = begun().when(arrive("b")).when(EndRemote(A, commit=False, over=False, judged=False))
    history.when(arrive("b")).then(events=[judged(commit=False)], reply=Judged(False))


def test_an_arrival_that_contradicts_known_participants_is_refused() -> None:
    history = begun().when(arrive("z")).then_refused(Reason.INVALID, "not z")
    history.when(arrive("a")).when(arrive("b", topics=("a", "b")))
    history.then_refused(Reason.INVALID, "goes to ('a', 'b', 'c')")


# ---- any history

COMMANDS = st.lists(
    st.one_of(
        st.builds(entry, st.integers(0, 9), st.sampled_from([None, A, B])),
        st.builds(
            complete,
            st.sampled_from([A, B]),
            st.integers(0, 9),
            st.sampled_from([TOPICS, ("a",)]),
        ),
        st.builds(EndRemote, st.sampled_from([A, B]), *[st.booleans()] * 3),
        st.builds(
            Arrive, st.sampled_from([A, B]), st.sampled_from(TOPICS), st.just(TOPICS), st.booleans()
        ),
        st.builds(GiveUp, st.sampled_from([A, B]), st.just(TOPICS)),
        st.builds(ForgetRemote, st.sampled_from([A, B])),
    ),
    max_size=25,
)


class Begun(PartitionMachine):
    """Its ledger is open from the start."""

    def initial(self) -> PartitionState:
        state = super().initial()
        state.table.open(1)
        return state


@settings(max_examples=80, deadline=None)
@examples(COMMANDS)
def test_any_history_replays_and_keeps_the_invariants(commands: list) -> None:
    drive(Begun(), commands)


def test_a_snapshot_without_remote_transactions_has_the_old_form() -> None:
    history = log(None, None)
    assert "arriving" not in history.machine.snapshot(history.state)


# ---- invariants


def _ours(state: PartitionState) -> None:
    state.arriving.complete[TransactionId(3, 7)] = TOPICS


def _ongoing(state: PartitionState) -> None:
    state.arriving.given_up.add(A)


def _elsewhere(state: PartitionState) -> None:
    state.arriving.kept[A] = Kept(TOPICS, {"z"})


def _early(state: PartitionState) -> None:
    state.arriving.kept[A] = Kept(TOPICS, {"a"}, commit=True)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_ours, "complete transactions are remote and have participants"),
        (_ongoing, "abandoned transactions aren't ongoing"),
        (_elsewhere, "it arrives where it goes"),
        (_early, "released transactions have arrived everywhere"),
    ],
)
def test_a_broken_invariant_is_named(damage, name: str) -> None:
    history = log(A)
    damage(history.state)
    with pytest.raises(InvariantViolation, match=name):
        history.machine.check(history.state)

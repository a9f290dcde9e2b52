"""Committed transactions that go to other clusters, until these know that they have all."""

from __future__ import annotations

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.partition import outgoing_transactions
from velaray.actors.partition.machine import (
    CreateSubscription,
    DeleteSubscription,
    PartitionMachine,
    Publish,
    StartAt,
)
from velaray.actors.partition.outgoing_transactions import (
    Confirmed,
    ConfirmReplicated,
    Named,
    NameParticipants,
)
from velaray.actors.partition.state import PartitionState
from velaray.actors.partition.transactions import Ended, EndTransaction
from velaray.actors.testing import History, drive, given
from velaray.events.events_pb2 import (
    ClusterParticipants,
    LedgerOpened,
    ParticipantsNamed,
    TransactionEnded,
    TransactionsReplicated,
)
from velaray.events.ids import Position, TransactionId

A, B, C = TransactionId(0, 7), TransactionId(0, 3), TransactionId(1, 7)
WEST, NORTH = "pulsar.repl.west", "pulsar.repl.north"


def begun(*replicators: str) -> History[PartitionState]:
    history = given(PartitionMachine(), LedgerOpened(ledger_id=9, epoch=1))
    for name in replicators:
        history.when(CreateSubscription(name, StartAt.EARLIEST))
    return history


def entry(transaction: TransactionId | None = None) -> Publish:
    return Publish("p", 0, 0, 1, b"x", False, transaction=transaction)


def commit(transaction: TransactionId, *, alone: bool = False) -> EndTransaction:
    return EndTransaction(transaction, True, alone)


def waiting(state: PartitionState) -> dict[int, list[str]]:
    return {number: each.waiting for number, each in state.outgoing.by_number.items()}


def test_a_partition_without_replication_stores_nothing_about_transactions() -> None:
    history = begun("s").when(entry(A))
    history.when(commit(A)).then(
        events=[TransactionEnded(coordinator=0, sequence=7, commit=True)], reply=Ended(((0, 1),), 1)
    )
    assert history.events[-1].SerializeToString() == b"\x10\x07\x18\x01"
    assert not [name for name in history.machine.snapshot(history.state) if "outgoing" in name]


def test_a_committed_transaction_waits_for_its_target_clusters() -> None:
    event = TransactionEnded(coordinator=0, sequence=7, commit=True, clusters=["north", "west"])
    history = begun(WEST, "s", NORTH).when(entry(A)).when(entry()).when(entry(A))
    history.when(commit(A)).then(
        events=[event], reply=Ended(((0, 1), (2, 3)), 3, ("north", "west"))
    )
    (known,) = history.state.outgoing.by_number.values()
    assert (known.last, known.position) == (2, Position(9, 2))
    assert (known.waiting, known.participants) == (["north", "west"], None)


def test_a_repeated_commit_gets_the_same_answer_until_the_participants_are_known() -> None:
    history = begun(WEST).when(entry(A)).when(commit(A))
    history.when(commit(A)).then(events=[], reply=Ended((), 1, ("west",)))
    history.when(NameParticipants(A, {"west": ["a", "b"]}))
    history.when(commit(A)).then(events=[], reply=Ended((), 1))


def test_an_aborted_transaction_is_not_replicated() -> None:
    history = begun(WEST).when(entry(A)).when(EndTransaction(A, commit=False))
    history.then(events=[TransactionEnded(coordinator=0, sequence=7)], reply=Ended(((0, 1),), 1))
    assert not history.state.outgoing


def test_a_single_participant_is_recorded_as_the_only_one() -> None:
    ended = {"coordinator": 0, "sequence": 7, "commit": True}
    history = begun(WEST).when(entry(A)).when(commit(A, alone=True))
    history.then(
        events=[TransactionEnded(**ended, clusters=["west"], alone=True)],
        reply=Ended(((0, 1),), 1),
    )
    assert history.state.outgoing.by_number[1].participants == {}


def test_participants_are_named_once_and_only_for_waiting_clusters() -> None:
    clusters = {"west": ["a", "b"], "south": ["a", "c"]}
    named = ParticipantsNamed(
        coordinator=0,
        sequence=7,
        clusters=[
            ClusterParticipants(cluster="north"),
            ClusterParticipants(cluster="west", topics=["a", "b"]),
        ],
    )
    history = begun(WEST, NORTH).when(entry(A)).when(commit(A))
    history.when(NameParticipants(A, clusters)).then(events=[named], reply=Named())
    history.when(NameParticipants(A, {"west": ["z"]})).then(events=[], reply=Named())
    history.when(NameParticipants(B, clusters)).then(events=[], reply=Named())


def test_a_transaction_confirmed_by_all_clusters_is_dropped() -> None:
    history = begun(WEST, NORTH)
    for transaction in (A, B):
        history.when(entry(transaction)).when(commit(transaction))
    history.when(ConfirmReplicated("west", [1, 2, 5])).then(
        events=[TransactionsReplicated(cluster="west", numbers=[1, 2])], reply=Confirmed()
    )
    assert waiting(history.state) == {1: ["north"], 2: ["north"]}
    history.when(ConfirmReplicated("west", [1, 2])).then(events=[], reply=Confirmed())
    history.when(ConfirmReplicated("south", [1, 2])).then(events=[], reply=Confirmed())
    history.when(ConfirmReplicated("north", [2]))
    assert waiting(history.state) == {1: ["north"]}
    history.when(commit(B)).then(events=[], reply=Ended((), 2))
    history.when(ConfirmReplicated("north", [1]))
    assert not history.state.outgoing


def test_transaction_numbers_are_never_reused() -> None:
    history = begun(WEST).when(entry(A)).when(commit(A)).when(ConfirmReplicated("west", [1]))
    history.when(entry(B)).when(commit(B)).then_state(lambda state: waiting(state) == {2: ["west"]})


def test_a_cluster_gets_no_transaction_from_before_its_replicator_started() -> None:
    history = begun(WEST).when(entry(A)).when(entry(B))
    history.when(CreateSubscription(NORTH, 1)).when(CreateSubscription("pulsar.repl.x", 2))
    history.when(commit(A)).when(commit(B))
    assert waiting(history.state) == {1: ["west"], 2: ["north", "west"]}


def test_a_removed_target_cluster_is_not_waited_for() -> None:
    history = begun(WEST, NORTH, "s")
    for transaction in (A, B):
        history.when(entry(transaction)).when(commit(transaction))
    history.when(ConfirmReplicated("north", [1]))
    history.when(DeleteSubscription("s")).when(DeleteSubscription(WEST))
    assert waiting(history.state) == {2: ["north"]}
    history.when(entry(C)).when(commit(C)).when(CreateSubscription(WEST, StartAt.EARLIEST))
    assert waiting(history.state) == {2: ["north"], 3: ["north"]}


def test_a_cluster_gets_its_missing_transactions() -> None:
    history = begun(WEST)
    for sequence in range(1, 5):
        transaction = TransactionId(0, sequence)
        history.when(entry(transaction)).when(commit(transaction))
    history.when(ConfirmReplicated("west", [3]))
    assert [each.number for each in history.state.outgoing.after(1, "west")] == [2, 4]
    assert list(history.state.outgoing.after(0, "north")) == []


def test_a_checkpoint_writes_only_the_blocks_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_transactions, "BLOCK", 4)
    history, machine = begun(WEST), PartitionMachine()
    for sequence in range(1, 12):
        transaction = TransactionId(0, sequence)
        history.when(entry(transaction)).when(commit(transaction))
    state = history.state
    contents = history.contents
    machine.on_checkpoint(state, contents.store(machine.snapshot(state)))
    machine.evolve(state, TransactionsReplicated(cluster="west", numbers=[5, 1, 2, 3]))
    found = machine.snapshot(state)
    fresh = {name for name, body in found.items() if isinstance(body, bytes)}
    blocks = {name for name in found if name.startswith("outgoing/")}
    assert (blocks, blocks & fresh) == ({"outgoing/1", "outgoing/2"}, {"outgoing/1"})
    assert machine.restore(contents.bytes_of(found)) == state


COMMANDS = st.lists(
    st.one_of(
        st.sampled_from([None, A, B, C]).map(entry),
        st.builds(EndTransaction, st.sampled_from([A, B, C]), st.booleans(), st.booleans()),
        st.builds(
            NameParticipants,
            st.sampled_from([A, B, C]),
            st.just({"west": ["a", "b"], "north": ["a"]}),
        ),
        st.builds(
            ConfirmReplicated,
            st.sampled_from(["west", "north"]),
            st.lists(st.integers(1, 6), unique=True),
        ),
        st.builds(CreateSubscription, st.sampled_from([WEST, NORTH]), st.sampled_from(StartAt)),
        st.builds(DeleteSubscription, st.sampled_from([WEST, NORTH])),
    ),
    max_size=25,
)


class Begun(PartitionMachine):
    """Its ledger is open from the start."""

    def initial(self) -> PartitionState:
        state = super().initial()
        state.table.open(9)
        return state


@settings(max_examples=60, deadline=None)
@examples(COMMANDS)
def test_any_history_replays_and_keeps_the_invariants(commands: list) -> None:
    drive(Begun(), commands)


def _unknown(state: PartitionState) -> None:
    state.outgoing.numbers[C] = 9


def _disordered(state: PartitionState) -> None:
    first, second = state.outgoing.by_number.values()
    state.outgoing.by_number = {2: second, 1: first}


def _ahead(state: PartitionState) -> None:
    state.outgoing.next_number = 2


def _nobody(state: PartitionState) -> None:
    state.outgoing.by_number[1].waiting.clear()


def _beyond(state: PartitionState) -> None:
    state.outgoing.by_number[2].last = 2


def _no_subscription(state: PartitionState) -> None:
    state.outgoing.replicators["north"] = 0


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_unknown, "outgoing transactions are found by number and name"),
        (_disordered, "they are in their order"),
        (_ahead, "numbers are never reused"),
        (_nobody, "a cluster waits for each of them"),
        (_beyond, "the last entry is stored"),
        (_no_subscription, "replicators are subscriptions"),
    ],
)
def test_a_broken_invariant_is_named(damage, name: str) -> None:
    history = begun(WEST)
    for transaction in (A, B):
        history.when(entry(transaction)).when(commit(transaction))
    damage(history.state)
    with pytest.raises(InvariantViolation, match=name):
        history.machine.check(history.state)

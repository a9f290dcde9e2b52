"""Limits of the inputs of machines and their sets."""

from itertools import pairwise

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from tests.actors.test_catalog import DEFAULT, policy_set, started
from tests.actors.test_dispatch import consumer, dispatcher, got
from tests.actors.test_partition import chunk, partition, publish, stored
from tests.actors.toy import Add, Drop, Names, Toy
from velaray.actors.catalog.machine import Done, RemovePolicy, SetPolicy
from velaray.actors.catalog.state import CLUSTER, effective_policy
from velaray.actors.machine import Reason
from velaray.actors.partition.interleaving import Interleaving
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.machine import Damaged, Duplicate, Terminate, last_sequence_id
from velaray.actors.sets import entry_holdings
from velaray.actors.sets.entry_holdings import EntryHoldings
from velaray.actors.sets.holdings import Holdings
from velaray.actors.sets.ranges import RangeSet, normalized
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.testing import given

SETS = [Cursor(3), Interleaving(3), LedgerTable([(7, 0)], 3), RangeSet([(1, 3)])]


@pytest.mark.parametrize("made", SETS, ids=lambda made: type(made).__name__)
def test_value_objects_equal_only_their_own_type_and_are_unhashable(made) -> None:
    others = [other for other in SETS if other is not made]
    assert all(made != other for other in [*others, None, 3, "text"])
    assert made == made
    assert [made in others, made in SETS] == [False, True]
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


@examples(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_normalized_ranges_hold_the_same_offsets(ranges) -> None:
    made = normalized(ranges)
    expected = {offset for first, end in ranges for offset in range(first, end)}
    assert [offset for first, end in made for offset in range(first, end)] == sorted(expected)
    assert all(end < first for (_, end), (first, _) in pairwise(made))
    assert all(first < end for first, end in made)


HOLDINGS = pytest.mark.parametrize("held", [Holdings(), EntryHoldings()], ids=["runs", "entries"])


@HOLDINGS
@pytest.mark.parametrize("owner", [None, 1, 2, 3])
def test_only_entries_of_the_named_owner_are_taken(held, owner) -> None:
    held.clear()
    for first, end, whose in ((0, 10, 1), (10, 20, 2), (20, 30, 1), (40, 50, 2)):
        held.give(first, end, whose)
    before = {offset: held.owner_of(offset) for offset in range(60)}
    taken = held.take(5, 45, owner)
    expected = {
        offset
        for offset in range(5, 45)
        if before[offset] is not None and owner in (None, before[offset])
    }
    assert {offset for first, end, _ in taken for offset in range(first, end)} == expected
    for offset, whose in before.items():
        assert held.owner_of(offset) == (None if offset in expected else whose)
    held.check()


@HOLDINGS
def test_adjacent_ranges_of_one_owner_merge(held) -> None:
    held.clear()
    for first, end, whose in ((0, 5, 1), (10, 15, 1), (15, 20, 2), (5, 10, 1), (20, 25, 1)):
        held.give(first, end, whose)
    assert list(held) == [(0, 15, 1), (15, 20, 2), (20, 25, 1)]
    assert held.take(0, 15, 1) == [(0, 15, 1)]
    held.check()


@examples(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 25), st.sampled_from([None, 1, 2, 3])),
        max_size=12,
    )
)
def test_holdings_by_entry_answer_as_those_by_range(steps) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_holdings, "PAGE", 8)
        runs, entries = Holdings(), EntryHoldings()
        for first, count, owner in steps:
            end = first + count
            if owner is not None and not runs.within(first, end):
                runs.give(first, end, owner)
                entries.give(first, end, owner)
            elif owner is None:
                offsets = range(first, end, 2)
                taken = [runs.owner_of(offset) for offset in offsets]
                assert entries.take_each(entry_holdings.places_of(offsets)) == taken
                for offset in offsets:
                    runs.take(offset, offset + 1)
            else:
                assert entries.take(first, end, owner) == runs.take(first, end, owner)
            entries.check()
            assert list(entries) == list(runs)
            assert entries.of(1) == runs.of(1)
            assert [entries.owner_of(at) for at in range(70)] == list(map(runs.owner_of, range(70)))


def test_permits_are_never_negative() -> None:
    made = dispatcher(5, 2)
    with pytest.raises(ValueError, match="-1 permits"):
        made.flow(0, -1)
    made.flow(0, 0)
    assert got(made.dispatch(), 0) == [0, 1]
    made.attach(consumer(1))
    made.flow(1, 9)
    assert got(made.dispatch(), 1) == [2, 3, 4]


def test_a_removed_policy_leaves_the_others_of_its_scope() -> None:
    (
        started(policy_set(DEFAULT, "messageTTL", b"5"))
        .when(SetPolicy(DEFAULT, "maxTopicsPerNamespace", b"7"))
        .when(RemovePolicy(DEFAULT, "messageTTL"))
        .then(reply=Done(True))
        .then_state(lambda state: state.policies == {DEFAULT: {"maxTopicsPerNamespace": b"7"}})
        .when(RemovePolicy(DEFAULT, "maxTopicsPerNamespace"))
        .then_state(lambda state: state.policies == {})
    )


def test_the_policy_of_the_cluster_is_read_alone() -> None:
    (
        started(policy_set(DEFAULT, "messageTTL", b"5"), policy_set(CLUSTER, "messageTTL", b"60"))
        .when(RemovePolicy(DEFAULT, "nothing"))
        .then_refused(Reason.INVALID)
        .then_state(lambda state: effective_policy(state, CLUSTER, "messageTTL") == 60)
        .then_state(lambda state: effective_policy(state, DEFAULT, "messageTTL") == 5)
    )


def test_a_damaged_entry_is_refused_in_order_and_changes_nothing() -> None:
    (
        partition()
        .when(publish(0))
        .when(Damaged("the checksum is wrong"))
        .then_refused(Reason.INVALID, "the checksum is wrong")
        .then(events=[], effects=[], blob=None)
        .when(publish(1))
        .then(reply=stored(1))
        .when(Terminate())
        .when(Damaged("the checksum is wrong"))
        .then_refused(Reason.INVALID)
    )


def test_an_earlier_message_does_not_end_a_later_incomplete_one() -> None:
    (
        partition()
        .when(publish(9, chunk=chunk(0)))
        .when(publish(5))
        .then(reply=stored(1))
        .then_state(lambda state: last_sequence_id(state, "p") == 5)
        .when(publish(9, chunk=chunk(0)))
        .then(events=[], reply=Duplicate(9))
        .when(publish(9, chunk=chunk(1)))
        .when(publish(9, chunk=chunk(2)))
        .then(reply=stored(3))
        .then_state(lambda state: last_sequence_id(state, "p") == 9)
        .when(publish(9, chunk=chunk(2)))
        .then(events=[], reply=Duplicate(9))
    )


class Plain:
    """A state that has no value of its own: two of the same content aren't equal."""

    def __init__(self, names: Names) -> None:
        self.names, self.ledgers = names.names, names.ledgers


class PlainToy(Toy):
    def initial(self):
        return Plain(super().initial())

    def restore(self, segments):
        return Plain(super().restore(segments))


def test_a_state_without_equality_is_compared_by_its_snapshots() -> None:
    (
        given(PlainToy())
        .when(Add("a"))
        .when(Add("b"))
        .when(Drop("a"))
        .then(reply=1)
        .then_state(lambda state: state.names == ["b"])
    )

    class Forgets(PlainToy):
        def restore(self, segments):
            state = super().restore(segments)
            state.names = state.names[:1]
            return state

    with pytest.raises(AssertionError, match=r"restore\(snapshot\(state\)\) differs"):
        given(Forgets()).when(Add("a")).when(Add("b"))

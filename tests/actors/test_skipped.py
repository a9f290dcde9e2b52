"""Sequence ids that a producer skipped: they may still come, and are no duplicates."""

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation
from velaray.actors.partition.machine import (
    Chunk,
    Duplicate,
    FindProducer,
    PartitionMachine,
    ProducerAt,
    Publish,
    Published,
    last_sequence_id,
)
from velaray.actors.partition.producer_transfer import AdoptProducers, read_rows, rows_of
from velaray.actors.partition.skipped_sequence_ids import WINDOW, Skipped, from_fields, to_fields
from velaray.actors.partition.state import PartitionState
from velaray.actors.partition.transactions import EndTransaction
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import EntryAppended, LedgerOpened
from velaray.events.ids import TransactionId


def partition() -> History[PartitionState]:
    return given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))


def sent(first: int, highest: int = 0, messages: int = 1, chunk=None, transaction=None) -> Publish:
    """By a producer whose client doesn't send in the order of its ids."""
    return Publish(
        "p", first, highest, messages, b"e", True, chunk, transaction=transaction, exact=True
    )


def named(sequence_id: int, deliver_at_ms: int = 0) -> Publish:
    return Publish("p", sequence_id, 0, 1, b"e", True, deliver_at_ms=deliver_at_ms)


def is_stored(script: History[PartitionState], *commands: Publish) -> None:
    for command in commands:
        assert isinstance(script.when(command).reply, Published), command


def is_known(script: History[PartitionState], *commands: Publish) -> None:
    for command in commands:
        script.when(command).then(events=[], reply=Duplicate(command.sequence_id))


# ---- entries


def test_an_entry_that_was_overtaken_is_no_duplicate() -> None:
    script = partition()
    is_stored(script, sent(0), sent(5), sent(2), sent(1))
    is_known(script, sent(0), sent(5), sent(2), sent(1))
    is_stored(script, sent(4), sent(6), sent(3))
    is_known(script, *(sent(number) for number in range(7)))


def test_without_a_highest_id_only_the_first_id_of_a_batch_is_known() -> None:
    """The C++ client's batches by key: 0, 3 and 6, 1 and 4, 2 and 5, behind a delayed message."""
    flush = [sent(7), sent(0, messages=3), sent(1, messages=2), sent(2, messages=2), sent(8)]
    script = partition()
    is_stored(script, *flush)
    is_known(script, *flush)


def test_the_ids_that_a_batch_names_are_known() -> None:
    script = partition()
    is_stored(script, sent(9), sent(2, highest=6, messages=5))
    is_known(script, sent(2, highest=6, messages=5), sent(4))
    is_stored(script, sent(1), sent(7))


def test_a_client_that_counts_anew_still_sends_what_it_holds() -> None:
    beyond = 1 << 32
    held = [sent(number, messages=10) for number in range(0, 100, 10)]
    script = partition()
    is_stored(script, *held[:4])
    is_known(script, *held[:4])
    is_stored(script, *held[4:7], sent(beyond), *held[7:], sent(beyond + 1))
    is_known(script, *held, sent(beyond), sent(beyond + 1))


def test_an_entry_in_order_costs_nothing() -> None:
    in_order = EntryAppended(producer=1, sequence_id=1)
    partition().when(sent(0)).when(sent(1)).then(events=[in_order])
    overtaking = EntryAppended(producer=1, sequence_id=3, skipped=1)
    partition().when(sent(0)).when(sent(1)).when(sent(3)).then(events=[overtaking])


def test_chunks_may_be_overtaken() -> None:
    chunks = [sent(1, chunk=Chunk("u", number, 3)) for number in range(3)]
    script = partition()
    is_stored(script, sent(0), sent(2), *chunks[:2])
    is_known(script, *chunks[:2])
    is_stored(script, chunks[2])
    is_known(script, *chunks, sent(2))
    is_stored(script, sent(3))


def test_a_chunk_may_overtake() -> None:
    chunks = [sent(3, chunk=Chunk("u", number, 2)) for number in range(2)]
    script = partition()
    is_stored(script, chunks[0], chunks[1], sent(2), sent(0))
    is_known(script, *chunks, sent(2), sent(0))
    is_stored(script, sent(1), sent(4))


def test_an_abort_releases_sequence_ids_sent_and_skipped_in_its_transaction() -> None:
    transaction = TransactionId(1, 1)
    script = partition()
    is_stored(script, sent(0), sent(4), sent(8, transaction=transaction))
    script.when(EndTransaction(transaction, False, False))
    script.then_state(lambda state: last_sequence_id(state, "p") == 4)
    is_stored(script, sent(8), sent(6), sent(3))


# ---- producers with a name of their own


def test_a_named_producer_may_send_late_only_ids_that_a_delayed_message_skipped() -> None:
    script = partition()
    is_stored(script, named(0), named(5))
    is_known(script, named(3))
    is_stored(script, named(9, deliver_at_ms=10), named(7), named(6), named(10))
    is_known(script, named(7), named(3), named(9))
    is_stored(script, named(8))


def test_ids_that_a_producer_skipped_are_not_accepted_from_its_successor() -> None:
    script = partition()
    is_stored(script, named(0), named(9, deliver_at_ms=10))
    script.when(FindProducer("p")).then(events=[], reply=ProducerAt(9, 0))
    script.when(FindProducer("p", anew=True)).then(reply=ProducerAt(9, 0))
    script.when(FindProducer("p", anew=True)).then(events=[], reply=ProducerAt(9, 0))
    is_known(script, named(5), named(9))
    is_stored(script, named(10))


# ---- producers that move


def test_skipped_ids_move_with_their_producer() -> None:
    source = partition()
    is_stored(source, sent(0), sent(5), sent(3))
    target = partition().when(AdoptProducers(read_rows([list(r) for r in rows_of(source.state)])))
    is_known(target, sent(0), sent(5), sent(3))
    is_stored(target, sent(1), sent(4), sent(6), sent(2))
    target.when(AdoptProducers(rows_of(source.state))).then(events=[])


def test_only_ids_that_neither_cluster_has_seen_are_still_accepted() -> None:
    source, target = partition(), partition()
    is_stored(source, sent(0), sent(6))
    is_stored(target, sent(0), sent(2), sent(9))
    target.when(AdoptProducers(rows_of(source.state)))
    is_known(target, sent(0), sent(2), sent(6), sent(9))
    is_stored(target, sent(1), sent(3), sent(5), sent(7), sent(8), sent(4))


def test_rows_without_skipped_ids_can_be_read() -> None:
    (row,) = read_rows([["p", 1, 7, [-1, "", -1], None]])
    assert row.skipped == ()


# ---- the set


@settings(max_examples=200, deadline=None)
@examples(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(1, 5))))
def test_skipped_ids_behave_like_a_set(steps) -> None:
    found, expected, end = Skipped(), set(), 0
    for gap, first, length in steps:
        if gap:
            found.add(end + 1, end + 1 + gap)
            expected |= set(range(end + 1, end + 1 + gap))
            end += 1 + gap
        found.remove(first, first + length)
        expected -= set(range(first, first + length))
        found.check()
        assert {number for number in range(end + 9) if number in found} == expected
        assert from_fields(to_fields(found)) == found
        assert found.end == max(expected, default=-1) + 1
    found.cut(20)
    assert {number for number in range(end + 9) if number in found} == {
        number for number in expected if number < 20
    }


def test_the_number_of_kept_runs_is_limited() -> None:
    found = Skipped((2 * number, 2 * number + 1) for number in range(WINDOW + 3))
    assert len(list(found)) == WINDOW
    assert 4 not in found
    assert 6 in found


def test_runs_that_do_not_ascend_are_named() -> None:
    with pytest.raises(InvariantViolation, match="ascending"):
        Skipped([(5, 6), (3, 4)]).check()


@settings(max_examples=60, deadline=None)
@examples(st.permutations(range(12)), st.lists(st.integers(1, 11)))
def test_messages_sent_in_any_order_and_repeated_are_stored_once(order, crashes) -> None:
    """A client sends in an order of its own; at each crash it sends again from some place on."""
    script, stored = partition(), []
    begin = 0
    for crash in [*sorted(crashes), 12]:
        for number in order[max(begin - 3, 0) : crash]:
            if isinstance(script.when(sent(number)).reply, Published):
                stored.append(number)
        begin = crash
    assert sorted(stored) == list(range(12))

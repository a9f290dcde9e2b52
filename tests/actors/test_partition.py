"""The partition machine and its ledger table."""

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.partition.interleaving import WINDOW, Interleaving
from velaray.actors.partition.ledger_table import LedgerRun, LedgerTable, NoSuchEntryError
from velaray.actors.partition.machine import (
    Chunk,
    ConfirmSwept,
    CreateSubscription,
    DeleteSubscription,
    Duplicate,
    ExpireProducers,
    FindProducer,
    ForgetProducer,
    Forgotten,
    PartitionMachine,
    Publish,
    Published,
    RaiseTopicEpoch,
    StartAt,
    Swept,
    Terminate,
    Terminated,
    TopicEpoch,
    last_sequence_id,
)
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.partition.subscription_properties import PropertiesAre, SetProperty
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import (
    CursorCreated,
    EntryAppended,
    LedgerOpened,
    ProducerForgotten,
    ProducerRegistered,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPropertiesSet,
    SubscriptionSwept,
    TopicEpochRaised,
    TopicTerminated,
)
from velaray.events.ids import EARLIEST, LATEST, Position


def opened(ledger_id: int = 100) -> LedgerOpened:
    return LedgerOpened(ledger_id=ledger_id, epoch=1)


def publish(sequence_id, highest=0, messages=1, producer="p", dedup=True, chunk=None) -> Publish:
    return Publish(producer, sequence_id, highest, messages, b"entry", dedup, chunk)


def partition():
    return given(PartitionMachine(), opened())


def stored(offset: int, entry: int | None = None, ledger: int = 100, messages: int = 1):
    return Published(offset, Position(ledger, offset if entry is None else entry), messages)


# ---- publishing


def test_the_first_entry_registers_its_producer() -> None:
    (
        partition()
        .when(publish(0), now_ms=5)
        .then(
            events=[
                ProducerRegistered(producer=1, name="p", at_ms=5),
                EntryAppended(producer=1, sequence_id=0, at_ms=5),
            ],
            reply=stored(0),
            blob=b"entry",
        )
        .when(publish(1), now_ms=6)
        .then(events=[EntryAppended(producer=1, sequence_id=1, at_ms=6)], reply=stored(1))
        .when(publish(0, producer="q"))
        .then(reply=stored(2))
        .then_state(lambda state: last_sequence_id(state, "p") == 1)
        .then_state(lambda state: last_sequence_id(state, "q") == 0)
        .then_state(lambda state: last_sequence_id(state, "r") == -1)
    )


def test_entry_ids_start_again_with_each_ledger() -> None:
    history = partition().when(publish(0)).when(publish(1))
    again = given(PartitionMachine(), *history.events, opened(101), opened(102))
    again.when(publish(2)).then(reply=stored(2, 0, 102))


def test_a_batch_is_compared_by_its_highest_sequence_id() -> None:
    (
        partition()
        .when(publish(0, 9, messages=10))
        .then(reply=stored(0, messages=10))
        .then_state(lambda state: last_sequence_id(state, "p") == 9)
        .when(publish(5, 9))
        .then(events=[], reply=Duplicate(5), blob=None)
        .when(publish(5, 10))
        .then(reply=stored(1))
    )


def test_without_deduplication_everything_is_stored_and_the_maximum_kept() -> None:
    (
        partition()
        .when(publish(7, dedup=False))
        .when(publish(7, dedup=False))
        .then(reply=stored(1))
        .when(publish(3, dedup=False))
        .then(reply=stored(2))
        .then_state(lambda state: last_sequence_id(state, "p") == 7)
        .when(publish(7))
        .then(reply=Duplicate(7))
    )


def test_duplicates_are_known_by_name_across_ledgers() -> None:
    history = partition().when(publish(4))
    again = given(PartitionMachine(), *history.events, opened(101))
    again.when(publish(4)).then(events=[], reply=Duplicate(4))


def chunk(number: int, uuid: str = "m", chunks: int = 3) -> Chunk:
    return Chunk(uuid, number, chunks)


def test_chunks_that_are_sent_again_are_stored_once() -> None:
    (
        partition()
        .when(publish(4, chunk=chunk(0)))
        .then(reply=stored(0))
        .when(publish(4, chunk=chunk(1)))
        .then(
            events=[EntryAppended(producer=1, sequence_id=4, chunk_uuid="m", chunk_id=1, chunks=3)]
        )
        .then_state(lambda state: last_sequence_id(state, "p") == -1)
        .when(publish(4, chunk=chunk(0)))
        .then(events=[], reply=Duplicate(4))
        .when(publish(4, chunk=chunk(1)))
        .then(events=[], reply=Duplicate(4))
        .when(publish(4, chunk=chunk(2)))
        .then(reply=stored(2))
        .then_state(lambda state: last_sequence_id(state, "p") == 4)
        .when(publish(4, chunk=chunk(2)))
        .then(events=[], reply=Duplicate(4))
        .when(publish(4, chunk=chunk(0)))
        .then(events=[], reply=Duplicate(4))
        .when(publish(5, chunk=chunk(0, "n")))
        .then(reply=stored(3))
    )


def test_a_chunked_message_that_starts_again_is_another_message() -> None:
    (
        partition()
        .when(publish(4, chunk=chunk(0)))
        .when(publish(4, chunk=chunk(1)))
        .when(publish(4, chunk=chunk(0, "later")))
        .then(reply=stored(2))
        .when(publish(4, chunk=chunk(1, "later")))
        .then(reply=stored(3))
        .when(publish(4, chunk=chunk(2, "later")))
        .then(reply=stored(4))
        .then_state(lambda state: last_sequence_id(state, "p") == 4)
    )


def test_a_later_message_ends_a_half_sent_one() -> None:
    (
        partition()
        .when(publish(4, chunk=chunk(0)))
        .when(publish(6))
        .when(publish(4, chunk=chunk(1)))
        .then(events=[], reply=Duplicate(4))
    )


@pytest.mark.parametrize(
    "command",
    [
        publish(0, messages=0),
        publish(0, chunk=Chunk("", 0, 2)),
        publish(0, chunk=Chunk("m", 2, 2)),
        publish(0, chunk=Chunk("m", -1, 2)),
    ],
)
def test_invalid_commands_are_refused(command) -> None:
    partition().when(command).then_refused(Reason.INVALID)


def test_nothing_is_stored_before_a_ledger_is_open() -> None:
    given(PartitionMachine()).when(publish(0)).then_refused(Reason.UNAVAILABLE)


def test_a_memoryview_is_passed_on_unchanged() -> None:
    blob = memoryview(b"entry")
    history = partition().when(Publish("p", 0, 0, 1, blob, False))
    assert history.last is not None and history.last.blob is blob


# ---- termination and epochs


def test_a_terminated_partition_refuses_entries() -> None:
    (
        partition()
        .when(publish(0))
        .when(Terminate())
        .then(events=[TopicTerminated()], reply=Terminated(1, Position(100, 0)))
        .when(publish(1))
        .then_refused(Reason.TERMINATED)
        .when(publish(1, dedup=False))
        .then_refused(Reason.TERMINATED)
        .when(publish(0))
        .then(events=[], reply=Duplicate(0))
        .when(Terminate())
        .then(events=[], reply=Terminated(1, Position(100, 0)))
    )


def test_an_empty_partition_can_be_terminated() -> None:
    partition().when(Terminate()).then(reply=Terminated(0, Position(100, -1)))


def test_topic_epochs_rise() -> None:
    (
        partition()
        .when(RaiseTopicEpoch("p"))
        .then(events=[TopicEpochRaised(topic_epoch=1, producer_name="p")], reply=TopicEpoch(1))
        .when(RaiseTopicEpoch("q"))
        .then(reply=TopicEpoch(2))
    )


# ---- subscriptions


def test_subscriptions_start_at_the_requested_place() -> None:
    (
        partition()
        .when(publish(0))
        .when(publish(1))
        .when(CreateSubscription("early", StartAt.EARLIEST, {"k": "v"}))
        .then(
            events=[
                SubscriptionCreated(
                    name="early", incarnation=1, start_offset=0, properties={"k": "v"}
                )
            ],
            reply=SubscriptionRef("early", 1, 0),
        )
        .when(CreateSubscription("late", StartAt.LATEST))
        .then(reply=SubscriptionRef("late", 2, 2))
        .when(CreateSubscription("middle", 1))
        .then(reply=SubscriptionRef("middle", 3, 1))
        .when(CreateSubscription("beyond", 3))
        .then_refused(Reason.INVALID, "ends at 2")
        .when(CreateSubscription("", 0))
        .then_refused(Reason.INVALID)
        .when(publish(2))
        .when(CreateSubscription("late", StartAt.EARLIEST, {"other": "x"}))
        .then(events=[], reply=SubscriptionRef("late", 2, 2))
    )


def test_properties_of_subscriptions_change() -> None:
    history = partition().when(CreateSubscription("s", 0, {"a": "1"}))
    for key, value, after in (("b", "2", {"a": "1", "b": "2"}), ("a", None, {"b": "2"})):
        event = SubscriptionPropertiesSet(incarnation=1, properties=after)
        history.when(SetProperty("s", key, value)).then(events=[event], reply=PropertiesAre(True))
        assert history.state.subscriptions["s"].properties == after
        again = SetProperty("s", key, value)
        history.when(again).then(events=[], reply=PropertiesAre(False))
    history.when(SetProperty("t", "b", "2")).then_refused(Reason.NOT_FOUND)


def test_a_new_subscription_with_a_former_name_has_another_incarnation() -> None:
    (
        partition()
        .when(CreateSubscription("s", 0))
        .when(DeleteSubscription("s"))
        .then(events=[SubscriptionDeleted(name="s")], reply=SubscriptionRef("s", 1, 0))
        .when(DeleteSubscription("s"))
        .then_refused(Reason.NOT_FOUND, "'s'")
        .when(CreateSubscription("s", 0))
        .then(reply=SubscriptionRef("s", 2, 0))
        .when(DeleteSubscription("s", incarnation=1))
        .then_refused(Reason.NOT_FOUND)
        .when(DeleteSubscription("s", incarnation=2))
        .then(reply=SubscriptionRef("s", 2, 0))
    )


def test_a_deleted_subscription_is_remembered_until_its_journal_is_deleted() -> None:
    (
        partition()
        .when(CreateSubscription("s", 0))
        .when(DeleteSubscription("s"))
        .then_state(lambda s: s.deleted == {1: "s"})
        .when(ConfirmSwept(1))
        .then(events=[SubscriptionSwept(incarnation=1)], reply=Swept())
        .then_state(lambda s: not s.deleted)
        .when(ConfirmSwept(1))
        .then(events=[], reply=Swept())
    )


# ---- forgetting producers


def test_a_forgotten_producer_gets_a_new_number() -> None:
    (
        partition()
        .when(publish(5))
        .when(ForgetProducer("p"))
        .then(events=[ProducerForgotten(producer=1)], reply=Forgotten(("p",)))
        .when(ForgetProducer("p"))
        .then_refused(Reason.NOT_FOUND, "'p'")
        .when(publish(5))
        .then(
            events=[
                ProducerRegistered(producer=2, name="p"),
                EntryAppended(producer=2, sequence_id=5),
            ]
        )
    )


def test_silent_producers_expire_unless_connected() -> None:
    history = partition()
    for at, name in enumerate("abcde"):
        history.when(publish(0, producer=name), now_ms=at)
    history.when(publish(1, producer="a"), now_ms=10)
    (
        history.when(ExpireProducers(before_ms=3, connected=frozenset("b")))
        .then(events=[ProducerForgotten(producer=3)], reply=Forgotten(("c",)))
        .when(ExpireProducers(before_ms=0, keep=2, connected=frozenset("b")))
        .then(reply=Forgotten(("d", "e")))
        .when(ExpireProducers(before_ms=0, keep=2))
        .then(events=[], reply=Forgotten(()))
    )


# ---- the whole machine


def test_unknown_commands_and_events_are_errors() -> None:
    machine = PartitionMachine()
    with pytest.raises(TypeError, match="doesn't handle str"):
        machine.decide(machine.initial(), "publish", 0)
    with pytest.raises(TypeError, match="doesn't handle CursorCreated"):
        machine.evolve(machine.initial(), CursorCreated())


NAMES = st.sampled_from("pqr")
CHUNKS = st.none() | st.builds(Chunk, st.sampled_from("mn"), st.integers(0, 2), st.just(3))
COMMANDS = st.one_of(
    st.builds(
        Publish, NAMES, st.integers(0, 9), st.integers(0, 12), st.integers(1, 3), st.just(b"e"),
        st.booleans(), CHUNKS,
    ),
    st.builds(CreateSubscription, NAMES, st.sampled_from(StartAt) | st.integers(0, 9)),
    st.builds(DeleteSubscription, NAMES),
    st.builds(ConfirmSwept, st.integers(1, 4)),
    st.builds(ForgetProducer, NAMES),
    st.builds(FindProducer, NAMES),
    st.builds(ExpireProducers, st.integers(0, 9000), st.integers(0, 2)),
    st.builds(RaiseTopicEpoch, NAMES),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@examples(st.lists(COMMANDS, max_size=20), st.lists(COMMANDS, max_size=5))
def test_random_histories_keep_every_rule(commands, last) -> None:
    class Opened(PartitionMachine):
        """The machine with a ledger from the start."""

        def initial(self) -> PartitionState:
            state = super().initial()
            state.table.open(7)
            return state

    drive(Opened(), [*commands, Terminate(), *last])


@settings(max_examples=100, deadline=None)
@examples(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=30))
def test_resending_with_deduplication_stores_each_message_once(attempts) -> None:
    """A client that goes back and sends again what it isn't sure of, whole or in chunks."""
    history = partition()
    written: list[tuple[int, int]] = []
    plan = [(sequence, part) for sequence in range(20) for part in range(1 + sequence % 3)]
    at = 0
    for back, steps in attempts:
        at = max(at - back, 0)
        for sequence, part in plan[at : at + steps]:
            parts = 1 + sequence % 3
            piece = None if parts == 1 else Chunk(f"u{sequence}", part, parts)
            history.when(publish(sequence, chunk=piece))
            if isinstance(history.reply, Published):
                written.append((sequence, part))
        at = min(at + steps, len(plan))
    assert written == plan[: len(written)]


def _bad_name(state: PartitionState) -> None:
    state.producers["z"] = state.producers["p"]


def _bad_number(state: PartitionState) -> None:
    state.next_producer = 1


def _bad_chunk(state: PartitionState) -> None:
    state.producers["p"].chunk_sequence_id = 0


def _bad_incarnation(state: PartitionState) -> None:
    state.next_incarnation = 1


def _bad_start(state: PartitionState) -> None:
    state.table.end_offset = 0


def _twins(state: PartitionState) -> None:
    state.subscriptions["t"] = state.subscriptions["s"]


def _bad_ledgers(state: PartitionState) -> None:
    state.table = LedgerTable([(5, 0), (4, 1)], 2)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_bad_name, "names and numbers agree"),
        (_bad_number, "producer numbers are never reused"),
        (_bad_chunk, "half-sent"),
        (_bad_incarnation, "incarnations aren't reused"),
        (_twins, "incarnations are unique"),
        (_bad_start, "subscriptions start in the log"),
        (_bad_ledgers, "ledger ids grow"),
    ],
)
def test_a_broken_invariant_is_named(damage, name) -> None:
    history = partition().when(publish(3)).when(CreateSubscription("s", 1))
    damage(history.state)
    with pytest.raises(InvariantViolation, match=name):
        history.machine.check(history.state)


# ---- ledger table


TABLE = LedgerTable([(10, 5), (11, 8), (13, 9)], 12)  # trimmed before 5; ledger 12 was empty


def test_positions_and_offsets_are_exact() -> None:
    positions = [TABLE.position_of(offset) for offset in range(5, 12)]
    assert positions[:5] == [(10, 0), (10, 1), (10, 2), (11, 0), (13, 0)]
    assert [TABLE.offset_of(position) for position in positions] == list(range(5, 12))
    for offset in (4, 12, -1):
        with pytest.raises(NoSuchEntryError):
            TABLE.position_of(offset)
    for position in [(9, 0), (10, 3), (10, -1), (12, 0), (13, 3), (14, 0), EARLIEST, LATEST]:
        with pytest.raises(NoSuchEntryError):
            TABLE.offset_of(Position(*position))


@pytest.mark.parametrize(
    ("position", "after", "before"),
    [
        (EARLIEST, 5, 4),
        ((9, 7), 5, 4),
        ((10, -1), 5, 4),
        ((10, 1), 6, 6),
        ((10, 3), 8, 7),
        ((10, 99), 8, 7),
        ((12, 0), 9, 8),
        ((13, 2), 11, 11),
        ((13, 3), 12, 11),
        ((20, 0), 12, 11),
        (LATEST, 12, 11),
    ],
)
def test_positions_without_an_entry_find_the_nearest_entry(position, after, before) -> None:
    assert TABLE.at_or_after(Position(*position)) == after
    assert TABLE.at_or_before(Position(*position)) == before


@pytest.mark.parametrize("offset", range(5, 12))
def test_the_offsets_of_a_ledger_match_their_positions(offset: int) -> None:
    span = TABLE.span_of(offset)
    assert span == TABLE.span(span.ledger_id)
    for inside in range(span.first, span.end):
        assert TABLE.position_of(inside) == (span.ledger_id, inside - span.first)
    assert span.first <= offset < span.end
    assert sum(each.end - each.first for each in map(TABLE.span, (10, 11, 13))) == 7


def test_an_empty_ledger_has_an_empty_range() -> None:
    for unknown in (9, 12, 14):
        assert TABLE.span(unknown) == (unknown, 0, 0)
    for outside in (4, 12):
        with pytest.raises(NoSuchEntryError):
            TABLE.span_of(outside)


def test_the_position_before_an_offset() -> None:
    assert TABLE.position_before(12) == TABLE.position_before(99) == Position(13, 2)
    assert TABLE.position_before(9) == Position(11, 0)
    assert TABLE.position_before(5) == TABLE.position_before(0) == Position(10, -1)
    assert LedgerTable().position_before(0) == EARLIEST


def test_runs_are_cut_at_ledgers() -> None:
    assert list(TABLE.runs(6, 11)) == [
        LedgerRun(10, 1, 2),
        LedgerRun(11, 0, 1),
        LedgerRun(13, 0, 2),
    ]
    assert list(TABLE.runs(0, 6)) == [LedgerRun(10, 0, 1)]
    assert list(TABLE.runs(11, 99)) == [LedgerRun(13, 2, 1)]
    assert list(TABLE.runs(12, 99)) == list(TABLE.runs(7, 7)) == []


@examples(st.lists(st.integers(0, 4), max_size=8), st.integers(0, 40), st.integers(-1, 6))
def test_a_position_table_that_grew_finds_everything(counts, ledger, entry) -> None:
    table, positions = LedgerTable(), []
    for ledger_id, count in enumerate(counts):
        table.open(3 * ledger_id)
        for number in range(count):
            positions.append(Position(3 * ledger_id, number))
            assert table.next_position() == positions[-1]
            table.append()
        table.check()
    assert table.end_offset == len(positions)
    assert [table.position_of(offset) for offset in range(len(positions))] == positions
    probe = Position(ledger, entry)
    later = [offset for offset, position in enumerate(positions) if position >= probe]
    earlier = [offset for offset, position in enumerate(positions) if position <= probe]
    assert table.at_or_after(probe) == min(later, default=len(positions))
    assert table.at_or_before(probe) == max(earlier, default=-1)
    runs = [
        Position(run.ledger_id, run.first_entry + number)
        for run in table.runs(0, len(positions))
        for number in range(run.entries)
    ]
    assert runs == positions


def _batch(first: int, highest: int, messages: int) -> Publish:
    return Publish("by-key", first, highest, messages, b"batch", deduplicate=True)


def test_interleaved_batches_by_key_are_no_duplicates() -> None:
    flush = [_batch(0, 9, 3), _batch(1, 8, 6), _batch(5, 5, 1), _batch(10, 10, 1)]
    history = given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))
    for offset, command in enumerate(flush):
        history.when(command).then(reply=Published(offset, Position(1, offset), command.messages))
    for command in flush:
        history.when(command).then(events=[], reply=Duplicate(command.sequence_id))


def test_entries_before_the_first_sparse_batch_stay_duplicates() -> None:
    history = given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))
    history.when(_batch(0, 0, 1)).then(reply=Published(0, Position(1, 0), 1))
    history.when(_batch(1, 3, 2)).then(reply=Published(1, Position(1, 1), 2))
    history.when(_batch(0, 0, 1)).then(events=[], reply=Duplicate(0))
    history.when(_batch(2, 2, 1)).then(reply=Published(2, Position(1, 2), 1))


def test_the_number_of_remembered_interleaved_entries_is_limited() -> None:
    seen = Interleaving(0)
    for first in range(WINDOW + 10):
        seen.add(first, first + 5)
    assert len(seen.entries) == WINDOW
    assert seen.floor == 10
    assert seen.has(9, 9)
    assert seen.has(10, 15)
    assert not seen.has(10, 14)
    assert not seen.has(WINDOW + 10, WINDOW + 15)

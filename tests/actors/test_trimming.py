"""Which ledgers may go: never a needed one, nor one that retention keeps."""

from __future__ import annotations

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.partition.compacted import BeginCompaction, PublishCompaction
from velaray.actors.partition.ledger_table import LedgerTable, NoSuchEntryError
from velaray.actors.partition.machine import (
    CreateSubscription,
    DeleteSubscription,
    PartitionMachine,
    StartAt,
)
from velaray.actors.partition.state import SubscriptionRef
from velaray.actors.partition.trimming import (
    Activity,
    ClosedLedger,
    Consumed,
    NoteActivity,
    Trim,
    Trimmed,
)
from velaray.actors.testing import given
from velaray.events.events_pb2 import (
    EntriesTrimmed,
    EntryAppended,
    LedgerOpened,
    ProducerRegistered,
    SubscriptionCreated,
    SubscriptionIdle,
    TrimmedLedger,
)
from velaray.events.ids import EARLIEST, Position

HOUR = 3_600_000
NOW = 100 * HOUR
# Three closed ledgers of two entries and 1000 bytes each, an open one with two entries.
CLOSED = [ClosedLedger(number, 1000, NOW - (4 - number) * HOUR) for number in (1, 2, 3)]
NOTHING, FOR_EVER = (0, 0), (-1, -1)


def a_log():
    events = [ProducerRegistered(producer=1, name="p")]
    for ledger_id in (1, 2, 3, 4):
        events.append(LedgerOpened(ledger_id=ledger_id, epoch=1))
        events += [EntryAppended(producer=1, sequence_id=ledger_id) for _ in range(2)]
    events += [SubscriptionCreated(name="s", incarnation=1, start_offset=0)]
    events += [SubscriptionCreated(name="t", incarnation=2, start_offset=0)]
    return given(PartitionMachine(), *events)


def trim(consumed, retention=NOTHING, ledgers=CLOSED):
    return Trim(ledgers, 500, consumed, *retention)


def trimmed(*numbers, at_ms=NOW):
    ledgers = [TrimmedLedger(ledger_id=number, bytes=1000) for number in numbers]
    return [EntriesTrimmed(ledgers=ledgers, at_ms=at_ms)]


@pytest.mark.parametrize(
    ("consumed", "going"),
    [
        ({1: Consumed(8), 2: Consumed(8)}, (1, 2, 3)),
        ({1: Consumed(8), 2: Consumed(3)}, (1,)),
        ({1: Consumed(8), 2: Consumed(1)}, ()),
        ({1: Consumed(8), 2: Consumed(1, frozenset({2}))}, (2,)),
        ({1: Consumed(0, frozenset({2, 3})), 2: Consumed(6)}, (2, 3)),
        ({1: Consumed(8)}, ()),
        ({}, ()),
    ],
)
def test_a_ledger_is_trimmed_when_every_subscription_acknowledged_all_of_it(
    consumed, going
) -> None:
    history = a_log().when(trim(consumed), NOW)
    history.then(events=trimmed(*going) if going else [], reply=Trimmed(going))


def test_one_unacked_message_keeps_only_its_own_ledger() -> None:
    """Others keep all later ledgers until the oldest message is acknowledged."""
    have_all_but_one = {1: Consumed(1, frozenset({2, 3})), 2: Consumed(8)}
    history = a_log().when(trim(have_all_but_one), NOW)
    history.then(events=trimmed(2, 3), reply=Trimmed((2, 3)))
    table = history.state.table
    assert table.position_of(0) == Position(1, 0)
    assert [run.ledger_id for run in table.runs(0, 8)] == [1, 4]
    history.when(trim({1: Consumed(8), 2: Consumed(8)}), NOW).then(
        events=trimmed(1), reply=Trimmed((1,))
    )
    assert (history.state.first_offset, history.state.table.gone()) == (6, [])


@pytest.mark.parametrize(
    ("retention", "going"),
    [
        (NOTHING, (1, 2, 3)),
        (FOR_EVER, ()),
        ((2 * HOUR, -1), (1, 2)),
        ((10 * HOUR, -1), ()),
        ((-1, 1500), (1, 2)),
        ((-1, 1501), (1,)),
        ((-1, 10_000), ()),
        ((10 * HOUR, 1500), (1, 2)),
        ((3 * HOUR, 10_000), (1,)),
    ],
)
def test_retention_keeps_the_newest_bytes_and_the_last_hours(retention, going) -> None:
    consumed = {1: Consumed(8), 2: Consumed(8)}
    a_log().when(trim(consumed, retention), NOW).then(
        events=trimmed(*going) if going else [], reply=Trimmed(going)
    )


def test_the_current_ledger_and_unknown_ones_are_kept() -> None:
    strange = [*CLOSED, ClosedLedger(4, 1000, 0), ClosedLedger(9, 1000, 0)]
    consumed = {1: Consumed(8), 2: Consumed(8)}
    a_log().when(trim(consumed, NOTHING, strange), NOW).then(
        events=trimmed(1, 2, 3), reply=Trimmed((1, 2, 3))
    )


def test_retention_decides_for_a_topic_without_subscriptions() -> None:
    events = [ProducerRegistered(producer=1, name="p"), LedgerOpened(ledger_id=1, epoch=1)]
    events += [EntryAppended(producer=1), LedgerOpened(ledger_id=2, epoch=1)]
    history = given(PartitionMachine(), *events)
    history.when(trim({}, (10 * HOUR, -1)), NOW).then(events=[], reply=Trimmed())
    history.when(trim({}), NOW).then(events=trimmed(1), reply=Trimmed((1,)))
    assert history.state.first_offset == history.state.end_offset == 1


def test_uncompacted_ledgers_are_not_trimmed() -> None:
    consumed = {1: Consumed(8), 2: Consumed(8)}
    compacting = Trim(CLOSED, 500, consumed, *NOTHING, compacting=True)
    history = a_log().when(compacting, NOW).then(events=[], reply=Trimmed())
    history.when(BeginCompaction(), NOW)
    history.when(trim(consumed), NOW).then(events=[], reply=Trimmed())
    history.when(PublishCompaction(1, 8), NOW)
    history.when(compacting, NOW).then(events=trimmed(1, 2, 3), reply=Trimmed((1, 2, 3)))


def test_a_trimmed_ledger_waits_for_deletion_and_cannot_be_read() -> None:
    history = a_log().when(trim({1: Consumed(8), 2: Consumed(4)}), NOW)
    history.then(events=trimmed(1, 2), reply=Trimmed((1, 2)))
    state = history.state
    assert state.trimmed == {1: 1000, 2: 1000}
    assert (state.first_offset, state.end_offset) == (4, 8)
    assert state.table.at_or_after(EARLIEST) == 4
    with pytest.raises(NoSuchEntryError):
        state.table.position_of(3)
    history.when(trim({1: Consumed(8), 2: Consumed(4)}), NOW).then(events=[], reply=Trimmed())
    new = SubscriptionRef("u", 3, 4)
    history.when(CreateSubscription("u", StartAt.EARLIEST)).then(reply=new)


def test_a_subscription_that_was_just_created_keeps_everything() -> None:
    history = a_log().when(CreateSubscription("u", StartAt.EARLIEST))
    history.when(trim({1: Consumed(8), 2: Consumed(8)}), NOW).then(events=[], reply=Trimmed())


def test_a_trimmed_ledger_that_can_be_read_is_caught() -> None:
    state = a_log().state
    state.trimmed[2] = 1000
    with pytest.raises(InvariantViolation, match="nothing is found in a trimmed ledger"):
        PartitionMachine().check(state)
    state = a_log().state
    state.trimmed[4] = 1000
    with pytest.raises(InvariantViolation, match="the current ledger stays"):
        PartitionMachine().check(state)


def test_the_start_of_disuse_is_journaled_once() -> None:
    idle, active = NoteActivity("s", 1, active=False), NoteActivity("s", 1, active=True)
    history = a_log().when(active, 5).then(events=[], reply=Activity(0))
    history.when(idle, 7).then(
        events=[SubscriptionIdle(incarnation=1, since_ms=7)], reply=Activity(7)
    )
    history.when(idle, 9).then(events=[], reply=Activity(7))
    history.when(DeleteSubscription("s", 1, idle_before_ms=6)).then_refused(Reason.BUSY)
    history.when(active, 11).then(events=[SubscriptionIdle(incarnation=1)], reply=Activity(0))
    history.when(DeleteSubscription("s", 1, idle_before_ms=99)).then_refused(Reason.BUSY)
    history.when(idle, 12)
    history.when(DeleteSubscription("s", 1, idle_before_ms=12)).then(
        reply=SubscriptionRef("s", 1, 0)
    )
    history.when(idle, 13).then_refused(Reason.NOT_FOUND)


class Naive:
    """The table as lists: for each offset its position, or None once it is trimmed."""

    def __init__(self, sizes: list[int], gone: set[int]) -> None:
        self.places = [
            None if ledger in gone else Position(ledger, entry)
            for ledger, size in enumerate(sizes, 1)
            for entry in range(size)
        ]

    def kept(self) -> list[int]:
        return [offset for offset, place in enumerate(self.places) if place is not None]


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@settings(deadline=None)
@examples(SIZES, st.lists(st.sets(st.integers(1, 8)), max_size=3), st.data())
def test_a_trimmed_position_table_matches_a_naive_list(sizes, rounds, data) -> None:
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]
    table = LedgerTable([(number, first) for number, first in enumerate(firsts, 1)], sum(sizes))
    for going in rounds:
        table.trim(going)
    table.check()
    naive = Naive(sizes, set().union(*rounds) - {len(sizes)})
    kept, end = naive.kept(), sum(sizes)
    restored = LedgerTable(table.ledgers(), table.end_offset, table.gone())
    assert restored == table
    flat = {offset for first, stop in table.gone_ranges() for offset in range(first, stop)}
    assert flat == set(range(end)) - set(kept)
    assert table.first_offset == kept[0]
    for offset in range(end + 1):
        assert table.kept_from(offset) == min([at for at in kept if at >= offset], default=end)
        before = max([at for at in kept if at < offset], default=kept[0] - 1)
        assert table.kept_before(offset) == before
        if offset in kept:
            assert table.position_of(offset) == naive.places[offset]
            assert table.offset_of(naive.places[offset]) == offset
        else:
            with pytest.raises(NoSuchEntryError):
                table.position_of(offset)
    wanted = Position(data.draw(st.integers(0, 9)), data.draw(st.integers(-1, 5)))
    found = [at for at in kept if naive.places[at] >= wanted]
    assert table.at_or_after(wanted) == min(found, default=end)
    runs = [
        (run.ledger_id, run.first_entry + number)
        for run in table.runs(0, end)
        for number in range(run.entries)
    ]
    assert runs == [naive.places[at] for at in kept]

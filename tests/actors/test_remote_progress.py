"""The subscription machine takes in what other clusters' subscriptions have."""

from typing import NamedTuple

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import Ack, Create, Reset, SubscriptionMachine
from velaray.actors.subscription.redelivery import NoteDeliveries
from velaray.actors.subscription.remote_progress import (
    LAST_ENTRY,
    Ahead,
    EntryCount,
    EntryMask,
    EntryRange,
    Taken,
    TakeProgress,
    Waiting,
)
from velaray.actors.subscription.undoing import Restore
from velaray.actors.testing import History, drive, given
from velaray.events.events_pb2 import CursorCreated, EntriesAcked, ProgressTaken
from velaray.events.ids import Position

END = 100


def take(ranges=(), partial=(), counts=(), ahead=None, came=None, first=0, cluster="east"):
    return TakeProgress(cluster, END, first, ranges, partial, counts, ahead or {}, came or {})


def at(ledger_id, entry_id):
    return Position(ledger_id, entry_id)


def subscription(start=0):
    return given(SubscriptionMachine(), CursorCreated(start_offset=start))


def cursor_of(history):
    return history.state.cursor


def test_remote_acks_of_stored_entries_apply_and_are_remembered() -> None:
    (
        subscription()
        .when(take([(2, 4)], [(7, 0b10)]))
        .then(
            events=[
                EntriesAcked(
                    ranges=[2, 2], partial=[{"offset": 7, "remaining": [0b10]}], cluster="east"
                ),
                ProgressTaken(ranges=[2, 2], partial=[{"offset": 7, "remaining": [0b10]}]),
            ],
            reply=Taken(((2, 4),), ((7, 0b10),)),
        )
        .when(take([(2, 4)], [(7, 0b10), (3, 0b1)]))
        .then(events=[], reply=Taken())
        .when(take([(3, 5)], [(7, 0)]))
        .then(reply=Taken(((4, 5), (7, 8))))
    )


def test_remote_acks_of_acked_entries_are_remembered() -> None:
    history = subscription().when(Ack(END, [(0, 3)])).when(take([(1, 5)]))
    history.then(reply=Taken(((3, 5),)))
    history = subscription().when(Ack(END, [(0, 5)])).when(take([(1, 5)]))
    history.then(events=[ProgressTaken(ranges=[1, 4])], reply=Taken())


def test_repeated_progress_does_not_undo_a_rewind_and_new_progress_applies() -> None:
    history = subscription().when(take([(0, 6)])).when(Reset(2, "seek"))
    history.when(take([(0, 6)])).then(events=[], reply=Taken())
    assert cursor_of(history).unacked_ranges(0, 9) == [(2, 9)]
    history.when(take([(0, 8)])).then(reply=Taken(((6, 8),)))
    history.when(Ack(END, [(2, 3)]))
    assert cursor_of(history).unacked_ranges(0, 9) == [(3, 6), (8, 9)]


@pytest.mark.parametrize("undone", [False, True])
def test_progress_that_returns_from_other_clusters_does_not_undo_a_rewind(undone: bool) -> None:
    history = subscription().when(Ack(END, [(0, 4), (6, 8)], [(9, 0b10)]))
    history.when(NoteDeliveries([(4, 5)]))
    if undone:
        acked = Cursor(4, [(6, 8)], [(9, 0b10)])
        history.when(Restore(acked, Cursor(1), (), "undo", shared=True))
    else:
        history.when(Reset(1, "seek", shared=True))
    history.when(take([(0, 4), (6, 8), (9, 10)], counts=[(4, 5, 1)])).then(events=[])
    history.when(take([(3, 6)], counts=[(8, 9, 1)]))
    history.then(reply=Taken(((4, 6),), (), ((8, 9, 1),)))
    alone = subscription().when(Ack(END, [(0, 4)])).when(Reset(1, "seek"))
    alone.then_state(lambda state: not state.remote)


def test_progress_within_a_rewound_batch_is_ignored() -> None:
    history = subscription().when(take(partial=[(4, 0b1100)])).when(Reset(0, "seek"))
    history.when(take(partial=[(4, 0b1000)])).then(events=[], reply=Taken())
    history.when(take([(4, 5)])).then(events=[], reply=Taken())


def test_counts_are_raised_and_never_lowered() -> None:
    history = subscription().when(take(counts=[(2, 6, 3)]))
    history.then(reply=Taken(counts=((2, 6, 3),)))
    history.when(take(counts=[(0, 4, 2)])).then(reply=Taken(counts=((0, 2, 2),)))
    history.when(take(counts=[(0, 6, 2)])).then(events=[])
    assert [history.state.deliveries.get(offset) for offset in range(7)] == [2, 2, 3, 3, 3, 3, 0]
    history.when(Reset(0, "seek")).when(take(counts=[(2, 6, 3)])).then(events=[])
    assert not history.state.deliveries
    history.when(take(counts=[(2, 6, 4)])).then(reply=Taken(counts=((2, 6, 4),)))


def test_progress_of_missing_entries_waits_for_them() -> None:
    ahead = Ahead(at(5, 1), [EntryRange(5, 3, 5), EntryRange(6, 0, 2)], [EntryMask(6, 4, 0b10)])
    history = subscription().when(take(ahead={"east": ahead}))
    history.when(take(ahead={"east": ahead})).then(events=[])
    waiting = history.state.remote.waiting["east"]
    assert waiting.due(at(5, 3)) == Ahead(at(5, 1), (EntryRange(5, 3, 4),))
    history.when(take([(0, 2), (3, 4)], came={"east": at(5, 3)}))
    assert waiting.due(at(9, 0)) == Ahead(
        at(-1, -1), (EntryRange(5, 4, 5), EntryRange(6, 0, 2)), (EntryMask(6, 4, 0b10),)
    )
    history.when(take(ahead={"east": ahead})).then(events=[])  # that came, so it is nothing new
    history.when(take(came={"east": at(6, 4)}))
    assert not history.state.remote.waiting


def test_much_waiting_progress_is_reported_in_parts() -> None:
    ranges = [
        EntryRange(ledger, entry, entry + 1) for ledger in (5, 6) for entry in range(0, 20, 2)
    ]
    told = Ahead(at(6, 30), ranges, [EntryMask(7, 0, 1)])
    history = subscription().when(take(ahead={"east": Ahead(ranges=ranges)}))
    waiting = history.state.remote.waiting["east"]
    assert waiting.border(at(9, 0), 7) == at(5, 12)
    assert waiting.border(at(5, 3), 7) == at(5, 3)
    assert waiting.border(at(9, 0), 13) == at(6, 4)
    assert waiting.border(at(9, 0), 21) == at(9, 0)
    history.when(take(ahead={"east": told}))
    assert waiting.border(at(9, 0), 1) == at(9, 0)


def test_no_progress_waits_for_stored_entries() -> None:
    passed = Ahead(at(5, 2), [EntryRange(5, 0, 3)], [EntryMask(5, 1, 1)], [EntryCount(5, 0, 3, 1)])
    history = subscription().when(take(ahead={"east": passed}, came={"east": at(5, 3)}))
    history.then(events=[], reply=Taken())


def test_waiting_progress_only_grows() -> None:
    some = Ahead(partial=[EntryMask(6, 4, 0b110)], counts=[EntryCount(6, 2, 4, 2)])
    history = subscription().when(take(ahead={"east": some}))
    more = Ahead(partial=[EntryMask(6, 4, 0b011)], counts=[EntryCount(6, 0, 3, 1)])
    history.when(take(ahead={"east": more}))
    waiting = history.state.remote.waiting["east"]
    counts = (EntryCount(6, 0, 2, 1), EntryCount(6, 2, 4, 2))
    assert waiting.due(at(7, 0)) == Ahead(at(-1, -1), (), (EntryMask(6, 4, 0b010),), counts)
    history.when(take(ahead={"east": Ahead(partial=[EntryMask(6, 4, 0b100)])}))
    assert waiting.due(at(7, 0)).ranges == (EntryRange(6, 4, 5),)
    history.when(take(ahead={"east": Ahead(up_to=at(7, 0))}))
    assert waiting.due(at(9, 0)) == Ahead(at(7, 0))


def test_waiting_progress_is_kept_by_origin() -> None:
    one = Ahead(ranges=[EntryRange(5, 0, 1)])
    history = subscription().when(take(ahead={"east": one, "north": one}))
    history.when(take(came={"east": at(9, 9)}))
    assert set(history.state.remote.waiting) == {"north"}


def test_waiting_progress_survives_a_move_of_the_cursor() -> None:
    history = subscription().when(take(ahead={"east": Ahead(at(5, 1))})).when(Reset(0, "seek"))
    assert history.state.remote.waiting["east"].up_to == at(5, 1)


def test_progress_of_trimmed_entries_is_dropped() -> None:
    history = subscription().when(take([(0, 2), (4, 5)])).when(take([(0, 9)], first=6))
    taken = history.state.remote.taken
    assert (taken.acked_before, list(taken.acked_ranges())) == (9, [])
    history.then(reply=Taken(((6, 9),)))


@pytest.mark.parametrize(
    "command",
    [
        take([(99, 101)]),
        take([(3, 3)]),
        take(partial=[(100, 1)]),
        take(partial=[(1, -1)]),
        take(counts=[(0, 1, 0)]),
        take(counts=[(0, 101, 1)]),
        take(ahead={"east": Ahead(ranges=[EntryRange(1, 0, LAST_ENTRY + 2)])}),
        take(ahead={"east": Ahead(counts=[EntryCount(1, 3, 3, 1)])}),
        take(ahead={"east": Ahead(partial=[EntryMask(1, LAST_ENTRY + 1, 1)])}),
    ],
)
def test_invalid_progress_is_refused_as_a_whole(command) -> None:
    subscription().when(command).then_refused(Reason.INVALID)


def test_progress_is_refused_before_the_subscription_is_created() -> None:
    given(SubscriptionMachine()).when(take([(0, 1)])).then_refused(Reason.NOT_FOUND)


def test_progress_that_waits_for_a_stored_entry_is_caught() -> None:
    history = subscription().when(take(ahead={"east": Ahead(ranges=[EntryRange(5, 0, 1)])}))
    history.state.remote.waiting["east"].passed = at(5, 0)
    with pytest.raises(InvariantViolation, match="behind what came"):
        history.machine.check(history.state)


# ---- beside a naive model


class Entry(NamedTuple):
    """Of a batch of two messages: bit i is message i."""

    ledger_id: int
    entry_id: int


LEDGERS, ENTRIES = 3, 4
STREAM = [Entry(ledger, entry) for ledger in range(LEDGERS) for entry in range(ENTRIES)]
"""All of east, in order; entry number n arrives here as offset 2 * n: west's own are between."""

ENTRY = st.sampled_from(STREAM)
TOLD = st.one_of(
    st.tuples(st.just("up to"), ENTRY),
    st.tuples(st.just("range"), ENTRY, st.integers(1, 3)),
    st.tuples(st.just("part"), ENTRY, st.sampled_from((0b01, 0b10, 0))),
    st.tuples(st.just("count"), ENTRY, st.integers(1, 3)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), st.lists(TOLD, min_size=1, max_size=3)),
        st.tuples(st.just("arrive"), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 2 * len(STREAM) - 1)),
    ),
    max_size=25,
)


class Model:
    """The acknowledged part of every message of east, reported by any cluster in any order."""

    def __init__(self) -> None:
        self.acked = dict.fromkeys(STREAM, 0)
        self.times = dict.fromkeys(STREAM, 0)
        self.arrived = 0

    def told(self, what: str, entry: Entry, much: int = 0) -> None:
        number = STREAM.index(entry)
        if what == "up to":
            for before in STREAM[: number + 1]:
                self.acked[before] = 0b11
        elif what == "range":
            for each in STREAM[number : number + much]:
                if each.ledger_id == entry.ledger_id:
                    self.acked[each] = 0b11
        elif what == "part":
            self.acked[entry] |= 0b11 & ~much
        else:
            self.times[entry] = max(self.times[entry], much)


def ahead_of(what: str, entry: Entry, much: int = 0) -> Ahead:
    ledger_id, entry_id = entry
    if what == "up to":
        return Ahead(Position(*entry))
    if what == "range":
        return Ahead(ranges=[EntryRange(ledger_id, entry_id, min(entry_id + much, ENTRIES))])
    if what == "part":
        return Ahead(partial=[EntryMask(ledger_id, entry_id, much)])
    return Ahead(counts=[EntryCount(ledger_id, entry_id, entry_id + 1, much)])


def told(history: History, ahead: Ahead, arrived: int) -> None:
    """As a partition does: what is here by offset, what isn't as it came."""
    here = STREAM[:arrived]
    ranges, partial, counts = [], [], []
    for number, entry in enumerate(here):
        offset = 2 * number
        covered = any(
            ledger == entry.ledger_id and first <= entry.entry_id < end
            for ledger, first, end in ahead.ranges
        )
        if entry <= ahead.up_to or covered:
            ranges.append((offset, offset + 1))
        masks = [mask for *which, mask in ahead.partial if tuple(which) == entry]
        partial += [(offset, mask) for mask in masks]
        for ledger, first, end, times in ahead.counts:
            if ledger == entry.ledger_id and first <= entry.entry_id < end:
                counts.append((offset, offset + 1, times))
    came = {"east": Position(*here[-1])} if here else {}
    history.when(take(ranges, partial, counts, {"east": ahead}, came))


@settings(deadline=None, max_examples=150)
@examples(STEPS)
def test_random_histories_end_with_exactly_the_reported_progress(steps) -> None:
    history, model = drive(SubscriptionMachine(), [Create(0)]), Model()
    own = set()
    for kind, what in steps:
        if kind == "tell":
            for each in what:
                model.told(*each)
                told(history, ahead_of(*each), model.arrived)
        elif kind == "arrive":
            model.arrived = min(model.arrived + what, len(STREAM))
            waiting = history.state.remote.waiting.get("east", Waiting())
            told(history, waiting.due(Position(*STREAM[model.arrived - 1])), model.arrived)
        elif what < 2 * model.arrived and what % 2:
            own.add(what)
            history.when(Ack(END, [(what, what + 1)]))
    cursor = history.state.cursor
    for number, entry in enumerate(STREAM[: model.arrived]):
        left = 0 if cursor.is_acked(2 * number) else cursor.ack_set(2 * number)
        assert 0b11 & ~(0b11 if left is None else left) == model.acked[entry], entry
        if model.acked[entry] != 0b11:
            assert history.state.deliveries.get(2 * number) == model.times[entry]
        assert cursor.is_acked(2 * number + 1) == (2 * number + 1 in own)
    assert cursor.untouched_from() <= 2 * model.arrived
    behind = STREAM[model.arrived :]
    assert any(model.acked[each] or model.times[each] for each in behind) == bool(
        history.state.remote.waiting
    )

"""Redelivery counts: journaled deliveries, and the counts that clients get after a crash."""

from __future__ import annotations

from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.dispatch.consumers import ConsumerSpec, Delivery, SubscriptionType
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.subscription.machine import Ack, AckBefore, Reset, SubscriptionMachine
from velaray.actors.subscription.redelivery import CountRuns, Noted, NoteDeliveries
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import (
    CursorCreated,
    CursorReset,
    DeliveriesReturned,
    EntriesDelivered,
)

END = 1000
SHARED, EXCLUSIVE, FAILOVER = (
    SubscriptionType.SHARED,
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.FAILOVER,
)


def begun():
    return given(SubscriptionMachine(), CursorCreated(start_offset=0))


def counts(history: History) -> list[tuple[int, int, int]]:
    return [tuple(run) for run in history.state.deliveries]


def test_deliveries_are_counted_as_runs() -> None:
    history = begun().when(NoteDeliveries([(0, 10)], [(4, 6)], [(2, 3)]))
    history.then(
        events=[
            EntriesDelivered(ranges=[0, 10]),
            DeliveriesReturned(ranges=[4, 2]),
            EntriesDelivered(ranges=[2, 1]),
        ],
        reply=Noted(),
    )
    assert counts(history) == [(0, 2, 1), (2, 3, 2), (3, 4, 1), (6, 10, 1)]


def test_acked_entries_are_not_counted_and_do_not_split_runs() -> None:
    (
        begun()
        .when(Ack(END, [(offset, offset + 1) for offset in range(1, 20, 2)]))
        .when(NoteDeliveries(begun_again=[(at, at + 1) for at in range(0, 20, 2)]))
        .then(events=[EntriesDelivered(ranges=[0, 19])])
        .when(NoteDeliveries(begun=[(3, 4)], returned=[(5, 6)]))
        .then(events=[])
    )


def test_counts_below_the_mark_are_dropped_and_a_reset_drops_all() -> None:
    history = begun().when(NoteDeliveries([(0, 10)])).when(AckBefore(END, 8))
    history.when(NoteDeliveries([(10, 12)]))
    assert counts(history) == [(8, 12, 1)]
    history.when(Reset(8, "seek")).then(events=[CursorReset(next_offset=8, reason="seek")])
    assert counts(history) == []


@settings(max_examples=80, deadline=None)
@examples(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 9), st.sampled_from([-1, 1, 1])), max_size=30
    )
)
def test_runs_are_counts_by_offset(steps) -> None:
    runs, plain = CountRuns(), [0] * 60
    for first, size, by in steps:
        runs.add([(first, first + size)], by)
        for offset in range(first, first + size):
            plain[offset] = max(plain[offset] + by, 0)
        runs.check()
    assert [runs.get(offset) for offset in range(60)] == plain
    assert runs.copy().beyond(0) == [list(run) for run in runs]
    for first in range(40):
        count, end = runs.alike(first, 50)
        assert first < end <= 50 and set(plain[first:end]) == {count}


# ---- the dispatcher over a machine that is all that a crash leaves


class Story:
    """A dispatcher and its machine; what it notes is durable when `note` is called."""

    def __init__(self) -> None:
        self.history = begun()
        self.recover()

    def recover(self) -> None:
        """Everything but the journal is lost."""
        state = self.history.state
        self.dispatcher = Dispatcher(state.cursor, 0, state.deliveries.copy())
        self.dispatcher.feed(0, [1] * 10)

    def attach(self, number: int, kind: SubscriptionType = SHARED, permits: int = 100) -> None:
        self.dispatcher.attach(ConsumerSpec(number, f"c{number}", kind))
        self.dispatcher.flow(number, permits)

    def deliver(self, at_once: bool = True) -> list[tuple[int, int]]:
        """(offset, count) of what goes out; noted not ``at_once``: if it must be."""
        deliveries: list[Delivery] = self.dispatcher.dispatch()
        counted = any(each.redelivery_count for each in deliveries)
        if at_once or counted or self.dispatcher.must_note:
            self.history.when(self.dispatcher.take_notes(deliveries))
        self.dispatcher.check()
        return [
            (offset, each.redelivery_count)
            for each in deliveries
            for offset in range(each.first, each.end)
        ]

    def ack(self, *offsets: int) -> None:
        self.history.when(Ack(10, [(offset, offset + 1) for offset in offsets]))
        self.dispatcher.acked([(offset, offset + 1) for offset in offsets])


def test_every_kind_of_failed_delivery_counts_once() -> None:
    story = Story()
    story.attach(1)
    assert story.deliver() == [(offset, 0) for offset in range(10)]
    story.ack(*range(3, 10))
    story.dispatcher.redeliver(1, [(0, 2)])
    assert story.deliver() == [(0, 1), (1, 1)]
    story.dispatcher.detach(1, lost=True)
    story.attach(2)
    assert story.deliver() == [(0, 2), (1, 2), (2, 1)]
    story.recover()
    story.attach(3)
    assert story.deliver() == [(0, 3), (1, 3), (2, 2)]
    story.dispatcher.detach(3)
    story.attach(4)
    assert story.deliver() == [(0, 3), (1, 3), (2, 2)]
    story.dispatcher.retire()
    story.deliver()
    story.recover()
    story.attach(5)
    assert story.deliver() == [(0, 3), (1, 3), (2, 2)]


def test_a_crash_between_a_nack_and_the_next_delivery_counts_nothing() -> None:
    story = Story()
    story.attach(1)
    story.deliver()
    story.dispatcher.redeliver(1)
    story.recover()
    story.attach(2)
    assert story.deliver() == [(offset, 1) for offset in range(10)]


def test_undelivered_entries_are_not_counted() -> None:
    story = Story()
    story.attach(1, permits=4)
    story.deliver()
    story.recover()
    story.attach(2)
    assert story.deliver() == [(at, int(at < 4)) for at in range(10)]
    assert story.dispatcher.lease() is not None


def test_an_exclusive_consumer_gets_everything_again_and_only_requested_entries_count() -> None:
    story = Story()
    story.attach(1, EXCLUSIVE)
    story.deliver()
    story.dispatcher.redeliver(1, [(3, 4)])
    assert story.deliver() == [(at, int(at == 3)) for at in range(10)]
    story.recover()
    story.attach(2, EXCLUSIVE)
    assert story.deliver() == [(at, 1 + (at == 3)) for at in range(10)]


def test_a_takeover_counts_no_failed_delivery() -> None:
    story = Story()
    story.attach(2, FAILOVER)
    story.deliver()
    story.attach(1, FAILOVER)
    assert story.deliver() == [(at, 0) for at in range(10)]


def test_no_lease_is_granted_before_redeliveries_are_sent() -> None:
    story = Story()
    story.attach(1)
    story.deliver()
    story.recover()
    story.attach(2, permits=0)
    assert not story.dispatcher.may_lease()
    story.dispatcher.flow(2, 100)
    story.deliver()
    assert story.dispatcher.may_lease()


STEPS = st.one_of(
    st.tuples(st.sampled_from(["attach", "detach", "lose"]), st.integers(1, 3), st.integers(1, 9)),
    st.tuples(st.sampled_from(["nack", "ack"]), st.integers(0, 9), st.integers(1, 4)),
    st.tuples(st.just("note"), st.just(0), st.just(0)),
)


def do(story: Story, step: tuple[str, int, int]) -> None:
    what, first, more = step
    dispatcher, part = story.dispatcher, (first, first + more)
    attached = [view.consumer_id for view in dispatcher.consumers()]
    if what == "attach" and first not in attached:
        story.attach(first, permits=5 * more)
    elif what in ("detach", "lose") and first in attached:
        dispatcher.detach(first, lost=what == "lose")
    elif what == "nack":
        for number in attached:
            dispatcher.redeliver(number, [part])
    elif what == "ack":
        story.ack(*range(*part))


@settings(max_examples=300)
@examples(st.lists(STEPS, min_size=4, max_size=40))
def test_durable_counts_match_the_dispatcher_with_late_first_deliveries(steps) -> None:
    """Counts are right when first deliveries are noted late, after any other events."""
    story = Story()
    story.dispatcher.feed(0, [1] * 20)
    story.attach(1)
    story.deliver(at_once=False)
    story.attach(2)
    for step in steps:
        do(story, step)
        story.deliver(at_once=step[0] == "note")
        if step[0] != "note":
            continue
        state, dispatcher = story.history.state, story.dispatcher
        known = dict(dispatcher.redelivery_counts(state.cursor, 100))
        for offset in range(20):
            if not state.cursor.is_acked(offset):
                under_way = dispatcher.holder_of(offset) != ""
                assert state.deliveries.get(offset) == known.get(offset, 0) + under_way

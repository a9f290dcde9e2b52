"""Delayed entries, in the partition and in the dispatcher."""

from __future__ import annotations

from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.dispatch.dispatcher import ConsumerSpec, Dispatcher, SubscriptionType
from velaray.actors.machine import Reason
from velaray.actors.partition.delayed import SEGMENT, DelayedEntry, DelayedIndex, ReleaseDelayed
from velaray.actors.partition.delayed import ReleasedDelayed as Released
from velaray.actors.partition.machine import Chunk, PartitionMachine, Publish
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.testing import given
from velaray.events.events_pb2 import DelayedEntriesDue, LedgerOpened


def begun():
    return given(PartitionMachine(), LedgerOpened(ledger_id=1, epoch=1))


def later(sequence: int, at_ms: int, **more) -> Publish:
    return Publish("p", sequence, 0, 1, b"x", True, deliver_at_ms=at_ms, **more)


def test_an_entry_waits_in_the_index_until_it_is_due() -> None:
    (
        begun()
        .when(later(0, 5000, key_hash=7), now_ms=1000)
        .when(later(1, 3000), now_ms=1000)
        .when(later(2, 900), now_ms=1000)  # its time is over: nothing to wait for
        .when(Publish("p", 3, 0, 4, b"x", True), now_ms=1000)
        .then_state(
            lambda state: (
                sorted(state.delayed) == [DelayedEntry(3000, 1, 1, 0), DelayedEntry(5000, 0, 1, 7)]
            )
        )
        .when(ReleaseDelayed(2999))
        .then(events=[], reply=Released(2))
        .when(ReleaseDelayed(3000))
        .then(events=[DelayedEntriesDue(until_ms=3000)], reply=Released(1))
        .when(later(4, 2500), now_ms=2000)  # the clock went back
        .then_state(lambda state: {entry.offset for entry in state.delayed} == {0, 4})
        .when(ReleaseDelayed(9000))
        .then_state(lambda state: not len(state.delayed))
    )


def test_the_delivery_time_of_a_chunk_is_read_from_its_entry() -> None:
    begun().when(later(0, 5000, chunk=Chunk("u", 0, 2))).then_state(
        lambda state: list(state.delayed) == [DelayedEntry(5000, 0, 0, 0)]
    )


def test_longer_delays_than_the_policy_allows_are_refused() -> None:
    (
        begun()
        .when(later(0, 3001, max_delay_ms=2000), now_ms=1000)
        .then_refused(Reason.NOT_ALLOWED, "2000 ms")
        .when(later(0, 3000, max_delay_ms=2000), now_ms=1000)
        .then_state(lambda state: len(state.delayed) == 1)
    )


def test_a_change_touches_only_its_own_segment() -> None:
    index = DelayedIndex([DelayedEntry(9, 1, 1, 0), DelayedEntry(5, SEGMENT, 2, 3)])
    before = index.snapshot()
    index.add(DelayedEntry(7, SEGMENT + 1, 1, 0))
    after = index.snapshot()
    assert before.keys() == after.keys() == {"delayed/0", "delayed/1"}
    assert before["delayed/0"] == after["delayed/0"]
    assert DelayedIndex.restore(after) == index


# ---- the dispatcher

SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE


def dispatcher(*kinds: SubscriptionType, permits: int = 100) -> Dispatcher:
    made = Dispatcher(Cursor())
    for number, kind in enumerate(kinds, start=1):
        made.attach(ConsumerSpec(number, f"c{number}", kind))
        made.flow(number, permits)
    return made


def given_out(made: Dispatcher) -> list[int]:
    found = [
        offset for delivery in made.dispatch() for offset in range(delivery.first, delivery.end)
    ]
    made.check()
    return found


def test_a_delayed_entry_does_not_block_others_and_is_delivered_when_due() -> None:
    made = dispatcher(SHARED)
    made.feed(0, [1] * 6, None, delayed=[(0, 2), (3, 4)])
    assert given_out(made) == [2, 4, 5]
    assert made.delayed() == 3 and made.waiting() == 0
    made.due([(1, 4)])
    assert given_out(made) == [1, 3]
    made.acked([])
    made.due([(0, 1)])
    assert given_out(made) == [0]
    made.due([(0, 6)])
    assert given_out(made) == []


def test_exclusive_consumers_get_everything_at_once() -> None:
    made = dispatcher(EXCLUSIVE)
    made.feed(0, [1] * 4, None, delayed=[(0, 2)])
    assert given_out(made) == [0, 1, 2, 3]


def test_a_change_of_subscription_type_keeps_delays() -> None:
    made = dispatcher(SHARED, permits=2)
    made.feed(0, [1] * 6, None, delayed=[(0, 1), (5, 6)])
    assert given_out(made) == [1, 2]
    made.detach(1)
    made.attach(ConsumerSpec(2, "e", EXCLUSIVE))
    made.flow(2, 4)
    assert given_out(made) == [0, 1, 2, 3]
    made.detach(2)
    made.attach(ConsumerSpec(3, "s", SHARED))
    made.flow(3, 100)
    assert made.feed_from == 4
    assert given_out(made) == [0, 1, 2, 3]
    made.feed(4, [1, 1], None, delayed=[(5, 6)])
    assert given_out(made) == [4]


def test_an_entry_acked_before_its_delay_is_known_is_not_tracked() -> None:
    """For example, it expired before its size was reported."""
    made = dispatcher(SHARED)
    made._in_flight.cursor.whole.ack_range(1, 3)
    made.acked([(1, 3)])
    made.feed(0, [1] * 4, None, delayed=[(0, 4)])
    made.check()
    assert made.delayed() == 2
    made.due([(0, 4)])
    assert given_out(made) == [0, 3]


def test_an_entry_acked_before_it_is_due_is_never_delivered() -> None:
    made = dispatcher(SHARED)
    made.feed(0, [1] * 3, None, delayed=[(0, 3)])
    assert given_out(made) == []
    made._in_flight.cursor.whole.ack_range(0, 2)
    made.acked([(0, 2)])
    made.due([(0, 3)])
    assert given_out(made) == [2]


def test_a_lease_begins_behind_entries_that_are_not_due() -> None:
    made = dispatcher(SHARED)
    made.feed(0, [1] * 3, None, delayed=[(2, 3)])
    assert given_out(made) == [0, 1]
    grant = made.lease()
    assert grant is not None and grant.first == 3
    made.lease_report(3, [1])
    made.release_lease()
    made.due([(2, 3)])
    assert given_out(made) == [2]


@settings(max_examples=60, deadline=None)
@examples(
    st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30),
    st.lists(st.integers(0, 10), max_size=12),
)
def test_each_entry_is_delivered_once_and_none_too_early(entries, times) -> None:
    made = dispatcher(SHARED, SHARED)
    due_at = [at if delayed else 0 for delayed, at in entries]
    now, got, fed = 0, [], 0
    for step in [*sorted(times), 10]:
        size = min(len(due_at), fed + 4) - fed if step < 10 else len(due_at) - fed
        if size:
            marks = [(at, at + 1) for at in range(fed, fed + size) if due_at[at] > now]
            made.feed(fed, [1] * size, None, delayed=marks)
            fed += size
        made.due([(at, at + 1) for at in range(fed) if now < due_at[at] <= step])
        now = step
        for offset in given_out(made):
            assert due_at[offset] <= now
            got.append(offset)
    assert sorted(got) == list(range(len(due_at)))


def test_key_shared_consumers_get_due_entries() -> None:
    made = dispatcher(SubscriptionType.KEY_SHARED, SubscriptionType.KEY_SHARED)
    made.feed(0, [1] * 4, None, [7, 7, 9, 9], [(0, 1), (3, 4)])
    assert sorted(given_out(made)) == [1, 2]
    made.due([(0, 4)])
    assert sorted(given_out(made)) == [0, 3]

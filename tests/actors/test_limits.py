"""Limits of what consumers hold un-acknowledged; takeover in Failover; no limit on holes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.actors.test_dispatch import consumer, dispatcher, got
from velaray.actors.dispatch.consumers import ActiveChange, SubscriptionType
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.machine import InvariantViolation
from velaray.actors.subscription.cursor import Cursor

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType


def ack(made: Dispatcher, first: int, end: int) -> None:
    made._in_flight.cursor.whole.ack_range(first, end)
    made.acked([(first, end)])


def test_a_consumer_over_its_limit_is_blocked_until_it_holds_less_than_half() -> None:
    made = dispatcher(100, 1000)
    made.set_limits(10, 0)
    assert got(made.dispatch()) == list(range(10))
    (view,) = made.consumers()
    assert (view.unacked, view.blocked) == (10, True)
    made.flow(0, 100)
    ack(made, 0, 5)
    assert made.dispatch() == []  # half of it is too much still
    ack(made, 5, 6)
    assert got(made.dispatch()) == list(range(10, 16))
    made.check()


def test_other_consumers_continue_while_one_is_blocked() -> None:
    made = dispatcher(100, 1000, 1000)
    made.set_limits(10, 0)
    made.dispatch()
    ack(made, 0, 10)
    out = made.dispatch()
    holder = made._in_flight.held.owner_of(20)
    assert {d.consumer_id for d in out} == {holder}
    made.check()


def test_a_subscription_that_holds_too_much_gets_nothing() -> None:
    made = dispatcher(100, 1000, 1000)
    made.set_limits(0, 30)
    assert len(got(made.dispatch())) == 30 and made.blocked
    assert not any(view.blocked for view in made.consumers())
    ack(made, 0, 15)
    assert made.dispatch() == []
    ack(made, 15, 16)
    assert len(got(made.dispatch())) == 16
    made.check()


def test_limits_count_messages_including_those_of_partly_acked_batches() -> None:
    cursor = Cursor()
    made = dispatcher([3, 3, 3, 3, 3], 1000, cursor=cursor)
    made.set_limits(7, 0)
    assert got(made.dispatch()) == [0, 1, 2]  # the last entry may exceed the limit
    assert made.consumers()[0].unacked == 9
    for offset in range(3):
        cursor.ack_partial(offset, 0b001)
        made.acked([], [(offset, 0b001)])
    assert made.consumers()[0].unacked == 3 and not made.consumers()[0].blocked
    assert got(made.dispatch()) == [3, 4]
    made.check()


def test_returned_entries_are_no_longer_held() -> None:
    made = dispatcher(100, 1000, 1000)
    made.set_limits(10, 15)
    made.dispatch()
    made.redeliver(0)
    made.detach(1)
    assert made.consumers()[0].unacked == 0 and not made.blocked
    assert len(got(made.dispatch(), 0)) == 10
    made.check()


def test_new_limits_apply_at_once() -> None:
    made = dispatcher(100, 1000)
    made.set_limits(10, 0)
    made.dispatch()
    made.set_limits(20, 0)
    assert len(got(made.dispatch())) == 10
    made.set_limits(5, 0)
    assert made.dispatch() == [] and made.consumers()[0].blocked
    made.set_limits(0, 0)
    assert len(got(made.dispatch())) == 80
    made.check()


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_one_active_consumer_has_no_limit(kind) -> None:
    made = dispatcher(100, 1000, kind=kind)
    made.set_limits(10, 10)
    assert len(got(made.dispatch())) == 100
    assert not made.blocked and not made.consumers()[0].blocked
    made.check()


def test_a_lease_is_bounded_by_the_limits() -> None:
    made = dispatcher(4, 1000)
    made.set_limits(10, 0)
    made.dispatch()
    grant = made.lease()
    assert grant is not None and grant.room == 6
    made.lease_report(4, [1] * 6)
    made.release_lease()
    assert not made.may_lease() and made.consumers()[0].blocked
    ack(made, 0, 6)
    grant = made.lease()
    assert grant is not None and grant.room == 6
    made.check()


def test_without_limits_a_lease_is_unbounded() -> None:
    made = dispatcher(0, 10)
    grant = made.lease()
    assert grant is not None and grant.room == UNLIMITED


def _uncounted(made: Dispatcher) -> None:
    made._in_flight.consumers[0].unacked -= 1


def _unblocked(made: Dispatcher) -> None:
    made._in_flight.consumers[0].blocked = False


def _blocked(made: Dispatcher) -> None:
    made._in_flight.limits.blocked = True


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_uncounted, "un-acknowledged messages are the held ones"),
        (_unblocked, "consumers over the limit are blocked"),
        (_blocked, "below half of the limit aren't blocked"),
    ],
)
def test_a_broken_invariant_is_named(damage, name) -> None:
    made = dispatcher(100, 1000)
    made.set_limits(10, 100)
    made.dispatch()
    made.check()
    damage(made)
    with pytest.raises(InvariantViolation, match=name):
        made.check()


# ---- Failover


def test_the_order_of_consumers_does_not_depend_on_their_arrival() -> None:
    """The names in order, one partition after the other; a better level before all others."""

    def active(partition: int, names: list[str]) -> str:
        made = Dispatcher(Cursor(), partition)
        for number, name in enumerate(names):
            made.attach(replace(consumer(number, FAILOVER, int(name[0] == "z")), name=name))
        return next(view.name for view in made.consumers() if view.active)

    for names in (["a", "b", "c", "z"], ["z", "c", "a", "b"], ["b", "z", "a", "c"]):
        assert [active(partition, names) for partition in range(6)] == ["a", "b", "c"] * 2


def test_a_takeover_is_notified_once_and_held_entries_come_first() -> None:
    made = dispatcher(10, 5, 100, 100, kind=FAILOVER)
    assert got(made.dispatch(), 0) == list(range(5))
    assert sorted(made.detach(0), key=lambda told: told.consumer_id) == [
        ActiveChange(1, True),
        ActiveChange(2, False),
    ]
    assert made.detach(2) == []  # nothing changes for the active one
    assert got(made.dispatch(), 1) == list(range(10))
    made.check()


def test_a_better_level_gets_everything_while_it_has_permits() -> None:
    made = Dispatcher(Cursor())
    made.feed(0, [1] * 100)
    for number, priority in enumerate([5, 0]):
        made.attach(consumer(number, SHARED, priority))
        made.flow(number, 20)
    assert got(made.dispatch(), 1) == list(range(20))
    made.flow(1, 10)
    made.flow(0, 10)
    out = made.dispatch()
    assert got(out, 1) == list(range(40, 50)) and got(out, 0) == list(range(50, 60))
    made.check()


# ---- holes


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_many_acked_ranges_do_not_stop_dispatch(kind) -> None:
    """Pulsar pauses a subscription whose holes it can't write down; here all of them can be."""
    entries = 10_000
    cursor = Cursor()
    made = Dispatcher(cursor)
    made.attach(consumer(0, kind))
    made.flow(0, 10 * entries)
    for first in range(0, entries, 2000):
        assert made.feed(first, [1] * 2000, None, [1 + at % 60_000 for at in range(2000)])
        assert got(made.dispatch()) == list(range(first, first + 2000))
        for offset in range(first + 1, first + 2000, 2):
            cursor.ack_range(offset, offset + 1)
        made.acked([(offset, offset + 1) for offset in range(first + 1, first + 2000, 2)])
    assert cursor.acked_range_count() == entries // 2
    made.check()


# ---- standing beside dead letters


def test_a_lease_behind_an_unfed_dead_entry_moves_the_feed_position() -> None:
    """Found by simulation, seed 6: the partition continued to feed at its former position, the
    dispatcher waited for the dead entry's size, and delivery stopped.
    """
    made = Dispatcher(Cursor(35))
    made.kill([(35, 36)])
    made.attach(consumer(0))
    made.flow(0, 10)
    grant = made.lease()
    assert grant is not None and grant.first == 36
    made.release_lease()
    made.attach(consumer(1))
    assert made.feed_from == 36
    assert made.feed(36, [1, 1])
    assert got(made.dispatch()) == [36, 37]
    made.check()

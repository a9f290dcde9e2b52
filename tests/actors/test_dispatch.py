"""The dispatcher: which consumer gets which entry. A model checks every delivery."""

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from velaray.actors.dispatch import sizes as entry_sizes
from velaray.actors.dispatch.consumers import (
    ActiveChange,
    ConsumerSpec,
    Delivery,
    SubscriptionType,
    UnknownConsumerError,
)
from velaray.actors.dispatch.dispatcher import MAX_WINDOW, MIN_WINDOW, Dispatcher
from velaray.actors.dispatch.lease import REPORT_AT, DispatchLease, LeasedDelivery
from velaray.actors.dispatch.shared import TURN
from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.machine import InvariantViolation, Reason, Refusal
from velaray.actors.sets import entry_holdings
from velaray.actors.subscription.cursor import Cursor

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType


def consumer(number: int, kind: SubscriptionType = SHARED, priority: int = 0) -> ConsumerSpec:
    return ConsumerSpec(number, f"c{number}", kind, priority)


def dispatcher(
    entries: int | list[int],
    *permits: int,
    kind: SubscriptionType = SHARED,
    chunks: dict[int, str] | None = None,
    cursor: Cursor | None = None,
) -> Dispatcher:
    """One with that many entries fed, and consumers 0, 1, ... with that many permits."""
    made = Dispatcher(cursor or Cursor())
    sizes = [1] * entries if isinstance(entries, int) else entries
    made.feed(0, sizes, chunks)
    for number, granted in enumerate(permits):
        made.attach(consumer(number, kind))
        made.flow(number, granted)
    return made


def got(deliveries: list[Delivery], number: int | None = None) -> list[int]:
    return [
        offset
        for delivery in deliveries
        if number is None or delivery.consumer_id == number
        for offset in range(delivery.first, delivery.end)
    ]


def test_a_run_of_entries_is_one_delivery() -> None:
    made = dispatcher(1000, 600, kind=EXCLUSIVE)
    assert made.dispatch() == [Delivery(0, 0, 600, 600, 0)]
    assert made.dispatch() == []
    made.flow(0, 1000)
    assert made.dispatch() == [Delivery(0, 600, 1000, 400, 0)]
    made.check()


def test_the_last_batch_may_exceed_the_permits() -> None:
    made = dispatcher([3, 3, 3, 3], 7, kind=EXCLUSIVE)
    assert made.dispatch() == [Delivery(0, 0, 3, 9, 0)]
    assert made.consumers()[0].permits == -2
    made.flow(0, 2)
    assert made.dispatch() == []
    made.flow(0, 1)
    assert made.dispatch() == [Delivery(0, 3, 4, 3, 0)]
    made.check()


def test_a_partly_acked_batch_debits_permits_for_its_open_messages() -> None:
    cursor = Cursor()
    cursor.ack_partial(1, 0b101)
    made = dispatcher([3, 3, 3], 5, kind=EXCLUSIVE, cursor=cursor)
    assert made.dispatch() == [Delivery(0, 0, 1, 3, 0), Delivery(0, 1, 2, 2, 0, 0b101)]
    made.check()


def test_acked_entries_are_skipped() -> None:
    cursor = Cursor()
    cursor.ack_range(2, 5)
    made = dispatcher(8, 100, kind=EXCLUSIVE, cursor=cursor)
    assert got(made.dispatch()) == [0, 1, 5, 6, 7]
    assert made.unacked(0) == [(0, 2), (5, 8)]


def test_shared_consumers_take_turns() -> None:
    made = dispatcher(10 * TURN, 1000, 1000, 5)
    first = made.dispatch()
    assert [d.consumer_id for d in first][:4] == [0, 1, 2, 0]
    assert len(got(first, 2)) == 5
    assert abs(len(got(first, 0)) - len(got(first, 1))) <= TURN
    assert got(first) == list(range(10 * TURN))


def test_turns_continue_from_one_dispatch_to_the_next() -> None:
    made = Dispatcher(Cursor())
    for number in range(3):
        made.attach(consumer(number))
        made.flow(number, 100)
    order = []
    for offset in range(6):
        made.feed(offset, [1])
        order += [delivery.consumer_id for delivery in made.dispatch()]
    assert order == [0, 1, 2, 0, 1, 2]


def test_a_better_priority_level_comes_first() -> None:
    made = Dispatcher(Cursor())
    made.feed(0, [1] * 100)
    for number, priority in enumerate([1, 0, 1]):
        made.attach(consumer(number, SHARED, priority))
        made.flow(number, 30)
    out = made.dispatch()
    assert got(out, 1) == list(range(30))
    assert sorted(got(out, 0) + got(out, 2)) == list(range(30, 90))
    made.detach(1)
    assert 1 not in {view.consumer_id for view in made.consumers()}
    made.check()


def test_entries_of_a_detached_consumer_are_delivered_first_without_counting() -> None:
    made = dispatcher(10, 4, kind=FAILOVER)
    made.dispatch()
    made.acked([])
    assert made.detach(0) == []
    made.attach(consumer(1, FAILOVER))
    made.flow(1, 100)
    out = made.dispatch()
    assert got(out) == list(range(10)) and {d.redelivery_count for d in out} == {0}
    made.check()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_acknowledgements_may_come_one_by_one_after_the_cursor_has_all(
    kind: SubscriptionType,
) -> None:
    """After a roll-over, when the mark is already behind entries that a consumer still holds."""
    cursor = Cursor()
    made = dispatcher(5000, 4000, kind=kind, cursor=cursor)
    assert got(made.dispatch()) == [*range(4000)]
    cursor.ack_range(0, 3500)
    for first in range(0, 3500, 250):
        made.acked([(first, first + 250)])
        assert made.consumers()[0].unacked == 4000 - first - 250
    made.detach(0)
    made.attach(consumer(1, kind))
    made.flow(1, 5000)
    assert got(made.dispatch()) == [*range(3500, 5000)]
    made.check()


def test_shared_redelivers_only_the_requested_entries_and_counts_them() -> None:
    made = dispatcher(6, 6)
    made.dispatch()
    made.redeliver(0, [(1, 2), (4, 9)])
    assert made.waiting() == 3
    made.flow(0, 10)
    assert made.dispatch() == [Delivery(0, 1, 2, 1, 1), Delivery(0, 4, 6, 2, 1)]
    made.redeliver(0, [(4, 5)])
    made.redeliver(0)
    assert made.dispatch() == [
        Delivery(0, 0, 1, 1, 1),
        Delivery(0, 1, 2, 1, 2),
        Delivery(0, 2, 4, 2, 1),
        Delivery(0, 4, 6, 2, 2),
    ]
    made.check()


def test_only_the_holder_of_an_entry_can_request_its_redelivery() -> None:
    made = dispatcher(2 * TURN, TURN, TURN)
    made.dispatch()
    made.redeliver(0, [(TURN, 2 * TURN)])
    assert made.waiting() == 0
    with pytest.raises(UnknownConsumerError):
        made.redeliver(7)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
def test_single_active_redelivers_everything_in_order_before_new_entries(kind) -> None:
    made = dispatcher(6, 4, kind=kind)
    made.dispatch()
    made.redeliver(0, [(2, 3)])
    made.flow(0, 10)
    out = made.dispatch()
    assert got(out) == [0, 1, 2, 3, 4, 5]
    assert [d.redelivery_count for d in out] == [0, 1, 0, 0]
    made.check()


def test_acks_release_held_and_waiting_entries() -> None:
    cursor = Cursor()
    made = dispatcher(10, 10, cursor=cursor)
    made.dispatch()
    made.redeliver(0, [(0, 4)])
    cursor.ack_range(2, 8)
    made.acked([(2, 8)])
    assert made.unacked(0) == [(8, 10)] and made.waiting() == 2
    made.check()


def test_an_ack_that_the_cursor_refused_releases_nothing() -> None:
    made = dispatcher(10, 10)
    made.dispatch()
    made.acked([(2, 8)], [(9, 0)])
    assert made.unacked(0) == [(0, 10)]


def test_an_entry_acked_in_part_stays_held_until_its_last_message() -> None:
    cursor = Cursor()
    made = dispatcher([3], 10, cursor=cursor)
    made.dispatch()
    for ack_set, held in [(0b011, [(0, 1)]), (0b001, [(0, 1)]), (0b110, [])]:
        cursor.ack_partial(0, ack_set)
        made.acked([], [(0, ack_set)])
        assert made.unacked(0) == held
        made.check()


def test_consumers_attach_only_if_their_types_agree() -> None:
    made = Dispatcher(Cursor())
    assert made.attach(consumer(1, EXCLUSIVE)) == [] and made.type is EXCLUSIVE
    for kind in (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED):
        refused = made.attach(consumer(2, kind))
        assert isinstance(refused, Refusal) and refused.reason is Reason.BUSY
    with pytest.raises(ValueError, match="attached already"):
        made.attach(consumer(1, EXCLUSIVE))
    made.detach(1)
    assert made.type is None
    assert made.attach(consumer(2, SHARED)) == [] and made.type is SHARED
    made.check()


def test_failover_notifies_consumers_of_the_active_one() -> None:
    made = Dispatcher(Cursor())
    assert made.attach(consumer(5, FAILOVER)) == [ActiveChange(5, True)]
    assert made.attach(consumer(7, FAILOVER)) == [ActiveChange(7, False)]
    takeover = made.attach(consumer(3, FAILOVER))
    assert takeover == [ActiveChange(5, False), ActiveChange(7, False), ActiveChange(3, True)]
    assert made.attach(consumer(1, FAILOVER, priority=1)) == [ActiveChange(1, False)]
    assert made.detach(7) == []
    assert made.detach(3) == [ActiveChange(5, True), ActiveChange(1, False)]
    assert made.detach(5) == [ActiveChange(1, True)]
    made.check()


def test_failover_partitions_spread_over_the_best_level() -> None:
    active = []
    for partition in range(4):
        made = Dispatcher(Cursor(), partition)
        for number, priority in enumerate([0, 0, 1]):
            made.attach(consumer(number, FAILOVER, priority))
        active += [view.consumer_id for view in made.consumers() if view.active]
    assert active == [0, 1, 0, 1]


def test_a_takeover_starts_with_what_the_previous_one_held() -> None:
    made = Dispatcher(Cursor())
    made.feed(0, [1] * 10)
    made.attach(consumer(5, FAILOVER))
    made.flow(5, 6)
    assert got(made.dispatch()) == [0, 1, 2, 3, 4, 5]
    made.attach(consumer(3, FAILOVER))
    made.flow(3, 100)
    made.flow(5, 100)
    out = made.dispatch()
    assert got(out, 3) == list(range(10)) and got(out, 5) == []
    made.check()


def test_chunks_of_a_message_go_to_one_consumer() -> None:
    made = dispatcher(9, 1, 100, chunks={0: "m", 3: "m", 5: "m", 6: "n"})
    out = made.dispatch()
    assert got(out, 0) == [0] and got(out, 1) == [1, 2, 4, 6, 7, 8]
    assert made.waiting() == 2
    made.check()
    made.flow(0, 1)
    assert got(made.dispatch(), 0) == [3]
    made.detach(0)
    assert got(made.dispatch(), 1) == [0, 3, 5]
    made.check()


def test_a_chunked_message_stays_with_its_consumer_until_all_chunks_are_returned() -> None:
    made = dispatcher(2, 2, 0, chunks={0: "m", 1: "m"})
    assert got(made.dispatch(), 0) == [0, 1]
    made.flow(1, 10)
    made.redeliver(0, [(0, 1)])
    assert made.dispatch() == [] and made.waiting() == 1
    made.redeliver(0, [(1, 2)])
    made.check()
    assert got(made.dispatch(), 1) == [0, 1]
    made.check()


def test_acked_chunks_are_forgotten() -> None:
    cursor = Cursor()
    made = dispatcher(3, 0, 9, chunks={0: "m", 2: "m"}, cursor=cursor)
    made.dispatch()
    cursor.ack_range(0, 3)
    made.acked([(0, 3)])
    assert not made._in_flight.chunks and list(made._in_flight.chunks.bound()) == []
    made.flow(0, 1)
    made.feed(3, [1, 1], {3: "m"})
    assert got(made.dispatch(), 1) == [3]
    made.check()


def test_an_ack_ends_the_reservation_of_a_chunk() -> None:
    cursor = Cursor()
    made = dispatcher(2, 1, 5, chunks={0: "m", 1: "m"}, cursor=cursor)
    made.dispatch()
    assert made.waiting() == 1
    cursor.ack_range(1, 2)
    made.acked([(1, 2)])
    assert made.waiting() == 0
    made.check()


def test_the_window_is_bounded_and_follows_the_permits() -> None:
    made = Dispatcher(Cursor(50))
    assert made.feed_from == 50 and made.wants() == 50
    made.attach(consumer(0))
    assert made.wants() == 50 + MIN_WINDOW
    made.flow(0, 1000)
    assert made.wants() == 50 + 2000
    made.flow(0, 1_000_000)
    assert made.wants() == 50 + MAX_WINDOW


def test_feeding_skips_acked_entries_and_ignores_known_ones() -> None:
    cursor = Cursor()
    made = Dispatcher(cursor)
    assert made.feed(0, [1, 2, 3])
    assert made.feed(1, [9, 9, 4])
    assert made.feed(0, [9])
    assert [made.size_of(offset) for offset in range(5)] == [1, 2, 3, 4, None]
    assert not made.feed(5, [1])
    assert made.feed_from == 4
    cursor.ack_range(4, 10)
    assert made.feed_from == 10
    made.feed(10, [7])
    assert made.size_of(10) == 7 and made.feed_from == 11
    with pytest.raises(ValueError, match="0 messages"):
        made.feed(11, [0])


def test_a_reset_starts_over_and_keeps_permits() -> None:
    cursor = Cursor()
    made = dispatcher(100, 50, cursor=cursor)
    made.dispatch()
    made.redeliver(0, [(22, 23)])
    made.flow(0, 5)
    cursor.reset(20)
    made.reset(20)
    assert made.feed_from == made.next_offset == 20 and made.unacked(0) == []
    made.feed(20, [1] * 30)
    assert made.dispatch() == [Delivery(0, 20, 25, 5, 0)]
    made.check()


def test_sizes_of_acked_entries_are_dropped() -> None:
    cursor = Cursor()
    made = dispatcher(300_000, 300_000, kind=EXCLUSIVE, cursor=cursor)
    made.dispatch()
    assert made._in_flight.sizes.page_count() > 250
    cursor.ack_range(1, 299_000)  # entry 0 stays un-acknowledged
    made.acked([(1, 299_000)])
    assert made._in_flight.sizes.page_count() < 5
    made.check()
    cursor.ack_range(0, 1)
    made.acked([(0, 1)])
    assert made._in_flight.sizes.page_count() < 4
    made.check()


# ---- invariants are seen to fail


def _two_holders(made: Dispatcher) -> None:
    made._in_flight.held._runs[3] = (9, 1)


def _acked_but_held(made: Dispatcher) -> None:
    made._in_flight.cursor.whole.ack_range(0, 5)


def _held_and_waiting(made: Dispatcher) -> None:
    made._in_flight.waiting.add(0, 1)


def _lost(made: Dispatcher) -> None:
    made._in_flight.held.take(4, 5)


def _permits(made: Dispatcher) -> None:
    made._in_flight.consumers[0].permits = -5


def _turn(made: Dispatcher) -> None:
    made._serving._levels[0].clear()
    made._in_flight.consumers[0].queued = False


def _stranger(made: Dispatcher) -> None:
    made._in_flight.held.take(0, 1)
    made._in_flight.held.give(0, 1, 99)


def _inactive_holder(made: Dispatcher) -> None:
    made._in_flight.held.take(0, 1)
    made._in_flight.held.give(0, 1, 1)


def _no_active(made: Dispatcher) -> None:
    made._serving._active = None


def _unread(made: Dispatcher) -> None:
    made._in_flight.next_offset = 5


def _sizes_gone(made: Dispatcher) -> None:
    made._in_flight.sizes.clear()


def _split_message(made: Dispatcher) -> None:
    made._in_flight.chunks.add({0: "m", 1: "m"})
    made._in_flight.chunks.bind("m", 1)


@pytest.mark.parametrize(
    ("kind", "damage", "name"),
    [
        (SHARED, _two_holders, "no more than one consumer"),
        (SHARED, _acked_but_held, "nothing acknowledged is held"),
        (SHARED, _held_and_waiting, "an entry is in one place"),
        (SHARED, _lost, "no entry is lost"),
        (SHARED, _permits, "permits are exceeded"),
        (SHARED, _turn, "consumers with permits are queued"),
        (SHARED, _stranger, "consumers that hold entries are attached"),
        (SHARED, _unread, "what isn't read yet is nowhere"),
        (SHARED, _sizes_gone, "sizes of what may be delivered are known"),
        (SHARED, _split_message, "all chunks of a message"),
        (FAILOVER, _inactive_holder, "only the active consumer"),
        (FAILOVER, _no_active, "one active consumer"),
    ],
)
def test_a_broken_invariant_is_named(kind, damage, name) -> None:
    made = dispatcher(8, 10, 10, kind=kind)
    made.dispatch()
    made.check()
    damage(made)
    with pytest.raises(InvariantViolation, match=name):
        made.check()


# ---- dispatch leases


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, FAILOVER])
def test_a_lease_is_granted_while_only_one_consumer_can_get_entries(kind) -> None:
    made = dispatcher(8, 3, kind=kind)
    made.dispatch()
    assert made.lease() == DispatchLease(0, 3, 3, UNLIMITED)
    assert made.leased and made.lease() is None
    made.lease_report(3, [1, 4], {})
    assert made.unacked(0) == [(0, 5)] and made.next_offset == 5
    assert made.consumers()[0].permits == -5
    made.flow(0, 10)
    assert made.dispatch() == []
    made.release_lease()
    assert [(d.first, d.end) for d in made.dispatch()] == [(5, 8)]


def test_no_lease_is_granted_while_the_dispatcher_has_choices() -> None:
    made = dispatcher(8, 10, 10, kind=SHARED)
    assert not made.may_lease()  # two consumers
    made.detach(1)
    made.dispatch()
    assert made.may_lease()
    made.redeliver(0, [(1, 2)])
    assert not made.may_lease()  # something to deliver again
    made.flow(0, 100)
    made.dispatch()
    assert made.may_lease()
    made._in_flight.cursor.whole.ack_range(20, 21)
    assert not made.may_lease()  # something acknowledged ahead
    made._in_flight.cursor.whole.ack_before(21)
    assert made.may_lease()
    made._in_flight.cursor.whole.ack_partial(30, 1)
    assert not made.may_lease()  # a part acknowledged ahead


def test_entries_acked_before_a_lease_report_are_not_held() -> None:
    made = dispatcher(4, 10, kind=EXCLUSIVE)
    made.dispatch()
    assert made.lease() is not None
    made._in_flight.cursor.whole.ack_range(5, 6)
    made.acked([(5, 6)])
    made.lease_report(4, [1, 1, 1], {})
    assert made.unacked(0) == [(0, 5), (6, 7)]
    made.check()


def test_a_lease_report_without_a_lease_is_refused() -> None:
    made = dispatcher(8, 1, kind=EXCLUSIVE)
    with pytest.raises(InvariantViolation, match="under a lease"):
        made.lease_report(0, [1], {})
    made.dispatch()
    assert made.lease() is not None
    with pytest.raises(InvariantViolation, match="1 entries from 2"):
        made.lease_report(2, [1], {})


def test_chunks_delivered_under_a_lease_keep_their_message_together() -> None:
    made = dispatcher(1, 10, kind=SHARED)
    made.dispatch()
    assert made.lease() is not None
    made.lease_report(1, [1, 1], {2: "m"})
    made.release_lease()
    made.attach(consumer(1, SHARED))
    made.flow(1, 10)
    made.feed(3, [1, 1], {4: "m"})
    assert {(d.first, d.consumer_id) for d in made.dispatch() if d.first == 4} == {(4, 0)}
    made.check()


def test_a_lease_report_is_due_after_a_bounded_number_of_deliveries() -> None:
    leased = LeasedDelivery(7, 10**6, UNLIMITED)
    assert leased.report() is None
    for _ in range(REPORT_AT):
        assert not leased.report_due
        leased.delivered([2], {})
    assert leased.report_due
    assert leased.report() == (7, [2] * REPORT_AT, {}, [])
    assert not leased.report_due and leased.permits == 10**6 - 2 * REPORT_AT


# ---- a model that follows every delivery


class Model(RuleBasedStateMachine):
    """Publishes, consumes, acks, asks again, seeks; checks each delivery against its own books."""

    kind = SHARED

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (entry_sizes, entry_holdings):  # few entries fill several pages
            self.patch.setattr(module, "PAGE", 8)
        self.cursor = Cursor()
        self.subject = Dispatcher(self.cursor)
        self.sizes: list[int] = []
        self.chunks: dict[int, str] = {}
        self.left: list[int] = []  # per entry: mask of messages not acked
        self.counts: dict[int, int] = {}
        self.holder: dict[int, int] = {}
        self.given: dict[str, int] = {}  # who got chunks of a message, and may wait for the others
        self.permits: dict[int, int] = {}
        self.flowed: dict[int, int] = {}
        self.priority: dict[int, int] = {}
        self.next_id = 0

    # what the world does

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40))
    def publish(self, sizes: list[int]) -> None:
        self.sizes += sizes
        self.left += [(1 << size) - 1 for size in sizes]

    @rule(key=st.sampled_from("mn"), others=st.lists(st.booleans(), min_size=2, max_size=6))
    def publish_chunked(self, key: str, others: list[bool]) -> None:
        for other in others:
            if not other:
                self.chunks[len(self.sizes)] = f"{key}{len(self.sizes) // 50}"
            self.sizes.append(1)
            self.left.append(1)

    @rule(limit=st.integers(1, 60))
    def feed(self, limit: int) -> None:
        first = self.subject.feed_from
        end = min(self.subject.wants(), first + limit, len(self.sizes))
        if first < end:
            keys = {offset: key for offset, key in self.chunks.items() if first <= offset < end}
            self.subject.feed(first, self.sizes[first:end], keys)

    @rule(priority=st.integers(0, 1), permits=st.integers(0, 30))
    @precondition(lambda self: len(self.permits) < 4)
    def attach(self, priority: int, permits: int) -> None:
        number = self.next_id = self.next_id + 1
        answer = self.subject.attach(consumer(number, self.kind, priority))
        if self.kind is EXCLUSIVE and self.permits:
            assert isinstance(answer, Refusal)
            return
        before = self.active()
        self.permits[number], self.priority[number] = permits, priority
        self.flowed[number] = permits
        self.take_over(before)
        self.subject.flow(number, permits)

    @rule(data=st.data())
    @precondition(lambda self: self.permits)
    def detach(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        before = self.active()
        self.subject.detach(number)
        del self.permits[number], self.priority[number]
        self.holder = {o: who for o, who in self.holder.items() if who != number}
        self.given = {key: who for key, who in self.given.items() if who != number}
        self.take_over(before)

    @rule(data=st.data(), permits=st.integers(0, 40))
    @precondition(lambda self: self.permits)
    def flow(self, data: st.DataObject, permits: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        self.subject.flow(number, permits)
        self.permits[number] += permits
        self.flowed[number] += permits

    @rule(data=st.data(), length=st.integers(1, 25))
    @precondition(lambda self: self.sizes)
    def ack(self, data: st.DataObject, length: int) -> None:
        first = data.draw(st.integers(0, len(self.sizes) - 1))
        end = min(first + length, len(self.sizes))
        self.cursor.ack_range(first, end)
        self.subject.acked([(first, end)])
        self.forget(first, end)

    @rule(data=st.data(), lengths=st.lists(st.integers(1, 25), min_size=2, max_size=4))
    @precondition(lambda self: self.sizes)
    def ack_late(self, data: st.DataObject, lengths: list[int]) -> None:
        """The cursor has several acknowledgements before the dispatcher gets the first one."""
        ranges = []
        for length in lengths:
            first = data.draw(st.integers(0, len(self.sizes) - 1))
            ranges.append((first, min(first + length, len(self.sizes))))
            self.cursor.ack_range(*ranges[-1])
        for part in ranges:
            self.subject.acked([part])
            self.forget(*part)

    @rule(data=st.data(), ack_set=st.integers(0, 31))
    @precondition(lambda self: self.holder)
    def ack_part(self, data: st.DataObject, ack_set: int) -> None:
        offset = data.draw(st.sampled_from(sorted(self.holder)))
        mask = ack_set & (1 << self.sizes[offset]) - 1
        self.cursor.ack_partial(offset, mask)
        self.subject.acked([], [(offset, mask)])
        self.left[offset] &= mask
        if not self.left[offset]:
            self.forget(offset, offset + 1)

    @rule(data=st.data())
    @precondition(lambda self: self.sizes)
    def ack_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes)))
        before = self.cursor.acked_before
        self.cursor.ack_before(offset)
        self.subject.acked([(before, offset)])
        self.forget(0, offset)

    @rule(data=st.data(), everything=st.booleans())
    @precondition(lambda self: self.permits)
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        mine = {offset for offset, who in self.holder.items() if who == number}
        named = mine
        if everything:
            self.subject.redeliver(number)
        else:
            first = data.draw(st.integers(0, len(self.sizes)))
            named = mine & set(range(first, first + 15))
            self.subject.redeliver(number, [(first + 5, first + 15), (first, first + 6)])
        for offset in named:
            self.counts[offset] = self.counts.get(offset, 0) + 1
        for offset in named if self.kind is SHARED else mine:
            del self.holder[offset]
            if offset in self.chunks and self.bound_to(offset) is None:
                self.given.pop(self.chunks[offset], None)

    @rule(data=st.data())
    @precondition(lambda self: self.sizes)
    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes)))
        self.cursor.reset(offset)
        self.subject.reset(offset)
        self.left = [0 if o < offset else (1 << size) - 1 for o, size in enumerate(self.sizes)]
        self.holder.clear()
        self.given.clear()
        self.counts.clear()

    @rule()
    def dispatch(self) -> None:
        for delivery in self.subject.dispatch():
            self.follow(delivery)
        fed = self.subject.feed_from
        takers = [n for n in self.permits if self.may_take(n)]
        idle = self.undelivered(fed)
        if self.kind is SHARED:  # a chunk may wait for the one that has its message
            idle = [o for o in idle if self.chunks.get(o) not in self.given]
        assert not takers or not idle, f"{takers} could have had {idle}"

    # the partition delivers by itself

    @rule(limit=st.integers(1, 30))
    def deliver_leased(self, limit: int) -> None:
        """A lease is granted, used up to a limit, reported and released."""
        grant = self.subject.lease()
        if grant is None:
            return
        self.subject.check()
        assert not self.subject.dispatch() and self.subject.wants() <= self.subject.feed_from
        number = grant.consumer_id
        leased = LeasedDelivery(grant.first, self.flowed[number] - grant.debited, grant.room)
        assert leased.permits == self.permits[number]
        while leased.permits > 0 and leased.next_offset < len(self.sizes) and limit:
            offset = leased.next_offset
            size = self.sizes[offset]
            self.follow(Delivery(number, offset, offset + 1, size, 0))
            key = self.chunks.get(offset)
            leased.delivered([size], {offset: key} if key else {})
            limit -= 1
            if limit % 7 == 0 and (report := leased.report()):
                self.subject.lease_report(*report)
        if report := leased.report():
            self.subject.lease_report(*report)
        assert self.subject.next_offset == leased.next_offset
        self.subject.check()
        self.subject.release_lease()

    # the model's own books

    def forget(self, first: int, end: int) -> None:
        for offset in range(first, end):
            self.left[offset] = 0
            self.holder.pop(offset, None)
            self.counts.pop(offset, None)

    def active(self) -> int | None:
        if self.kind is SHARED or not self.permits:
            return None
        best = min(self.priority.values())
        return min((n for n in self.permits if self.priority[n] == best), key=lambda n: f"c{n}")

    def take_over(self, before: int | None) -> None:
        if before is not None and before != self.active():
            self.holder.clear()

    def may_take(self, number: int) -> bool:
        return self.permits[number] > 0 and self.active() in (None, number)

    def undelivered(self, end: int) -> list[int]:
        end = min(end, len(self.sizes))
        return [o for o in range(end) if self.left[o] and o not in self.holder]

    def bound_to(self, offset: int) -> int | None:
        key = self.chunks.get(offset)
        for other, who in self.holder.items():
            if key is not None and self.chunks.get(other) == key:
                return who
        return None

    def follow(self, delivery: Delivery) -> None:
        number = delivery.consumer_id
        debited = 0
        for offset in range(delivery.first, delivery.end):
            assert self.permits[number] > 0, "delivered without a permit"
            assert self.active() in (None, number), "delivered to one that isn't active"
            assert self.left[offset], "delivered what is acked"
            assert offset not in self.holder, "delivered to two at once"
            assert delivery.redelivery_count == self.counts.get(offset, 0)
            full = (1 << self.sizes[offset]) - 1
            assert (delivery.ack_set or full) == self.left[offset]
            if self.kind is not SHARED:
                assert offset == self.undelivered(offset + 1)[0], "out of order"
            elif self.chunks.get(offset) is None:
                best = min(self.priority[n] for n, permits in self.permits.items() if permits > 0)
                assert self.priority[number] == best, "a better level had permits"
            if self.kind is SHARED:
                assert self.bound_to(offset) in (None, number), "a message at two consumers"
                if offset in self.chunks:
                    self.given[self.chunks[offset]] = number
            self.holder[offset] = number
            self.permits[number] -= self.left[offset].bit_count()
            debited += self.left[offset].bit_count()
        assert delivery.messages == debited

    @invariant()
    def in_flight_agrees(self) -> None:
        self.subject.check()
        assert self.permits == {v.consumer_id: v.permits for v in self.subject.consumers()}
        for number in self.permits:
            held = [o for a, b in self.subject.unacked(number) for o in range(a, b)]
            assert held == sorted(o for o, who in self.holder.items() if who == number)

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.patch.undo()

    def drain(self) -> None:
        """With one patient consumer everything is delivered in the end, and acked."""
        for number in sorted(self.permits):
            self.subject.detach(number)
        self.permits, self.priority, self.holder = {}, {}, {}
        self.attach(0, 1 << 30)
        while any(self.left):
            backlog = sum(1 for left in self.left if left)
            self.feed(1 << 30)
            self.dispatch()
            for offset in sorted(self.holder):
                self.cursor.ack_range(offset, offset + 1)
                self.subject.acked([(offset, offset + 1)])
                self.forget(offset, offset + 1)
            assert sum(1 for left in self.left if left) < backlog, "no progress"
        assert self.cursor.acked_before == len(self.sizes)
        self.in_flight_agrees()


class FailoverModel(Model):
    kind = FAILOVER


class ExclusiveModel(Model):
    kind = EXCLUSIVE


PACE = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestShared = Model.TestCase
TestFailover = FailoverModel.TestCase
TestExclusive = ExclusiveModel.TestCase
for case in (TestShared, TestFailover, TestExclusive):
    case.settings = PACE


def test_a_long_run_needs_few_deliveries() -> None:
    made = dispatcher(9000, 9000, kind=EXCLUSIVE)
    out = made.dispatch()
    assert len(out) <= 9000 // 1024 + 1
    assert all(a.end == b.first for a, b in pairwise(out))

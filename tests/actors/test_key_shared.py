"""Key_Shared: assignment of hashes, draining, look-ahead. A model follows every delivery."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.actors.test_dispatch import got
from velaray.actors.dispatch import key_shared
from velaray.actors.dispatch.consumers import (
    Attached,
    ConsumerSpec,
    Delivery,
    KeySharedMode,
    KeySharedPolicy,
    SubscriptionType,
)
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.dispatch.draining import PendingHashes
from velaray.actors.dispatch.key_ranges import HASHES, Assignment, HashRing, StickyRanges
from velaray.actors.dispatch.key_shared import LOOK_AHEAD_PER_CONSUMER
from velaray.actors.dispatch.lease import LeasedDelivery
from velaray.actors.dispatch.unacked import UNLIMITED
from velaray.actors.machine import InvariantViolation, Reason, Refusal
from velaray.actors.subscription.cursor import Cursor

KEY_SHARED = SubscriptionType.KEY_SHARED
LOOSE = KeySharedPolicy(out_of_order=True)


def sticky(*ranges: tuple[int, int]) -> KeySharedPolicy:
    return KeySharedPolicy(KeySharedMode.STICKY, ranges)


def consumer(number: int, keys: KeySharedPolicy | None = None) -> ConsumerSpec:
    return ConsumerSpec(number, f"c{number}", KEY_SHARED, keys=keys or KeySharedPolicy())


SPREAD = list(range(200, 60_200, 200))
LOW, HIGH = sticky((0, 999)), sticky((1000, 65535))


def dispatcher(hashes: list[int], *consumers: ConsumerSpec, permits: int = 100) -> Dispatcher:
    """One with consumers that have permits, and an entry of one message for each hash."""
    made = Dispatcher(Cursor())
    for spec in consumers:
        assert made.attach(spec) == []
        made.flow(spec.consumer_id, permits)
    if hashes:
        feed(made, hashes)
    return made


def feed(made: Dispatcher, hashes: list[int]) -> None:
    assert made.feed(made.feed_from, [1] * len(hashes), None, hashes)


def ack(made: Dispatcher, *offsets: int) -> None:
    for offset in offsets:
        made._in_flight.cursor.whole.ack_range(offset, offset + 1)
        made.acked([(offset, offset + 1)])


# ---- assignment of hashes


def assigned(selector: HashRing | StickyRanges) -> list[int | None]:
    """The consumer of each hash."""
    return list(Assignment(selector).numbers_of(range(HASHES)))


def test_a_hash_belongs_to_the_consumer_of_the_next_point() -> None:
    ring = HashRing()
    assert set(assigned(ring)) == {None}
    for number in range(3):
        ring.add(Attached(consumer(number)))
    points = ring._points
    found, table = assigned(ring), Assignment(ring)
    for hashed in range(HASHES):
        _, name, _ = next((point for point in points if point[0] >= hashed), points[0])
        assert f"c{found[hashed]}" == name
    assert [table.number_of(hashed) for hashed in range(0, HASHES, 500)] == found[::500]


def test_a_ring_spreads_hashes_and_moves_few_when_a_consumer_joins() -> None:
    ring = HashRing()
    members = [Attached(consumer(number)) for number in range(10)]
    for member in members[:9]:
        ring.add(member)
    before = assigned(ring)
    counts = Counter(before)
    assert len(counts) == 9 and None not in counts
    assert min(counts.values()) > HASHES / 9 / 1.6 and max(counts.values()) < HASHES / 9 * 1.6
    ring.add(members[9])
    moved = [b for a, b in zip(before, assigned(ring), strict=True) if a != b]
    assert set(moved) == {9} and len(moved) < HASHES / 10 * 1.6
    ring.remove(members[9])
    assert assigned(ring) == before


def test_a_ring_does_not_depend_on_the_order_of_its_consumers() -> None:
    one, other = HashRing(), HashRing()
    members = [Attached(consumer(number)) for number in range(5)]
    for member in members:
        one.add(member)
    for member in reversed(members):
        other.add(member)
    assert assigned(one) == assigned(other)


def test_consumers_of_one_name_share_the_ring() -> None:
    ring = HashRing()
    members = [Attached(replace(consumer(number), name="same")) for number in range(3)]
    for member in members:
        ring.add(member)
    assert set(assigned(ring)) == {0, 1, 2}
    ring.remove(members[0])
    ring.add(members[0])
    assert set(assigned(ring)) == {0, 1, 2}
    assert ring.only() is None
    for member in members[:2]:
        ring.remove(member)
    assert ring.only() is members[2]


def test_sticky_ranges_are_inclusive_and_other_hashes_are_unassigned() -> None:
    ranges = StickyRanges()
    one, other = (
        Attached(consumer(1, sticky((0, 9), (20, 29)))),
        Attached(consumer(2, sticky((10, 10)))),
    )
    ranges.add(one)
    ranges.add(other)
    found = assigned(ranges)
    assert [h for h, who in enumerate(found) if who == 1] == [*range(10), *range(20, 30)]
    assert [h for h, who in enumerate(found) if who == 2] == [10]
    ranges.remove(one)
    assert [h for h, who in enumerate(assigned(ranges)) if who is not None] == [10]


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ((), "must name ranges"),
        (((5, 4),), "lie in 0 to 65535"),
        (((0, 65536),), "lie in 0 to 65535"),
        (((-1, 5),), "lie in 0 to 65535"),
        (((20, 30), (30, 40)), "overlaps 20 to 30"),
        (((50, 100),), "overlaps 100 to 200, which consumer 'c1' has"),
        (((150, 160),), "overlaps"),
        (((0, 65535),), "overlaps"),
    ],
)
def test_ranges_that_cannot_be_assigned_are_refused(ranges, said) -> None:
    made = dispatcher([], consumer(1, sticky((100, 200))))
    refused = made.attach(consumer(2, sticky(*ranges)))
    assert isinstance(refused, Refusal) and refused.reason is Reason.UNASSIGNABLE
    assert said in refused.message
    assert made.attach(consumer(2, sticky((0, 99), (201, 300)))) == []
    made.detach(1)
    assert made.attach(consumer(3, sticky((100, 200)))) == []  # free again
    made.check()


def test_bad_ranges_of_the_first_consumer_are_refused() -> None:
    made = Dispatcher(Cursor())
    refused = made.attach(consumer(1, sticky()))
    assert isinstance(refused, Refusal) and refused.reason is Reason.UNASSIGNABLE
    assert made.type is None
    made.check()


@pytest.mark.parametrize("keys", [sticky((0, 5)), LOOSE])
def test_a_policy_that_differs_from_that_of_live_consumers_is_refused(keys) -> None:
    made = dispatcher([], consumer(1))
    refused = made.attach(consumer(2, keys))
    assert isinstance(refused, Refusal) and refused.reason is Reason.BUSY
    made.detach(1)
    assert made.attach(consumer(2, keys)) == []


# ---- draining


def test_messages_of_a_key_go_to_one_consumer_in_order() -> None:
    made = dispatcher([7, 2000, 7, 7, 2001, 2000], consumer(1, LOW), consumer(2, HIGH))
    out = made.dispatch()
    assert got(out, 1) == [0, 2, 3] and got(out, 2) == [1, 4, 5]
    assert len(out) == 4  # neighbours share a delivery
    made.check()


def test_a_key_moves_only_after_its_unacked_entries_are_acknowledged() -> None:
    made = dispatcher([7, 8, 7], consumer(1, sticky((0, 65535))))
    assert got(made.dispatch(), 1) == [0, 1, 2]
    made.detach(1)
    made.attach(consumer(2, sticky((0, 7))))
    made.flow(2, 1)
    assert got(made.dispatch(), 2) == [0]


def test_a_hash_that_moved_waits_for_its_last_acknowledgement() -> None:
    made = dispatcher([], consumer(0), permits=1000)
    hashes = SPREAD
    feed(made, hashes)
    assert len(got(made.dispatch(), 0)) == 300
    made.attach(consumer(1))
    made.flow(1, 1000)
    feed(made, hashes)
    out = made.dispatch()
    moved = [offset for offset in range(300, 600) if offset not in got(out)]
    assert 60 < len(moved) < 240 and got(out, 1) == []
    assert made.draining() == made.waiting() == len(moved)
    first = moved[0]
    ack(made, first - 300)
    assert [(d.consumer_id, d.first) for d in made.dispatch()] == [(1, first)]
    ack(made, *range(300))
    assert got(made.dispatch(), 1) == moved[1:]
    assert made.draining() == 0
    made.check()


def test_entries_of_a_detached_consumer_go_to_the_next_one_in_order() -> None:
    made = dispatcher([5, 5, 6, 5], consumer(1), permits=3)
    made.dispatch()
    made.detach(1)
    made.attach(consumer(2))
    made.flow(2, 10)
    out = made.dispatch()
    assert got(out) == [0, 1, 2, 3] and {d.redelivery_count for d in out} == {0}
    made.check()


def test_nothing_is_dispatched_once_the_connection_is_lost() -> None:
    made = dispatcher([100, 200, 100], consumer(1))
    assert len(got(made.dispatch())) == 3
    made.cut_off()
    ack(made, 0)  # it was on its way
    assert made.dispatch() == []
    assert not made.may_lease()
    made.check()


def test_a_key_moves_at_once_if_out_of_order_delivery_is_allowed() -> None:
    made = dispatcher(SPREAD, consumer(0, LOOSE), permits=1000)
    made.dispatch()
    made.attach(consumer(1, LOOSE))
    made.flow(1, 1000)
    feed(made, SPREAD)
    out = made.dispatch()
    assert len(got(out)) == 300 and 60 < len(got(out, 1)) < 240
    assert made.draining() == 0
    made.check()


def test_redelivered_entries_go_to_the_consumer_of_their_hash() -> None:
    made = dispatcher([7, 2000, 7], consumer(1, LOW), consumer(2, HIGH))
    made.dispatch()
    made.redeliver(1, [(0, 3)])
    assert made.waiting() == 2
    out = made.dispatch()
    assert [(d.consumer_id, d.first, d.redelivery_count) for d in out] == [(1, 0, 1), (1, 2, 1)]
    made.check()


def test_a_partly_acknowledged_batch_keeps_its_key_at_its_consumer() -> None:
    cursor = Cursor()
    made = Dispatcher(cursor)
    made.attach(consumer(1))
    made.flow(1, 100)
    made.feed(0, [3], None, [7])
    made.dispatch()
    cursor.ack_partial(0, 0b001)
    made.acked([], [(0, 0b001)])
    assert made.consumers()[0].unacked == 1
    made.check()
    made.redeliver(1)
    assert made.dispatch() == [Delivery(1, 0, 1, 1, 1, 0b001)]
    cursor.ack_partial(0, 0)
    made.acked([], [(0, 0)])
    assert made.consumers()[0].unacked == 0 and len(made._in_flight.pending or ()) == 0
    made.check()


# ---- look-ahead


def test_one_stuck_key_does_not_block_other_keys() -> None:
    made = dispatcher([7] * 3 + [2000] * 50, consumer(1, LOW), consumer(2, HIGH), permits=1)
    made.flow(2, 99)
    out = made.dispatch()
    assert got(out, 1) == [0] and got(out, 2) == list(range(3, 53))
    made.flow(1, 1)
    assert got(made.dispatch(), 1) == [1]
    made.check()


def test_the_number_of_waiting_entries_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(key_shared, "LOOK_AHEAD", 3000)
    made = dispatcher([], consumer(1, LOW), consumer(2, HIGH), permits=0)
    made.flow(2, 100)
    for _ in range(40):
        feed(made, [7] * 100)
        made.dispatch()
    assert made.waiting() == 3000  # of two consumers: less than 2000 for each
    feed(made, [2000])
    assert made.dispatch() == []
    made.detach(2)
    made.flow(1, 1500)
    made.attach(consumer(3, HIGH))
    made.flow(3, 1)
    out = made.dispatch()
    assert got(out, 1) == list(range(1500))
    assert got(out, 3) == [4000]
    made.check()


def test_a_single_consumer_has_a_lower_bound_of_waiting_entries() -> None:
    made = dispatcher([], consumer(1, LOW))
    for _ in range(50):
        feed(made, [2000] * 100)
        made.dispatch()
    assert made.waiting() == LOOK_AHEAD_PER_CONSUMER


def test_nothing_is_read_ahead_without_consumers() -> None:
    made = dispatcher([7, 8, 9], consumer(1), permits=0)
    assert made.dispatch() == [] and made.next_offset == 0


def test_entries_acknowledged_while_they_wait_are_skipped() -> None:
    made = dispatcher([7, 7, 7, 7, 2000], consumer(1, LOW), consumer(2, HIGH), permits=1)
    made.dispatch()
    ack(made, 1, 2)
    made.flow(1, 5)
    assert got(made.dispatch()) == [3]
    made.check()


def test_a_key_continues_after_its_first_waiting_entry_is_acknowledged_or_dead() -> None:
    made = dispatcher([7, 8, 8, 8, 9, 7, 8, 2000], consumer(1, LOW), consumer(2, HIGH), permits=1)
    assert got(made.dispatch()) == [0, 7]
    ack(made, 1)  # it stays, as consumer 1 has no permits
    made.check()
    made.kill([(2, 3)])
    made.check()
    assert made.dispatch() == []
    made.check()
    made.flow(1, 2)
    assert got(made.dispatch()) == [3, 4]
    made.flow(1, 2)
    assert got(made.dispatch()) == [5, 6]
    made.check()


# ---- hashes are fed


def test_hashes_are_required_from_the_first_key_shared_consumer_on() -> None:
    made = Dispatcher(Cursor(10))
    made.attach(ConsumerSpec(1, "s", SubscriptionType.SHARED))
    made.flow(1, 5)
    made.feed(10, [1] * 20)
    made.dispatch()
    made.redeliver(1, [(10, 11)])
    made.detach(1)
    assert not made.needs_hashes
    made.attach(consumer(2))
    assert made.needs_hashes and made.feed_from == made.next_offset == 10
    made.flow(2, 100)
    assert not made.feed(10, [1] * 20) and made.dispatch() == []
    assert made.feed(10, [1] * 20, None, [5] * 20)
    out = made.dispatch()
    assert got(out) == list(range(10, 30)) and out[0].redelivery_count == 1
    made.check()
    made.detach(2)
    made.attach(ConsumerSpec(3, "s", SubscriptionType.SHARED))
    made.flow(3, 100)
    assert got(made.dispatch()) == list(range(10, 30))
    made.check()


def test_a_seek_drops_waiting_entries_and_pending_hashes() -> None:
    made = dispatcher([7, 7, 2000], consumer(1, LOW), consumer(2, HIGH), permits=1)
    made.dispatch()
    made._in_flight.cursor.whole.reset(1)
    made.reset(1)
    feed(made, [7, 2000])
    made.flow(1, 1)
    made.flow(2, 1)
    assert sorted(got(made.dispatch())) == [1, 2]
    made.check()


# ---- chunks


def test_chunks_stay_together_when_their_hash_moves() -> None:
    made = Dispatcher(Cursor())
    for number in range(2):
        made.attach(consumer(number, LOW if number == 0 else HIGH))
    made.flow(0, 1)
    made.flow(1, 1)
    made.feed(0, [1] * 3, {0: "m", 2: "m"}, [7, 7, 7])
    assert got(made.dispatch(), 0) == [0]
    assert made.waiting() == 2
    made.flow(0, 10)
    assert got(made.dispatch(), 0) == [1, 2]
    made.check()
    made.detach(0)
    made.attach(consumer(3, LOW))
    made.flow(3, 10)
    assert sorted(got(made.dispatch(), 3)) == [0, 1, 2]
    made.check()


def test_all_chunks_of_a_message_go_to_the_consumer_of_the_first() -> None:
    made = Dispatcher(Cursor())
    made.attach(consumer(0))
    made.flow(0, 1)
    hashes = SPREAD[:199]
    made.feed(0, [1] * 199, {offset: f"m{offset}" for offset in range(199)}, hashes)
    made.flow(0, 198)
    assert len(got(made.dispatch())) == 199
    made.attach(consumer(1))
    made.flow(1, 500)
    made.flow(0, 500)
    made.feed(199, [1] * 199, {199 + at: f"m{at}" for at in range(199)}, hashes)
    assert got(made.dispatch(), 0) == list(range(199, 398))  # not one waits for the other
    made.check()


# ---- dispatch leases


def test_one_consumer_of_all_hashes_may_get_a_lease() -> None:
    made = dispatcher([5, 6, 7], consumer(1), permits=10)
    made.dispatch()
    grant = made.lease()
    assert grant is not None and (grant.first, grant.debited, grant.room) == (3, 3, UNLIMITED)
    made.lease_report(3, [1, 1], {4: "m"}, [5, 9])
    made.release_lease()
    made.attach(consumer(2))
    assert not made.may_lease()
    made.check()
    with pytest.raises(InvariantViolation, match="known"):
        made.detach(2)
        made.lease()
        made.lease_report(5, [1])


def test_a_sticky_consumer_gets_a_lease_only_if_it_owns_every_hash() -> None:
    made = dispatcher([], consumer(1, sticky((0, 65534))))
    assert not made.may_lease()
    made.detach(1)
    made.attach(consumer(2, sticky((1, 30000), (30001, 65535))))
    assert made.may_lease()


# ---- reasons


def test_the_reason_why_an_entry_waits_is_that_of_its_key() -> None:
    made = dispatcher([7, 7, 2000], consumer(1, LOW), permits=1)
    made.dispatch()
    full = "c1 has asked for no more messages: its queue is full"
    made.attach(consumer(2, HIGH))
    made.flow(2, 1)
    made.dispatch()
    assert made.why_it_waits(1) == f"{full}, and no other consumer has its key"
    made.set_limits(1, 0)
    assert made.why_it_waits(1).startswith("c1 holds as many un-acknowledged messages as a")
    made.set_limits(0, 1)
    assert made.why_it_waits(1).startswith("consumers hold as many un-acknowledged messages")


def test_the_reason_why_an_entry_waits_is_its_former_consumer() -> None:
    made = dispatcher([SPREAD[0]] * 2, consumer(1), permits=1)
    made.dispatch()
    number = 2
    while not made.draining():
        made.attach(consumer(number))
        made.flow(number, 5)
        made.dispatch()
        number += 1
    assert made.why_it_waits(1) == (
        f"its key is c{number - 1}'s now, and c1 holds earlier messages of the key: "
        "c1 must acknowledge them first, or leave"
    )


def test_an_entry_waits_if_no_consumer_has_its_key() -> None:
    made = dispatcher([2000, 7], consumer(1, LOW))
    made.dispatch()
    assert made.why_it_waits(0) == "no consumer has its key"


def test_the_reason_why_an_entry_waits_in_a_shared_subscription() -> None:
    made = Dispatcher(Cursor())
    assert made.why_it_waits(0) == ""
    for number in (1, 2):
        made.attach(ConsumerSpec(number, f"c{number}", SubscriptionType.SHARED))
    made.flow(1, 1)
    made.feed(0, [1])
    made.dispatch()
    made.redeliver(1)
    assert made.why_it_waits(0) == "no consumer can take more messages now"
    made.detach(2)
    assert made.why_it_waits(0) == "c1 has asked for no more messages: its queue is full"
    made.flow(1, 1)
    assert made.why_it_waits(0) == ""


# ---- invariants are seen to fail


def test_a_pending_hash_has_one_owner() -> None:
    pending = PendingHashes()
    pending.given([7, 7], [1, 1])
    with pytest.raises(InvariantViolation, match="no more than one consumer"):
        pending.given([7], [2])
    pending.taken([7])
    assert pending.take_drained() == [] and not pending.may_take(7, 2)
    pending.taken([7])
    assert pending.take_drained() == [7] and pending.may_take(7, 2)


def _wrong_count(made: Dispatcher) -> None:
    made._in_flight.pending.given([7], [1])


def _two_owners(made: Dispatcher) -> None:
    made._in_flight.hashes.put(1, [7])


def _not_queued(made: Dispatcher) -> None:
    made._serving._queues.clear()


def _not_listed(made: Dispatcher) -> None:
    made._serving._listed.clear()


def _listed_too_late(made: Dispatcher) -> None:
    made._serving._listed = {hashed: at + 1 for hashed, at in made._serving._listed.items()}


def _at_nobody(made: Dispatcher) -> None:
    made._serving._ready[1].clear()


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_wrong_count, "pending hashes are those"),
        (_two_owners, "no more than one consumer"),
        (_not_queued, "in the queue of its hash"),
        (_not_listed, "what may go on is known"),
        (_listed_too_late, "what may go on is known"),
        (_at_nobody, "what may go on is known"),
    ],
)
def test_a_broken_invariant_is_named(damage, name) -> None:
    made = dispatcher([7, 2000, 8], consumer(1, LOW), consumer(2, HIGH), permits=1)
    made.flow(2, 1)
    made.dispatch()
    assert made.waiting() == 1
    made.check()
    damage(made)
    with pytest.raises(InvariantViolation, match=name):
        made.check()


# ---- a model that follows every delivery


class Model(RuleBasedStateMachine):
    """Publishes with keys, consumes, acks, nacks, joins, leaves, seeks."""

    policies = (KeySharedPolicy(),)
    hashes = st.integers(1, 40)

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.subject = Dispatcher(self.cursor)
        self.sizes: list[int] = []
        self.keys: list[int] = []
        self.chunks: dict[int, str] = {}
        self.holder: dict[int, int] = {}
        self.seen: set[int] = set()
        self.permits: dict[int, int] = {}
        self.flowed: dict[int, int] = {}
        self.specs: dict[int, ConsumerSpec] = {}
        self.limits = (0, 0)
        self.next_id = 0

    @rule(data=st.data(), count=st.integers(1, 40))
    def publish(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            self.sizes.append(data.draw(st.integers(1, 3)))
            self.keys.append(data.draw(self.hashes) * 1600)

    @rule(hashed=hashes, others=st.lists(st.booleans(), min_size=2, max_size=5))
    def publish_chunked(self, hashed: int, others: list[bool]) -> None:
        message = f"m{len(self.sizes)}"
        for other in others:
            if not other:
                self.chunks[len(self.sizes)] = message
            self.sizes.append(1)
            self.keys.append(hashed * 1600)

    @rule(limit=st.integers(1, 60))
    def feed(self, limit: int) -> None:
        first = self.subject.feed_from
        end = min(self.subject.wants(), first + limit, len(self.sizes))
        if first < end:
            chunks = {at: key for at, key in self.chunks.items() if first <= at < end}
            assert self.subject.feed(first, self.sizes[first:end], chunks, self.keys[first:end])

    @rule(data=st.data(), permits=st.integers(0, 30))
    @precondition(lambda self: len(self.permits) < 4)
    def attach(self, data: st.DataObject, permits: int) -> None:
        number = self.next_id = self.next_id + 1
        spec = consumer(number, data.draw(st.sampled_from(self.policies)))
        answer = self.subject.attach(spec)
        if isinstance(answer, Refusal):
            taken = [pair for live in self.specs.values() for pair in live.keys.ranges]
            assert any(a <= d and c <= b for a, b in spec.keys.ranges for c, d in taken)
            return
        self.specs[number] = spec
        self.permits[number] = self.flowed[number] = permits
        self.subject.flow(number, permits)

    @rule(data=st.data())
    @precondition(lambda self: self.permits)
    def detach(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        self.subject.detach(number)
        del self.permits[number], self.specs[number]
        self.holder = {o: who for o, who in self.holder.items() if who != number}

    @rule(data=st.data(), permits=st.integers(0, 40))
    @precondition(lambda self: self.permits)
    def flow(self, data: st.DataObject, permits: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        self.subject.flow(number, permits)
        self.permits[number] += permits
        self.flowed[number] += permits

    @rule(per_consumer=st.integers(0, 12), per_subscription=st.integers(0, 20))
    def limit(self, per_consumer: int, per_subscription: int) -> None:
        self.limits = (per_consumer, per_subscription)
        self.subject.set_limits(per_consumer, per_subscription)

    @rule(data=st.data(), length=st.integers(1, 9))
    @precondition(lambda self: self.holder)
    def ack(self, data: st.DataObject, length: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.holder)))
        end = min(first + length, len(self.sizes))
        self.cursor.ack_range(first, end)
        self.subject.acked([(first, end)])
        for offset in range(first, end):
            self.holder.pop(offset, None)

    @rule(data=st.data(), everything=st.booleans())
    @precondition(lambda self: self.permits)
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.permits)))
        mine = {offset for offset, who in self.holder.items() if who == number}
        if everything:
            self.subject.redeliver(number)
        else:
            first = data.draw(st.integers(0, len(self.sizes)))
            mine &= set(range(first, first + 15))
            self.subject.redeliver(number, [(first, first + 15)])
        for offset in mine:
            del self.holder[offset]

    @rule(data=st.data())
    @precondition(lambda self: self.sizes)
    def seek(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.sizes)))
        self.cursor.reset(offset)
        self.subject.reset(offset)
        self.holder.clear()
        self.seen = {other for other in self.seen if other < offset}

    @rule()
    def dispatch(self) -> None:
        for delivery in self.subject.dispatch():
            self.follow(delivery)
        self.nobody_waits_without_reason()

    @rule(limit=st.integers(1, 30))
    def deliver_leased(self, limit: int) -> None:
        grant = self.subject.lease()
        if grant is None:
            return
        number = grant.consumer_id
        leased = LeasedDelivery(grant.first, self.flowed[number] - grant.debited, grant.room)
        assert leased.permits == self.permits[number]
        while leased.allowance > 0 and leased.next_offset < len(self.sizes) and limit:
            at = leased.next_offset
            self.follow(Delivery(number, at, at + 1, self.sizes[at], 0))
            key = self.chunks.get(at)
            leased.delivered([self.sizes[at]], {at: key} if key else {}, [self.keys[at]])
            limit -= 1
        if report := leased.report():
            self.subject.lease_report(*report)
        self.subject.check()
        self.subject.release_lease()

    # the model's own books

    def unacked(self, number: int | None = None) -> int:
        return sum(self.sizes[o] for o, who in self.holder.items() if number in (None, who))

    def follow(self, delivery: Delivery) -> None:
        number, (per_consumer, per_subscription) = delivery.consumer_id, self.limits
        for offset in range(delivery.first, delivery.end):
            key = self.keys[offset]
            assert self.permits[number] > 0, "delivered without a permit"
            assert not per_consumer or self.unacked(number) < per_consumer, "holds too much"
            assert not per_subscription or self.unacked() < per_subscription, "all hold too much"
            assert not self.cursor.is_acked(offset) and offset not in self.holder
            others = {who for o, who in self.holder.items() if self.keys[o] == key}
            assert others <= {number}, f"key {key} is at {others} as well"
            ranges = self.specs[number].keys.ranges
            if offset not in self.chunks:
                assert not ranges or any(a <= key <= b for a, b in ranges), "not its key"
                if offset not in self.seen:
                    missed = [
                        o
                        for o in range(offset)
                        if self.keys[o] == key
                        and o not in self.seen
                        and o not in self.chunks
                        and not self.cursor.is_acked(o)
                    ]
                    assert not missed, f"{offset} before {missed} of the same key"
            self.seen.add(offset)
            self.holder[offset] = number
            self.permits[number] -= self.sizes[offset]

    def nobody_waits_without_reason(self) -> None:
        """A consumer with permits has got every entry whose key allows it."""
        able = {view.consumer_id for view in self.subject.consumers() if view.permits > 0}
        able -= {view.consumer_id for view in self.subject.consumers() if view.blocked}
        if self.subject.blocked or not able:
            return
        owner_of = self.subject._serving._consumer_of
        for offset in range(self.cursor.acked_before, self.subject.feed_from):
            if self.cursor.is_acked(offset) or offset in self.holder or offset in self.chunks:
                continue
            key = self.keys[offset]
            mine = owner_of(key)
            elsewhere = {who for o, who in self.holder.items() if self.keys[o] == key} - {
                mine and mine.spec.consumer_id
            }
            promised = any(self.keys[o] == key for o in self.chunks)
            assert mine is None or mine.spec.consumer_id not in able or elsewhere or promised, (
                f"{offset} of key {key} could have gone to {mine.spec.name}"
            )

    @invariant()
    def in_flight_agrees(self) -> None:
        self.subject.check()
        for view in self.subject.consumers():
            number = view.consumer_id
            assert view.permits == self.permits[number]
            assert view.unacked == self.unacked(number)
            held = [o for a, b in self.subject.unacked(number) for o in range(a, b)]
            assert held == sorted(o for o, who in self.holder.items() if who == number)

    def teardown(self) -> None:
        """With one patient consumer everything is delivered in the end, and acked."""
        for number in sorted(self.permits):
            self.subject.detach(number)
        self.permits, self.holder, self.specs = {}, {}, {}
        spec = consumer(0, self.policies[0])
        if spec.keys.ranges:
            spec = consumer(0, sticky((0, 65535)))
        self.subject.attach(spec)
        self.specs[0] = spec
        self.permits[0] = 1 << 30
        self.subject.flow(0, 1 << 30)
        self.limit(0, 0)
        while self.cursor.acked_before < len(self.sizes):
            before = self.cursor.backlog(len(self.sizes))
            self.feed(1 << 30)
            self.dispatch()
            for offset in sorted(self.holder):
                self.cursor.ack_range(offset, offset + 1)
                self.subject.acked([(offset, offset + 1)])
            self.holder.clear()
            assert self.cursor.backlog(len(self.sizes)) < before, "no progress"
        self.in_flight_agrees()


class StickyModel(Model):
    policies = (sticky((0, 20000)), sticky((20001, 40000)), sticky((30000, 65535)), HIGH)


PACE = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAutoSplit = Model.TestCase
TestSticky = StickyModel.TestCase
for case in (TestAutoSplit, TestSticky):
    case.settings = PACE

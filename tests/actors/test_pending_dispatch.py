"""Dispatch while transactions hold pending acknowledgements."""

from __future__ import annotations

import random

import pytest

from velaray.actors.dispatch.consumers import ConsumerSpec, Delivery, SubscriptionType
from velaray.actors.dispatch.cursor_in_memory import CursorInMemory
from velaray.actors.dispatch.deliverable import Deliverable
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.machine import Refusal
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import Ack, Acked, Create, SubscriptionMachine
from velaray.actors.subscription.pending_acks import (
    AckInTransaction,
    AcksEnded,
    BatchAck,
    EndTransactionAcks,
    NowPending,
)
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.events.ids import TransactionId

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType
ONE, TWO = TransactionId(0, 1), TransactionId(0, 2)
MACHINE = SubscriptionMachine()


class Host:
    """A subscription and its dispatcher, connected as in the subscription actor."""

    def __init__(self, sizes: list[int], kind: SubscriptionType = SHARED) -> None:
        self.sizes, self.kind = sizes, kind
        self.state = MACHINE.initial()
        self.do(Create(0))
        self.begin()

    def begin(self) -> None:
        """With a new dispatcher, which knows only the state."""
        state = self.state
        self.dispatcher = Dispatcher(state.cursor, 0, state.deliveries.copy(), state.pending)
        self.numbers: set[int] = set()

    def attach(self, number: int, permits: int = 100) -> None:
        self.dispatcher.attach(ConsumerSpec(number, f"c{number}", self.kind))
        self.numbers.add(number)
        self.dispatcher.flow(number, permits)

    def do(self, command: object) -> object:
        decision = MACHINE.decide(self.state, command, 0)
        for event in decision.events:
            MACHINE.evolve(self.state, event)
        reply = decision.reply
        match reply:
            case Acked():
                self.dispatcher.acked(reply.ranges, reply.partial)
            case NowPending():
                self.dispatcher.set_aside(reply.ranges, reply.partial)
            case AcksEnded():
                self.dispatcher.acked(reply.ranges, reply.partial)
                self.dispatcher.put_back(reply.returned)
        return reply

    def dispatch(self) -> list[Delivery]:
        first = self.dispatcher.feed_from
        sizes = self.sizes[first:]
        if sizes:
            hashes = [1 + offset % 5 for offset in range(first, len(self.sizes))]
            self.dispatcher.feed(first, sizes, None, hashes)
        out = self.dispatcher.dispatch()
        self.dispatcher.check()
        if out:
            self.do(self.dispatcher.take_notes(out))
        return out

    def got(self) -> list[tuple[int, int, int | None]]:
        return [(each.first, each.end, each.ack_set) for each in self.dispatch()]


def test_pending_entries_are_skipped_and_delivered_after_an_abort() -> None:
    host = Host([1] * 6)
    host.do(AckInTransaction(ONE, 6, [(1, 3)]))
    host.attach(1)
    assert host.got() == [(0, 1, None), (3, 6, None)]
    host.do(EndTransactionAcks(ONE, False))
    assert host.got() == [(1, 3, None)]


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_entries_pending_before_they_were_fed_are_delivered_after_an_abort(kind) -> None:
    host = Host([1] * 6, kind)
    host.do(AckInTransaction(ONE, 6, [(0, 6)]))
    host.begin()
    host.attach(1)
    assert not host.dispatcher.may_lease()
    assert host.dispatcher.dispatch() == []
    host.do(EndTransactionAcks(ONE, False))
    assert host.got() == [(0, 6, None)]


def test_no_lease_begins_behind_a_pending_entry_that_was_not_fed() -> None:
    host = Host([1] * 6, EXCLUSIVE)
    host.do(AckInTransaction(ONE, 6, [(0, 3)]))
    host.begin()
    host.attach(1)
    host.dispatch()
    host.do(EndTransactionAcks(ONE, True))
    assert host.dispatcher.may_lease()


def test_entries_acknowledged_in_a_transaction_leave_their_consumer_and_return_after_an_abort() -> (
    None
):
    host = Host([1] * 6)
    host.attach(1)
    host.dispatch()
    host.do(AckInTransaction(ONE, 6, [(1, 3)]))
    assert host.dispatcher.unacked(1) == [(0, 1), (3, 6)]
    assert host.dispatcher.consumers()[0].unacked == 4
    host.dispatcher.redeliver(1)
    assert host.got() == [(0, 1, None), (3, 6, None)]
    host.do(EndTransactionAcks(ONE, False))
    assert [(each.first, each.end, each.redelivery_count) for each in host.dispatch()] == [
        (1, 3, 1)
    ]


def test_a_redelivery_by_abort_counts_once_whether_or_not_the_service_restarted() -> None:
    for restart in (False, True):
        host = Host([1] * 3)
        host.attach(1)
        host.dispatch()
        host.do(AckInTransaction(ONE, 3, [(1, 2)]))
        if restart:
            host.begin()
            host.attach(1)
            assert [each.first for each in host.dispatch()] == [0, 2]
        host.do(EndTransactionAcks(ONE, False))
        assert [(each.first, each.redelivery_count) for each in host.dispatch()] == [(1, 1)]


def test_pending_messages_of_a_batch_are_masked_out() -> None:
    host = Host([4, 4])
    host.do(AckInTransaction(ONE, 2, [], [BatchAck(0, 0b1110, 4), BatchAck(1, 0b1100, 4)]))
    host.do(AckInTransaction(TWO, 2, [], [BatchAck(1, 0b0011, 4)]))
    host.attach(1)
    assert [(each.first, each.messages, each.ack_set) for each in host.dispatch()] == [
        (0, 3, 0b1110)
    ]
    host.do(EndTransactionAcks(TWO, False))
    assert host.got() == [(1, 2, 0b1100)]
    host.do(EndTransactionAcks(ONE, False))
    assert host.got() == [(0, 2, None)]


def test_pending_messages_of_a_batch_are_not_held_by_the_consumer() -> None:
    host = Host([4])
    host.attach(1)
    host.dispatch()
    host.do(AckInTransaction(ONE, 1, [], [BatchAck(0, 0b1000, 4)]))
    assert host.dispatcher.consumers()[0].unacked == 1
    host.do(Ack(1, [], [(0, 0b0111)]))
    assert host.dispatcher.unacked(1) == []
    host.dispatcher.check()
    host.do(EndTransactionAcks(ONE, False))
    assert host.got() == [(0, 1, 0b0111)]


def test_an_abort_keeps_the_order_for_an_active_consumer() -> None:
    host = Host([1] * 6, EXCLUSIVE)
    host.attach(1)
    host.dispatch()
    host.do(AckInTransaction(ONE, 6, [(2, 3)]))
    host.do(Ack(6, [(0, 1)]))
    host.do(EndTransactionAcks(ONE, False))
    found = host.dispatch()
    assert [at for each in found for at in range(each.first, each.end)] == [1, 2, 3, 4, 5]
    assert [each.redelivery_count for each in found if each.first == 2] == [1]


def test_no_lease_is_granted_while_later_entries_are_pending() -> None:
    host = Host([1] * 6, EXCLUSIVE)
    host.attach(1)
    assert host.dispatcher.may_lease()
    host.do(AckInTransaction(ONE, 6, [(4, 5)]))
    assert not host.dispatcher.may_lease()
    host.do(EndTransactionAcks(ONE, False))
    assert host.dispatcher.may_lease()


def test_deliveries_under_a_lease_may_be_pending() -> None:
    host = Host([1] * 6, EXCLUSIVE)
    host.attach(1)
    assert host.dispatcher.lease() is not None
    host.do(AckInTransaction(ONE, 6, [(1, 3)], [BatchAck(3, 0, 1)]))
    host.dispatcher.lease_report(0, [1] * 6)
    assert host.dispatcher.unacked(1) == [(0, 1), (4, 6)]
    host.dispatcher.check()


def test_a_pending_entry_is_not_condemned() -> None:
    host = Host([1] * 6)
    host.do(AckInTransaction(ONE, 6, [(1, 3)]))
    host.state.deliveries.add([(1, 2)], 9)
    host.begin()
    host.attach(1)
    host.dispatch()
    assert host.dispatcher.condemn(3) == []
    host.do(EndTransactionAcks(ONE, False))
    assert host.dispatcher.condemn(3) == [(1, 2)]
    assert host.got() == [(2, 3, None)]


def test_a_partly_pending_batch_is_not_condemned() -> None:
    """All of its messages would go to the dead-letter topic."""
    host = Host([2] * 3)
    host.do(AckInTransaction(ONE, 3, partial=[BatchAck(1, 0b01, 2)]))
    host.state.deliveries.add([(0, 3)], 9)
    host.begin()
    host.attach(1, permits=0)
    host.dispatch()
    assert host.dispatcher.condemn(3) == [(0, 1), (2, 3)]
    host.do(EndTransactionAcks(ONE, False))
    assert host.dispatcher.condemn(3) == [(1, 2)]


def test_dead_and_delayed_entries_are_not_delivered_after_an_abort() -> None:
    host = Host([1] * 5)
    host.do(AckInTransaction(ONE, 5, [(1, 4)]))
    host.begin()
    host.dispatcher.kill([(1, 2)])
    host.attach(1)
    host.dispatcher.feed(0, host.sizes, delayed=[(2, 3)])
    assert host.got() == [(0, 1, None), (4, 5, None)]
    host.do(EndTransactionAcks(ONE, False))
    assert host.got() == [(3, 4, None)]
    host.dispatcher.due([(2, 3)])
    assert host.got() == [(2, 3, None)]


@pytest.mark.parametrize("seed", range(20))
def test_the_view_matches_a_naive_model(seed: int) -> None:
    rng, cursor, pending = random.Random(seed), Cursor(), PendingAcks()
    whole: set[int] = set()
    masks: dict[int, int] = {}
    for offset in range(30):
        match rng.randrange(7):
            case 0 | 1:
                cursor.ack_range(offset, offset + 1)
                whole.add(offset)
            case 2 | 3:
                pending.hold(rng.choice([ONE, TWO]), [(offset, offset + 1)])
                whole.add(offset)
            case 4:
                left = rng.choice([0b0011, 0b1110, 0b1111])
                if left != 0b1111:
                    cursor.ack_partial(offset, left)
                pending.hold_part(ONE, offset, 0b0010, 4)
                if rng.random() < 0.5:
                    pending.hold_part(TWO, offset, left & 0b1101, 4)
                    whole.add(offset)
                masks[offset] = 0 if offset in whole else left & 0b1101
            case 5:
                cursor.ack_partial(offset, 0b0110)
                masks[offset] = 0b0110
    view, limit = Deliverable(CursorInMemory(cursor), pending), 30
    free = [at for at in range(40) if at not in whole]
    for first in range(limit):
        assert view.is_acked(first) == (first in whole)
        assert view.ack_set(first) == masks.get(first)
        assert view.next_unacked(first) == next(at for at in free if at >= first)
        end = rng.randrange(first, limit + 1)
        inside = [at for part in view.unacked_ranges(first, end) for at in range(*part)]
        assert inside == [at for at in free if first <= at < end]
        assert dict(view.partials(first, limit)) == {
            at: mask for at, mask in masks.items() if at >= first
        }
        if first not in whole:
            hidden = min((at for at in whole if at > first), default=limit)
            assert view.next_acked(first, limit) == min(hidden, limit)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_pending_entries_are_not_delivered_and_none_is_lost(kind, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([1, 1, 3]) for _ in range(25)]
    host, end = Host(sizes, kind), len(sizes)
    transactions = [TransactionId(0, number) for number in range(1, 4)]
    host.attach(1, 5)
    for _ in range(60):
        offset, who = rng.randrange(end), rng.choice(transactions)
        mask = rng.randrange(1 << sizes[offset])
        match rng.randrange(9):
            case 0:
                host.do(Ack(end, [], [(offset, mask)]))
            case 1 | 2:
                host.do(AckInTransaction(who, end, [], [BatchAck(offset, mask, sizes[offset])]))
            case 3:
                host.do(AckInTransaction(who, end, [(offset, min(offset + 3, end))]))
            case 4:
                host.do(EndTransactionAcks(who, rng.random() < 0.5))
            case 5 if host.numbers:
                host.dispatcher.redeliver(min(host.numbers))
            case 6 if host.numbers:
                gone = min(host.numbers)
                host.numbers.remove(gone)
                host.dispatcher.detach(gone, rng.random() < 0.5)
            case 7 if rng.random() < 0.2:
                host.begin()
        number = rng.randrange(1, 3)
        if number not in host.numbers and (kind is not EXCLUSIVE or not host.numbers):
            host.attach(number, 0)
        if number in host.numbers:
            host.dispatcher.flow(number, rng.randrange(6))
        for each in host.dispatch():
            _check_deliverable(host, each)
        MACHINE.check(host.state)
    for who in transactions:
        assert not isinstance(host.do(EndTransactionAcks(who, False)), Refusal)
    for number in host.numbers:
        host.dispatcher.flow(number, 1000)
    host.dispatch()
    while held := [part for number in host.numbers for part in host.dispatcher.unacked(number)]:
        host.do(Ack(end, held))  # what drains comes once the rest is acknowledged
        host.dispatch()
    assert host.state.cursor == Cursor(end)


def _check_deliverable(host: Host, each: Delivery) -> None:
    cursor, pending = host.state.cursor, host.state.pending
    for offset in range(each.first, each.end):
        everything = (1 << host.sizes[offset]) - 1
        known = cursor.ack_set(offset)
        assert not cursor.is_acked(offset) and pending.owner_of(offset) is None
        left = (everything if known is None else known & everything) & ~pending.bits(offset)
        assert left and (everything if each.ack_set is None else each.ack_set) == left


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_a_new_dispatcher_grants_no_lease_before_pending_entries_are_fed(
    kind: SubscriptionType,
) -> None:
    """A new dispatcher gives out, or leaves to the partition, nothing behind it before."""
    host = Host([1, 1, 1], kind)
    host.do(AckInTransaction(ONE, 3, [(0, 2)]))
    host.begin()
    host.attach(1)
    assert host.dispatcher.dispatch() == []  # nothing was fed so far
    assert host.dispatcher.lease() is None
    host.do(EndTransactionAcks(ONE, commit=False))
    host.dispatcher.check()
    assert host.got() == [(0, 3, None)]

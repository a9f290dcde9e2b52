"""What the dispatcher does for subscriptions that read compacted; and the index of a view."""

from __future__ import annotations

import pytest

from velaray.actors.dispatch.consumers import ConsumerSpec, Delivery, SubscriptionType
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.machine import InvariantViolation
from velaray.actors.partition.compacted_index import CompactedIndexMachine
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.testing import given
from velaray.events.events_pb2 import CompactedLedger, EntryCompacted, GenerationCompleted


def dispatcher(sizes: list[int], permits: int, cursor: Cursor) -> Dispatcher:
    made = Dispatcher(cursor)
    made.feed(0, sizes, None)
    made.attach(ConsumerSpec(0, "c", SubscriptionType.EXCLUSIVE, 0))
    made.flow(0, permits)
    return made


def test_unsent_deliveries_return_their_permits() -> None:
    cursor = Cursor()
    made = dispatcher([4, 3, 1], 8, cursor)
    assert made.dispatch() == [Delivery(0, 0, 3, 8, 0)]
    made.unsent(0, [(0, 0), (1, 0b001)])
    cursor.ack_range(0, 1)
    cursor.ack_partial(1, 0b001)
    made.acked([(0, 1)], [(1, 0b001)])
    assert made.consumers()[0].permits == 4 + 2
    made.check()
    made.unsent(0, [(0, 0)])  # it holds that one no longer
    assert made.consumers()[0].permits == 6


def test_no_lease_is_granted_below_the_compaction_horizon() -> None:
    cursor = Cursor()
    made = dispatcher([1] * 5, 10, cursor)
    made.lease_from = 3
    assert not made.may_lease()
    assert made.lease() is None
    cursor.ack_range(0, 3)
    made.acked([(0, 3)])
    assert made.may_lease()


def test_the_index_follows_from_its_events() -> None:
    events = (
        EntryCompacted(offset=3),
        EntryCompacted(offset=7, messages=9, kept=[0b100]),
        GenerationCompleted(horizon=9, ledgers=[CompactedLedger(ledger_id=5, first=2)]),
    )
    state = given(CompactedIndexMachine(), *events).state
    assert list(state.offsets) == [3, 7]
    assert state.masks == {7: 0b100}
    assert (state.horizon, state.ledgers) == (9, [(5, 2)])


@pytest.mark.parametrize(
    "events",
    [
        (EntryCompacted(offset=3), EntryCompacted(offset=3)),
        (EntryCompacted(offset=3), GenerationCompleted(horizon=3)),
    ],
)
def test_an_index_out_of_order_is_caught(events) -> None:
    with pytest.raises(InvariantViolation):
        given(CompactedIndexMachine(), *events)

"""The invariants of cursors by themselves: each speaks up about what it forbids."""

from __future__ import annotations

import pytest

from tests.sim.cursors import (
    acks_commute_and_repeat,
    backlog_is_what_is_unacked,
    in_the_other_form,
    mark_goes_forward,
    recovery_gives_what_was_stored,
)
from tests.sim.mutants import MUTANTS
from velaray.actors.subscription.cursor import Cursor, pack_ranges
from velaray.actors.subscription.machine import SubscriptionMachine, SubscriptionState
from velaray.events.events_pb2 import CursorReset, EntriesAcked, MarkDeleted, PartialAck
from velaray.events.segments import StoredSegment


def acked(*ranges: tuple[int, int]) -> EntriesAcked:
    return EntriesAcked(ranges=pack_ranges(ranges))


def in_part(offset: int, ack_set: int) -> EntriesAcked:
    return EntriesAcked(partial=[PartialAck(offset=offset, remaining=[ack_set])])


EVENTS = [
    acked((3, 5), (8, 9)),
    in_part(6, 0b0111),
    in_part(6, 0b0011),
    MarkDeleted(before_offset=2),
    acked((2, 3)),
    CursorReset(next_offset=1),
    acked((2, 4)),
]


def folded(events: list[object]) -> Cursor:
    state = SubscriptionState(created=True)
    for event in events:
        SubscriptionMachine().evolve(state, event)  # type: ignore[arg-type]
    return state.cursor


def test_order_and_repetition_of_acks_change_nothing() -> None:
    others = acks_commute_and_repeat(EVENTS)
    assert others[0] == others[1] == EVENTS[4] and len(others) == 13
    assert others.index(EVENTS[5]) == 10  # what isn't an acknowledgement stays where it is
    for until in range(len(EVENTS)):
        assert folded(acks_commute_and_repeat(EVENTS[:until])) == folded(EVENTS[:until])


@pytest.mark.parametrize("name", ["take-the-newest-ack-set", "move-back-for-repeated-acks"])
def test_a_result_that_depends_on_the_order_is_reported(name: str) -> None:
    with MUTANTS[name].applied():
        assert folded(acks_commute_and_repeat(EVENTS[:5])) != folded(EVENTS[:5])


def test_a_backlog_that_counts_acked_ranges_is_reported() -> None:
    cursor = Cursor(3, [(5, 7)])
    backlog_is_what_is_unacked(cursor)
    with MUTANTS["count-ranges-as-backlog"].applied(), pytest.raises(AssertionError, match="K3"):
        backlog_is_what_is_unacked(cursor)


def test_differing_forms_are_reported() -> None:
    ranges = in_the_other_form(Cursor)
    with MUTANTS["miss-the-last-of-a-range"].applied():
        bits = Cursor()
        for cursor in (ranges, bits):
            cursor.ack_range(5, 9)
        assert list(ranges.acked_ranges()) == [(5, 9)] != list(bits.acked_ranges())


def test_a_mark_that_moves_back_is_reported() -> None:
    mark_goes_forward(4, 6, Cursor(4, [(5, 7)]), "an event")
    for after in (Cursor(3, [(5, 8)]), Cursor(5)):
        with pytest.raises(AssertionError, match="K6"):
            mark_goes_forward(4, 6, after, "an event")


def unread(place: StoredSegment) -> bytes:
    raise AssertionError(f"{place} is stored")


def test_a_checkpoint_without_an_acked_range_is_reported() -> None:
    state = SubscriptionState(True, Cursor(3, [(5, 7), (9, 12)], [(20, 0b1)]))
    machine = SubscriptionMachine()
    recovery_gives_what_was_stored(machine, machine.snapshot(state), unread)

    class Forgetful(SubscriptionMachine):
        def restore(self, segments):
            found = super().restore(segments)
            found.cursor.reset(found.cursor.acked_before)
            return found

    with pytest.raises(AssertionError, match="K7"):
        recovery_gives_what_was_stored(Forgetful(), machine.snapshot(state), unread)

"""Undoing moves of a cursor, as decisions and events."""

from __future__ import annotations

import random

import pytest

from velaray.actors.machine import Reason, Refusal
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import Ack, AckBefore, Reset, SubscriptionMachine
from velaray.actors.subscription.undoing import Restore, Restored, keep, move_of
from velaray.actors.testing import given
from velaray.events.events_pb2 import (
    CursorCreated,
    CursorReset,
    CursorRestored,
    EntriesAcked,
    EntriesExpired,
    LedgerOpened,
    MarkDeleted,
    PartialAck,
)

CREATED = CursorCreated(start_offset=0)
ACKED = EntriesAcked(ranges=[1, 2], partial=[PartialAck(offset=5, remaining=[0b10])])


def test_the_former_cursor_is_journaled_completely() -> None:
    former = Cursor(0, [(1, 3)], [(5, 0b10)])
    history = given(SubscriptionMachine(), CREATED, ACKED, CursorReset(next_offset=9, reason="x"))
    history.when(Restore(Cursor(9), former, (), "why")).then(
        [
            CursorRestored(
                next_offset=0,
                ranges=[1, 2],
                partial=[PartialAck(offset=5, remaining=[0b10])],
                reason="why",
            )
        ],
        reply=Restored(0),
    )
    assert history.state.cursor == former


def test_an_undo_leaves_a_cursor_that_moved_meanwhile() -> None:
    history = given(SubscriptionMachine(), CREATED, CursorReset(next_offset=9, reason="x"))
    history.when(Restore(Cursor(8), Cursor(0), (), "why")).then(
        reply=Refusal(Reason.CONFLICT, "the cursor moved meanwhile; try again")
    )


def test_an_undo_does_not_bring_trimmed_entries_back() -> None:
    history = given(SubscriptionMachine(), CREATED, CursorReset(next_offset=9, reason="x"))
    refused = history.when(Restore(Cursor(9), Cursor(2), ((0, 4),), "why"))
    refused.then(
        reply=Refusal(
            Reason.NOT_ALLOWED,
            "can't be undone: entries at offsets 2 to 3 would have to be delivered again, but "
            "they are trimmed away",
        )
    )
    history.when(Restore(Cursor(9), Cursor(4), ((0, 4),), "why")).then(
        [CursorRestored(next_offset=4, reason="why")], reply=Restored(4)
    )


def test_moves_are_distinguished_from_acknowledgements() -> None:
    moves = [
        CursorReset(next_offset=1, reason="seek"),
        MarkDeleted(before_offset=1, reason="skip"),
        EntriesExpired(ranges=[0, 1], reason="administrator"),
        CursorRestored(next_offset=1, reason="x"),
    ]
    assert [move_of(event).split(":")[0] for event in moves] == ["seek", "skip", "expire", "undo"]
    others = [
        MarkDeleted(before_offset=1),
        EntriesAcked(ranges=[0, 1]),
        EntriesExpired(ranges=[0, 1], reason="ttl"),
        LedgerOpened(),
    ]
    assert not any(map(move_of, others))


@pytest.mark.parametrize("seed", range(30))
def test_an_undo_gives_the_cursor_as_without_the_move(seed: int) -> None:
    """Single acknowledgements since then are kept; everything else is as it was."""
    rng, machine = random.Random(seed), SubscriptionMachine()
    moved, without = machine.initial(), machine.initial()

    def both(command: object) -> None:
        for state in (moved, without):
            for event in machine.decide(state, command, 0).events:
                machine.evolve(state, event)

    for state in (moved, without):
        machine.evolve(state, CREATED)
    for _ in range(rng.randrange(10)):
        first = rng.randrange(50)
        both(Ack(60, [(first, first + rng.randrange(1, 6))], [(rng.randrange(60), 0b1010)]))
    held = without.cursor
    restored = Cursor(held.acked_before, held.acked_ranges(), held.all_partials())
    moves = [
        Reset(rng.randrange(60), "mistake"),
        AckBefore(60, rng.randrange(1, 60), reason="oops"),
    ]
    for command in rng.sample(moves, rng.randrange(1, 3)):
        for event in machine.decide(moved, command, 0).events:
            keep(restored, moved.cursor, event)
            machine.evolve(moved, event)
    for _ in range(rng.randrange(10)):
        first = rng.randrange(50)
        command = Ack(60, [(first, first + 2)], [(rng.randrange(60), 0b0110)])
        for event in machine.decide(moved, command, 0).events:
            keep(restored, moved.cursor, event)
            # What the live cursor already had is not acknowledged since, nor is it here.
            machine.evolve(without, event)
            machine.evolve(moved, event)
    assert restored == without.cursor

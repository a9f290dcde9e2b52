"""Entries on their way to a dead-letter topic: intended, published, moved."""

from __future__ import annotations

from velaray.actors.dispatch.consumers import ConsumerSpec, SubscriptionType
from velaray.actors.dispatch.dispatcher import Dispatcher
from velaray.actors.machine import Reason
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.dead_letters import (
    ConfirmMoved,
    IntendDeadLetters,
    Intended,
    Moved,
)
from velaray.actors.subscription.machine import Ack, Reset, SubscriptionMachine
from velaray.actors.subscription.pending_acks import (
    AckInTransaction,
    BatchAck,
    EndTransactionAcks,
    NowPending,
)
from velaray.actors.testing import given
from velaray.events.events_pb2 import CursorCreated, DeadLettersIntended, DeadLettersMoved
from velaray.events.ids import TransactionId

END = 1000


def begun():
    return given(SubscriptionMachine(), CursorCreated(start_offset=0))


def test_a_dead_letter_is_intended_then_confirmed_and_acknowledged() -> None:
    (
        begun()
        .when(IntendDeadLetters([(7, 9), (2, 3)]))
        .then(
            events=[DeadLettersIntended(ranges=[2, 1, 4, 2], first_sequence=0)],
            reply=Intended(((2, 0), (7, 1), (8, 2))),
        )
        .when(IntendDeadLetters([(5, 9)]))
        .then(
            events=[DeadLettersIntended(ranges=[5, 2], first_sequence=3)],
            reply=Intended(((5, 3), (6, 4))),
        )
        .then_state(lambda state: not state.cursor.is_acked(7))
        .when(ConfirmMoved([7, 7, 2, 100]))
        .then(
            events=[DeadLettersMoved(ranges=[2, 1, 4, 1])],
            reply=Moved(((2, 3), (7, 8))),
        )
        .then_state(lambda state: state.cursor.is_acked(7) and state.cursor.is_acked(2))
        .when(ConfirmMoved([7]))
        .then(events=[], reply=Moved(()))
        .then_state(lambda state: state.dead.dead_letters() == [(8, 2), (5, 3), (6, 4)])
    )


def test_acknowledged_entries_never_become_dead_letters() -> None:
    (
        begun()
        .when(Ack(END, [(3, 5)]))
        .when(IntendDeadLetters([(2, 6)]))
        .then(reply=Intended(((2, 0), (5, 1))))
        .when(IntendDeadLetters([(3, 5)]))
        .then(events=[], reply=Intended(()))
    )


def test_an_intended_dead_letter_cannot_be_acknowledged_in_a_transaction() -> None:
    """The message's output would count, and its dead letter as well."""
    txn = TransactionId(0, 1)
    where = "offset 7: it is on its way to the dead-letter topic"
    (
        begun()
        .when(IntendDeadLetters([(7, 8)]))
        .when(AckInTransaction(txn, END, [(6, 9)]))
        .then_refused(Reason.CONFLICT, where)
        .when(AckInTransaction(txn, END, partial=[BatchAck(7, 0b01, 2)]))
        .then_refused(Reason.CONFLICT, where)
        .when(AckInTransaction(txn, END, [(6, 7)]))
        .then(reply=NowPending(((6, 7),)))
    )


def test_entries_pending_in_a_transaction_do_not_become_dead_letters() -> None:
    txn = TransactionId(0, 1)
    (
        begun()
        .when(AckInTransaction(txn, END, [(2, 3)], [BatchAck(4, 0b01, 2)]))
        .when(IntendDeadLetters([(2, 6)]))
        .then(reply=Intended(((3, 0), (5, 1))))
        .when(EndTransactionAcks(txn, commit=False))
        .when(IntendDeadLetters([(2, 6)]))
        .then(reply=Intended(((2, 2), (4, 3))))
    )


def test_sequence_ids_of_dead_letters_are_not_reused_after_a_reset() -> None:
    (
        begun()
        .when(IntendDeadLetters([(2, 4)]))
        .when(Reset(0, "seek"))
        .then_state(lambda state: not state.dead.intended)
        .when(IntendDeadLetters([(2, 3)]))
        .then(reply=Intended(((2, 2),)))
    )


def test_dead_letters_are_not_delivered() -> None:
    made = Dispatcher(Cursor())
    made.attach(ConsumerSpec(1, "c", SubscriptionType.SHARED))
    made.flow(1, 100)
    made.feed(0, [1] * 5)
    made.dispatch()
    for _ in range(2):
        made.redeliver(1, [(1, 3)])
        assert made.condemn(2) == []
        made.dispatch()
    assert made.condemn(1) == []  # it is held
    made.redeliver(1, [(1, 2)])
    assert made.condemn(2) == [(1, 2)]
    assert made.condemn(2) == []
    assert made.dispatch() == []
    made.check()
    made.detach(1, lost=True)
    assert made.condemn(2) == [(2, 3)]


def test_a_new_dispatcher_skips_intended_dead_letters_and_condemned_entries() -> None:
    state = begun().when(IntendDeadLetters([(1, 2)])).state
    state.deliveries.add([(3, 5)], 4)
    made = Dispatcher(state.cursor, 0, state.deliveries.copy())
    made.kill([(1, 2)])
    made.attach(ConsumerSpec(1, "c", SubscriptionType.SHARED))
    made.flow(1, 100)
    made.feed(0, [1] * 6)
    assert made.condemn(3) == [(3, 5)]
    found = [(each.first, each.end) for each in made.dispatch()]
    assert found == [(0, 1), (2, 3), (5, 6)]
    made.check()


def test_entries_acknowledged_before_a_new_dispatcher_starts_are_not_dead() -> None:
    cursor = Cursor()
    cursor.ack_range(1, 3)
    made = Dispatcher(cursor)
    made.attach(ConsumerSpec(1, "c", SubscriptionType.SHARED))
    made.flow(1, 100)
    made.kill([(1, 2), (2, 4)])
    made.feed(0, [1] * 5)
    assert [(each.first, each.end) for each in made.dispatch()] == [(0, 1), (4, 5)]
    made.check()

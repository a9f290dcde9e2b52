"""Acknowledgements in transactions: pending, then acknowledged for good or undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from tests.actors import pending_model
from tests.actors.pending_model import NOTHING, Conflict, Log, Seen, see
from velaray.actors.machine import InvariantViolation, Reason, Refusal, digest
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.expiry import Expire, ExpiryReason
from velaray.actors.subscription.machine import (
    Ack,
    AckBefore,
    Acked,
    Reset,
    SubscriptionMachine,
    SubscriptionState,
)
from velaray.actors.subscription.pending_acks import (
    AckBeforeInTransaction,
    AckInTransaction,
    AcksEnded,
    BatchAck,
    EndTransactionAcks,
    NowPending,
)
from velaray.actors.subscription.pending_sets import Before
from velaray.actors.subscription.undoing import Restore, keep
from velaray.actors.testing import Contents, given
from velaray.events.events_pb2 import (
    AckedBeforeInTransaction,
    AckedInTransaction,
    CursorCreated,
    CursorReset,
    EntriesAcked,
    MarkDeleted,
    PartialAck,
    PendingPart,
    TransactionAcksEnded,
)
from velaray.events.ids import TransactionId

END = 100
ONE, TWO, THREE = (TransactionId(3, sequence) for sequence in (1, 2, 3))
MACHINE = SubscriptionMachine()


def begun():
    return given(MACHINE, CursorCreated(start_offset=0))


def ended(sequence: int, commit: bool) -> TransactionAcksEnded:
    return TransactionAcksEnded(coordinator=3, sequence=sequence, commit=commit)


def test_a_commit_acknowledges_pending_entries() -> None:
    part = PendingPart(offset=7, acknowledged=[0b0011], messages=4)
    (
        begun()
        .when(AckInTransaction(ONE, END, [(4, 5), (2, 4)], [BatchAck(7, 0b1100, 4)], 9))
        .then(
            events=[
                AckedInTransaction(
                    coordinator=3, sequence=1, ranges=[2, 3], partial=[part], consumer=9
                )
            ],
            reply=NowPending(((2, 5),), (7,)),
        )
        .then_state(lambda state: state.cursor == Cursor())
        .when(EndTransactionAcks(ONE, True))
        .then(
            events=[
                EntriesAcked(ranges=[2, 3], partial=[PartialAck(offset=7, remaining=[0b1100])]),
                ended(1, True),
            ],
            reply=AcksEnded(((2, 5),), ((7, 0b1100),)),
        )
        .then_state(lambda state: state.cursor == Cursor(0, [(2, 5)], [(7, 0b1100)]))
        .when(EndTransactionAcks(ONE, True))
        .then(events=[], reply=AcksEnded())
    )


def test_an_abort_returns_the_entries_to_redeliver() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(5, 0b10, 2)]))
        .when(EndTransactionAcks(ONE, False))
        .then(events=[ended(1, False)], reply=AcksEnded(returned=((2, 6),)))
        .then_state(lambda state: not state.pending and state.cursor == Cursor())
        .when(EndTransactionAcks(ONE, False))
        .then(events=[], reply=AcksEnded())
    )


def test_several_transactions_together_acknowledge_a_whole_batch() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [], [BatchAck(0, 0b1110, 4), BatchAck(0, 0b1101, 4)]))
        .when(AckInTransaction(TWO, END, [], [BatchAck(0, 0b0011, 4)]))
        .then_state(lambda state: state.pending.bits(0) == 0b1111)
        .when(EndTransactionAcks(ONE, True))
        .then(reply=AcksEnded((), ((0, 0b1100),)))
        .when(EndTransactionAcks(TWO, True))
        .then(events=[EntriesAcked(ranges=[0, 1]), ended(2, True)], reply=AcksEnded(((0, 1),)))
        .then_state(lambda state: state.cursor == Cursor(1))
    )


def test_all_messages_of_a_batch_are_the_whole_entry() -> None:
    begun().when(AckInTransaction(ONE, END, [], [BatchAck(3, 0, 4), BatchAck(5, 0b11, 2)])).then(
        events=[AckedInTransaction(coordinator=3, sequence=1, ranges=[3, 1])],
        reply=NowPending(((3, 4),)),
    )


def test_an_empty_acknowledgement_is_not_journaled() -> None:
    begun().when(AckInTransaction(ONE, END, [], [BatchAck(5, 0b11, 2)])).then(
        events=[], reply=NowPending()
    )


IN_TWO = [
    AckInTransaction(TWO, END, [(2, 3), (10, 11)]),
    AckInTransaction(TWO, END, [(6, 9)]),
    AckInTransaction(TWO, END, [], [BatchAck(7, 0b1000, 4)]),
    AckInTransaction(TWO, END, [(10, 11)], [BatchAck(4, 0b1, 2)]),
]


@pytest.mark.parametrize("command", IN_TWO)
@pytest.mark.parametrize("who", [ONE, TWO])
def test_an_ack_of_pending_entries_is_refused_as_a_whole(command, who) -> None:
    command = AckInTransaction(who, END, command.ranges, command.partial)
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1100, 4)]))
        .when(command)
        .then_refused(Reason.CONFLICT, "it is pending in transaction (3,1)")
        .then_state(lambda state: state.pending.transactions() == [ONE])
    )


REPEATED = [
    AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1100, 4)]),
    AckInTransaction(ONE, END, [(3, 4)]),
    AckInTransaction(ONE, END, [], [BatchAck(7, 0b1110, 4)]),
    AckInTransaction(ONE, END, [], [BatchAck(4, 0b1, 2)]),
]


@pytest.mark.parametrize("command", REPEATED)
def test_a_repetition_in_the_same_transaction_changes_nothing(command) -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1100, 4)]))
        .when(command)
        .then(events=[])
        .then_state(lambda state: state.pending.transactions() == [ONE])
    )


@pytest.mark.parametrize("command", REPEATED)
def test_a_first_attempt_in_the_same_transaction_is_in_conflict(command) -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1100, 4)]))
        .when(replace(command, may_repeat=False))
        .then_refused(Reason.CONFLICT, "it is pending in transaction")
    )


@pytest.mark.parametrize("command", IN_TWO)
def test_a_transactional_ack_of_acked_entries_is_refused_as_a_whole(command) -> None:
    (
        begun()
        .when(Ack(END, [(2, 5), (8, 9)], [(7, 0b1100)]))
        .when(command)
        .then_refused(Reason.CONFLICT, "it is already acknowledged")
        .then_state(lambda state: not state.pending)
    )


def test_the_conflict_names_the_first_offset() -> None:
    (
        begun()
        .when(Ack(END, [(5, 6)]))
        .when(AckInTransaction(ONE, END, [(3, 9)]))
        .then_refused(Reason.CONFLICT, "transaction (3,1) can't acknowledge offset 5: it is alre")
    )


def test_a_cumulative_acknowledgement_commits_into_a_batch() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(3, 4)], [BatchAck(9, 0b0111, 4)]))
        .when(AckBeforeInTransaction(ONE, END, 9, 0b1100, 5))
        .then(
            events=[
                AckedBeforeInTransaction(
                    coordinator=3,
                    sequence=1,
                    before_offset=9,
                    partial=PartialAck(offset=9, remaining=[0b1100]),
                    consumer=5,
                )
            ],
            reply=NowPending(),
        )
        .when(EndTransactionAcks(ONE, True))
        .then(
            events=[
                EntriesAcked(ranges=[3, 1], partial=[PartialAck(offset=9, remaining=[0b0111])]),
                MarkDeleted(before_offset=9, partial=PartialAck(offset=9, remaining=[0b0100])),
                ended(1, True),
            ],
            reply=AcksEnded(((0, 9),), ((9, 0b0100),)),
        )
        .when(AckBeforeInTransaction(TWO, END, 9, 0b1000))
        .when(EndTransactionAcks(TWO, True))
        .then(events=[MarkDeleted(before_offset=10), ended(2, True)], reply=AcksEnded(((9, 10),)))
    )


def test_a_batch_that_expired_meanwhile_is_not_left_partly_acked() -> None:
    (
        begun()
        .when(AckBeforeInTransaction(ONE, END, 4, 0b0100))
        .when(Expire(END, [(4, 5)], ExpiryReason.TTL))
        .when(EndTransactionAcks(ONE, True))
        .then(events=[MarkDeleted(before_offset=5), ended(1, True)], reply=AcksEnded(((0, 5),)))
    )


def test_an_aborted_cumulative_ack_redelivers_nothing() -> None:
    (
        begun()
        .when(AckBeforeInTransaction(ONE, END, 9))
        .when(EndTransactionAcks(ONE, False))
        .then(events=[ended(1, False)], reply=AcksEnded())
        .then_state(lambda state: state.cursor == Cursor() and not state.pending)
    )


def test_one_transaction_acks_cumulatively_and_only_forward() -> None:
    (
        begun()
        .when(AckBeforeInTransaction(ONE, END, 9, 0b1100))
        .when(AckBeforeInTransaction(TWO, END, 12))
        .then_refused(Reason.CONFLICT, "it is pending in transaction (3,1)")
        .when(AckBeforeInTransaction(ONE, END, 9, 0b1100))
        .then(events=[], reply=NowPending())
        .when(AckBeforeInTransaction(ONE, END, 9))
        .then_refused(Reason.CONFLICT)
        .when(AckBeforeInTransaction(ONE, END, 9, 0b1000))
        .then(reply=NowPending())
        .when(AckBeforeInTransaction(ONE, END, 9, 0))
        .then_state(lambda state: state.pending.advancing == (ONE, Before(10, None)))
        .when(AckBefore(END, 10))
        .then_state(lambda state: not state.pending)
        .when(AckBeforeInTransaction(ONE, END, 10))
        .then_refused(Reason.CONFLICT, "it is already acknowledged")
    )


def test_a_cumulative_acknowledgement_and_one_of_another_transaction_exclude_each_other() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(4, 5)], [BatchAck(7, 0b10, 2)]))
        .when(AckBeforeInTransaction(TWO, END, 5))
        .then_refused(Reason.CONFLICT, "offset 4: it is pending in transaction (3,1)")
        .when(AckBeforeInTransaction(TWO, END, 4))
        .when(AckInTransaction(ONE, END, [(3, 4)]))
        .then_refused(Reason.CONFLICT, "offset 3: it is pending in transaction (3,2)")
        .when(AckInTransaction(TWO, END, [(3, 4)]))
        .then(reply=NowPending(((3, 4),)))
    )


@pytest.mark.parametrize(
    "command",
    [
        AckInTransaction(TWO, 20, [(10, 12), (19, 21)]),
        AckInTransaction(TWO, 20, [(12, 12)]),
        AckInTransaction(TWO, 20, [], [BatchAck(20, 0, 1)]),
        AckInTransaction(TWO, 20, [], [BatchAck(12, -1, 1)]),
        AckInTransaction(TWO, 20, [], [BatchAck(12, 0, 0)]),
        AckInTransaction(TWO, 20, [], [BatchAck(12, 1, 2), BatchAck(12, 1, 3)]),
        AckInTransaction(TWO, 20, [], [BatchAck(1, 0b011, 3)]),
        AckBeforeInTransaction(TWO, 20, 21),
        AckBeforeInTransaction(TWO, 20, 20, 0b1),
        AckBeforeInTransaction(TWO, 20, 12, -1),
        AckBeforeInTransaction(TWO, 20, -1),
    ],
)
def test_invalid_commands_are_refused_as_a_whole(command) -> None:
    held = AckInTransaction(ONE, END, [], [BatchAck(1, 0b1110, 4)])
    begun().when(held).when(command).then_refused(Reason.INVALID)
    given(MACHINE).when(command).then_refused(Reason.NOT_FOUND)
    given(MACHINE).when(EndTransactionAcks(ONE, True)).then_refused(Reason.NOT_FOUND)


CLEARING: list[list[Any]] = [
    [Ack(END, [(2, 5), (7, 8)])],
    [Ack(END, [(2, 6)], [(7, 0b1100)])],
    [AckBefore(END, 7, 0b1100)],
    [AckBefore(END, 8, reason="skip")],
    [Expire(END, [(0, 9)], ExpiryReason.TTL)],
    [Reset(0, "seek")],
    [Restore(Cursor(), Cursor(0, [(2, 5)], [(7, 0b1100)]), (), "why")],
]


@pytest.mark.parametrize("commands", CLEARING)
def test_entries_that_leave_the_backlog_are_not_pending(commands) -> None:
    history = begun().when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1100, 4)]))
    for command in commands:
        history.when(command)
        assert not isinstance(history.reply, Refusal)
    assert not history.state.pending
    history.when(EndTransactionAcks(ONE, True)).then(events=[], reply=AcksEnded())


def test_the_remaining_pending_entries_are_committed() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)], [BatchAck(7, 0b1000, 4)]))
        .when(Ack(END, [(3, 4)], [(7, 0b0110)]))
        .then(reply=Acked(((3, 4),), ((7, 0b0110),)))
        .when(EndTransactionAcks(ONE, True))
        .then(reply=AcksEnded(((2, 3), (4, 5), (7, 8))))
    )


def test_undoing_a_move_keeps_later_commits_and_pending_entries() -> None:
    history = begun().when(Reset(50, "mistake"))
    restored = Cursor()
    history.when(AckInTransaction(ONE, END, [(60, 62)])).when(
        AckInTransaction(TWO, END, [(70, 72)])
    )
    for event in MACHINE.decide(history.state, EndTransactionAcks(ONE, True), 0).events:
        keep(restored, history.state.cursor, event)
    history.when(EndTransactionAcks(ONE, True))
    history.when(Restore(Cursor(50, [(60, 62)]), restored, (), "undo"))
    assert history.state.cursor == Cursor(0, [(60, 62)])
    history.when(EndTransactionAcks(TWO, True)).then(reply=AcksEnded(((70, 72),)))


def test_a_reset_to_the_present_position_drops_pending_acks() -> None:
    (
        begun()
        .when(AckInTransaction(ONE, END, [(2, 5)]))
        .when(Reset(0, "seek"))
        .then(events=[CursorReset(next_offset=0, reason="seek")])
    )


def test_a_message_pending_in_two_transactions_is_caught() -> None:
    state = begun().state
    state.pending.hold_part(ONE, 3, 0b011, 4)
    state.pending.hold_part(TWO, 3, 0b110, 4)
    with pytest.raises(InvariantViolation, match="a message is pending in one transaction"):
        MACHINE.check(state)


def test_an_entry_both_acked_and_pending_is_caught() -> None:
    state = begun().state
    state.pending.hold(ONE, [(3, 5)])
    state.cursor.ack_range(4, 5)
    with pytest.raises(InvariantViolation, match="nothing acknowledged is pending"):
        MACHINE.check(state)


# ---- everything that can happen to a small log, and random histories of a larger one

Model = Callable[[Seen], Seen]
Step = tuple[Any, Model]
"""A command of the machine, and what it does to the model."""


def steps_of(log: Log, transactions: list[TransactionId], cumulative: bool) -> Iterator[Step]:
    """Every acknowledgement that makes sense, and every end of a transaction."""
    stop = len(log.sizes)
    for offset, size in enumerate(log.sizes):
        masks = range((1 << size) - 1)
        for mask in masks:
            yield plain(stop, offset, mask, log)
            for who in transactions:
                yield in_part(stop, who, offset, mask, log)
                if cumulative and mask:
                    yield up_to(stop, who, offset, mask, log)
        for who in transactions:
            yield in_whole(stop, who, offset, log)
            if cumulative:
                yield up_to(stop, who, offset + 1, None, log)
        if cumulative:
            yield plain_before(stop, offset + 1, log)
    for who in transactions:
        for commit in (True, False):
            yield ends(who, commit)


def plain(stop: int, offset: int, mask: int, log: Log) -> Step:
    messages = log.messages(offset, mask)
    command = Ack(stop, [], [(offset, mask)]) if mask else Ack(stop, [(offset, offset + 1)])
    return command, lambda seen: pending_model.ack(seen, messages)


def plain_before(stop: int, offset: int, log: Log) -> Step:
    messages = log.before(offset, None)
    return AckBefore(stop, offset), lambda seen: pending_model.ack(seen, messages)


def in_part(stop: int, who: TransactionId, offset: int, mask: int, log: Log) -> Step:
    messages = log.messages(offset, mask)
    command = AckInTransaction(who, stop, [], [BatchAck(offset, mask, log.sizes[offset])])
    return command, lambda seen: pending_model.hold(seen, who, messages, False)


def in_whole(stop: int, who: TransactionId, offset: int, log: Log) -> Step:
    messages = log.messages(offset)
    command = AckInTransaction(who, stop, [(offset, offset + 1)])
    return command, lambda seen: pending_model.hold(seen, who, messages, True)


def up_to(stop: int, who: TransactionId, offset: int, mask: int | None, log: Log) -> Step:
    messages = log.before(offset, mask)
    command = AckBeforeInTransaction(who, stop, offset, mask)
    return command, lambda seen: pending_model.hold_before(seen, who, messages)


def ends(who: TransactionId, commit: bool) -> Step:
    return EndTransactionAcks(who, commit), lambda seen: pending_model.end(seen, who, commit)


def take(state: SubscriptionState, seen: Seen, step: Step) -> tuple[list[Any], Seen, Any]:
    """The events that a step leads to, what the model makes of it, and the reply; both refuse or
    none does."""
    command, model = step
    decision = MACHINE.decide(state, command, 0)
    refused = isinstance(decision.reply, Refusal)
    try:
        after = model(seen)
    except Conflict:
        assert refused and decision.reply.reason is Reason.CONFLICT, (seen, command)
        return [], seen, decision.reply
    assert not refused, (seen, command, decision.reply)
    return list(decision.events), after, decision.reply


def is_told(
    reply: Any, command: Any, before: Seen, after: Seen, log: Log, state: SubscriptionState
) -> None:
    """The reply to the end of a transaction names what changed, and nothing else that matters."""
    if not isinstance(reply, AcksEnded):
        return
    whole = {at for first, end in reply.ranges for at in range(first, end)}
    returned = {at for first, end in reply.returned for at in range(first, end)}
    assert all(state.cursor.is_acked(at) for at in whole)
    assert all(state.cursor.ack_set(at) == mask for at, mask in reply.partial)
    told = whole | {at for at, _ in reply.partial}
    assert {at for at, _ in after.acked - before.acked} <= told
    held = {} if command.commit else before.held
    assert returned == {at for at, _ in held.get(command.transaction, ())}


def restarted(state: SubscriptionState) -> SubscriptionState:
    return MACHINE.restore(Contents().bytes_of(MACHINE.snapshot(state)))


def replayed(events: list[Any]) -> SubscriptionState:
    state = MACHINE.initial()
    for event in events:
        MACHINE.evolve(state, event)
    return state


def without(events: list[Any], who: TransactionId) -> list[Any]:
    """The same had the transaction acknowledged nothing since it ended last."""
    of_it = [at for at, event in enumerate(events) if getattr(event, "sequence", 0) == who.sequence]
    ends_at = [at for at in of_it if isinstance(events[at], TransactionAcksEnded)]
    since = ends_at[-1] if ends_at else -1
    return [event for at, event in enumerate(events) if at <= since or at not in of_it]


def explore(log: Log, transactions: list[TransactionId], cumulative: bool) -> int:
    """Take every step in every state that can be reached; returns how many those are.

    What happens next depends on the state alone. So this is every interleaving, of any length.
    Every state is restored from its snapshot before each step, and replayed from its events.
    """
    steps = list(steps_of(log, transactions, cumulative))
    created: list[Any] = [CursorCreated(start_offset=0)]
    first = replayed(created)
    known = {digest(MACHINE.snapshot(first))}
    todo = deque([(first, NOTHING, created)])
    while todo:
        state, seen, events = todo.popleft()
        assert see(state, log) == seen
        assert replayed(events) == state
        for who in transactions:
            undone = restarted(state)
            for event in MACHINE.decide(undone, EndTransactionAcks(who, False), 0).events:
                MACHINE.evolve(undone, event)
            assert undone == replayed(without(events, who))
        for step in steps:
            new, after, reply = take(state, seen, step)
            if not new:
                assert after == seen
                continue
            then = restarted(state)
            for event in new:
                MACHINE.evolve(then, event)
                MACHINE.check(then)
            name = digest(MACHINE.snapshot(then))
            assert see(then, log) == after, (seen, step[0])
            is_told(reply, step[0], seen, after, log, then)
            if name not in known:
                known.add(name)
                todo.append((then, after, [*events, *new]))
    return len(known)


@pytest.mark.parametrize(
    ("sizes", "transactions", "cumulative"),
    [
        ((1,), [ONE, TWO, THREE], True),
        ((2,), [ONE, TWO, THREE], True),
        ((3,), [ONE, TWO, THREE], False),
        ((4,), [ONE, TWO, THREE], False),
        ((3,), [ONE, TWO], True),
        pytest.param((4,), [ONE], True, marks=pytest.mark.long),
        ((1, 2), [ONE, TWO], True),
        ((1, 1), [ONE, TWO, THREE], True),
    ],
)
def test_every_interleaving_on_a_small_log(sizes, transactions, cumulative) -> None:
    assert explore(Log(sizes), transactions, cumulative) > 10


def moves_of(log: Log) -> Iterator[Step]:
    """What else changes a cursor."""
    stop = len(log.sizes)
    for offset in range(stop):
        messages, before = log.messages(offset), log.before(offset, None)
        yield (
            Expire(stop, [(offset, offset + 1)], ExpiryReason.TTL),
            lambda seen, messages=messages: pending_model.ack(seen, messages),
        )
        yield Reset(offset, "seek"), lambda _, before=before: Seen(before, {}, {})


LARGER = Log((1, 3, 1, 2, 4, 1))
ENDS = [ends(who, commit) for who in (ONE, TWO, THREE) for commit in (True, False)]
STEPS = list(steps_of(LARGER, [ONE, TWO, THREE], True))
RARER = [*ENDS, *moves_of(LARGER)]


@settings(max_examples=60, deadline=None)
@examples(st.lists(st.sampled_from(STEPS) | st.sampled_from(RARER), max_size=40))
def test_random_histories_match_a_naive_model(steps) -> None:
    history, seen = begun(), NOTHING
    for step in steps:
        before = seen
        _, seen, _ = take(history.state, seen, step)
        history.when(step[0])
        assert see(history.state, LARGER) == seen
        is_told(history.reply, step[0], before, seen, LARGER, history.state)
    history.verify_replay()

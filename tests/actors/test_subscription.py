"""The subscription machine: what an ack changes is journaled, and nothing else."""

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from velaray.actors.machine import InvariantViolation, Reason
from velaray.actors.sets.acknowledged_ranges import SEGMENT
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.machine import (
    Ack,
    AckBefore,
    Acked,
    Create,
    CursorAt,
    Reset,
    SubscriptionMachine,
    SubscriptionState,
)
from velaray.actors.testing import drive, given
from velaray.events.events_pb2 import (
    CursorCreated,
    CursorReset,
    EntriesAcked,
    LedgerOpened,
    MarkDeleted,
    PartialAck,
    TopicTerminated,
)

END = 1000
CREATED = CursorCreated(start_offset=10)


def begun():
    return given(SubscriptionMachine(), LedgerOpened(ledger_id=1, epoch=1), CREATED)


def test_creating_twice_changes_nothing() -> None:
    (
        given(SubscriptionMachine())
        .when(Create(10))
        .then(events=[CREATED], reply=CursorAt(10))
        .when(Create(3))
        .then(events=[], reply=CursorAt(10))
    )


@pytest.mark.parametrize("command", [Ack(END, [(0, 1)]), AckBefore(END, 5), Reset(5, "seek")])
def test_nothing_happens_before_it_is_created(command) -> None:
    given(SubscriptionMachine()).when(command).then_refused(Reason.NOT_FOUND)


def test_only_new_acknowledgements_are_journaled() -> None:
    (
        begun()
        .when(Ack(END, [(14, 16), (5, 12), (15, 20)]))
        .then(events=[EntriesAcked(ranges=[10, 2, 2, 6])], reply=Acked(((10, 12), (14, 20))))
        .when(Ack(END, [(8, 12), (19, 20)]))
        .then(events=[], reply=Acked())
        .when(Ack(END, [(12, 15)]))
        .then(events=[EntriesAcked(ranges=[12, 2])], reply=Acked(((12, 14),)))
        .then_state(lambda state: state.cursor == Cursor(20))
    )


def test_messages_of_a_batch_are_acked_one_by_one() -> None:
    half = PartialAck(offset=12, remaining=[0b1100])
    (
        begun()
        .when(Ack(END, [], [(12, 0b1110), (12, 0b1101)]))
        .then(events=[EntriesAcked(partial=[half])], reply=Acked((), ((12, 0b1100),)))
        .when(Ack(END, [], [(12, 0b1111), (3, 0b1)]))
        .then(events=[], reply=Acked())
        .when(Ack(END, [(11, 12)], [(12, 0b0011)]))
        .then(events=[EntriesAcked(ranges=[11, 2])], reply=Acked(((11, 13),)))
        .then_state(lambda state: not state.cursor.all_partials())
    )


def test_a_partial_ack_of_an_entry_in_an_acked_range_is_not_journaled() -> None:
    begun().when(Ack(END, [(10, 13)], [(12, 0b1)])).then(
        events=[EntriesAcked(ranges=[10, 3])], reply=Acked(((10, 13),))
    )


def test_a_wide_batch_keeps_its_mask() -> None:
    mask = 1 << 100 | 1
    words = [1, 1 << 36]
    begun().when(Ack(END, [], [(12, mask)])).then(
        events=[EntriesAcked(partial=[PartialAck(offset=12, remaining=words)])]
    ).then_state(lambda state: state.cursor.ack_set(12) == mask)


def test_cumulative_acks_only_go_forward() -> None:
    (
        begun()
        .when(Ack(END, [(15, 18)]))
        .when(AckBefore(END, 16))
        .then(events=[MarkDeleted(before_offset=16)], reply=Acked(((10, 16),)))
        .then_state(lambda state: state.cursor == Cursor(18))
        .when(AckBefore(END, 12))
        .then(events=[], reply=Acked())
        .when(AckBefore(END, 0))
        .then(events=[], reply=Acked())
    )


def test_a_cumulative_ack_into_a_batch() -> None:
    part = PartialAck(offset=12, remaining=[0b1000])
    (
        begun()
        .when(AckBefore(END, 12, 0b1000))
        .then(
            events=[MarkDeleted(before_offset=12, partial=part)],
            reply=Acked(((10, 12),), ((12, 0b1000),)),
        )
        .when(AckBefore(END, 12, 0b1100))
        .then(events=[], reply=Acked())
        .when(AckBefore(END, 12, 0b0111))
        .then(events=[MarkDeleted(before_offset=13)], reply=Acked(((12, 13),)))
        .then_state(lambda state: state.cursor == Cursor(13))
    )


@pytest.mark.parametrize(
    "command",
    [
        Ack(20, [(10, 12), (19, 21)]),
        Ack(20, [(12, 12)]),
        Ack(20, [(-1, 3)]),
        Ack(20, [(10, 12)], [(20, 1)]),
        Ack(20, [], [(12, -1)]),
        AckBefore(20, 21),
        AckBefore(20, 20, 0b1),
        AckBefore(20, 12, -1),
        AckBefore(20, -1),
        Reset(-1, "seek"),
        Create(-1),
    ],
)
def test_invalid_commands_are_refused_as_a_whole(command) -> None:
    history = given(SubscriptionMachine()) if isinstance(command, Create) else begun()
    history.when(command).then_refused(Reason.INVALID)


def test_a_reset_drops_acks_and_writes_nothing_if_the_cursor_stays() -> None:
    (
        begun()
        .when(Ack(END, [(15, 18)], [(20, 0b1)]))
        .when(Reset(5, "seek"))
        .then(events=[CursorReset(next_offset=5, reason="seek")], reply=CursorAt(5))
        .then_state(lambda state: state.cursor == Cursor(5))
        .when(Reset(5, "seek again"))
        .then(events=[], reply=CursorAt(5))
        .when(Ack(END, [(6, 7)]))
        .when(Reset(5, "holes go"))
        .then(events=[CursorReset(next_offset=5, reason="holes go")])
    )


def test_a_change_touches_only_its_own_segment() -> None:
    machine = SubscriptionMachine()
    history = begun().when(
        Ack(5 * SEGMENT, [(100, 200), (SEGMENT - 5, 3 * SEGMENT + 1)], [(4 * SEGMENT + 1, 0b1)])
    )
    before = dict(machine.snapshot(history.state))
    assert set(before) == {"cursor", *(f"holes/{number}" for number in range(5))}
    after = machine.snapshot(history.when(Ack(5 * SEGMENT, [(4 * SEGMENT, 4 * SEGMENT + 1)])).state)
    assert {name for name in after if after[name] != before.get(name)} == {"holes/4"}
    before = dict(after)
    step = Ack(5 * SEGMENT, [(3 * SEGMENT + 1, 3 * SEGMENT + 2)])  # a long hole grows
    after = machine.snapshot(history.when(step).state)
    assert {name for name in after if after[name] != before.get(name)} == {"holes/3"}
    gone = machine.snapshot(history.when(AckBefore(5 * SEGMENT, SEGMENT - 5)).state)
    assert set(gone) == {"cursor", "holes/4"}


def test_unknown_commands_and_events_are_errors() -> None:
    machine = SubscriptionMachine()
    with pytest.raises(TypeError, match="doesn't handle str"):
        machine.decide(machine.initial(), "ack", 0)
    with pytest.raises(TypeError, match="doesn't handle TopicTerminated"):
        machine.evolve(machine.initial(), TopicTerminated())


def test_a_cursor_before_the_subscription_is_caught() -> None:
    with pytest.raises(InvariantViolation, match="before the subscription is created"):
        SubscriptionMachine().check(SubscriptionState(False, Cursor(3)))


OFFSETS = st.integers(0, 50)
RANGES = st.lists(st.tuples(OFFSETS, st.integers(1, 8)).map(lambda p: (p[0], p[0] + p[1])))
PARTIALS = st.lists(st.tuples(OFFSETS, st.integers(0, 7)))
COMMANDS = st.one_of(
    st.builds(Ack, st.sampled_from([58, 58, 58, 40]), RANGES, PARTIALS),
    st.builds(AckBefore, st.just(50), OFFSETS, st.none() | st.integers(0, 7)),
    st.builds(Reset, OFFSETS, st.just("seek")),
    st.builds(Create, OFFSETS),
)


@settings(max_examples=60, deadline=None)
@examples(st.lists(COMMANDS, max_size=20))
def test_random_histories_keep_every_rule(commands) -> None:
    drive(SubscriptionMachine(), commands)


@settings(max_examples=100, deadline=None)
@examples(st.lists(COMMANDS, max_size=15))
def test_replies_say_what_changed(commands) -> None:
    """Applying the replies alone gives the cursor, and repeating a command gives nothing new."""
    history = given(SubscriptionMachine()).when(Create(0))
    mirror = Cursor()
    for command in commands:
        history.when(command)
        reply = history.reply
        if isinstance(reply, Acked):
            for first, end in reply.ranges:
                new = mirror.unacked_ranges(first, end)
                assert new == [(first, end)] if isinstance(command, Ack) else new[0][0] == first
                mirror.ack_range(first, end)
            for offset, ack_set in reply.partial:
                assert mirror.ack_set(offset) != ack_set
                mirror.ack_partial(offset, ack_set)
            assert history.when(command).reply == Acked()
        elif isinstance(command, Reset) and isinstance(reply, CursorAt):
            mirror.reset(reply.acked_before)
        assert mirror == history.state.cursor

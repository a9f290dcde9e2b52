"""A run of entries is decided, stored and applied as its entries are one by one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from velaray.actors.machine import RunMachine
from velaray.actors.partition.machine import PartitionMachine, Publish, Published, Terminate
from velaray.actors.partition.publish_run import PublishedRun, PublishRun
from velaray.actors.partition.state import PartitionState
from velaray.events.codec import encode
from velaray.events.events_pb2 import LedgerOpened

MACHINE = PartitionMachine()
NOW_MS = 1_790_000_000_000


def publish(state: PartitionState, command: Publish) -> list[bytes]:
    decision = MACHINE.decide(state, command, NOW_MS)
    assert isinstance(decision.reply, Published)
    for event in decision.events:
        MACHINE.evolve(state, event)
    return [encode(event) for event in decision.events]


def started(first: int, *, deduplicate: bool, exact: bool) -> PartitionState:
    """A partition with one entry, of the sequence id ``first``."""
    state = MACHINE.initial()
    MACHINE.evolve(state, LedgerOpened(ledger_id=7, epoch=1))
    publish(state, replace(SINGLE, sequence_id=first, deduplicate=deduplicate, exact=exact))
    return state


SINGLE = Publish("p", 0, 0, 1, b"blob", deduplicate=False)
RUN = PublishRun("p", 1, 1, [b"blob"] * 3)


@given(
    st.one_of(st.integers(0, 300), st.integers(16_000, 17_000), st.integers(1 << 62, 1 << 63)),
    st.integers(1, 300),
    st.sampled_from([1, 2, 200]),
    st.booleans(),
    st.booleans(),
)
def test_a_run_equals_its_entries(
    first: int, count: int, messages: int, deduplicate: bool, exact: bool
) -> None:
    first = min(first, (1 << 63) - 400)
    state = started(first, deduplicate=deduplicate, exact=exact)
    one_by_one = deepcopy(state)
    run = PublishRun("p", first + 1, messages, [b"blob"] * count)
    decision = MACHINE.decide_run(state, run, NOW_MS)
    assert decision is not None
    assert decision.reply == PublishedRun(1, state.table.next_position())
    assert decision.blobs == run.blobs
    MACHINE.evolve_run(state, decision.events)
    single = replace(SINGLE, messages=messages, deduplicate=deduplicate, exact=exact)
    expected = []
    for at in range(first + 1, first + 1 + count):
        expected += publish(one_by_one, replace(single, sequence_id=at))
    assert decision.events.encode() == expected
    assert MACHINE.snapshot(state) == MACHINE.snapshot(one_by_one)


def test_the_first_sequence_id_may_be_zero() -> None:
    state = started(0, deduplicate=False, exact=False)
    state.producers["p"].last_sequence_id = -1
    one_by_one = deepcopy(state)
    decision = MACHINE.decide_run(state, replace(RUN, first_sequence_id=0), NOW_MS)
    assert decision is not None
    expected = [
        record for at in range(3) for record in publish(one_by_one, replace(SINGLE, sequence_id=at))
    ]
    assert decision.events.encode() == expected


def test_what_isnt_usual_is_decided_one_by_one() -> None:
    state = started(0, deduplicate=False, exact=False)
    assert isinstance(MACHINE, RunMachine)
    assert MACHINE.decide_run(state, RUN, NOW_MS) is not None
    for other in (
        replace(RUN, producer="another"),
        replace(RUN, first_sequence_id=0),
        replace(RUN, first_sequence_id=2),
        replace(RUN, messages=0),
    ):
        assert MACHINE.decide_run(state, other, NOW_MS) is None
    for event in MACHINE.decide(state, Terminate(), NOW_MS).events:
        MACHINE.evolve(state, event)
    assert MACHINE.decide_run(state, RUN, NOW_MS) is None
    assert MACHINE.decide_run(MACHINE.initial(), RUN, NOW_MS) is None

"""Facts on their way to the journal: joined, few, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from velaray.actors.dispatch.consumers import Delivery
from velaray.actors.runtime import Stopped
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.actors.subscription.tracing import Note, deliveries_of
from velaray.broker.subscription import tracing
from velaray.broker.subscription.tracing import MOST_RUNS, Trace
from velaray.events.events_pb2 import (
    ConsumerAttached,
    ConsumerDetached,
    DeliveriesTraced,
    EntriesAcked,
    EntriesAskedAgain,
)


class Recorder:
    """A runtime that only remembers what is submitted."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.stopped = False

    def submit(self, command: Note, release: Any) -> None:
        if self.stopped:
            raise Stopped("s", None)
        self.notes.append(command)


def traced(scenario: Callable[[Trace, Recorder], Awaitable[None]]) -> None:
    async def main() -> None:
        runtime = Recorder()
        trace = Trace(runtime, lambda: 5_000)  # type: ignore[arg-type]
        await scenario(trace, runtime)

    asyncio.run(main())


def delivery(consumer: int, first: int, end: int) -> Delivery:
    return Delivery(consumer, first, end, end - first, 0)


def test_deliveries_are_joined_and_wait_for_another_write() -> None:
    async def scenario(trace: Trace, runtime: Recorder) -> None:
        trace.attached(7, "carol", "host:1")
        trace.delivered([delivery(7, 0, 3), delivery(7, 3, 5), delivery(7, 9, 10)])
        trace.lease_report(7, 10, 30)
        assert runtime.notes == []
        trace.writing()
        ((attached, deliveries),) = (note.facts for note in runtime.notes)
        assert attached == ConsumerAttached(consumer=1, name="carol", at_ms=5_000, address="host:1")
        assert isinstance(deliveries, DeliveriesTraced)
        assert list(deliveries_of(deliveries)) == [(1, 0, 5), (1, 9, 30)]
        assert trace.number_of(7) == 1

    traced(scenario)


def test_deliveries_in_quick_succession_are_joined_up_to_a_limit() -> None:
    async def scenario(trace: Trace, runtime: Recorder) -> None:
        trace.attached(7, "carol", "")
        trace.writing()
        assert len(runtime.notes) == 1
        for first in range(0, 2 * MOST_RUNS, 2):
            assert len(runtime.notes) == 1
            trace.delivered([delivery(7, first, first + 1)])
            trace.writing()
        assert len(runtime.notes) == 2

    traced(scenario)


def test_deliveries_without_a_later_write_are_written_after_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "TRACE_S", 0.001)

    async def scenario(trace: Trace, runtime: Recorder) -> None:
        trace.attached(7, "carol", "")
        async with asyncio.timeout(10):
            while not runtime.notes:
                await asyncio.sleep(0)
        trace.write()
        assert len(runtime.notes) == 1  # there was nothing more

    traced(scenario)


def test_facts_keep_their_order_and_include_departures() -> None:
    async def scenario(trace: Trace, runtime: Recorder) -> None:
        trace.attached(7, "carol", "")
        trace.delivered([delivery(7, 0, 4)])
        trace.asked_again(7, [(2, 3), (0, 1)])
        trace.asked_again(7, None)
        trace.end()
        kinds = [type(fact) for note in runtime.notes for fact in note.facts]
        again = EntriesAskedAgain
        assert kinds == [ConsumerAttached, DeliveriesTraced, again, again, ConsumerDetached]
        assert list(runtime.notes[0].facts[2].ranges) == [0, 1, 1, 1]
        runtime.stopped = True
        trace.attached(8, "dave", "")
        trace.end()  # without notice, as after a crash

    traced(scenario)


def test_only_fact_events_can_be_noted() -> None:
    machine = SubscriptionMachine()
    state = machine.initial()
    with pytest.raises(TypeError, match="EntriesAcked isn't a fact"):
        machine.decide(state, Note([EntriesAcked()]), 0)
    decision = machine.decide(state, Note([ConsumerDetached(consumer=1)]), 0)
    before = machine.snapshot(state)
    for event in decision.events:
        machine.evolve(state, event)
    assert machine.snapshot(state) == before

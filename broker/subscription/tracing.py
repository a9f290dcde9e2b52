"""Records facts about deliveries in a subscription's journal.

Facts are written with other events, or after `TRACE_S` at the latest. Nothing waits for them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from velaray.actors.dispatch.consumers import Delivery
from velaray.actors.runtime import Runtime, Stopped
from velaray.actors.sets.offset_sets import Range
from velaray.actors.sets.ranges import normalized
from velaray.actors.subscription.cursor import pack_ranges
from velaray.actors.subscription.tracing import Note
from velaray.events.events_pb2 import (
    ConsumerAttached,
    ConsumerDetached,
    DeliveriesTraced,
    EntriesAskedAgain,
)

TRACE_S = 1.0
"""The delay of writing facts, if nothing else is written."""
JOIN_S = 0.1
"""The time for which facts are joined, even if other events are written."""
MOST_RUNS = 1000
"""The number of runs of deliveries that fill one event."""


class Trace:
    """The facts of one activation of a subscription about its consumers."""

    def __init__(self, runtime: Runtime[Any], clock_ms: Any) -> None:
        self._runtime = runtime
        self._clock_ms = clock_ms
        self._numbers = itertools.count(1)
        self._consumers: dict[int, int] = {}  # dispatcher's number -> journal's
        self._facts: list[Message] = []
        self._runs: list[int] = []
        self._runs_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._written_s = 0.0
        self.last_left_ms: int | None = None
        """The time at which the last consumer left; None if none has left."""

    def number_of(self, consumer: int) -> int:
        """The number of a consumer in the journal; 0 if it isn't connected."""
        return self._consumers.get(consumer, 0)

    def attached(self, consumer: int, name: str, address: str) -> None:
        """Record that a consumer connected."""
        number = self._consumers[consumer] = next(self._numbers)
        now_ms = self._clock_ms()
        self._add(ConsumerAttached(consumer=number, name=name, at_ms=now_ms, address=address))

    def detached(self, consumer: int) -> None:
        """Record that a consumer left."""
        number = self._consumers.pop(consumer, 0)
        if number:
            self.last_left_ms = now_ms = self._clock_ms()
            self._add(ConsumerDetached(consumer=number, at_ms=now_ms))

    def delivered(self, deliveries: Iterable[Delivery]) -> None:
        """Record deliveries."""
        for each in deliveries:
            self._deliver(each.consumer_id, each.first, each.end)

    def lease_report(self, consumer: int, first: int, end: int) -> None:
        """Record deliveries by the partition under a dispatch lease."""
        self._deliver(consumer, first, end)

    def asked_again(self, consumer: int, ranges: Sequence[Range] | None) -> None:
        """Record a consumer's request for redelivery of entries (None: all that it holds)."""
        packed = [] if ranges is None else pack_ranges(normalized(ranges))
        number = self.number_of(consumer)
        now_ms = self._clock_ms()
        self._add(
            EntriesAskedAgain(consumer=number, ranges=packed, all=ranges is None, at_ms=now_ms)
        )

    def _deliver(self, consumer: int, first: int, end: int) -> None:
        runs = self._runs
        number = self._consumers.get(consumer, 0)
        if not runs:
            self._runs_ms = self._clock_ms()
            self._schedule()
        elif runs[-3] == number and runs[-2] + runs[-1] == first:
            runs[-1] = end - runs[-2]
            return
        runs += (number, first, end - first)

    def _add(self, fact: Message) -> None:
        self._close_runs()
        self._facts.append(fact)
        self._schedule()

    def _close_runs(self) -> None:
        if self._runs:
            self._facts.append(DeliveriesTraced(runs=self._runs, at_ms=self._runs_ms))
            self._runs = []

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TRACE_S, self._due)

    def _due(self) -> None:
        self._timer = None
        self.write()

    def writing(self) -> None:
        """Note that other events are about to be written. Facts that were collected for long enough
        are written with them."""
        if self._timer is not None:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._written_s >= JOIN_S or len(self._runs) >= 3 * MOST_RUNS:
                self.write()

    def write(self) -> None:
        """Write the known facts now."""
        self._close_runs()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._facts:
            facts, self._facts = self._facts, []
            self._written_s = asyncio.get_running_loop().time()
            with suppress(Stopped):  # the facts are lost, as in a crash
                self._runtime.submit(Note(facts), _ignore)

    def end(self) -> None:
        """Note that the partition is disconnected, and with it all consumers."""
        for consumer in list(self._consumers):
            self.detached(consumer)
        self.write()


def _ignore(reply: Any, effects: tuple[Any, ...]) -> None:
    """Ignore the outcome: a full disk may refuse facts."""

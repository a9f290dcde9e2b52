"""Producers of the load generator."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from velaray.bench.histogram import Histogram
from velaray.bench.load import Load
from velaray.bench.meter import Meter
from velaray.bench.stamps import Stamps
from velaray.client.exceptions import VelarayError
from velaray.client.message import OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.producer import Producer

_TURN = 64
"""The most messages that are sent before the event loop does something else."""
_GRACE_NS = 1_000_000_000
"""Open loop: how long after the end messages that were intended before it are still sent."""


class Sending:
    """What all producers of a run share: the end, the pace and the counts."""

    def __init__(
        self, load: Load, clock: Callable[[], int], stamps: Stamps, begin_ns: int, producers: int
    ) -> None:
        self.load = load
        self.clock = clock
        self.stamps = stamps
        self.begin_ns = begin_ns
        self.producers = producers
        self.portion = load.values_per_call or 1
        """Messages of a call."""
        after_ns = begin_ns + round(load.warmup_s * 1e9)
        self.meter = Meter(after_ns)
        self.lateness = Histogram()
        """Open loop: how long after its intended time each message was passed to the client."""
        self.errors: Counter[str] = Counter()
        self.unsent = 0
        """Open loop: intended messages that there was no time for."""
        self.stopped = False
        self._after_ns = after_ns
        self._end_ns = None if load.duration_s is None else after_ns + round(load.duration_s * 1e9)
        self._left = load.messages

    def take(self, intended_ns: int, wanted: int) -> int:
        """How many of ``wanted`` messages may still be sent: 0 at the end."""
        end_ns = self._end_ns
        if end_ns is not None and (intended_ns >= end_ns or self.clock() >= end_ns + _GRACE_NS):
            return 0
        if self.stopped:
            return 0
        if self._left is None:
            return wanted
        taken = min(wanted, self._left)
        self._left -= taken
        return taken

    def due_ns(self, call: int) -> int:
        """Open loop: when a call is due, which is when its last message is. Calls of all producers
        are counted together."""
        assert self.load.rate is not None
        return self.begin_ns + round(((call + 1) * self.portion - 1) * 1e9 / self.load.rate)

    def leave(self, call: int) -> None:
        """Open loop: note the end of a producer whose next call would be ``call``."""
        if self.load.rate is None or self._end_ns is None or self.stopped:
            return
        messages = math.ceil((self._end_ns - self.begin_ns) * self.load.rate / 1e9)
        left = range(call, messages // self.portion, self.producers)
        self.unsent += len(left) * self.portion

    def late(self, intended_ns: int, messages: int) -> None:
        """Note that messages are passed to the client now."""
        if self.load.rate is not None and intended_ns >= self._after_ns:
            self.lateness.record(self.clock() - intended_ns, messages)

    def stored(self, intended_ns: int, messages: int) -> None:
        """Count messages whose receipt came now."""
        size = messages * self.load.size
        self.meter.count(intended_ns, self.clock(), messages, size)

    def failed(self, intended_ns: int, messages: int, error: VelarayError) -> None:
        """Count messages that failed."""
        self.meter.fail(intended_ns, messages)
        self.errors[f"{type(error).__name__}: {error}"] += messages


class LoadProducer:
    """One producer, which sends its share of the load."""

    def __init__(self, shared: Sending, producer: Producer[Any], number: int) -> None:
        """``number`` counts the producers of the run from 0."""
        self._shared = shared
        self._producer = producer
        self._limit = max(shared.load.in_flight, shared.portion)
        self._waiting = 0
        self._change: asyncio.Future[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._keys = count(number)
        self._next = number
        """The number of its next call: the producers take turns."""

    async def run(self) -> None:
        """Send from the common begin until the end, and wait for all receipts."""
        await asyncio.sleep(max(self._shared.begin_ns - self._shared.clock(), 0) / 1e9)
        sent = 0
        while True:
            if self._waiting + self._shared.portion > self._limit:
                await self._answer()
                continue
            intended_ns = self._intended()
            wait_ns = intended_ns - self._shared.clock()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)
            elif not self._send(intended_ns):
                break
            sent += 1
            if sent % _TURN == 0:
                await asyncio.sleep(0)
        self._shared.leave(self._next)
        while self._waiting:
            await self._answer()

    def _intended(self) -> int:
        """When the next call is due; closed loop: now."""
        if self._shared.load.rate is None:
            return self._shared.clock()
        return self._shared.due_ns(self._next)

    def _send(self, intended_ns: int) -> bool:
        """Send the next message or call; False: this is the end."""
        messages = self._shared.take(intended_ns, self._shared.portion)
        if not messages:
            return False
        self._next += self._shared.producers
        self._shared.late(intended_ns, messages)
        payload = self._shared.stamps.payload(intended_ns)
        self._waiting += messages
        if self._shared.load.values_per_call:
            call = asyncio.get_running_loop().create_task(self._call(payload, messages))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            return True

        def done(error: VelarayError | None, _: MessageId | None) -> None:
            self._answered(intended_ns, 1, error)

        message = OutgoingMessage(payload, partition_key=self._key())
        self._producer.submit(message, done)
        return True

    async def _call(self, payload: bytes, messages: int) -> None:
        intended_ns, _ = self._shared.stamps.read(payload)
        assert intended_ns is not None
        keys = [self._key() or "" for _ in range(messages)] if self._shared.load.keys else None
        try:
            await self._producer.send_many([payload] * messages, keys)
        except VelarayError as error:
            self._answered(intended_ns, messages, error)
        else:
            self._answered(intended_ns, messages, None)

    def _key(self) -> str | None:
        keys = self._shared.load.keys
        return f"key-{next(self._keys) % keys}" if keys else None

    def _answered(self, intended_ns: int, messages: int, error: VelarayError | None) -> None:
        self._waiting -= messages
        if error is None:
            self._shared.stored(intended_ns, messages)
        else:
            self._shared.failed(intended_ns, messages, error)
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    async def _answer(self) -> None:
        """Wait for a receipt or a failure."""
        self._change = asyncio.get_running_loop().create_future()
        await self._change

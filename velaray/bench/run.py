"""One run of the load generator."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from velaray.bench.clock import precise_loop, wall_clock
from velaray.bench.consuming import Receiving
from velaray.bench.load import Load
from velaray.bench.meter import Figures
from velaray.bench.producing import LoadProducer, Sending
from velaray.bench.stamps import Stamps
from velaray.client.client import Client
from velaray.client.consumer import Consumer
from velaray.client.enums import BatchingType
from velaray.client.producer import Producer

DRAIN_S = 30.0
"""The run ends when no message has come for so long, even if some are missing."""
_LOOK_S = 0.05
"""How often the end of receiving is looked for."""
_CONNECTING_NS = 200_000_000
"""From the last connection to the first message: all producers begin together."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The counts of one interval. None for a direction that the load doesn't have."""

    begin_s: float
    """Seconds since the end of the warm-up."""
    length_s: float
    sent: Figures | None
    received: Figures | None
    stored: int
    """Messages that were stored since the beginning, those of the warm-up included."""
    arrived: int
    whole: bool
    """False for the rest at the end of the run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a whole run found."""

    sending: Sending
    receiving: Receiving
    expected: int
    """Messages of this run that consumers had to receive."""
    began_ns: int
    """The end of the warm-up, in nanoseconds since 1970."""
    elapsed_s: float
    """From the first message to the end of sending and receiving, warm-up included."""
    cpu_s: float
    """CPU seconds of this process over that time."""


class Run:
    """Applies a load once."""

    def __init__(
        self,
        load: Load,
        service_url: str,
        options: dict[str, Any],
        show: Callable[[Interval], None],
    ) -> None:
        """``options`` of the client; ``show`` is called at the end of each interval."""
        self._load = load
        self._url = service_url
        self._options = options
        self._show = show
        self._clock = wall_clock()
        self._stamps = Stamps(load.size)
        self._over = asyncio.Event()
        self._shown_ns = 0

    def run(self) -> Outcome:
        """Connect, send and receive until the end, or until SIGINT or SIGTERM.

        Raises `VelarayError` if it can't connect, or if a consumer ends. Subscriptions and topics
        stay.
        """
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            try:
                return runner.run(self._run())
            except ExceptionGroup as group:
                raise _first(group) from group

    async def _run(self) -> Outcome:
        async with Client(self._url, **self._options) as client:
            consumers = await self._subscribe(client)
            producers = await self._connect(client)
            begin_ns = self._clock() + _CONNECTING_NS
            sending = Sending(self._load, self._clock, self._stamps, begin_ns, len(producers))
            after_ns = begin_ns + round(self._load.warmup_s * 1e9)
            receiving = Receiving(self._clock, self._stamps, after_ns)
            self._shown_ns = after_ns
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._stop, sending)
            cpu_s, started_ns = time.process_time(), self._clock()
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(receiving.run(each)) for each in consumers]
                showing = group.create_task(self._report(sending, receiving, after_ns))
                await self._work(sending, receiving, producers, reading)
                for task in (*reading, showing):
                    task.cancel()
            self._cut(sending, receiving, after_ns, whole=False)
            return Outcome(
                sending,
                receiving,
                self._expected(sending),
                after_ns,
                (self._clock() - started_ns) / 1e9,
                time.process_time() - cpu_s,
            )

    async def _subscribe(self, client: Client) -> list[Consumer[Any]]:
        load = self._load
        return [
            await client.subscribe(topic, name, load.kind, initial_position=load.start)
            for topic in load.topic_names
            for name in load.subscription_names
            for _ in range(load.consumers)
        ]

    async def _connect(self, client: Client) -> list[Producer[Any]]:
        load = self._load
        return [
            await client.create_producer(
                topic,
                max_pending_messages=load.in_flight,
                batching_enabled=load.batching is not None,
                batching_type=load.batching or BatchingType.Default,
                batching_max_messages=load.batch_messages,
                batching_max_allowed_size_in_bytes=load.batch_bytes,
                batching_max_publish_delay_ms=load.batch_delay_ms,
            )
            for _ in range(load.producers)
            for topic in load.topic_names
        ]

    def _stop(self, sending: Sending) -> None:
        sending.stopped = True
        self._over.set()

    async def _work(
        self,
        sending: Sending,
        receiving: Receiving,
        producers: list[Producer[Any]],
        reading: list[asyncio.Task[None]],
    ) -> None:
        """Send everything and wait for the consumers."""
        if producers:
            made = [LoadProducer(sending, each, number) for number, each in enumerate(producers)]
            async with asyncio.TaskGroup() as group:
                for each in made:
                    group.create_task(each.run())
            if reading:
                await self._drain(sending, receiving)
            return
        load, meter = self._load, receiving.meter
        limit_s = None if load.duration_s is None else load.warmup_s + load.duration_s
        loop = asyncio.get_running_loop()
        end = None if limit_s is None else loop.time() + limit_s
        while not self._over.is_set() and (end is None or loop.time() < end):
            if load.messages is not None and meter.stored >= load.messages:
                break
            await asyncio.sleep(_LOOK_S)

    async def _drain(self, sending: Sending, receiving: Receiving) -> None:
        """Wait until everything has been received, or nothing has come for `DRAIN_S`."""
        loop = asyncio.get_running_loop()
        seen, since = receiving.own, loop.time()
        while receiving.own < self._expected(sending) and loop.time() - since < DRAIN_S:
            if self._over.is_set():
                return
            await asyncio.sleep(_LOOK_S)
            if receiving.own != seen:
                seen, since = receiving.own, loop.time()

    def _expected(self, sending: Sending) -> int:
        return sending.meter.stored * self._load.subscriptions * self._load.receiving

    async def _report(self, sending: Sending, receiving: Receiving, after_ns: int) -> None:
        """Show each interval, until cancelled; the first begins after the warm-up."""
        await asyncio.sleep((after_ns - self._clock()) / 1e9)
        while True:
            next_ns = self._shown_ns + round(self._load.interval_s * 1e9)
            await asyncio.sleep((next_ns - self._clock()) / 1e9)
            self._cut(sending, receiving, after_ns, whole=True)

    def _cut(self, sending: Sending, receiving: Receiving, after_ns: int, *, whole: bool) -> None:
        now_ns = self._clock()
        interval = Interval(
            (self._shown_ns - after_ns) / 1e9,
            max((now_ns - self._shown_ns) / 1e9, 1e-9),
            sending.meter.cut() if self._load.sending else None,
            receiving.meter.cut() if self._load.receiving else None,
            sending.meter.stored,
            receiving.meter.stored,
            whole,
        )
        self._shown_ns = now_ns
        self._show(interval)


def _first(error: Exception) -> Exception:
    """The first single error of a group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error

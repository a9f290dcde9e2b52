"""Consumers that wait for a limit of the rate of deliveries."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import groupby

from velaray.actors.rates import DispatchLimit
from velaray.broker.partition.channel.throttle import Throttle
from velaray.broker.partition.entries import CachedEntry
from velaray.topology.flow import Speed

ENTRY = CachedEntry(b"x", 1, "")
LIMIT = DispatchLimit(messages=200, size=0, period_s=1, relative=False)
TURNS = 12


def test_consumers_that_wait_take_turns() -> None:
    """Each always has more entries than the limit lets pass."""

    async def scenario() -> None:
        throttle = Throttle(LIMIT, lambda: Speed(0.0, 0.0, 0.0))
        served: list[str] = []
        enough = asyncio.Event()

        def deliver(consumer: str) -> None:
            while count := throttle.admits(consumer, [ENTRY], partial(deliver, consumer)):
                throttle.take([ENTRY] * count)
                served.append(consumer)
            if len(list(groupby(served))) > TURNS:
                enough.set()

        for consumer in "abc":
            deliver(consumer)
        assert set(served) == {"a"}  # the others wait: it has used up the first period
        async with asyncio.timeout(30):
            await enough.wait()
        throttle.close()
        turns = [consumer for consumer, _ in groupby(served[LIMIT.messages :])]
        assert turns[: TURNS - 1] == (["a", "b", "c"] * TURNS)[: TURNS - 1]

    asyncio.run(scenario())

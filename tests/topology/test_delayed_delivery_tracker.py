"""The timer of delayed entries, and a clock that is set while it runs."""

from __future__ import annotations

import asyncio

import pytest

from velaray.actors.partition.delayed import DelayedEntry
from velaray.broker.partition import delayed_delivery
from velaray.broker.partition.delayed_delivery import DelayedDeliveryTracker

HOUR_MS = 3_600_000


def test_entries_become_due_when_the_clock_is_set_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_delivery, "LONGEST_SLEEP_MS", 10)

    async def released() -> list[DelayedEntry]:
        clocks = iter([0, 0])  # when the entry is added, and when the timer is set
        freed: asyncio.Future[list[DelayedEntry]] = asyncio.get_running_loop().create_future()
        waiting = DelayedDeliveryTracker(
            lambda: next(clocks, HOUR_MS), lambda entries, now_ms: freed.set_result(entries)
        )
        waiting.add(entry)
        assert len(waiting) == 1 and not freed.done()
        async with asyncio.timeout(5):
            return await freed

    entry = DelayedEntry(HOUR_MS, 7, 1, 0)
    assert asyncio.run(released()) == [entry]


def test_an_entry_that_is_stored_while_the_partition_stops_sets_no_timer() -> None:
    async def timers() -> int:
        loop = asyncio.get_running_loop()
        waiting = DelayedDeliveryTracker(lambda: 0, lambda entries, now_ms: None)
        waiting.add(DelayedEntry(HOUR_MS, 7, 1, 0))
        waiting.close()
        waiting.add(DelayedEntry(HOUR_MS // 2, 8, 1, 0))
        waiting.apply(active=True, tick_ms=1)
        return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]

    assert asyncio.run(timers()) == 0

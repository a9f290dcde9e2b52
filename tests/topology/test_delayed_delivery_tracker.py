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

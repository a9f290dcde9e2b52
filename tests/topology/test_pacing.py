"""Tasks that compute for long leave the event loop idle at times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from velaray.topology.pacing import MOST_PAUSES, SLICE_S, Pace


@pytest.mark.parametrize(
    ("step_s", "pauses"),
    [
        (SLICE_S / 4, [0, 0, 0, SLICE_S, 0, 0]),
        (3 * SLICE_S, [SLICE_S] * 6),
        (0, [0] * 6),
        (3 * SLICE_S, [SLICE_S] * MOST_PAUSES + [0] * 3),
    ],
)
def test_a_pause_follows_each_slice(
    monkeypatch: pytest.MonkeyPatch, step_s: float, pauses: list[float]
) -> None:
    slept: list[float] = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    def clock() -> Iterator[float]:
        now_s = 0.0
        yield now_s
        while True:
            now_s += step_s
            yield now_s  # after a step
            now_s += 1
            yield now_s  # after the pause: what others do doesn't count

    async def main() -> None:
        times = clock()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: next(times))
        monkeypatch.setattr(asyncio, "sleep", sleep)
        pace = Pace()
        for _ in pauses:
            await pace.pause()
        monkeypatch.undo()

    asyncio.run(main())
    assert slept == pauses

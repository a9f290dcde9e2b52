"""When clients warn that an operation isn't complete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from velaray.client.patience import Patience, Wait


class Clock:
    """A loop whose timers fire when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.due.append((self.now + delay, call))

    def fire(self) -> None:
        self.now, call = self.due.pop()
        call()


def test_the_pause_between_two_warnings_doubles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr("velaray.client.patience.asyncio.get_running_loop", lambda: clock)
    wait = Wait("creating a producer", 30, Patience(lambda: "127.0.0.1:6650"))
    with caplog.at_level(logging.WARNING, "velaray"):
        for _ in range(5):
            clock.fire()
    told = [record.getMessage().split(" s, ")[0] for record in caplog.records]
    assert told == [f"creating a producer: not done after {s}" for s in (1, 3, 7, 15, 31)]
    wait.end()

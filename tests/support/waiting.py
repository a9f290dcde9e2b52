"""Waiting for a condition, in tests that watch a cluster from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any


def looks(first_s: float = 0.02, longest_s: float = 0.2) -> Iterator[None]:
    """One item for each look at a condition, with ever longer pauses between them: a look may cost
    much."""
    pause, pause_s = threading.Event(), first_s
    while True:
        yield
        pause.wait(pause_s)
        pause_s = min(1.3 * pause_s, longest_s)


def wait_until(condition: Callable[[], Any], within_s: float = 30.0) -> Any:
    """The condition's first true value; fails the test after that time."""
    deadline = time.monotonic() + within_s
    for _ in looks():
        if found := condition():
            break
        assert time.monotonic() < deadline, f"what was waited for didn't come within {within_s:g} s"
    return found

"""Waiting for a condition, in tests that watch a cluster from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], within_s: float = 30.0) -> Any:
    """The condition's first true value, asked for every 20 ms; fails the test after that time."""
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"what was waited for didn't come within {within_s:g} s"
        pause.wait(0.02)
    return found

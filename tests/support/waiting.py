"""Waiting for a condition, in tests that watch a cluster from outside."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], within_s: float = 30.0) -> Any:
    """The condition's first true value; fails the test after that time.

    It is asked for after 20 ms at first, and after 0.2 s in the end: it may cost much.
    """
    deadline, pause_s = time.monotonic() + within_s, 0.02
    pause = threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"what was waited for didn't come within {within_s:g} s"
        pause.wait(pause_s)
        pause_s = min(1.3 * pause_s, 0.2)
    return found

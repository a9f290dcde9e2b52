"""Waiting for a condition, in tests that watch a cluster from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], tries: int = 600) -> None:
    """Ask every 20 ms; fails the test if it takes too long."""
    pause = threading.Event()
    for _ in range(tries):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("what was waited for never came about")

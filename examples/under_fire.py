"""What the demos that kill processes share: finding victims, killing them, waiting."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

GONE_S = 5.0


def quiet_clients() -> None:
    """Print only this demo's own lines: clients warn when they have to wait, as kills make them."""
    logging.getLogger("velaray").setLevel(logging.ERROR)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.1)
    return True


def exists(pid: int) -> bool:
    """Whether there is a process with this id that hasn't ended, noticed by its parent or not."""
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def sigkill(pid: int) -> bool:
    """Kill a process; False if it was gone already, or isn't gone soon after."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return wait_for(lambda: not exists(pid), GONE_S)


def actor_of(
    kind: str,
    namespace: str,
    chance: random.Random,
    fits: Callable[[str], bool] = lambda name: True,
) -> tuple[str, int] | None:
    """Name and process of a cluster's actor of a kind that has just answered, so it lives; of those
    whose name ``fits``."""
    named = ray.util.list_named_actors(all_namespaces=True)
    names = [each["name"] for each in named if each["namespace"] == namespace]
    names = [name for name in names if name.startswith(kind) and fits(name)]
    if not names:
        return None
    name = chance.choice(names)
    try:
        handle = ray.get_actor(name, namespace)
        report: Any = ray.get(handle.describe.remote(), timeout=2.0)
    except (ValueError, ray.exceptions.RayError):
        return None  # it is being restarted
    return name, report["pid"]

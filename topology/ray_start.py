"""A longer timeout for the start of Ray, and an immediate error if a process of Ray ends.

Ray waits 30 seconds for its raylet to register, however slow the machine is, and just as long for a
raylet that has ended. It has no setting for that, so its look-up of the node is replaced during the
start.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ray._private import services

START_S = 180.0
_LOOK_EVERY_S = 0.1


class RayDidNotStart(OSError):
    """A process of Ray ended, or didn't register in time."""


@contextmanager
def patient_start() -> Iterator[None]:
    """Within the block, ``ray.init`` waits up to `START_S` while the raylet runs.

    ``ray.init`` raises `RayDidNotStart` as soon as the raylet has ended.
    """
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{START_S:.0f}")
    raylets: list[Any] = []
    start_raylet, get_node = services.start_raylet, services.get_node

    def start(*args: Any, **options: Any) -> Any:
        raylets.append(start_raylet(*args, **options))
        return raylets[-1]

    def look_up(*args: Any) -> Any:
        deadline = monotonic() + START_S
        pause = threading.Event()
        while True:
            try:
                return get_node(*args)  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                _check(raylets, monotonic() >= deadline, error)
            pause.wait(_LOOK_EVERY_S)

    services.start_raylet, services.get_node = start, look_up
    try:
        yield
    finally:
        services.start_raylet, services.get_node = start_raylet, get_node


def _check(raylets: list[Any], late: bool, error: RuntimeError) -> None:
    for raylet in raylets:
        code = raylet.process.poll()
        if code is not None:
            raise RayDidNotStart(f"its raylet ended with exit code {code}") from error
    if late:
        raise RayDidNotStart(f"its raylet didn't register in {START_S:.0f} s") from error

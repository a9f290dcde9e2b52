"""Monitoring of a transform's backlog."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

import ray
from ray.exceptions import RayError

import velaray
from velaray.pipelines.transform import Transform

logger = logging.getLogger("velaray")

LOOK_S = 1.0
ANSWER_S = 5.0


class Backlog:
    """The unacknowledged entries of the sources, read every second through handles."""

    def __init__(self, transform: Transform, name: str) -> None:
        """``name`` is that of the cluster."""
        self.entries: int | None = None
        self._transform = transform
        self._name = name
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="backlog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the monitoring."""
        self._stopping.set()

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_S):
            # Whatever is missing or down is asked again in the next round.
            with suppress(RayError, velaray.VelarayError, LookupError):
                self.entries = self._read()

    def _read(self) -> int:
        sources, name = self._transform.sources, self._name
        asked = [velaray.handle(source, name).stats.remote() for source in sources]
        return sum(
            partition["subscriptions"][self._transform.subscription]["backlog"]
            for partitions in ray.get(asked, timeout=ANSWER_S)
            for partition in partitions.values()
        )

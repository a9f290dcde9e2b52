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
    """The unacknowledged entries of the source, read every second.

    Asks the actors of the partitions through Ray.
    """

    def __init__(self, transform: Transform, service_url: str) -> None:
        self.entries: int | None = None
        self._transform = transform
        self._service_url = service_url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="backlog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the monitoring."""
        self._stopping.set()

    def _watch(self) -> None:
        transform = self._transform
        with velaray.Client(self._service_url, authentication=transform.authentication) as client:
            while not self._stopping.wait(LOOK_S):
                # A partition that is down is asked again in the next round.
                with suppress(RayError, velaray.VelarayError, KeyError):
                    topics = [
                        each
                        for source in transform.sources
                        for each in client.get_topic_partitions(source)
                    ]
                    self.entries = sum(map(self._entries_of, topics))

    def _entries_of(self, topic: str) -> int:
        answer = ray.get(velaray.handle(topic).call.remote("stats"), timeout=ANSWER_S)
        return int(answer["subscriptions"][self._transform.subscription]["backlog"])

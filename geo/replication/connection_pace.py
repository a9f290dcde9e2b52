"""Paces the replicators of a host, so that the many of a tenant don't start and connect at once."""

from __future__ import annotations

import asyncio

from velaray.topology.config import ClusterConfig

AT_ONCE = 16
"""The number of replicators of a host that start, or connect, to the same cluster at a time."""


class ConnectionPace:
    """The replicators of a host that start or connect. It is a part of the host."""

    def __init__(self, config: ClusterConfig) -> None:
        self._places: dict[str, asyncio.Semaphore] = {}

    def place(self, cluster: str) -> asyncio.Semaphore:
        """What a replicator to or from ``cluster`` holds while it starts, and while it connects.
        A cluster that doesn't answer delays no other one."""
        return self._places.setdefault(cluster, asyncio.Semaphore(AT_ONCE))

    def stop(self) -> None:
        """Nothing: replicators give their places back when they end."""

    def abort(self) -> None:
        """Nothing, as for `stop`."""

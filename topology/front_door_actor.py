"""The front door as a Ray actor: on fixed ports, back by itself after a crash.

It runs on an event loop of its own thread, so that it listens as soon as Ray has started
it again: clients come to its ports without asking Ray first.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future
from typing import Any

import ray

from velaray.events.ids import ActorKey
from velaray.topology.config import ClusterConfig
from velaray.topology.front_door import FrontDoor
from velaray.topology.ray_fabric import RayFabric
from velaray.topology.tenure import check_tenure

TENURE_CHECK_S = 1.0


class FrontDoorActor:
    """Serves the service URL and the admin interface, on the node where the cluster was started."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._fabric = RayFabric(config)
        self._door = FrontDoor(self._fabric)
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name="front door", daemon=True
        )
        self._thread.start()
        started.result()

    async def _run(self, started: Future[None]) -> None:
        """The life of the thread; if it ends after the start, the process ends with it."""
        serving = asyncio.ensure_future(self._serve(started))
        await asyncio.wait([serving])
        error = serving.exception()
        if not started.done():
            started.set_exception(error)
            return
        print(f"velaray: the front door closes: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    async def _serve(self, started: Future[None]) -> None:
        """Serve until another cluster owns the data, or it can't be told which one does."""
        # The admin interface brings a large library along, which no other actor loads.
        from velaray.topology.admin.api import serve_admin

        await check_tenure(self._fabric.store, self._config)
        await self._door.start(self._config.service_port)
        self._admin = await serve_admin(self._fabric, self._config.host, self._config.admin_port)
        self._loop = asyncio.get_running_loop()
        started.set_result(None)
        while True:
            await asyncio.sleep(TENURE_CHECK_S)
            await check_tenure(self._fabric.store, self._config)

    def resolve(self, topic: str) -> tuple[int, ClusterConfig]:
        """The incarnation of a topic, created if policy allows, and the cluster's settings."""
        found = self._fabric.call(ActorKey.catalog(), "ensure_topic", {"topic": topic})
        answer = asyncio.run_coroutine_threadsafe(found, self._loop).result()
        return answer["incarnation"], self._config

    def describe(self) -> dict[str, Any]:
        """Which process this is, and its URLs."""
        return {
            "key": "front-door",
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "service_url": f"pulsar://{self._config.host}:{self._config.service_port}",
            "admin_url": f"http://{self._config.host}:{self._config.admin_port}",
            "data_dir": self._config.data_dir,
        }

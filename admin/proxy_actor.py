"""The proxy as a Ray actor, one for each node: fixed ports, restarted by Ray after a crash.

It runs on an event loop of its own thread, so it listens as soon as Ray has restarted it. Clients
connect to its ports without a call through Ray.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import ray

from velaray.admin.handles_actor import handles_actor
from velaray.broker.catalog.messages import EnsureTopic
from velaray.broker.proxy.proxy import Proxy
from velaray.events.ids import ActorKey
from velaray.geo.actor_kinds import make_actor
from velaray.topology.actor_system import ActorSystem
from velaray.topology.ownership import check_every_s, check_ownership
from velaray.topology.ray_host import make_actor_system
from velaray.topology.ray_process import name_process
from velaray.topology.sent_config import SentConfig

if TYPE_CHECKING:
    from aiohttp import web

logger = logging.getLogger("velaray")


class ProxyActor:
    """Serves clients and the admin interface on its node."""

    def __init__(
        self,
        name: str,
        settings: SentConfig,
        make_admin_app: Callable[[ActorSystem], web.Application],
    ) -> None:
        """``make_admin_app`` makes the application of the admin port."""
        self._title = settings.title(name)  # Ray asks for it also if the rest fails
        self._name = name
        self._make_admin_app = make_admin_app
        self._config = settings.received()
        name_process(self, self._config, name)
        self._actor_system = make_actor_system(self._config, make_actor)
        self._proxy = Proxy(self._actor_system)
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(started)), name="front door", daemon=True
        )
        self._thread.start()
        started.result()

    def __repr__(self) -> str:
        return self._title

    async def _run(self, started: Future[None]) -> None:
        """Run the server; after a successful start its end also ends the process."""
        serving = asyncio.ensure_future(self._serve(started))
        await asyncio.wait([serving])
        error = serving.exception()
        if not started.done():
            started.set_exception(error)
            return
        logger.error("the proxy stops: %s", error)
        os._exit(1)

    async def _serve(self, started: Future[None]) -> None:
        """Serve until another cluster owns the data or the ownership can't be determined."""
        # The admin interface imports a large library, which no other actor loads.
        from velaray.admin.api import serve_admin

        await check_ownership(self._actor_system.store, self._config)
        await self._proxy.start(self._config.service_port)
        self._admin = await serve_admin(
            self._actor_system,
            self._config.listen_host,
            self._config.admin_port,
            self._make_admin_app,
        )
        self._loop = asyncio.get_running_loop()
        started.set_result(None)
        while True:
            await asyncio.sleep(check_every_s(self._config))
            await check_ownership(self._actor_system.store, self._config)

    def resolve(self, topic: str) -> int:
        """The incarnation of a topic, which is created if policy allows."""
        found = self._actor_system.request(ActorKey.catalog(), EnsureTopic(topic))
        answer = asyncio.run_coroutine_threadsafe(found, self._loop).result()
        return int(answer["incarnation"])

    def handles(self) -> Any:
        """The Ray handle of the actor that serves the cluster's handles, created if necessary.

        It is created here, so the cluster's settings and secrets stay in its own actors.
        """
        return handles_actor(self._config)

    def describe(self) -> dict[str, Any]:
        """The process id and the URLs of the proxy."""
        return {
            "key": self._name,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "service_url": self._config.service_url,
            "admin_url": self._config.admin_url,
            "data_dir": self._config.data_dir,
        }

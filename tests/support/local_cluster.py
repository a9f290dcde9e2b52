"""A cluster in this process, without Ray, on a background event loop, for tests.

Everything except activation is real: sockets, journals on disk, runtimes, RPC connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.by_name import call_by_name
from tests.support.described_answers import checked
from velaray.admin.api import serve_admin
from velaray.broker.coordinator.coordinators import ensure_coordinators
from velaray.broker.proxy.proxy import Proxy
from velaray.console.serving import admin_port_app
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.actor_kinds import make_actor
from velaray.topology.config import AuthSettings, ClusterConfig
from velaray.topology.host import WRITERS
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.stores import store_of

START_TIMEOUT_S = 30.0
REPLICATION_SECRET = b"the replication secret of tests.."


class LocalCluster:
    """Start with ``with LocalCluster(path) as cluster``; actors can be killed at any moment."""

    def __init__(
        self,
        data_dir: Path,
        *,
        auth: AuthSettings | None = None,
        tunnel: bool = False,
        service_port: int = 0,
        hosts: int = 0,
        **settings: Any,
    ) -> None:
        """``hosts`` is the number of shared hosts; 0: each actor has a host of its own."""
        self.config = ClusterConfig(
            data_dir=str(data_dir),
            incarnation=1,
            rpc_key=b"test",
            auth=auth,
            tunnel=tunnel,
            **{"deleters": 0, "replication_secret": REPLICATION_SECRET} | settings,
        )
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="cluster", daemon=True)
        self._service_port = service_port
        self._hosts = hosts
        self.actor_system: InProcessActorSystem
        self.proxy: Proxy
        self._admin_port = 0

    def __enter__(self) -> LocalCluster:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @property
    def service_url(self) -> str:
        """Where clients connect without TLS; "": they can't."""
        return f"pulsar://127.0.0.1:{self.proxy.port}" if self.proxy.port else ""

    @property
    def tls_service_url(self) -> str:
        """Where clients connect by TLS; "": they can't."""
        return f"pulsar+ssl://localhost:{self.proxy.tls_port}" if self.proxy.tls_port else ""

    @property
    def admin_url(self) -> str:
        """Where the admin interface answers without TLS; "": it doesn't."""
        return f"http://127.0.0.1:{self._admin_port}" if self.config.speaks_plain else ""

    @property
    def tls_admin_url(self) -> str:
        """Where the admin interface answers by TLS; "": it doesn't."""
        by_tls = self.config.tls is not None
        return f"https://localhost:{self._admin.addresses[-1][1]}" if by_tls else ""

    @property
    def urls(self) -> dict[str, str]:
        """The URLs as other clusters get them."""
        urls = {
            "service_url": self.service_url,
            "admin_url": self.admin_url,
            "service_url_tls": self.tls_service_url,
            "admin_url_tls": self.tls_admin_url,
        }
        return {name: url for name, url in urls.items() if url or not name.endswith("_tls")}

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = START_TIMEOUT_S) -> Any:
        """Run a coroutine on the cluster's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    async def _start(self) -> None:
        writers = WRITERS if self._hosts else 1
        store = store_of(self.config, writers)
        self.actor_system = InProcessActorSystem(
            self.config,
            store,
            make_actor,
            self._hosts,
        )
        self.proxy = Proxy(self.actor_system)
        await self.proxy.start(self._service_port)
        with patch("velaray.admin.api.bound", checked):
            self._admin, self._admin_port = await serve_admin(
                self.actor_system, self.config.host, 0, admin_port_app
            )
        await call_by_name(
            self.actor_system,
            ActorKey.catalog(),
            "bootstrap",
            {"cluster": self.config.name, **self.urls},
        )
        await ensure_coordinators(self.actor_system, 1)

    async def _stop(self) -> None:
        await self._admin.cleanup()
        await self.proxy.stop()
        await self.actor_system.stop()
        await self.actor_system.store.close()

    def keys(self, kind: ActorKind) -> list[ActorKey]:
        """The actors of a kind that run now."""
        return [key for key in list(self.actor_system.actors) if key.kind is kind]

    def kill(self, key: ActorKey) -> None:
        """End an actor as SIGKILL would."""

        async def kill() -> None:
            self.actor_system.kill(key)

        self.run(kill())

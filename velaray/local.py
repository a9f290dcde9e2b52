"""A cluster without Ray: all its actors, the proxy and the admin interface in one process.

They run on an event loop in a thread of its own, so it also works in a notebook. The actors, their
journals and their connections are the same as on Ray. What differs: the end of the process ends
all actors at once, and nothing restarts it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Self, TypeVar, Unpack

from velaray.admin.api import serve_admin
from velaray.broker.garbage_collection.collectors import collectors_to_wake
from velaray.broker.proxy.proxy import Proxy
from velaray.console.serving import admin_port_app
from velaray.geo.actor_kinds import make_actor
from velaray.journal.memory import MemoryStore
from velaray.journal.store import LedgerStore
from velaray.settings import ClusterSettings, place_of, settings_of
from velaray.settings_sources import described
from velaray.starting import (
    ClusterError,
    ClusterOptions,
    bootstrap,
    configured,
    hold_cluster_ports,
    lock_data,
    own_data,
    run_to_end,
)
from velaray.topology.actor_system import Activation
from velaray.topology.config import ClusterConfig
from velaray.topology.host import WRITERS
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.logs import log_end
from velaray.topology.ownership import DueChecks, check_ownership, take_ownership
from velaray.topology.ray_head import RayHead
from velaray.topology.rpc import RemoteError
from velaray.topology.stores import store_of

IN_MEMORY = "memory"
WATCH_S = 1.0
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

ResultT = TypeVar("ResultT")


class LocalActorSystem(InProcessActorSystem):
    """The actors of a `LocalCluster`."""

    def fatal(self, actor: Activation, error: BaseException) -> None:
        """End an actor and no other; the next use recovers it."""
        log_end(actor.key, error)
        super().fatal(actor, error)


class LocalCluster:
    """A running cluster, created by `start` and ended by `stop` or the context manager."""

    def __init__(self, config: ClusterConfig, store: LedgerStore, lock: IO[str] | None) -> None:
        """Internal: `start` creates instances."""
        self.config = config
        self.actor_system = self._make_actor_system(store)
        self._lock = lock
        self._checks = DueChecks(config)
        self._proxy = Proxy(self.actor_system)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="velaray cluster", daemon=True
        )
        self._serving = AsyncExitStack()
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def start(cls, data_dir: str | Path | None = None, **options: Unpack[ClusterOptions]) -> Self:
        """Start a cluster whose journals are in ``data_dir`` (None: in memory), and serve.

        Takes the options of `velaray.Cluster.start` that don't concern Ray. Ports that aren't given
        are free ones.

        Raises `TypeError` for unknown options, `ValueError` for values out of range,
        `UnsafeBindingError` if the address isn't loopback and no token is configured,
        `NoAddressError` if this machine has no address in the network, `ClusterError` if the
        directory or a port is in use, or if the data has another name or number. Nothing is left
        running then.
        """
        for port in ("service_port", "admin_port", "tls_service_port", "tls_admin_port"):
            options.setdefault(port, 0)  # type: ignore[misc]  # both are keys of the options
        if data_dir is not None:
            return cls.from_settings(settings_of(options, **place_of(data_dir), local=True))
        settings = settings_of(options, local=True)
        if settings.offload:
            raise ValueError("offload needs data_dir: in memory there are no ledgers to move")
        if settings.encryption_keys:
            raise ValueError("encryption_keys needs data_dir: nothing in memory is encrypted")
        config = configured(IN_MEMORY, settings, described(settings, {}, in_memory=True))
        memory = MemoryStore(number_base=config.number_base)
        owning = take_ownership(memory, config.name, config.cluster_number)
        return cls(replace(config, incarnation=run_to_end(owning)), memory, None)._opened()

    @classmethod
    def from_settings(
        cls, settings: ClusterSettings, sources: Mapping[str, str] | None = None
    ) -> Self:
        """Start a cluster with these settings on disk, and serve. ``sources`` has by key where a
        value comes from; the console shows it.

        Raises what `start` raises, and `KeyFileError` for files without a usable key.
        """
        config = configured(settings.location, settings, described(settings, sources or {}))
        lock = lock_data(config.data_dir)
        with ExitStack() as undo:
            undo.callback(lock.close)
            incarnation, data_id = own_data(config)
            config = replace(config, incarnation=incarnation, data_id=data_id)
            store = store_of(config, WRITERS)
            undo.pop_all()
        return cls(config, store, lock)._opened()

    def _make_actor_system(self, store: LedgerStore) -> LocalActorSystem:
        return LocalActorSystem(self.config, store, make_actor, hosts=1)

    # -- what runs -----------------------------------------------------------------

    @property
    def service_url(self) -> str:
        """The URL that clients connect to."""
        return self.config.service_url

    @property
    def admin_url(self) -> str:
        """The URL of the admin interface."""
        return self.config.admin_url

    def check_ownership(self) -> None:
        """Raise `Superseded` if another cluster has been started on the same data."""
        self._run(check_ownership(self.actor_system.store, self.config), START_TIMEOUT_S)

    def ray_head(self) -> RayHead | None:
        """None: this cluster doesn't use Ray."""

    def watch(self) -> None:
        """Check the ownership of the data, if that is due. `velaray start` calls it every second.
        Raises `Superseded`."""
        if self._checks.is_due(time.monotonic()):
            self.check_ownership()

    # -- life ----------------------------------------------------------------------

    def stop(self) -> None:
        """Stop everything in good order. Idempotent.

        Raises `TimeoutError` if that takes longer than `STOP_TIMEOUT_S`. The journals survive that,
        as they survive the end of the process.
        """
        if not self._thread.is_alive():
            return
        try:
            self._run(self._close(), STOP_TIMEOUT_S)
        finally:
            self._end_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _run(self, work: Coroutine[Any, Any, ResultT], timeout_s: float) -> ResultT:
        """Run a coroutine on the cluster's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _opened(self) -> Self:
        self._thread.start()
        try:
            with hold_cluster_ports(self.config):
                pass  # a port in use is an error that names its option
            self._run(self._open(), START_TIMEOUT_S)
        except (ClusterError, RemoteError, OSError) as error:
            self.stop()
            if isinstance(error, ClusterError):
                raise
            raise ClusterError(f"the cluster could not be started: {error}") from error
        return self

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._lock is not None:
            self._lock.close()

    async def _open(self) -> None:
        system, config = self.actor_system, self.config
        await self._proxy.start(config.service_port)
        self._serving.push_async_callback(self._proxy.stop)
        admin, _ = await serve_admin(system, config.listen_host, config.admin_port, admin_port_app)
        self._serving.push_async_callback(admin.cleanup)
        await bootstrap(system)
        for key in await collectors_to_wake(system):
            await system.reach(key)
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Passivate actors after the configured idle time."""
        limit = self.config.passivate_after_s
        while True:
            await asyncio.sleep(min(WATCH_S, limit))
            await self.actor_system.passivate_idle(limit)

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self._serving.aclose()
        await self.actor_system.stop()
        await self.actor_system.store.close()

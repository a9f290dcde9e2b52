"""Starting and stopping a cluster on Ray."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Unpack

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from velaray.admin.handles_actor import HANDLES
from velaray.broker.actor_messages import Describe
from velaray.broker.garbage_collection.collectors import collectors_to_wake
from velaray.events.ids import ActorKind
from velaray.geo.actor_kinds import make_actor
from velaray.joining import JoiningNodes
from velaray.journal.errors import JournalError
from velaray.nodes import Nodes, nodes_of
from velaray.proxies import PROXY, answering_proxy, is_proxy, open_proxies, proxies_of
from velaray.settings import ClusterSettings, place_of, settings_of
from velaray.settings_sources import described
from velaray.starting import (
    ClusterError,
    RayOptions,
    bootstrap,
    configured,
    hold_cluster_ports,
    lock_data,
    own_data,
    run_to_end,
)
from velaray.topology.config import (
    ClusterConfig,
    check_binding,
    is_loopback,
    namespace_of,
)
from velaray.topology.ownership import DueChecks, Superseded, check_ownership
from velaray.topology.placement import HOST_PREFIX, Placement
from velaray.topology.progress import Progress
from velaray.topology.ray_connection import (
    RayUnavailable,
    connect_ray,
    is_open,
    one_line,
    start_ray,
    stop_ray,
)
from velaray.topology.ray_directory import DIRECTORY
from velaray.topology.ray_head import RayHead
from velaray.topology.ray_host import make_actor_system
from velaray.topology.ray_system import RayActorSystem
from velaray.topology.ray_tls import use_ray_tls
from velaray.topology.rpc import RemoteError
from velaray.topology.sent_config import store_secrets

OBJECT_STORE_BYTES = 100 << 20
_REPORT_TIMEOUT_S = 20.0

# Ray's detection of lost nodes; its defaults take half a minute.
NODE_HEALTH = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",
}


class Cluster:
    """A running cluster, created by `start` and ended by `stop` or the context manager."""

    def __init__(
        self,
        config: ClusterConfig,
        actor_system: RayActorSystem,
        lock: IO[str],
        owns_ray: bool,
        nodes: Nodes,
    ) -> None:
        """Internal: `start` creates instances."""
        self.config = config
        self._joining = JoiningNodes(config, nodes)
        self._checks = DueChecks(config)
        self._actor_system = actor_system
        self._lock = lock
        self._owns_ray = owns_ray

    @classmethod
    def start(
        cls,
        data_dir: str | Path,
        **options: Unpack[RayOptions],
    ) -> Cluster:
        """Start a cluster whose journals are in ``data_dir``, and serve.

        docs/reference/configuration.md explains the options. ``auth`` replaces the two token keys;
        ``replication_secret`` is the key, or the path of its file or of a directory of keys.
        Environment variables and velaray.toml aren't read.

        Uses the Ray cluster of this process, else the one at ``ray_address``, else starts Ray on
        this machine with a token. Port 0 is a free port. Replaces the actors of an earlier start,
        whose settings may differ. If ``host`` is a network or an interface, ``advertise`` is a
        mapping, and Ray's nodes with "velaray_data" are used.

        ``placement`` "auto" runs the actors in ``hosts`` Ray actors, by default one for each core,
        and gives a busy topic one of its own; "shared" does the former only; "dedicated" gives each
        actor one. ``partition_sync`` "interval" acknowledges published messages after the write and
        syncs every ``sync_interval_ms``: a power failure loses what came since then. Replicating
        clusters need different names and numbers (0 to 2046), and one secret.

        Raises `TypeError` for unknown options, `ValueError` for values out of range and ``hosts``
        of "dedicated" placement, and what `from_settings` raises.
        """
        return cls.from_settings(settings_of(options, **place_of(data_dir)))

    @classmethod
    def from_settings(
        cls, settings: ClusterSettings, sources: Mapping[str, str] | None = None
    ) -> Cluster:
        """Start a cluster with these settings, and serve. ``sources`` has by key where a value
        comes from; the console shows it.

        Raises `KeyFileError` for files without a usable key, `UnsafeBindingError` if an address
        isn't loopback and no token is configured, `UnreachableAddressError` for 0.0.0.0,
        `NoAddressError` or (of other nodes) `ClusterError` if a node has no address for ``host``,
        `ClusterError` if directory, name or port are in use, if the data has another name or
        number, or if Ray needs a token.
        """
        config = configured(settings.location, settings, described(settings, sources or {}))
        _prepare_ray_tls(settings.ray_tls)
        return cls._owning(config, settings.placement, settings.hosts, settings.ray_address)

    @classmethod
    def _owning(
        cls,
        config: ClusterConfig,
        placement: Placement,
        hosts: int | None,
        ray_address: str | None,
    ) -> Cluster:
        """Take ownership of the data, the ports, and the name on the Ray cluster."""
        starts_ray = ray_address is None and not ray.is_initialized()
        ports = ExitStack()
        with ExitStack() as undo:
            lock = undo.enter_context(lock_data(config.data_dir))
            undo.push(ports)
            if starts_ray:
                ports.push(
                    hold_cluster_ports(config)
                )  # a port in use is an error before Ray starts
            if _connect_ray(ray_address):
                undo.callback(stop_ray)
            else:
                _check_protection(config)
            nodes = nodes_of(config.host)
            for node in nodes.proxied:
                check_binding(node.address, config.auth, config.tls)
            replaced = _replace_proxies(config.name, config.data_dir)
            serves_here = config.listen_host in [node.address for node in nodes.proxied]
            if serves_here and not starts_ray and not replaced:
                ports.push(hold_cluster_ports(config))
            incarnation, data_id = own_data(config)
            undo.pop_all()
        cores = sum(node.cores for node in nodes.proxied)
        shared, own = _hosts(placement, hosts, cores)
        config = replace(
            config,
            incarnation=incarnation,
            data_id=data_id,
            nodes=tuple(node.address for node in nodes.proxied),
            node_resource=nodes.resource,
            hosts=shared,
            own_hosts=own,
        )
        actor_system = make_actor_system(config, make_actor)
        return cls(config, actor_system, lock, starts_ray, nodes)._opened(ports, nodes)

    def _opened(self, ports: ExitStack, nodes: Nodes) -> Cluster:
        try:
            with Progress("starting the cluster's actors"), ports:
                store_secrets(self.config)
                run_to_end(self._bootstrap())
                ports.close()
                open_proxies(self.config, [node.ray_address for node in nodes.proxied])
                run_to_end(self._wake_collectors())
        except (RayError, RemoteError, JournalError, OSError) as error:
            self.stop()
            raise ClusterError(f"the cluster could not be started: {one_line(error)}") from error
        return self

    async def _bootstrap(self) -> None:
        await bootstrap(self._actor_system)
        self._actor_system.drop_rpc()

    async def _wake_collectors(self) -> None:
        """Call the garbage collectors until those of this start answer.

        Ray may still have a collector of an earlier start under the same name. It exits when it
        detects the new owner, and no other call would activate its successor.
        """
        woken = await collectors_to_wake(self._actor_system)
        await asyncio.gather(
            *(self._actor_system.request(key, Describe(), timeout=60.0) for key in woken)
        )
        self._actor_system.drop_rpc()

    @property
    def service_url(self) -> str:
        """The URL that clients connect to."""
        return self.config.service_url

    @property
    def admin_url(self) -> str:
        """The URL of the admin interface."""
        return self.config.admin_url

    def actors(self) -> list[dict[str, Any]]:
        """Every running actor and host: its key or name, process id and node.

        Actors that are restarting are left out.
        """
        namespace = self.config.ray_namespace
        asked: list[Any] = []
        for name in _names(namespace):
            with suppress(ValueError):
                asked.append(ray.get_actor(name, namespace).describe.remote())
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_REPORT_TIMEOUT_S)
        reports: list[dict[str, Any]] = []
        for answer in answered:
            with suppress(RayError):
                found: Any = ray.get(answer)
                reports.append(found)
                process = {"pid": found["pid"], "node": found["node"]}
                reports += ({"key": key, **process} for key in found.get("actors", ()))
        return reports

    def check_ownership(self) -> None:
        """Raise `Superseded` if another cluster has been started on the same data."""
        run_to_end(check_ownership(self._actor_system.store, self.config))

    def ray_head(self) -> RayHead | None:
        """The head node of the Ray that this cluster started, None for another Ray. For a process
        that runs nothing else: see `RayHead`."""
        return RayHead(ray._private.worker._global_node) if self._owns_ray else None

    def watch(self) -> None:
        """Check the ownership of the data, and include nodes of Ray that have joined.

        `velaray start` calls it every second. The ownership is checked every second in a directory,
        and every five seconds in an object store. Raises `Superseded` as `check_ownership` does.
        """
        if self._checks.is_due(time.monotonic()):
            self.check_ownership()
        self._joining.look()

    def stop(self) -> None:
        """Stop every actor gracefully: the proxy, partitions, subscriptions, the catalog.

        An actor that doesn't stop in time is killed, which its journal survives. If another cluster
        owns the data, its actors may have the same names: then the actors of this cluster are left
        to exit by themselves.
        """
        namespace = self.config.ray_namespace
        try:
            self.check_ownership()
            for _ in range(_STOP_ROUNDS):
                for name in sorted(_names(namespace), key=_stop_order):
                    if name.split("/")[0] in _STOP_ORDER:
                        _stop_actor(name, namespace)
            _stop_hosts(self.config)
        except Superseded as error:
            print(f"velaray: {error}", file=sys.stderr)
        finally:
            if self._owns_ray:
                stop_ray()
            self._lock.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _names(namespace: str) -> list[str]:
    return [
        found["name"]
        for found in ray.util.list_named_actors(all_namespaces=True)
        if found["namespace"] == namespace
    ]


def _hosts(placement: Placement, hosts: int | None, cores: int) -> tuple[int, int]:
    """The number of shared hosts (default: one for each core), and of those for a single topic; 0
    and 0: each actor has a process of its own."""
    if placement is Placement.DEDICATED:
        return 0, 0
    shared = cores if hosts is None else hosts
    return shared, cores if placement is Placement.AUTO else 0


_STOP_ROUNDS = 2
"""Stopping actors may activate a garbage collector once more, and no other actor."""
_STOP_ORDER = (
    PROXY,
    HANDLES,
    ActorKind.GARBAGE_COLLECTOR,  # a client of other actors
    ActorKind.COORDINATOR,  # while the participants of its transactions run
    ActorKind.PARTITION,
    ActorKind.INBOUND_REPLICATOR,  # partitions would activate it again
    ActorKind.SUBSCRIPTION,
    ActorKind.SCHEMA_REGISTRY,
    ActorKind.CATALOG,
)


def _stop_order(name: str) -> int:
    kind = name.split("/")[0]
    return _STOP_ORDER.index(kind) if kind in _STOP_ORDER else len(_STOP_ORDER)


def _stop_hosts(config: ClusterConfig) -> None:
    """Stop the actors of all hosts, kind by kind, then the hosts and the directory."""
    names = [name for name in _names(config.ray_namespace) if name.startswith(HOST_PREFIX)]
    answering = names
    for kind in _STOP_ORDER[2:]:
        answering = [name for name in answering if _stops_kind(name, config.ray_namespace, kind)]
    for name in names:
        _stop_actor(name, config.ray_namespace)
    with suppress(ValueError):
        ray.kill(ray.get_actor(DIRECTORY, config.ray_namespace))


def _stops_kind(name: str, namespace: str, kind: str) -> bool:
    """Stop the actors of a kind in a host; False if the host doesn't answer: it hangs."""
    with suppress(ValueError, RayActorError, RayTaskError):
        host = ray.get_actor(name, namespace)
        try:
            ray.get(host.stop_kind.remote(kind), timeout=_REPORT_TIMEOUT_S)
        except GetTimeoutError:
            return False
    return True


def _stop_actor(name: str, namespace: str) -> None:
    try:
        handle = ray.get_actor(name, namespace)
    except ValueError:
        return  # it has exited already
    if is_proxy(name) or name == HANDLES:
        ray.kill(handle)
        return
    with suppress(GetTimeoutError, RayActorError, RayTaskError):
        ray.get(handle.retire.remote(force=True), timeout=_REPORT_TIMEOUT_S)
    # It has exited, hangs, or has crashed and is being restarted: Ray doesn't distinguish these.
    ray.kill(handle)


def _replace_proxies(name: str, data_dir: str) -> bool:
    """End the proxies of an earlier start on this directory and this Ray cluster.

    Returns whether there were any. Raises `ClusterError` if they belong to a cluster on another
    directory, or if none answers.
    """
    proxies = proxies_of(name)
    if not proxies:
        return False
    try:
        _, found = answering_proxy(proxies, _REPORT_TIMEOUT_S)
    except RayError as error:
        raise ClusterError(
            f"the proxy of cluster {name!r} on this Ray cluster doesn't answer: stop "
            f"that cluster first, or try again ({one_line(error)})"
        ) from error
    if found["data_dir"] != data_dir:
        raise ClusterError(
            f"a cluster {name!r} runs on this Ray cluster already, on {found['data_dir']}: "
            "stop it first, or start this one under another name"
        )
    for proxy in proxies:
        ray.kill(proxy)
    with suppress(ValueError):
        ray.kill(ray.get_actor(HANDLES, namespace_of(name)))
    return True


def _prepare_ray_tls(folder: Path | None) -> None:
    if folder is None:
        return
    if ray.is_initialized():
        raise ClusterError("ray_tls comes too late: this process is connected to Ray already")
    try:
        use_ray_tls(folder)
    except RayUnavailable as error:
        raise ClusterError(str(error)) from error


def _connect_ray(address: str | None) -> bool:
    """Connect this process to Ray; True if this call started Ray."""
    if ray.is_initialized():
        return False
    try:
        if address is not None:
            connect_ray(address)
            return False
        for name, value in NODE_HEALTH.items():
            os.environ.setdefault(name, value)
        start_ray(object_store_memory=OBJECT_STORE_BYTES)
    except RayUnavailable as error:
        raise ClusterError(str(error)) from error
    return True


def _check_protection(config: ClusterConfig) -> None:
    """Check the authentication of a Ray cluster that velaray didn't start.

    If it serves callers without a token, raises `ClusterError` for a cluster with tokens or a
    non-loopback address, and prints a warning for others.
    """
    try:
        if not is_open():
            return
    except RayUnavailable as error:
        raise ClusterError(str(error)) from error
    risk = "anyone who can reach this Ray can run code on it and read the cluster's data"
    remedy = "start Ray with RAY_AUTH_MODE=token"
    if config.auth is not None or not is_loopback(config.listen_host):
        raise ClusterError(f"Ray serves callers without a token: {risk}; {remedy}")
    print(f"velaray: Ray serves callers without a token: {risk}; {remedy}", file=sys.stderr)

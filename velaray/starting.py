"""What starting a cluster needs, with or without Ray: checks, ports, the lock and ownership of the
data.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import secrets
import socket
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypedDict

from velaray.actors.catalog.clusters import is_service_url
from velaray.broker.catalog.messages import Bootstrap
from velaray.broker.coordinator.coordinators import DEFAULT_COORDINATORS, ensure_coordinators
from velaray.broker.garbage_collection.collectors import ensure_deletion_topics
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError
from velaray.journal.files import JOURNALS, NUMBERS, FileStore
from velaray.journal.private import make_private, private_opener, tighten
from velaray.topology.actor_system import ActorSystem
from velaray.topology.addresses import own_address
from velaray.topology.config import (
    AuthSettings,
    ClusterConfig,
    PartitionSync,
    advertised_names,
    check_binding,
)
from velaray.topology.ownership import OtherCluster, Superseded, data_id_of, take_ownership
from velaray.topology.ports import PortUnavailable, hold_ports

LAST_CLUSTER_NUMBER = 2046
"""The largest cluster number; 2047 is part of the ledger id that stands for the latest message."""
_LAST_PORT = 65_535
LEAST_SECRET_BYTES = 32
_LOCK_FILE = "owner.lock"


class ClusterError(RuntimeError):
    """The cluster can't be started; the text states the reason and the remedy."""


class ClusterOptions(TypedDict, total=False):
    """The settings of a start that don't depend on the placement; see `velaray.Cluster.start`."""

    name: str
    host: str
    service_port: int
    admin_port: int
    auth: AuthSettings | None
    tunnel: bool
    listeners: Mapping[str, str]
    passivate_after_s: float
    partition_sync: str
    sync_interval_ms: int
    compaction_retain_null_key: bool
    max_active_transactions: int
    undelete_s: float
    deletion_retry_s: float
    deleters: int
    cluster_number: int
    replication_secret: bytes
    port_range: tuple[int, int] | None
    advertise: str | Mapping[str, str]


def configured(data_dir: str, options: ClusterOptions) -> ClusterConfig:
    """The settings of a start, before it has an incarnation and its nodes are known.

    Port 0 becomes a free port.

    Raises `ValueError` for values out of range, `UnsafeBindingError` if the address isn't loopback
    and no token is configured, `UnreachableAddressError` if clients would be sent to 0.0.0.0,
    `NoAddressError` if this node has no address in the network, `ClusterError` if there is no free
    port.
    """
    values: dict[str, Any] = {**options}
    host = own_address(values.setdefault("host", "127.0.0.1"))
    check_binding(host, values.get("auth"))
    values["advertise"] = advertised_names(values["host"], values.get("advertise", ""))
    for name, port in (("service_port", 6650), ("admin_port", 8080)):
        values[name] = values.get(name, port) or free_port(host)
    values["listeners"] = _checked_listeners(values.get("listeners", {}))
    values["partition_sync"] = PartitionSync(values.get("partition_sync", PartitionSync.ALWAYS))
    key = secrets.token_bytes(16)
    config = ClusterConfig(
        data_dir=data_dir,
        incarnation=0,
        rpc_key=key,
        **values,
    )
    _check_numbers(config)
    _check_identity(config.cluster_number, config.replication_secret)
    return config


async def bootstrap(actor_system: ActorSystem) -> None:
    """Create what a cluster needs before it serves. Idempotent. Raises what calls raise."""
    config = actor_system.config
    urls = Bootstrap(config.name, config.service_url, config.admin_url)
    await actor_system.request(ActorKey.catalog(), urls, timeout=60.0)
    await ensure_coordinators(actor_system, DEFAULT_COORDINATORS)
    await ensure_deletion_topics(actor_system)


def run_to_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to completion, also when the caller runs an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def free_port(host: str) -> int:
    """A free port outside the range of outgoing connections.

    The system assigns ports from 32768 on to outgoing connections, and such a port could be in use
    when a proxy restarts.
    """
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            if probe.connect_ex((host, port)) != 0:
                return port
    raise ClusterError(f"no free port on {host}; name one with --service-port and --admin-port")


def hold_cluster_ports(config: ClusterConfig) -> ExitStack:
    """Bind the ports. Raises `ClusterError` if one is in use."""
    options = {"--service-port": config.service_port, "--admin-port": config.admin_port}
    try:
        return hold_ports(config.listen_host, options)
    except PortUnavailable as error:
        raise ClusterError(str(error)) from error


def _check_numbers(config: ClusterConfig) -> None:
    """Raise `ValueError` for settings out of range."""
    _check_least(1, sync_interval_ms=config.sync_interval_ms, deleters=config.deleters)
    _check_least(0, undelete_s=config.undelete_s, deletion_retry_s=config.deletion_retry_s)
    _check_least(0, max_active_transactions=config.max_active_transactions)
    if config.port_range is not None:
        first, last = config.port_range
        if not 1 <= first <= last <= _LAST_PORT:
            raise ValueError(f"port_range={config.port_range} must be within 1 to {_LAST_PORT}")


def _check_least(least: int, **values: float) -> None:
    """Raise `ValueError` for values below ``least``."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}")


def _checked_listeners(listeners: Mapping[str, str]) -> dict[str, str]:
    """Validate the listeners. Raises `ValueError`."""
    for name, url in listeners.items():
        if not name or not is_service_url(url):
            raise ValueError(f"listener {name!r}: its URL must be pulsar://host:port, not {url!r}")
    return dict(listeners)


def _check_identity(cluster_number: int, replication_secret: bytes) -> None:
    """Validate the cluster number and the replication secret. Raises `ValueError`."""
    if not 0 <= cluster_number <= LAST_CLUSTER_NUMBER:
        raise ValueError(f"cluster_number={cluster_number} must be 0 to {LAST_CLUSTER_NUMBER}")
    if replication_secret and len(replication_secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"a replication secret needs at least {LEAST_SECRET_BYTES} bytes")


def own_data(data_dir: Path, name: str, cluster_number: int) -> tuple[int, str]:
    """The incarnation and the id of the data, after taking ownership."""
    store = FileStore(str(data_dir))
    try:
        incarnation = int(run_to_end(take_ownership(store, name, cluster_number)))
        return incarnation, str(run_to_end(data_id_of(store)))
    except (JournalError, Superseded, OtherCluster) as error:
        raise ClusterError(f"{data_dir} can't be taken over: {error}") from error


def lock_data(data_dir: Path) -> IO[str]:
    """Lock the directory until the file is closed; create it if it is missing.

    Raises `ClusterError` if another cluster runs on it, or if it can't be used.
    """
    try:
        make_private(data_dir)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        lock = os.fdopen(private_opener(str(data_dir / _LOCK_FILE), flags), "a+")
    except OSError as error:
        raise ClusterError(f"{data_dir} can't be used for data: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise ClusterError(
            f"another cluster is running on {data_dir} (process {owner}): stop it first, or "
            "use another directory"
        ) from error
    try:
        tighten(data_dir, (JOURNALS, NUMBERS, _LOCK_FILE))
    except OSError as error:
        lock.close()
        raise ClusterError(
            f"{data_dir} can be read by other users, and this one can't change that "
            f"({error.strerror}): have its owner run 'chmod -R go= {data_dir}', or use a "
            "directory of your own"
        ) from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock

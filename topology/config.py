"""The settings of a cluster, which every actor of it receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address

from velaray.journal.manifest import number_base


class PartitionSync(StrEnum):
    """The time at which the journals of topic partitions are synced."""

    ALWAYS = "always"
    """Before every receipt."""
    INTERVAL = "interval"
    """On a timer: a loss of power may remove what was published since the last sync."""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Token (JWT) authentication: exactly one of the two keys is set.

    ``secret`` verifies HS256 tokens; ``public_key`` (PEM text) verifies RS256 tokens.
    """

    secret: bytes | None = field(default=None, repr=False)
    public_key: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings that every actor of a cluster needs.

    ``listeners``: service URLs by listener name. Clients that name a listener connect through a
    tunnel, whether or not all clients do; its URL is the proxy's address in the network of these
    clients.

    ``incarnation`` counts the starts of clusters on ``data_dir``: an actor of an older start
    refuses to serve (see `velaray.topology.ownership`). ``rpc_key`` is a secret of the cluster's
    actors: a connection that doesn't begin with it is closed. Every ``maintenance_s`` seconds an
    active partition looks for data to expire or trim; every ``wake_s`` seconds the catalog does so
    for inactive partitions. A coordinator refuses to begin a transaction while
    ``max_active_transactions`` (0: any number) of its transactions are unfinished. ``deleters`` is
    the number of garbage collectors (0: owners delete their ledgers themselves, and retry a failed
    deletion at their next start). A failed deletion is retried after ``deletion_retry_s`` seconds.
    A topic can be undeleted for ``undelete_s`` seconds after its deletion. Clusters that replicate
    to each other must have different ``cluster_number``s: ledger ids begin with it. ``data_id`` is
    the id of the data ("": none), by which other clusters detect a loss of the data. Clusters that
    replicate to each other share a ``replication_secret``; without one, replicators of other
    clusters are refused. ``hosts`` is the number of processes that the actors share, besides one
    for work in the background; 0: each actor has a process of its own. ``own_hosts`` is the number
    of further processes that busy topics may have for themselves. ``port_range`` is the first and
    the last port that these processes listen on; None: any port. ``advertise`` is the name or the
    address by which clients reach ``host``; "": ``host`` itself.
    """

    data_dir: str
    incarnation: int
    rpc_key: bytes = field(repr=False)
    name: str = "standalone"
    host: str = "127.0.0.1"
    service_port: int = 6650
    admin_port: int = 8080
    auth: AuthSettings | None = None
    passivate_after_s: float = 300.0
    max_message_size: int = 5 << 20
    tunnel: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    partition_sync: PartitionSync = PartitionSync.ALWAYS
    sync_interval_ms: int = 1000
    maintenance_s: float = 30.0
    wake_s: float = 3600.0
    compaction_retain_null_key: bool = False
    max_active_transactions: int = 0
    deleters: int = 1
    deletion_retry_s: float = 600.0
    undelete_s: float = 0.0
    cluster_number: int = 0
    data_id: str = ""
    replication_secret: bytes = field(default=b"", repr=False)
    hosts: int = 0
    own_hosts: int = 0
    port_range: tuple[int, int] | None = None
    advertise: str = ""

    @property
    def number_base(self) -> int:
        """The numbers of this cluster's journals begin after this one."""
        return number_base(self.cluster_number)

    @property
    def advertised(self) -> str:
        """The host that clients connect to."""
        return self.advertise or self.host

    def seen_by_clients(self, url: str) -> str:
        """The URL of an actor's process, with the host that clients connect to."""
        return f"pulsar://{self.advertise}:{url.rpartition(':')[2]}" if self.advertise else url

    @property
    def service_url(self) -> str:
        """The URL that clients connect to."""
        return f"pulsar://{self.advertised}:{self.service_port}"

    @property
    def admin_url(self) -> str:
        """The URL of the admin interface."""
        return f"http://{self.advertised}:{self.admin_port}"

    @property
    def ray_namespace(self) -> str:
        """The Ray namespace that holds this cluster's named actors."""
        return namespace_of(self.name)


def namespace_of(cluster: str) -> str:
    """The Ray namespace of the cluster of this name."""
    return f"velaray-{cluster}"


class UnsafeBindingError(ValueError):
    """The cluster would be open to the network without authentication."""


def check_binding(host: str, auth: AuthSettings | None) -> None:
    """Raise `UnsafeBindingError` if ``host`` isn't loopback and no token is configured."""
    if auth is None and not is_loopback(host):
        raise UnsafeBindingError(
            f"{host} can be reached from other machines, and no token is configured: use "
            "127.0.0.1, or give --token-secret or --token-public-key"
        )


class UnreachableAddressError(ValueError):
    """Clients would be sent to an address that they can't connect to."""


def check_advertised(host: str, advertise: str) -> None:
    """Raise `UnreachableAddressError` if ``host`` stands for all addresses of the machine and no
    name is advertised in its place, or if the advertised name is such an address."""
    if _is_any(advertise or host):
        raise UnreachableAddressError(
            f"clients can't connect to {advertise or host}, which stands for all addresses of a "
            "machine: give the name or the address by which they reach this one (--advertise)"
        )


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether the host is only reachable from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

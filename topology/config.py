"""The settings of a cluster, which every actor of it receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import NoReturn

from velaray.journal.manifest import number_base
from velaray.topology.addresses import is_per_node, own_address
from velaray.topology.logs import LogFormat, LogLevel
from velaray.topology.tls_settings import ClientAuth, TlsSettings


class PartitionSync(StrEnum):
    """The time at which the journals of topic partitions are synced."""

    ALWAYS = "always"
    """Before every receipt."""
    INTERVAL = "interval"
    """On a timer: a loss of power may remove what was published since the last sync."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """An OpenID provider whose tokens are accepted: those of its ``issuer`` for this ``audience``.

    ``role_claim`` names the claim that has the role. ``jwks_url`` is the URL of its keys ("": the
    provider's configuration names it).
    """

    issuer: str
    audience: str
    role_claim: str = "sub"
    jwks_url: str = ""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Token (JWT) authentication: one of the four keys, or ``oidc``, or both.

    ``secret`` verifies HS256 tokens; ``public_key`` (PEM text) verifies RS256 tokens.
    ``secret_path`` and ``public_key_path`` name a file with such a key, or a directory of files
    with several keys, which is the same on all nodes; changed files are used without a restart.
    Clients without credentials have the ``anonymous_role`` ("": they are refused).
    """

    secret: bytes | None = field(default=None, repr=False)
    public_key: str | None = None
    anonymous_role: str = ""
    oidc: OidcSettings | None = None
    secret_path: str = ""
    public_key_path: str = ""

    @property
    def key(self) -> bytes | str | Path | None:
        """The one of the four keys that is given; None if none is."""
        path = self.secret_path or self.public_key_path
        return self.secret or self.public_key or (Path(path) if path else None)


@dataclass(frozen=True, slots=True)
class AuthorisationSettings:
    """The roles with special rights: ``superusers`` may do everything, ``proxy_roles`` speak for
    other roles, and need their rights as well as their own. ``viewers`` may read everything through
    the admin interface, and change nothing there."""

    superusers: frozenset[str] = frozenset()
    proxy_roles: frozenset[str] = frozenset()
    viewers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How long the records of the audit log are kept: ``days``, and at most ``size_mib`` MiB."""

    days: int = 365
    size_mib: int = 1024


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The settings that every actor of a cluster needs.

    ``listeners``: service URLs by listener name. Clients that name a listener connect through a
    tunnel, whether or not all clients do; its URL is the proxy's address in the network of these
    clients.

    Without ``roles`` every client may do everything. Without ``audit`` changes by the admin
    interface are not recorded.

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
    replicate to each other share a ``replication_secret``, or each two of them have keys of their
    own in the directory ``replication_keys`` (see `velaray.topology.replication_keys`); without
    either, replicators of other clusters are refused. ``hosts`` is the number of processes that the
    actors share, besides one for work in the background; 0: each actor has a process of its own.
    ``own_hosts`` is the number of further processes that busy topics may have for themselves.
    ``port_range`` is the first and the last port that these processes listen on; None: any port.

    ``host`` is what processes listen on: an address or a name of one machine, or for several
    machines a network or an interface (see `velaray.topology.addresses`). ``advertise`` has the
    names by which clients reach the addresses of nodes; an address without one is advertised
    itself. ``nodes`` are the addresses of the nodes with a proxy, that of the starting node first
    (empty: only this node). Actors run on those nodes of Ray that have the resource
    ``node_resource`` ("": on any). ``offload`` is the URL of the archive of ledgers ("": the one
    that the data directory names, if any).

    ``encryption_keys`` names the directory or the class of the master keys with which journals are
    encrypted ("": they aren't). With ``encryption_required`` journals that aren't are refused.

    ``tls`` has the settings of TLS; None: all ports speak plain text.

    ``max_connections`` limits the connections of clients to a process, and
    ``max_connections_per_address`` those from one address. ``buffer_memory_mib`` bounds the memory
    of received bytes, and that of unsent ones, of these connections. ``max_connections_per_role``
    limits those of an authenticated role, and ``max_requests_per_role`` its requests in work. A
    process of more than ``memory_budget_mib`` (0: any) refuses look-ups, producers and consumers.

    ``log_format`` is the form of the processes' log lines, and ``log_level`` their least level.

    ``otlp_endpoint`` is the URL of a collector of OpenTelemetry, which gets spans, and metrics
    every ``otlp_interval_s`` seconds ("": none gets any). ``given`` has the settings of the start
    for readers: name, value as text, and the source of the value. It has no secrets.
    """

    data_dir: str
    incarnation: int
    rpc_key: bytes = field(repr=False)
    name: str = "standalone"
    host: str = "127.0.0.1"
    service_port: int = 6650
    admin_port: int = 8080
    auth: AuthSettings | None = None
    roles: AuthorisationSettings | None = None
    audit: AuditSettings | None = None
    passivate_after_s: float = 300.0
    max_message_size: int = 5 << 20
    tunnel: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    partition_sync: PartitionSync = PartitionSync.ALWAYS
    sync_interval_ms: int = 1000
    commit_interval_ms: int = 100
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
    replication_keys: str = ""
    encryption_keys: str = ""
    encryption_required: bool = False
    hosts: int = 0
    own_hosts: int = 0
    port_range: tuple[int, int] | None = None
    advertise: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    node_resource: str = ""
    offload: str = ""
    tls: TlsSettings | None = None
    max_connections: int = 10_000
    max_connections_per_address: int = 5_000
    max_connections_per_role: int = 10_000
    max_requests_per_role: int = 10_000
    buffer_memory_mib: int = 512
    memory_budget_mib: int = 0
    log_format: LogFormat = LogFormat.CONSOLE
    log_level: LogLevel = LogLevel.INFO
    otlp_endpoint: str = ""
    otlp_interval_s: float = 60.0
    given: tuple[tuple[str, str, str], ...] = ()

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process: a `velaray.topology.sent_config.SentConfig` is."""
        raise TypeError("the settings of a cluster contain its secrets: send a SentConfig")

    @property
    def number_base(self) -> int:
        """The numbers of this cluster's journals begin after this one."""
        return number_base(self.cluster_number)

    @property
    def listen_host(self) -> str:
        """What the processes of this node listen on, and the address that they give each other.

        Raises `NoAddressError` if ``host`` describes no address of this node, or several.
        """
        return own_address(self.host)

    @property
    def advertised(self) -> tuple[str, ...]:
        """The names or addresses by which clients reach the nodes with a proxy."""
        return tuple(map(self._advertised, self.nodes or (self.listen_host,)))

    def _advertised(self, address: str) -> str:
        return self.advertise.get(address, address)

    @property
    def speaks_plain(self) -> bool:
        """Whether clients may connect without TLS."""
        return self.tls is None or not self.tls.only

    def seen_by_clients(self, url: str) -> str:
        """The URL of an actor's process, with the host that clients connect to; "" for ""."""
        scheme, _, rest = url.partition("://")
        address, _, port = rest.rpartition(":")
        return f"{scheme}://{self._advertised(address)}:{port}" if url else ""

    @property
    def plain_service_url(self) -> str:
        """The URL that clients connect to without TLS; "": there is none."""
        return self._of_proxies("pulsar", self.service_port) if self.speaks_plain else ""

    @property
    def tls_service_url(self) -> str:
        """The URL that clients connect to by TLS; "": there is none."""
        return "" if self.tls is None else self._of_proxies("pulsar+ssl", self.tls.service_port)

    def _of_proxies(self, scheme: str, port: int) -> str:
        return f"{scheme}://" + ",".join(f"{each}:{port}" for each in self.advertised)

    @property
    def service_url(self) -> str:
        """The URL that clients connect to. It has the proxies of all nodes. It is the one without
        TLS, if there is one."""
        return self.plain_service_url or self.tls_service_url

    @property
    def plain_admin_url(self) -> str:
        """The URL of the admin interface without TLS; "": there is none."""
        return f"http://{self.advertised[0]}:{self.admin_port}" if self.speaks_plain else ""

    @property
    def tls_admin_url(self) -> str:
        """The URL of the admin interface by TLS; "": there is none."""
        return "" if self.tls is None else f"https://{self.advertised[0]}:{self.tls.admin_port}"

    @property
    def admin_url(self) -> str:
        """The URL of the admin interface at the first node with a proxy. It is the one without TLS,
        if there is one."""
        return self.plain_admin_url or self.tls_admin_url

    @property
    def ray_namespace(self) -> str:
        """The Ray namespace that holds this cluster's named actors."""
        return namespace_of(self.name)


def namespace_of(cluster: str) -> str:
    """The Ray namespace of the cluster of this name."""
    return f"velaray-{cluster}"


class UnsafeBindingError(ValueError):
    """The cluster would be open to the network without authentication."""


def check_binding(host: str, auth: AuthSettings | None, tls: TlsSettings | None = None) -> None:
    """Raise `UnsafeBindingError` if ``host`` isn't loopback and anyone could connect: no token is
    configured, and not every client must present a certificate."""
    certified = tls is not None and tls.only and tls.client_auth is ClientAuth.REQUIRED
    if auth is None and not certified and not is_loopback(host):
        raise UnsafeBindingError(
            f"{host} can be reached from other machines, and no token is configured: use "
            "127.0.0.1, or give --token-secret or --token-public-key, or --tls-only with "
            "--tls-client-auth required"
        )


class UnreachableAddressError(ValueError):
    """Clients would be sent to an address that they can't connect to."""


def advertised_names(host: str, advertise: str | Mapping[str, str]) -> dict[str, str]:
    """The names by which clients reach nodes, by the nodes' addresses.

    ``advertise`` is the name of the only node ("": none), or a mapping if each node has its own
    address. Raises `UnreachableAddressError` if it is the other one of these, or if clients would
    be sent to an address that stands for all addresses of a machine.
    """
    per_node = is_per_node(host)
    if isinstance(advertise, str):
        if advertise and per_node:
            raise UnreachableAddressError(
                f"{advertise} names one node, and each node has its own address in {host}: give "
                "--advertise ADDRESS=NAME for each"
            )
        names = {host: advertise} if advertise else {}
    else:
        names = dict(advertise)
        if names and not per_node:
            raise UnreachableAddressError(
                f"{host} is the address of one node: give its name alone, --advertise NAME"
            )
    for each in (*names.values(), *(() if per_node or names else (host,))):
        if _is_any(each):
            raise UnreachableAddressError(
                f"clients can't connect to {each}, which stands for all addresses of a machine: "
                "give the name or the address by which they reach this one (--advertise)"
            )
    return names


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

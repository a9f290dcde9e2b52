"""A cluster's settings, as every actor of it receives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address

from velaray.journal.manifest import number_base


class PartitionSync(StrEnum):
    """When the journals of topic partitions are synced."""

    ALWAYS = "always"
    """Before every receipt."""
    INTERVAL = "interval"
    """On a timer: a loss of power takes back what was published since."""


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """Token (JWT) authentication: exactly one of the two keys is set.

    ``secret`` verifies HS256 tokens; ``public_key`` (PEM text) verifies RS256 tokens.
    """

    secret: bytes | None = field(default=None, repr=False)
    public_key: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What every actor of a cluster must know.

    Clients that ask for one of the ``listeners`` go through a tunnel, whether or not all do; its
    value is the service URL by which that network's clients know the front door.

    ``incarnation`` counts the starts of clusters on ``data_dir``: an actor of an older
    start refuses to serve (see `velaray.topology.ownership`). ``rpc_key`` is a secret of the
    cluster's actors: a link that doesn't begin with it is closed. Partitions look every
    ``maintenance_s`` seconds what may expire or be trimmed; of those that sleep the catalog looks
    every ``wake_s`` seconds. A coordinator begins no transaction
    while ``max_active_transactions`` (0: any number) of its own haven't ended. So many
    ``deleters`` delete ledgers (0: their owners do it, and what fails waits for their next
    start); what can't be deleted now is tried again ``deletion_retry_s`` seconds later. A topic
    can be undeleted for ``undelete_s`` seconds after its deletion. Clusters that replicate to
    each other must have different ``cluster_number``s: ledger ids begin with it. ``data_id`` is
    that of the data ("": it has none), by which other clusters see whether it was lost. They have
    the same ``replication_secret``; without one, replicators of other clusters are refused.
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

    @property
    def number_base(self) -> int:
        """What the numbers of this cluster's journals begin after."""
        return number_base(self.cluster_number)

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


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached by it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

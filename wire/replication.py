"""Geo-replication on the wire: names, properties and kinds of markers.

A replicator is an ordinary producer of the remote partition with the name `replicator_name(source,
target)`. The metadata of its entries has the cluster that they came from (``replicated_from``) and
their positions there (`SOURCE_POSITION`); the rest is as the first producer sent it. Other entries
are markers: their metadata has a ``marker_type``, and their payload is one of the messages of
``replication.proto``. See docs/decisions/0024-geo-replication.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from velaray.events import ids
from velaray.events.ids import Position

SOURCE_POSITION = "__MSG_PROP_REPL_SOURCE_POSITION"
"""The property with the entry's position in the source: "ledger:entry"."""
REPLICATOR_PREFIX = ids.REPLICATOR_PREFIX
REPLICATED_SUBSCRIPTION = "pulsar.replicated.subscription"
"""The property of a subscription with replicated progress ("true")."""
PULL_PREFIX = "velaray-pull."
"""The prefix of the subscriptions in other clusters from which topics are pulled."""
_LONGEST = len("9223372036854775807:9223372036854775807")
CLIENT_VERSION = "velaray-replicator"
"""The client version in CONNECT of a replicator or a tenant migration: it addresses this very
cluster, even if the tenant's home is another one."""


DATA_ID = "velaray.data"
"""The property with the id of the data of a replicator's cluster."""
PROOF = "velaray.proof"
"""The property with a replicator's proof of the replication secret."""


def server_version(name: str, data_id: str) -> str:
    """The version that a server of a cluster announces; it contains the id of the cluster's data
    ("": none)."""
    return f"{name} {DATA_ID}={data_id}" if data_id else name


def data_id_in(version: str) -> str:
    """The id of the data in a `server_version`; "" if there is none."""
    return version.partition(f" {DATA_ID}=")[2]


class Marker(IntEnum):
    """Kinds of markers; the first four are Pulsar's."""

    SNAPSHOT_REQUEST = 10
    SNAPSHOT_RESPONSE = 11
    SNAPSHOT = 12
    UPDATE = 13
    PROGRESS = 1000
    """A `SubscriptionProgress`; velaray's own."""
    TRANSACTIONS_COMPLETE = 1001
    """`TransactionsComplete`; velaray's own."""


class MalformedReplication(ValueError):
    """A replicated entry or marker lacks required data, as the message says."""


def replicator_name(source: str, target: str) -> str:
    """The name of the producer that replicates from one cluster to another."""
    return f"{REPLICATOR_PREFIX}{source}-->{target}"


def source_of(producer: str) -> str | None:
    """The cluster whose replicator this producer is; None for other producers."""
    if not producer.startswith(REPLICATOR_PREFIX) or "-->" not in producer:
        return None
    return producer.removeprefix(REPLICATOR_PREFIX).partition("-->")[0] or None


def replicator_subscription(target: str) -> str:
    """The subscription (Pulsar's word: cursor) that a replicator reads with."""
    return REPLICATOR_PREFIX + target


def pull_subscription(cluster: str) -> str:
    """The subscription, in another cluster, with which ``cluster`` pulls."""
    return PULL_PREFIX + cluster


def is_replicated(properties: Mapping[str, str]) -> bool:
    """Whether a subscription with these properties has replicated progress."""
    return properties.get(REPLICATED_SUBSCRIPTION) == "true"


def parse_source_position(text: str) -> Position:
    """Read the value of `SOURCE_POSITION`. Raises `MalformedReplication`."""
    ledger, _, entry = text.partition(":")
    if ledger.isdigit() and entry.isdigit() and text.isascii() and len(text) <= _LONGEST:
        at = int(ledger), int(entry)
        if max(at) < 1 << 63:
            return tuple.__new__(Position, at)  # this runs for every entry
    raise MalformedReplication(f"{SOURCE_POSITION} must be ledger:entry, not {text[:100]!r}")

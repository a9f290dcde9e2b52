"""The conditions for connecting: names, replicators, and the tenant's home cluster."""

from __future__ import annotations

from collections.abc import Mapping

from velaray.actors.catalog.policies import ENCRYPTION_REQUIRED
from velaray.actors.machine import Reason
from velaray.broker.coordinator.coordinators import check_not_systems
from velaray.broker.partition.session.protocols import Client, HostedPartition, LocalPartitions
from velaray.broker.session import ClientInfo
from velaray.events.ids import TopicName
from velaray.topology.auth import AuthenticationFailed
from velaray.topology.config import ClusterConfig
from velaray.topology.replication_keys import check_replicator
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.errors import ENCRYPTION_REQUIRED_IN
from velaray.wire.replication import DATA_ID, PROOF, REPLICATOR_PREFIX, source_of


def find_partition(partitions: LocalPartitions, client: Client, text: str) -> HostedPartition:
    """Return the partition that a client names.

    Raises `InvalidNameError`, and `RemoteError`: UNAVAILABLE if it isn't served here, NOT_ALLOWED
    if it belongs to the system. The proxy checks the latter too, but clients need not use it.
    """
    topic = TopicName.parse(text)
    if not client.info.is_system:
        check_not_systems(topic)
    return partitions.find(topic)


def check_name(client: Client, name: str, what: str) -> None:
    """Raise `RemoteError` (NOT_ALLOWED) if only replicators may ``what`` under this name."""
    if name.startswith(REPLICATOR_PREFIX) and not client.info.is_system:
        problem = f"only replicators may {what} {name!r}: take a name without {REPLICATOR_PREFIX!r}"
        raise RemoteError(Reason.NOT_ALLOWED, problem)


def check_source(
    config: ClusterConfig, info: ClientInfo, source: str, name: str, metadata: Mapping[str, str]
) -> None:
    """Check that a producer is a replicator of cluster ``source``.

    The check matters because a replicator's entries change what is known of that cluster's
    positions. Raises `RemoteError` (NOT_ALLOWED).
    """
    own = config.name
    if source == own:
        problem = f"{name!r} replicates from cluster {own!r}, which is this cluster"
        raise RemoteError(Reason.NOT_ALLOWED, problem)
    if info.is_system:  # an actor of this cluster reads from the other one
        return
    try:
        check_replicator(config, source, metadata.get(DATA_ID, ""), metadata.get(PROOF, ""))
    except AuthenticationFailed as error:
        raise RemoteError(Reason.NOT_ALLOWED, str(error)) from error


def follows_home(client: Client) -> bool:
    """Whether the tenant's home cluster serves the client. Replicators and the actors of this
    cluster stay here."""
    return not (client.info.is_system or client.info.means_this_cluster)


def check_home(client: Client, partition: HostedPartition) -> None:
    """Raise `RemoteError` (ELSEWHERE) if the tenant's home cluster serves the client. The client
    then looks the topic up again."""
    home = partition.availability.home
    if home is not None and follows_home(client):
        topic = partition.key.topic_name
        problem = f"cluster {home} serves the clients of its tenant; look {topic} up again"
        raise RemoteError(Reason.ELSEWHERE, problem)


def check_accepts_entries(client: Client, partition: HostedPartition) -> None:
    """Raise `RemoteError` if the partition accepts no entries of the client."""
    check_home(client, partition)
    if partition.log.terminated_at is not None:
        raise RemoteError(Reason.TERMINATED, "the topic is terminated")
    partition.geo.fence.check()


def check_encrypts(client: Client, partition: HostedPartition, command: pb.CommandProducer) -> None:
    """Raise `RemoteError` if the producer must encrypt its messages, and doesn't.

    The reason is CONFLICT, whose code is the one that Pulsar answers.
    """
    if command.encrypted or not partition.publishing.policies.encryption_required:
        return
    if client.info.is_system or source_of(command.producer_name) is not None:
        return
    topic = partition.key.topic_name
    problem = (
        f"{ENCRYPTION_REQUIRED_IN} {topic} (policy {ENCRYPTION_REQUIRED} of its namespace): "
        "create the producer with the name of a key and a key reader"
    )
    raise RemoteError(Reason.CONFLICT, problem)

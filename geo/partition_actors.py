"""Constructs the actor of a partition, connected with other clusters."""

from __future__ import annotations

from collections.abc import Callable

from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey
from velaray.geo.inbound.inbound_keeper import InboundKeeper
from velaray.geo.partition_geo import PartitionGeo
from velaray.geo.replication import outgoing_transactions, progress_export, remote_transactions
from velaray.geo.replication.progress_export import Changes
from velaray.geo.replication.remote_progress import RemoteProgress
from velaray.geo.replication.remote_transactions import RemoteTransactionSide
from velaray.geo.replication.replication_keeper import ReplicationKeeper
from velaray.geo.replication.snapshot_keeper import SnapshotKeeper
from velaray.geo.tenant_migration import partition_failover, partition_moves
from velaray.geo.tenant_migration.partition_fence import PartitionFence
from velaray.topology.actor_system import ActorSystem


def make_partition_actor(key: ActorKey, actor_system: ActorSystem) -> PartitionActor:
    """The actor of the partition ``key``."""
    return PartitionActor(key, actor_system, _connect)


def _connect(partition: PartitionActor, more_readable: Callable[[], None]) -> PartitionGeo:
    """The parts that replicate and migrate a partition. ``more_readable`` is called when more may
    be readable."""
    fence = PartitionFence(partition)
    changes = Changes(partition)
    replication = ReplicationKeeper(partition)
    progress = RemoteProgress(partition)
    transactions = RemoteTransactionSide(partition, more_readable)
    return PartitionGeo(
        partition,
        fence,
        changes,
        replication,
        SnapshotKeeper(partition, replication),
        InboundKeeper(partition),
        progress,
        transactions,
        {
            **partition_failover.handlers(partition, progress),
            **partition_moves.handlers(partition, fence, progress, transactions),
            **progress_export.handlers(partition, changes),
            **outgoing_transactions.handlers(partition, replication),
            **remote_transactions.handlers(partition, transactions),
        },
    )

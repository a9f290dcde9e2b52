"""Connects a partition with other clusters by implementing the protocols of the partition.

See `velaray.broker.partition.geo_replication`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from velaray.actors.machine import Reason
from velaray.broker.partition.geo_replication import MarkerHandler, Method
from velaray.geo.inbound.inbound_keeper import InboundKeeper
from velaray.geo.replication import outgoing_transactions, progress_export, remote_transactions
from velaray.geo.replication.progress_export import Changes
from velaray.geo.replication.remote_progress import RemoteProgress
from velaray.geo.replication.remote_transactions import RemoteTransactionSide
from velaray.geo.replication.replication_keeper import ReplicationKeeper
from velaray.geo.replication.replication_view import replication, replication_samples
from velaray.geo.replication.snapshot_keeper import SnapshotKeeper
from velaray.geo.tenant_migration import partition_failover, partition_moves
from velaray.geo.tenant_migration.partition_fence import PartitionFence
from velaray.topology.metrics import Sample
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import Marker

if TYPE_CHECKING:
    from velaray.broker.partition.partition_actor import PartitionActor


class PartitionGeo:
    """The parts that replicate and migrate one partition."""

    def __init__(self, partition: PartitionActor, more_readable: Callable[[], None]) -> None:
        """``more_readable`` is called when more may be readable."""
        self._partition = partition
        self.fence = PartitionFence(partition)
        self.changes = Changes(partition)
        self.replication = ReplicationKeeper(partition)
        self.snapshots = SnapshotKeeper(partition, self.replication)
        self.inbound = InboundKeeper(partition)
        self.progress = RemoteProgress(partition)
        self.transactions = RemoteTransactionSide(partition, more_readable)
        self._markers: dict[int, MarkerHandler] = {
            Marker.PROGRESS: self.progress.take,
            Marker.SNAPSHOT_REQUEST: self.snapshots.on_request,
            Marker.SNAPSHOT_RESPONSE: self.snapshots.on_response,
            Marker.UPDATE: self.snapshots.on_update,
            Marker.TRANSACTIONS_COMPLETE: self.transactions.take,
        }
        self.methods: Mapping[str, Method] = {
            "replication": self._replication,
            "pulls": self._inbound,
            "import_progress": self._import_progress,
            **partition_failover.methods(partition, self.progress),
            **partition_moves.methods(partition, self.fence, self.progress, self.transactions),
            **progress_export.methods(partition, self.changes),
            **outgoing_transactions.methods(partition, self.replication),
            **remote_transactions.methods(partition, self.transactions),
        }

    def begin(self) -> None:
        """Start the tasks that run as long as the partition."""
        self._partition.spawn(self.replication.follow())
        self._partition.spawn(self.snapshots.run())
        self.transactions.begin()

    def marker_handler(self, kind: int) -> MarkerHandler:
        """Return the handler of a kind of markers. Raises `RemoteError` (NOT_ALLOWED) for an
        unknown kind."""
        found = self._markers.get(kind)
        if found is None:
            raise RemoteError(Reason.NOT_ALLOWED, f"unknown type of marker: {kind}")
        return found

    async def described(self) -> dict[str, dict[str, Any]]:
        """Return the state of each replicator, by cluster."""
        return await replication(self._partition, self.replication)

    async def samples(self) -> list[Sample]:
        """Return what the replicators measure."""
        return await replication_samples(self._partition, self.replication)

    async def _replication(self, args: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return await self.described()

    async def _inbound(self, args: dict[str, Any]) -> dict[str, Any]:
        """The status of each inbound replicator, by cluster; None if it doesn't answer."""
        return await self.inbound.statuses()

    async def _import_progress(self, args: dict[str, Any]) -> None:
        """Apply ``part``, a SubscriptionProgress of cluster ``source``, durably."""
        await self.progress.take(args["source"], args["part"])

"""Connects a partition with other clusters by implementing the protocols of the partition.

See `velaray.broker.partition.geo_replication`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.broker.partition.geo_replication import Handler, MarkerHandler
from velaray.geo.inbound.inbound_keeper import InboundKeeper
from velaray.geo.inbound.messages import Pulls
from velaray.geo.replication import replication_view
from velaray.geo.replication.messages import ImportProgress, Replication
from velaray.geo.replication.progress_export import Changes
from velaray.geo.replication.remote_progress import RemoteProgress
from velaray.geo.replication.remote_transactions import RemoteTransactionSide
from velaray.geo.replication.replication_keeper import ReplicationKeeper
from velaray.geo.replication.snapshot_keeper import SnapshotKeeper
from velaray.geo.tenant_migration.partition_fence import PartitionFence
from velaray.topology.messages import Message
from velaray.topology.metrics import Sample
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import Marker


class Partition(replication_view.Partition, Protocol):
    """What these parts need of the partition together."""

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


class PartitionGeo:
    """The parts that replicate and migrate one partition."""

    def __init__(
        self,
        partition: Partition,
        fence: PartitionFence,
        changes: Changes,
        replication: ReplicationKeeper,
        snapshots: SnapshotKeeper,
        inbound: InboundKeeper,
        progress: RemoteProgress,
        transactions: RemoteTransactionSide,
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        """``handlers`` are of the requests that the parts answer."""
        self._partition = partition
        self.fence = fence
        self.changes = changes
        self.replication = replication
        self.snapshots = snapshots
        self.inbound = inbound
        self.progress = progress
        self.transactions = transactions
        self._markers: dict[int, MarkerHandler] = {
            Marker.PROGRESS: self.progress.take,
            Marker.SNAPSHOT_REQUEST: self.snapshots.on_request,
            Marker.SNAPSHOT_RESPONSE: self.snapshots.on_response,
            Marker.UPDATE: self.snapshots.on_update,
            Marker.TRANSACTIONS_COMPLETE: self.transactions.take,
        }
        self.handlers: Mapping[type[Message], Handler] = {
            Replication: self._replication,
            Pulls: self._inbound,
            ImportProgress: self._import_progress,
            **handlers,
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
        return await replication_view.replication(self._partition, self.replication)

    async def samples(self) -> list[Sample]:
        """Return what the replicators measure."""
        return await replication_view.replication_samples(self._partition, self.replication)

    async def _replication(self, request: Replication) -> dict[str, dict[str, Any]]:
        return await self.described()

    async def _inbound(self, request: Pulls) -> dict[str, dict[str, Any] | None]:
        return await self.inbound.statuses()

    async def _import_progress(self, request: ImportProgress) -> None:
        await self.progress.take(request.source, request.part)

"""Pulsar's cursor snapshots, for clusters that support no exact progress.

A partition asks the clusters that it replicates to for their positions, and keeps the answers as
snapshots (`velaray.actors.partition.cursor_snapshots`). When a replicated subscription has passed a
snapshot, the partition sends the snapshot's position to those clusters. Replicators carry the
markers, which aren't stored in the log. A partition that restarts begins anew.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError

from velaray.actors.machine import Reason
from velaray.actors.partition.cursor_snapshots import Snapshot, SnapshotCache, SnapshotTaker
from velaray.actors.partition.machine import StartAt
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.partition.visibility import Visibility
from velaray.broker.subscription.messages import GetMark, SkipTo
from velaray.events.ids import Position
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX, Marker
from velaray.wire.replication_pb2 import (
    MarkersMessageIdData,
    ReplicatedSubscriptionsSnapshotRequest,
    ReplicatedSubscriptionsSnapshotResponse,
    ReplicatedSubscriptionsUpdate,
)

SNAPSHOT_S = 1.0
"""The interval of snapshots, and of looks at the subscriptions that passed one."""
SNAPSHOTS = "snapshots"
REASON = "by a snapshot of another cluster"
_UNSIGNED = (1 << 64) - 1
MarkerT = TypeVar(
    "MarkerT",
    ReplicatedSubscriptionsSnapshotRequest,
    ReplicatedSubscriptionsSnapshotResponse,
    ReplicatedSubscriptionsUpdate,
)


class Subscriptions(Protocol):
    """What snapshots need of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""

    async def create_subscription(
        self, name: str, start: StartAt | int, properties: dict[str, str]
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists."""


class Log(Protocol):
    """What snapshots need of the partition's log."""

    visibility: Visibility

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Partition(Protocol):
    """What snapshots need of the partition."""

    config: ClusterConfig
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    maintenance: Maintenance
    geo: GeoReplication

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class Replicators(Protocol):
    """What snapshots need of the partition's replicators."""

    @property
    def connected(self) -> set[str]:
        """The clusters whose replicators are connected."""
        ...

    async def replicates(self) -> None:
        """Return when the topic is replicated to some cluster."""

    def settings(self) -> dict[str, Remote]:
        """The clusters that the topic is replicated to, by name."""
        ...

    def mark(self, cluster: str, key: str, kind: Marker, payload: bytes, behind: int = 0) -> None:
        """Send a marker through a replicator, behind all entries below offset ``behind``."""


class SnapshotKeeper:
    """The snapshots of one partition."""

    def __init__(self, partition: Partition, replication: Replicators) -> None:
        self._partition = partition
        self._replication = replication
        self._taker = SnapshotTaker()
        self._numbers = itertools.count(1)
        self._caches: dict[int, SnapshotCache] = {}  # by the subscriptions' incarnations
        self._asked_at_rest: set[int] = set()

    # -- taking and using them ---------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            if not self._replication.settings():
                self._caches.clear()
            await self._replication.replicates()
            await asyncio.sleep(SNAPSHOT_S)
            with suppress(*TRANSIENT_OR_STORE):  # the next round retries
                await self.once()

    async def once(self) -> None:
        """Start a snapshot if one is due, and send the progress of subscriptions."""
        subscriptions = self._subscriptions()
        gone = self._caches.keys() - subscriptions.values()
        for incarnation in gone:
            del self._caches[incarnation]
        if not subscriptions:
            return
        self._begin()
        for name, incarnation in subscriptions.items():
            await self._advance(name, incarnation)

    def _subscriptions(self) -> dict[str, int]:
        """The incarnations of subscriptions whose progress is sent by snapshots."""
        remotes = self._replication.settings().values()
        here = [remote for remote in remotes if remote.progress == SNAPSHOTS]
        if not here:
            return {}
        every = any(remote.all_subscriptions for remote in here)
        return {
            name: known.ref.incarnation
            for name, known in self._partition.runtime.state.subscriptions.items()
            if not name.startswith(REPLICATOR_PREFIX)
            and (every or known.properties.get(REPLICATED_SUBSCRIPTION) == "true")
        }

    def _begin(self) -> None:
        partition, replication = self._partition, self._replication
        name = f"{partition.config.name}-{partition.runtime.journal.epoch}-{next(self._numbers)}"
        now_ms, end = partition.actor_system.clock_ms(), partition.log.visibility.readable_end
        clusters = replication.settings().keys()
        if self._taker.start(name, clusters, replication.connected, end, now_ms):
            self._ask(name, clusters)

    def _ask(self, name: str, clusters: Iterable[str]) -> None:
        """The offset behind everything that consumers here can read."""
        behind = self._partition.log.visibility.readable_end
        own = self._partition.config.name
        request = ReplicatedSubscriptionsSnapshotRequest(snapshot_id=name, source_cluster=own)
        payload = request.SerializeToString()
        for cluster in clusters:
            key = f"request {name}"
            self._replication.mark(cluster, key, Marker.SNAPSHOT_REQUEST, payload, behind)

    async def _advance(self, name: str, incarnation: int) -> None:
        cache = self._caches.get(incarnation)
        if cache is None or not len(cache):
            return
        if name in self._partition.subscriptions.channels:
            self._asked_at_rest.discard(incarnation)
        elif incarnation in self._asked_at_rest:
            return  # nothing moves it
        else:
            self._asked_at_rest.add(incarnation)
        mark = await self._partition.subscriptions.ask_subscription(name, GetMark())
        passed = cache.advance(mark)
        if passed is not None:
            self._update(name, passed)

    def _update(self, name: str, passed: Snapshot) -> None:
        update = ReplicatedSubscriptionsUpdate(subscription_name=name)
        for cluster, position in sorted(passed.remote.items()):
            update.clusters.add(cluster=cluster, message_id=_to_proto(position))
        payload = update.SerializeToString()
        for cluster, remote in self._replication.settings().items():
            if remote.progress == SNAPSHOTS:
                key = f"update {name}"
                self._replication.mark(cluster, key, Marker.UPDATE, payload)

    # -- what other clusters send ------------------------------------------------------

    async def on_request(self, source: str, payload: bytes) -> None:
        """Answer a cluster's request for this one's position; the answer is sent after all entries
        before it.

        That covers exactly the entries that consumers here can read. Raises `RemoteError`.
        """
        request = _read(ReplicatedSubscriptionsSnapshotRequest, source, payload)
        partition = self._partition
        end = partition.log.visibility.readable_end
        position = partition.runtime.state.table.position_before(end)
        answer = ReplicatedSubscriptionsSnapshotResponse(snapshot_id=request.snapshot_id)
        answer.cluster.cluster = partition.config.name
        answer.cluster.message_id.CopyFrom(_to_proto(position))
        key, encoded = f"response {request.snapshot_id}", answer.SerializeToString()
        self._replication.mark(source, key, Marker.SNAPSHOT_RESPONSE, encoded, end)

    async def on_response(self, source: str, payload: bytes) -> None:
        """Record the position that a cluster answers. Raises `RemoteError`."""
        response = _read(ReplicatedSubscriptionsSnapshotResponse, source, payload)
        where, end = _from_proto(response.cluster.message_id), self._partition.log.end_offset
        found = self._taker.answer(response.snapshot_id, response.cluster.cluster, where, end)
        if found is True:
            self._ask(response.snapshot_id, self._replication.settings().keys())
        elif isinstance(found, Snapshot):
            for incarnation in self._subscriptions().values():
                self._caches.setdefault(incarnation, SnapshotCache()).add(found)
                self._asked_at_rest.discard(incarnation)

    async def on_update(self, source: str, payload: bytes) -> None:
        """Acknowledge durably what a subscription of another cluster acknowledged, up to a position
        here. Creates the subscription, at the earliest position, if it doesn't exist.

        Raises `RemoteError`, and what requests to subscriptions raise.
        """
        update = _read(ReplicatedSubscriptionsUpdate, source, payload)
        partition, name = self._partition, update.subscription_name
        if name.startswith(REPLICATOR_PREFIX):
            raise RemoteError(Reason.NOT_ALLOWED, f"{name!r} is this cluster's own")
        own = [each for each in update.clusters if each.cluster == partition.config.name]
        if not own:
            return
        properties = {REPLICATED_SUBSCRIPTION: "true"}
        await partition.subscriptions.create_subscription(name, StartAt.EARLIEST, properties)
        position = _from_proto(own[-1].message_id)
        offset = partition.runtime.state.table.at_or_before(position) + 1
        if offset > 0:
            with partition.geo.fence.passing(m.SkipTo):
                await partition.log.sync()
                end = partition.log.end_offset
                await partition.subscriptions.ask_subscription(name, SkipTo(end, offset, REASON))
            partition.maintenance.touched(name)


def _to_proto(position: Position) -> MarkersMessageIdData:
    ledger_id, entry_id = (number & _UNSIGNED for number in position)
    return MarkersMessageIdData(ledger_id=ledger_id, entry_id=entry_id)


def _from_proto(data: MarkersMessageIdData) -> Position:
    return Position(*(_signed(number) for number in (data.ledger_id, data.entry_id)))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _read(kind: type[MarkerT], source: str, payload: bytes) -> MarkerT:
    try:
        found = kind.FromString(payload)
    except DecodeError as error:
        problem = f"a marker of cluster {source!r} isn't a {kind.__name__}: {error}"
        raise RemoteError(Reason.INVALID, problem) from error
    if not found.IsInitialized():
        problem = f"a marker of cluster {source!r} lacks what a {kind.__name__} must have"
        raise RemoteError(Reason.INVALID, problem)
    return found

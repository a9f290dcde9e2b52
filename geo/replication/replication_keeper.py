"""Runs the replicators of a partition: one for each cluster that the policy names.

Creates the subscription and the actor of each replicator, and deletes both when the policy no
longer names the cluster. A partition may be passivated while its replicators are idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.machine import CreateSubscription, DeleteSubscription, StartAt
from velaray.broker.coordinator.coordinators import is_systems
from velaray.broker.partition import fencing
from velaray.broker.partition.fencing import superseded_if_fenced
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.backoff import Backoff
from velaray.geo.replication import messages as m
from velaray.geo.replication import outgoing_transactions
from velaray.geo.replication.connection_pace import ConnectionPace
from velaray.geo.replication.outgoing_transactions import committed, confirm_replicated
from velaray.geo.replication.replicator_messages import (
    FROM_REPLICATOR,
    ProgressNews,
    Replicate,
    ReplicatorState,
    Rest,
    SendMarker,
    Status,
    TransactionNews,
)
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.messages import Message, Request
from velaray.topology.metrics import Received
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.tls import outgoing_tls
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire.replication import REPLICATOR_PREFIX, Marker, replicator_subscription

logger = logging.getLogger("velaray")

SYNC_S = 0.1
"""The interval between looks for new progress of subscriptions."""
EXACT = "exact"
STATUS_TIMEOUT_S = 5.0


class Deletion(Protocol):
    """Deletes subscriptions."""

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription."""


class Partition(fencing.Partition, outgoing_transactions.Partition, Protocol):
    """What the replicators need of the partition."""

    policies: TopicPolicies

    @property
    def deletion(self) -> Deletion:
        """The deletion of subscriptions."""
        ...

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...

    async def handle(self, request: Message) -> Any:
        """Answer a request as if it came from another actor."""


class Keeper(Protocol):
    """What `Kept` needs of its owner."""

    async def connect(self, kept: Kept) -> RpcConnection:
        """Start a replicator and connect to it. Raises what `ActorSystem.open_rpc` raises, and
        `RemoteError`."""

    async def tell(self, rpc_connection: RpcConnection, remote: Remote) -> None:
        """Send it its settings. Raises what `RpcConnection.ask` raises."""

    async def answer(self, cluster: str, request: Request[Any]) -> Any:
        """Answer a request of the replicator of a cluster. Raises `RemoteError`."""


class Kept:
    """One replicator, from the partition's side."""

    accepts = FROM_REPLICATOR

    def __init__(
        self, keeper: Keeper, remote: Remote, backoff: Backoff, *, earliest: bool = False
    ) -> None:
        self.remote = remote
        self.earliest = earliest
        self.quiet = False
        self.connected = False
        self.rpc_connection: RpcConnection | None = None
        self.told: dict[str, list[int]] = {}
        self._keeper = keeper
        self._backoff = backoff
        self._news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def change(self, remote: Remote) -> None:
        """Apply changed settings."""
        if remote != self.remote:
            self.remote = remote
            self.quiet = False
            self._news.set()

    async def run(self) -> None:
        """Keep the replicator running until cancelled."""
        while True:
            try:
                rpc_connection = await self._keeper.connect(self)
                self._backoff.reset()
                await self._tell_changes(rpc_connection)
            except TRANSIENT_OR_STORE as error:
                logger.info(
                    "the replicator to %s doesn't run, retrying: %s", self.remote.name, error
                )
            finally:
                self.quiet = self.connected = False
                if self.rpc_connection is not None:
                    self.rpc_connection.close()
                    self.rpc_connection = None
            await self._backoff.wait()

    async def _tell_changes(self, rpc_connection: RpcConnection) -> None:
        while not rpc_connection.closed:
            await self._news.wait()
            self._news.clear()
            if not rpc_connection.closed:
                await self._keeper.tell(rpc_connection, self.remote)

    def follow(self, revisions: Mapping[str, list[int]]) -> None:
        """Set the versions of the subscriptions to export, and send those that changed."""
        changed = {
            name: revision
            for name, revision in revisions.items()
            if name not in self.told or self.told[name] != revision
        }
        gone = [name for name in self.told if name not in revisions]
        if self.rpc_connection is not None and (changed or gone):
            self.told = dict(revisions)
            self.rpc_connection.tell(ProgressNews(changed, gone))

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """See `ReplicationKeeper.answer`."""
        return await self._keeper.answer(self.remote.name, request)

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Note the replicator's state."""
        if isinstance(notice, ReplicatorState):
            self.quiet, self.connected = notice.quiet, notice.connected

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Reconnect to the replicator or its next activation."""
        self._news.set()


class ReplicationKeeper:
    """The replicators of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._pace = partition.actor_system.host_of(partition.key).part(ConnectionPace)
        self._kept: dict[str, Kept] = {}
        self._replicates = asyncio.Event()
        self._dropping: dict[str, asyncio.Task[None]] = {}
        self._received: dict[str, Received] = {}
        self._closed = False

    # -- settings from the catalog ---------------------------------------------------------

    async def begin(self, replication: Mapping[str, Any]) -> None:
        """Create the subscriptions before anything is published, then apply as `apply` does.

        Raises `RemoteError` if they can't be made.
        """
        if is_systems(self._partition.key.topic_name):
            return
        for name, told in replication.items():
            await self._ensure(name, earliest=bool(told.get("from_earliest")))
        self.apply(replication)

    def apply(self, replication: Mapping[str, Any]) -> None:
        """Set the target clusters: by name, with their settings."""
        if self._closed or is_systems(self._partition.key.topic_name):
            return
        for name, told in replication.items():
            remote = self._remote(name, told)
            known = self._kept.get(name)
            if known is not None:
                known.change(remote)
                continue
            backoff = self._partition.actor_system.backoff()
            kept = Kept(self, remote, backoff, earliest=bool(told.get("from_earliest")))
            self._kept[name] = kept
            self._replicates.set()
            kept.task = self._partition.spawn(self._run(kept))
        there = self._partition.runtime.state.subscriptions
        stale = {name.removeprefix(REPLICATOR_PREFIX) for name in there if _is_ours(name)}
        for name in (stale | self._kept.keys()) - replication.keys():
            self._drop(name)

    def _remote(self, name: str, told: Mapping[str, Any]) -> Remote:
        policies = self._partition.policies
        return Remote(
            name,
            told["service_url"],
            told.get("admin_url") or "",
            told.get("token"),
            told.get("progress") or "",
            bool(told.get("all_subscriptions")),
            policies.ttl_ms,
            _rate(policies.raw["replicatorDispatchRate"]),
            everything=bool(told.get("everything")),
            tls=outgoing_tls(self._partition.actor_system.config),
        )

    async def _run(self, kept: Kept) -> None:
        dropping = self._dropping.get(kept.remote.name)
        if dropping is not None:  # named again after a removal: replication starts anew
            await asyncio.wait([dropping])
        await kept.run()

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if not self._kept:
            self._replicates.clear()
        if kept is not None and kept.task is not None:
            kept.task.cancel()
        if name not in self._dropping:
            task = self._dropping[name] = self._partition.spawn(self._delete(name))
            task.add_done_callback(lambda _: self._dropping.pop(name, None))

    async def _delete(self, name: str) -> None:
        backoff = self._partition.actor_system.backoff()
        while True:
            try:
                subscription = replicator_subscription(name)
                await self._partition.deletion.delete_subscription(DeleteSubscription(subscription))
            except RemoteError as error:
                if error.kind == Reason.NOT_FOUND:
                    return
            except TRANSIENT_OR_STORE as error:
                logger.info("deleting the replicator to %s failed, retrying: %s", name, error)
            else:
                return
            await backoff.wait()

    # -- replicators -------------------------------------------------------------------

    async def _ensure(self, name: str, *, earliest: bool) -> int:
        start = StartAt.EARLIEST if earliest else StartAt.LATEST
        create = CreateSubscription(replicator_subscription(name), start)
        reply = await self._partition.runtime.ask(create)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        return int(reply.incarnation)

    async def connect(self, kept: Kept) -> RpcConnection:
        """Start the replicator. Raises what `ActorSystem.open_rpc` raises, and
        `RemoteError`."""
        partition, name = self._partition, kept.remote.name
        async with self._pace.place(name):
            incarnation = await self._ensure(name, earliest=kept.earliest)
            key = partition.key.of_subscription(replicator_subscription(name), incarnation)
            rpc_connection = await partition.actor_system.open_rpc(key, kept)
            kept.rpc_connection, kept.told = rpc_connection, {}
            await self.tell(rpc_connection, kept.remote)
        return rpc_connection

    async def tell(self, rpc_connection: RpcConnection, remote: Remote) -> None:
        """Send a replicator its settings. Raises what `RpcConnection.ask` raises."""
        epoch = self._partition.runtime.journal.epoch
        with superseded_if_fenced(self._partition):
            await rpc_connection.ask(Replicate(epoch, remote))

    # -- progress of subscriptions -----------------------------------------------------

    async def follow(self) -> None:
        """Notify replicators of subscriptions with new progress, until cancelled."""
        while True:
            await self.replicates()
            await asyncio.sleep(SYNC_S)
            for all_of_them in (False, True):
                wanting = [
                    kept
                    for kept in self._kept.values()
                    if kept.rpc_connection is not None
                    and kept.remote.progress == EXACT
                    and kept.remote.all_subscriptions is all_of_them
                ]
                if wanting:
                    with suppress(*TRANSIENT_OR_STORE):  # the next round asks again
                        asked = m.ReplicatedSubscriptions(all_of_them)
                        found = await self._partition.handle(asked)
                        for kept in wanting:
                            kept.follow(found)

    async def answer(self, cluster: str, request: Request[Any]) -> Any:
        """Answer a request of the replicator of a cluster. Raises what the partition's `handle`
        raises."""
        match request:
            case m.Committed():
                return await committed(self._partition, cluster, request)
            case m.Replicated(numbers):
                return await confirm_replicated(self._partition, cluster, numbers)
        return await self._partition.handle(request)

    # -- markers -----------------------------------------------------------------------

    @property
    def connected(self) -> set[str]:
        """The clusters whose replicators are connected."""
        return {name for name, kept in self._kept.items() if kept.connected}

    async def replicates(self) -> None:
        """Return when the topic is replicated to some cluster: a topic that isn't has nothing to
        look after, and takes no time."""
        await self._replicates.wait()

    def settings(self) -> dict[str, Remote]:
        """The clusters that the topic is replicated to, by name."""
        return {name: kept.remote for name, kept in self._kept.items()}

    def mark(self, cluster: str, key: str, kind: Marker, payload: bytes, behind: int = 0) -> None:
        """Send a marker through a replicator, behind all entries below offset ``behind``. It
        replaces a waiting marker of the same ``key``, and is lost if the replicator stops."""
        kept = self._kept.get(cluster)
        if kept is not None and kept.rpc_connection is not None:
            kept.rpc_connection.tell(SendMarker(key, kind, payload, behind))

    def tell_transactions(self) -> None:
        """Notify replicators of news about transactions that go to other clusters."""
        for kept in self._kept.values():
            if kept.rpc_connection is not None:
                kept.rpc_connection.tell(TransactionNews())

    # -- status ---------------------------------------------------------------

    @property
    def remotes(self) -> list[str]:
        """The clusters that the topic is replicated to."""
        return sorted(self._kept)

    async def status(self, name: str) -> dict[str, Any] | None:
        """The status of a replicator; None if it doesn't answer."""
        kept = self._kept.get(name)
        if kept is None or kept.rpc_connection is None:
            return None
        with suppress(*TRANSIENT_OR_STORE):
            return await kept.rpc_connection.ask(Status(), STATUS_TIMEOUT_S)
        return None

    def count_received(self, name: str, messages: int, size: int) -> None:
        """Count entries from another cluster."""
        received = self._received.get(name)
        if received is None:
            received = self._received[name] = Received(
                self._partition.actor_system.clock_ms() / 1000
            )
        received.traffic.messages += messages
        received.traffic.bytes += size

    def received(self, name: str) -> dict[str, float]:
        """The rate of entries from another cluster."""
        received = self._received.get(name)
        if received is None:
            return {"rate_in": 0.0, "throughput_in": 0.0}
        return received.rates(self._partition.actor_system.clock_ms() / 1000)

    # -- passivation ----------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether the topic is replicated."""
        return bool(self._kept)

    @property
    def quiet(self) -> bool:
        """Whether every replicator is idle."""
        return not self._dropping and all(kept.quiet for kept in self._kept.values())

    def rest(self) -> None:
        """Announce a stop in good order, so that idle replicators don't activate the partition."""
        self._closed = True
        for kept in self._kept.values():
            if kept.rpc_connection is not None:
                kept.rpc_connection.tell(Rest())


def _rate(found: Mapping[str, int] | None) -> tuple[float, float]:
    """Messages and bytes per second; 0 or less means no limit."""
    if found is None:
        return 0.0, 0.0
    period_s = found.get("ratePeriodInSecond", 1)
    messages = found["dispatchThrottlingRateInMsg"]
    return messages / period_s, found["dispatchThrottlingRateInByte"] / period_s


def _is_ours(name: str) -> bool:
    return name.startswith(REPLICATOR_PREFIX)

"""Drives one migration of a tenant through its phases.

Every step may be repeated: after a crash the phase is repeated from its start. Before the switch
the driver asks the target whether it has everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from velaray.actors.catalog.migration_state import Ending, Phase
from velaray.actors.catalog.state import Progress
from velaray.actors.machine import Reason
from velaray.actors.partition.remote_transactions import is_remote
from velaray.broker.catalog.messages import AdvanceMigration, Namespaces, Topics
from velaray.broker.catalog.migrations import Ask
from velaray.broker.coordinator import messages as coordinator_messages
from velaray.broker.garbage_collection.topic_deletion import delete_namespace
from velaray.broker.partition.messages import ExportProducers
from velaray.events.backoff import Backoff
from velaray.events.ids import ActorKey, TopicName, TransactionId
from velaray.geo.replication.messages import ExportProgress, GiveUpForeign, Replication
from velaray.geo.tenant_migration import messages as m
from velaray.geo.tenant_migration.asking import unless_gone
from velaray.geo.tenant_migration.migration_target import Target
from velaray.topology.actor_system import ActorSystem, Unreachable
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import replicator_subscription
from velaray.wire.replication_pb2 import SubscriptionProgress

ROUND_S = 0.5
"""The interval between looks at the replication lag."""
COPY_S = 5.0
"""The interval between metadata copies before the fence."""
PROGRESS_LAG_MS = 1000
"""The largest lag of subscription progress at which the fence is put up."""
GRACE_S = 10.0
"""How long transactions may continue behind the fence before they are aborted."""
QUIET_AT_ONCE = 1000
"""The number of partitions that wait for acknowledgements at the same time."""
STUCK_S = 10.0
"""How long a replicator may confirm nothing behind the fence before the phase fails."""
_SHORT_S = 0.02
_LONG_S = 0.5

Copy = Callable[[bool], Awaitable[None]]
"""Copies the metadata of the tenant to the other cluster; ``settled`` means that it no longer
changes here."""


@dataclass(slots=True)
class Detail:
    """Progress for operators; nothing depends on it."""

    partitions: int = 0
    lag: int = 0
    """Entries that may be missing at the target."""
    progress_lag_ms: int = 0
    waiting_for: str = ""
    problem: str = ""


@dataclass(slots=True)
class Driver:
    """Drives one migration that the catalog described."""

    actor_system: ActorSystem
    catalog: Ask
    migration: Mapping[str, Any]
    target: Target
    copy: Copy
    detail: Detail = field(default_factory=Detail)
    former: asyncio.Task[None] | None = None
    """The former driver, which is about to end."""

    async def step(self) -> None:
        """Do the work of the current phase, and advance to the next one.

        Raises `RemoteError`, `Unreachable`, `RpcConnectionClosed`, `TimeoutError`: then repeat it.
        """
        match Phase(self.migration["phase"]):
            case Phase.BEGUN:
                await self._make()
            case Phase.REPLICATING:
                await self._replicate()
            case Phase.FENCED:
                await self._finish()
            case Phase.DECIDED:
                await self._open()
            case Phase.SWITCHED:
                await self._clean_up()
            case Phase.ROLLING_BACK:
                await self._roll_back()

    async def _advance(self, phase: Phase) -> None:
        number, tenant = self.migration["number"], self.migration["tenant"]
        await self.catalog(AdvanceMigration(tenant, number, phase))

    def _backoff(self) -> Backoff:
        return self.actor_system.backoff(_SHORT_S, _LONG_S)

    def _wait_for(self, what: str) -> None:
        self.detail.waiting_for = what
        self.detail.problem = ""

    # -- before the fence ----------------------------------------------------------

    async def _make(self) -> None:
        self._wait_for("the copy of the tenant's metadata")
        await self.target.expect()
        await self.copy(False)
        await self._advance(Phase.REPLICATING)

    async def _replicate(self) -> None:
        """Wait until the target lags so little that the fence stays short."""
        loop = asyncio.get_running_loop()
        copied = -COPY_S
        while True:
            await self.target.expect()  # unless it was taken over there
            if loop.time() - copied >= COPY_S:
                await self.copy(False)
                copied = loop.time()
            if await self._is_close():
                break
            await asyncio.sleep(ROUND_S)
        # Once before the fence, so that the actors are active and have little left to do behind it.
        self._wait_for("the copy of subscription progress and producer state")
        keys = await self._partitions()
        await each(keys, self._hand_over)
        self._wait_for("the last acknowledgements")
        quiet = m.BeQuiet()
        await each(keys, lambda key: self.actor_system.request(key, quiet), QUIET_AT_ONCE)
        await self._advance(Phase.FENCED)

    async def _is_close(self) -> bool:
        cluster, detail = self.migration["target"], self.detail
        keys = await self._partitions()
        found = await each(keys, lambda key: self.actor_system.request(key, Replication()))
        rows = [row.get(cluster) for row in found]
        detail.partitions = len(keys)
        detail.lag = sum(row["backlog"] for row in rows if row)
        detail.progress_lag_ms = max((row["progress_lag_ms"] for row in rows if row), default=0)
        away = [str(key.topic_name) for key, row in zip(keys, rows, strict=True) if not _runs(row)]
        if away:
            reasons = sorted({row["reason"] for row in rows if row and row["reason"]})
            self._wait_for(f"the replicators of {len(away)} partitions, such as {away[0]}")
            detail.problem = "; ".join(reasons[:3])
            return False
        self._wait_for("the replication of entries and progress")
        near = detail.progress_lag_ms <= PROGRESS_LAG_MS
        return detail.lag <= self.migration["max_lag"] and near

    async def _partitions(self) -> list[ActorKey]:
        """All partitions of the tenant."""
        found: list[ActorKey] = []
        for namespace in await self.catalog(Namespaces(self.migration["tenant"])):
            for topic in await self.catalog(Topics(namespace)):
                name, incarnation = TopicName.parse(topic["topic"]), topic["incarnation"]
                found += ActorKey.of_partitions(name, incarnation, topic["partitions"])
        return found

    # -- behind the fence ----------------------------------------------------------

    async def _finish(self) -> None:
        self._wait_for("the fence on every partition")
        keys = await self._partitions()
        fence = m.Fence(self.migration["number"])
        await each(keys, lambda key: self.actor_system.request(key, fence))
        await self._end_transactions(keys)
        self._wait_for("the copy of the newest metadata")
        await self.copy(True)
        self._wait_for("the replication of the last entries")
        await each(keys, self._drain)
        self._wait_for("the copy of subscription progress and producer state")
        await each(keys, self._hand_over)
        self._wait_for("the target's confirmation that it has everything")
        await self._check_arrived(keys)
        await each(keys, self._terminate)
        await self._advance(Phase.DECIDED)

    async def _end_transactions(self, keys: Sequence[ActorKey]) -> None:
        """Wait until no transaction is open there: each has ended or was aborted."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + GRACE_S
        backoff = self._backoff()
        while True:
            found = await each(
                keys, lambda key: self.actor_system.request(key, m.OpenTransactions())
            )
            ongoing = sorted({transaction for one in found for transaction in one})
            if not ongoing:
                return
            self._wait_for(f"the end of {len(ongoing)} transactions, such as {ongoing[0]}")
            if loop.time() >= patience:
                own = [one for one in ongoing if not is_remote(TransactionId(*one))]
                await each(own, self._abort)
                if len(own) < len(ongoing):
                    await each(keys, lambda key: self.actor_system.request(key, GiveUpForeign()))
            await backoff.wait()

    async def _abort(self, transaction: tuple[int, int]) -> None:
        coordinator, sequence = transaction
        key = ActorKey.of_coordinator(coordinator)
        try:
            await self.actor_system.request(key, coordinator_messages.Abort(sequence))
        except RemoteError as error:
            if error.kind != Reason.CONFLICT:  # it is committed, and its participants will be told
                raise

    async def _drain(self, key: ActorKey) -> None:
        """Wait until the replicator has confirmed everything. Raises `Unreachable` without
        progress."""
        loop = asyncio.get_running_loop()
        backoff, least, patience = self._backoff(), -1, 0.0
        cluster = self.migration["target"]
        while left := await self.actor_system.request(key, m.Remaining(cluster)):
            if least < 0 or left < least:
                least, patience = left, loop.time() + STUCK_S
            elif loop.time() >= patience:
                row = (await self.actor_system.request(key, Replication())).get(cluster, {})
                problem = row.get("reason") or "for an unknown reason"
                raise Unreachable(
                    f"the last {left} entries of {key.topic_name} aren't replicated: {problem}"
                )
            await backoff.wait()

    async def _hand_over(self, key: ActorKey) -> None:
        """Transfer subscription progress and producer state."""
        topic = str(key.topic_name)
        found = await self.actor_system.request(key, m.Extent())
        for name in found["subscriptions"]:
            await self._bring_progress(key, name)
        rows = await self.actor_system.request(key, ExportProducers())
        await self.target.adopt_producers(topic, rows)

    async def _terminate(self, key: ActorKey) -> None:
        """Terminate there the topics that are terminated here."""
        if (await self.actor_system.request(key, m.Extent()))["terminated"]:
            await self.target.terminate(str(key.topic_name))

    async def _bring_progress(self, key: ActorKey, subscription: str) -> None:
        """The whole progress of a subscription, by this cluster's positions."""
        # Under a name of its own, to leave the replicator's own export as it is.
        cluster = f"to {self.migration['target']}"
        since, more = None, True
        while more:
            asked = ExportProgress(subscription, cluster, since, peers=[])
            found = await self.actor_system.request(key, asked)
            since, more, parts = found["token"], found["more"], found["parts"]
            if self.migration["progress"] == Progress.SNAPSHOTS:
                parts = [_mark_delete_alone(part) for part in parts]
            await self.target.take_progress(str(key.topic_name), parts)

    async def _check_arrived(self, keys: Sequence[ActorKey]) -> None:
        """Check that the target has the newest entry of every partition. Raises `RemoteError`."""
        asked = m.Tail(self.migration["target"])
        tails = await each(keys, lambda key: self.actor_system.request(key, asked))
        wanted = {str(key.topic_name): tail for key, tail in zip(keys, tails, strict=True) if tail}
        for topic, reason in (await self.target.settle(list(wanted))).items():
            raise RemoteError(Reason.UNAVAILABLE, f"{topic} there: {reason}")
        newest = await self.target.newest(list(wanted))
        for topic, tail in wanted.items():
            there = newest.get(topic, [-1, -1])
            if list(there) < list(tail):
                problem = (
                    f"{topic} ends at {_shown(tail)} here, but at {_shown(there)} in the target"
                )
                raise RemoteError(Reason.UNAVAILABLE, problem)

    # -- once it is decided --------------------------------------------------------

    async def _open(self) -> None:
        self._wait_for("the target to become the tenant's home")
        try:
            await self.target.end(stays=True)
        except RemoteError:
            if (await self.target.look())["home"] is not None:
                raise  # otherwise a failover made the target the home: the result is the same
        await self._advance(Phase.SWITCHED)

    async def _clean_up(self) -> None:
        self._wait_for("the deletion of what is left here")
        for namespace in await self.catalog(Namespaces(self.migration["tenant"])):
            await unless_gone(delete_namespace(self.actor_system, namespace, force=True))
        await self._advance(Phase.DONE)
        self._wait_for("")

    # -- the way back --------------------------------------------------------------

    async def _roll_back(self) -> None:
        self._wait_for("the removal of the fence")
        unfence = m.Unfence(self.migration["number"])
        keys = await self._partitions()
        await each(keys, lambda key: self.actor_system.request(key, unfence))
        if self.former is not None:
            await asyncio.wait([self.former])  # it may still be creating resources there
        self._wait_for("the deletion of what was created there")
        if await self._is_expected():
            await self.target.end(stays=False, found=self.migration["found"])
        self._wait_for("the deletion of replicators")
        await each(keys, self._until_unread)
        await self._advance(Phase.ROLLED_BACK)
        self._wait_for("")

    async def _until_unread(self, key: ActorKey) -> None:
        """Wait until the replicator is deleted, so that a later one starts from the beginning."""
        name, backoff = replicator_subscription(self.migration["target"]), self._backoff()
        while name in (await self.actor_system.request(key, m.Extent()))["replicators"]:
            await backoff.wait()

    async def _is_expected(self) -> bool:
        """Whether the target still expects this migration: it neither ended before nor was taken
        over."""
        found = await self.target.look()
        incoming_migration = found["arrival"] or {}
        ours = incoming_migration.get("migration") == self.migration["number"]
        return bool(ours and incoming_migration["end"] == Ending.EXPECTED)


def _runs(row: Mapping[str, Any] | None) -> bool:
    return row is not None and bool(row["connected"])


def _shown(position: Sequence[int]) -> str:
    return ":".join(map(str, position))


def _mark_delete_alone(part: bytes) -> bytes:
    """The progress of a subscription as Pulsar's snapshots would give it."""
    found = SubscriptionProgress.FromString(part)
    for origin in found.origins:
        for name in ("acked", "partial", "delivered"):
            origin.ClearField(name)
    return found.SerializeToString()

"""Runs a replicator as long as its partition is connected."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from velaray.actors.runtime import Runtime
from velaray.events.ids import ActorKey
from velaray.geo.replication import replicator_messages as m
from velaray.geo.replication.messages import ExportedProgress, ExportProgress
from velaray.geo.replication.partition_activation import PartitionActivation
from velaray.geo.replication.replicator import Replicator
from velaray.geo.replication.replicator_ends import Pushing
from velaray.geo.replication.replicator_intake import Permits
from velaray.geo.replication.replicator_settings import Remote
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.topology.actor_system import FIRST_BACKOFF_S, ActorSystem
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RpcConnection, RpcConnectionClosed

UNLOADED_S = 3.0
"""Delay before a partition that stopped in good order is activated again for work that is left:
the whole cluster may be stopping."""


class Subscription(Protocol):
    """What the control needs of the actor of the replicator's subscription."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[Any]

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the actor."""
        ...


class ReplicatorControl:
    """The controlling connection: the partition's settings and announcements, and the replicator's
    requests and state."""

    def __init__(self, subscription: Subscription, permits: Permits) -> None:
        """``permits`` returns how many permits the dispatcher has of the replicator."""
        self._subscription = subscription
        self._permits = permits
        self._activation = PartitionActivation(
            subscription, lambda: self._rpc_connection is not None
        )
        self._rpc_connection: RpcConnection | None = None
        #: The replicator that runs, if any.
        self.replicator: Replicator | None = None
        self._transactions: Transactions | None = None
        self._running: asyncio.Task[None] | None = None
        self._told_state: m.ReplicatorState | None = None
        self._lives = 0

    @property
    def active(self) -> bool:
        """Whether the partition is to be activated."""
        return self._activation.running

    def controls(self, rpc_connection: RpcConnection) -> bool:
        """Whether this is the controlling connection."""
        return rpc_connection is self._rpc_connection

    def take(self, rpc_connection: RpcConnection, remote: Remote) -> None:
        """Make this the controlling connection, and replicate with these settings."""
        if self._rpc_connection is not None and self._rpc_connection is not rpc_connection:
            former, self._rpc_connection = self._rpc_connection, None
            former.close()
        self._activation.cancel()
        self._rpc_connection = rpc_connection
        self._told_state = None
        if self.replicator is not None:
            self.replicator.change(remote)
            self._tell()
            return
        self._lives += 1
        subscription = self._subscription
        transactions = Transactions(self._ask, self._cursor, self._on_transactions)
        replicator = Replicator(
            subscription.actor_system,
            subscription.key,
            subscription.runtime.journal.epoch << 16 | self._lives,
            Pushing(subscription.actor_system, subscription.key, remote),
            self._permits,
            self._export,
            self._tell,
            lambda: int(subscription.runtime.state.cursor.acked_before),
            transactions,
        )
        self.replicator, self._transactions = replicator, transactions
        self._running = subscription.spawn(replicator.run())

    async def _export(self, name: str, since: Any) -> ExportedProgress:
        """Request new progress of a subscription from the partition."""
        if self.replicator is None:
            raise RpcConnectionClosed("the partition isn't connected")
        remote = self.replicator.remote
        # To get everything, entries from other clusters are sent as if they had been published
        # here.
        peers: list[str] | None = [] if remote.everything else None
        return await self._ask(ExportProgress(name, remote.name, since, peers))

    async def _ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send the partition a request."""
        if self._rpc_connection is None:
            raise RpcConnectionClosed("the partition isn't connected")
        return await self._rpc_connection.ask(request)

    async def _cursor(self) -> int:
        return int(await self._subscription.runtime.read(lambda state: state.cursor.acked_before))

    def _on_transactions(self) -> None:
        if self.replicator is not None:
            self.replicator.on_side_work()

    def _tell(self) -> None:
        replicator = self.replicator
        state = m.ReplicatorState(False, False)
        if replicator is not None:
            state = m.ReplicatorState(replicator.quiet, replicator.connected)
        if self._rpc_connection is not None and state != self._told_state:
            self._told_state = state
            self._rpc_connection.tell(state)

    def receive(self, notice: Message) -> None:
        """Handle a notice of the controlling connection."""
        replicator = self.replicator
        match notice:
            case m.Rest():
                self.lose(lost=False)
            case m.ProgressNews(changed, gone) if replicator is not None:
                replicator.side_work.progress.change(changed, gone)
            case m.SendMarker(key, kind, payload, behind) if replicator is not None:
                replicator.side_work.markers.put(key, kind, payload, behind)
            case m.TransactionNews() if self._transactions is not None:
                self._transactions.news()

    def lose(self, *, lost: bool) -> None:
        """Stop replicating. Activate the partition again if the connection is ``lost``, or if work
        is left."""
        replicator, self.replicator = self.replicator, None
        running, self._running = self._running, None
        self._rpc_connection = None
        if running is not None:
            running.cancel()
        if lost or (replicator is not None and not replicator.finished):
            self._activation.begin(FIRST_BACKOFF_S if lost else UNLOADED_S)

    async def stop(self) -> None:
        """Stop, after acknowledging what the other cluster confirmed."""
        self._activation.close()
        running = self._running
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    def abort(self) -> None:
        """Cut the replicator's connections, like a crash."""
        self._activation.close()
        if self.replicator is not None:
            self.replicator.abort()

"""Actor of a replicator: a subscription, the task that reads it, and the sender to a cluster.

The partition (`velaray.geo.replication.replication_keeper`) opens an RPC connection and requests
``replicate``. The replicator runs as long as that connection is open. The notice ``rest``
announces that the partition is about to be passivated. If the connection breaks without it, or
work is left, the replicator activates the partition again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.journaled_actor import WasDeleted
from velaray.broker.subscription.messages import GetStats
from velaray.broker.subscription.subscription_actor import SubscriptionActor
from velaray.client.retry import Backoff
from velaray.events.ids import ActorKey
from velaray.geo.replication.replicator import (
    Replicator,
)
from velaray.geo.replication.replicator_ends import Pushing
from velaray.geo.replication.replicator_settings import Remote
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.topology.actor_system import FIRST_BACKOFF_S, ActorSystem
from velaray.topology.rpc import RemoteError, RpcConnection, RpcConnectionClosed
from velaray.topology.transient import NO_ANSWER
from velaray.wire.replication import Marker

UNLOADED_S = 3.0
"""Delay before a partition that stopped in good order is activated again for work that is left:
the whole cluster may be stopping."""


class ReplicatorActor(SubscriptionActor):
    """A subscription actor that replicates while its partition is connected."""

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system)
        self._control: RpcConnection | None = None
        self._replicator: Replicator | None = None
        self._transactions: Transactions | None = None
        self._running: asyncio.Task[None] | None = None
        self._activating: asyncio.Task[None] | None = None
        self._told_state: list[bool] | None = None
        self._lives = 0

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        """``replicate`` makes this the controlling connection and sets the settings; ``status``
        is open to every caller."""
        if method == "replicate":
            epoch, told = args
            self._take_control(rpc_connection, epoch, Remote.of(told))
            return None
        return await super().on_request(rpc_connection, method, args)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """``status``: the state of the replicator; None if it isn't running. ``describe`` includes
        it."""
        status = None if self._replicator is None else self._replicator.status()
        if method == "status":
            return status
        answer = await super().call(method, args)
        return {**answer, "replicator": status} if method == "describe" else answer

    def _take_control(self, rpc_connection: RpcConnection, epoch: int, remote: Remote) -> None:
        self._check_epoch(epoch)
        if self._control is not None and self._control is not rpc_connection:
            former, self._control = self._control, None
            former.close()
        if self._activating is not None:
            self._activating.cancel()
            self._activating = None
        self._control = rpc_connection
        self._told_state = None
        if self._replicator is not None:
            self._replicator.change(remote)
            self._tell()
            return
        self._lives += 1
        ends = Pushing(self.actor_system, self.key, remote)
        transactions = Transactions(self._ask, self._cursor, self._on_transactions)
        replicator = Replicator(
            self.actor_system,
            self.key,
            self.runtime.journal.epoch << 16 | self._lives,
            ends,
            self._permits,
            self._export,
            self._tell,
            lambda: int(self.runtime.state.cursor.acked_before),
            transactions,
        )
        self._replicator, self._transactions = replicator, transactions
        self._running = self.spawn(replicator.run())

    async def _permits(self) -> int | None:
        """How many permits the dispatcher has of the replicator; None if it isn't connected."""
        if self._dispatcher is None:
            return None
        stats = await self._dispatcher.on_request(GetStats(0))
        return next((each["permits"] for each in stats["consumers"]), None)

    async def _export(self, name: str, since: Any) -> dict[str, Any]:
        """Request new progress of a subscription from the partition."""
        if self._control is None or self._replicator is None:
            raise RpcConnectionClosed("the partition isn't connected")
        remote = self._replicator.remote
        args = {
            "subscription": name,
            "cluster": remote.name,
            "since": since,
            # Entries from other clusters are forwarded as if they had been published here.
            "peers": [] if remote.everything else None,
        }
        found: dict[str, Any] = await self._control.request("export_progress", args)
        return found

    async def _ask(self, method: str, args: dict[str, Any]) -> Any:
        """Send the partition a request about transactions."""
        if self._control is None:
            raise RpcConnectionClosed("the partition isn't connected")
        return await self._control.request(method, args)

    async def _cursor(self) -> int:
        return int(await self.runtime.read(lambda state: state.cursor.acked_before))

    def _on_transactions(self) -> None:
        if self._replicator is not None:
            self._replicator.on_side_work()

    def _tell(self) -> None:
        replicator = self._replicator
        state = [False, False] if replicator is None else [replicator.quiet, replicator.connected]
        if self._control is not None and state != self._told_state:
            self._told_state = state
            self._control.notify("state", state)

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        """``rest``, ``progress``, ``marker`` and ``transactions`` come over the controlling
        connection; other notices over the partition's channel."""
        if rpc_connection is not self._control:
            super().on_notice(rpc_connection, method, args)
        elif method == "rest":
            self._lose_control()
        elif method == "progress" and self._replicator is not None:
            self._replicator.side_work.progress.change(args["changed"], args["gone"])
        elif method == "marker" and self._replicator is not None:
            key, kind, payload, behind = args
            self._replicator.side_work.markers.put(key, Marker(kind), payload, behind)
        elif method == "transactions" and self._transactions is not None:
            self._transactions.news()

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Stop replicating, and activate the partition again if work is left."""
        super().on_rpc_closed(rpc_connection)
        if rpc_connection is self._control:
            self._lose_control(lost=True)

    def _lose_control(self, lost: bool = False) -> None:
        replicator, self._replicator = self._replicator, None
        running, self._running = self._running, None
        self._control = None
        wake = lost or (replicator is not None and not replicator.finished)
        if running is not None:
            running.cancel()
        activating = self._activating is not None and not self._activating.done()
        if wake and not self._ending and not activating:
            first = FIRST_BACKOFF_S if lost else UNLOADED_S
            self._activating = self.spawn(self._wake(self.actor_system.backoff(first)))

    async def _wake(self, backoff: Backoff) -> None:
        """Activate the partition until it reconnects or its topic is deleted."""
        partition = ActorKey.of_partition(self.key.topic_name, self.key.topic_incarnation)
        while self._control is None:
            await backoff.wait()
            try:
                await self.actor_system.ask(partition, "describe", {})
            except WasDeleted:
                return
            except RemoteError as error:
                if error.kind == Reason.NOT_FOUND:
                    return
            except NO_ANSWER:
                continue

    async def stop(self) -> None:
        """Stop, after acknowledging what the other cluster confirmed."""
        self._ending = True
        running = self._running
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        await super().stop()

    def abort(self) -> None:
        """Stop at once, like a crash."""
        if self._replicator is not None:
            self._replicator.abort()
        super().abort()

    def idle(self) -> bool:
        """Whether there is no connection and no partition to activate."""
        activating = self._activating is not None and not self._activating.done()
        return super().idle() and not activating

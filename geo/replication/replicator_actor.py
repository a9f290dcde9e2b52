"""Actor of a replicator: a subscription, the task that reads it, and the sender to a cluster.

The partition (`velaray.geo.replication.replication_keeper`) opens an RPC connection and requests
`Replicate`. The replicator runs as long as that connection is open. The notice `Rest` announces
that the partition is about to be passivated. If the connection breaks without it, or work is left,
the replicator activates the partition again.
"""

from __future__ import annotations

from typing import Any

from velaray.broker.actor_messages import Describe
from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.messages import GetStats
from velaray.broker.subscription.subscription_actor import SubscriptionActor
from velaray.events.ids import ActorKey
from velaray.geo.replication import replicator_messages as m
from velaray.geo.replication.replicator_control import ReplicatorControl
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RpcConnection


class ReplicatorActor(SubscriptionActor):
    """A subscription actor that replicates while its partition is connected."""

    accepts = m.TO_REPLICATOR

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system)
        #: Runs the replicator.
        self.control = ReplicatorControl(self, lambda: _permits(self._dispatcher))

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a typed request. `Replicate` makes this the controlling connection and sets the
        settings."""
        match request:
            case m.Replicate():
                self._check_epoch(request.epoch)
                self.control.take(rpc_connection, request.remote)
                return None
            case m.Status():
                return await self.handle(request)
        return await super().answer(rpc_connection, request)

    async def handle(self, request: Message) -> Any:
        """Answer `Status`, and the requests that every actor answers. `Describe` includes the
        status."""
        replicator = self.control.replicator
        status = None if replicator is None else replicator.status()
        if isinstance(request, m.Status):
            return status
        answer = await super().handle(request)
        return {**answer, "replicator": status} if isinstance(request, Describe) else answer

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Handle a notice: those of the controlling connection are for the replicator, those of a
        subscription for the subscription."""
        if not isinstance(notice, m.NOTICES):
            super().receive(rpc_connection, notice)
        elif self.control.controls(rpc_connection):
            self.control.receive(notice)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Stop replicating, and activate the partition again."""
        super().on_rpc_closed(rpc_connection)
        if self.control.controls(rpc_connection):
            self.control.lose(lost=True)

    async def stop(self) -> None:
        """Stop, after acknowledging what the other cluster confirmed."""
        self._dead_letters.close()
        await self.control.stop()
        await super().stop()

    def abort(self) -> None:
        """Stop at once, like a crash."""
        self.control.abort()
        super().abort()

    def idle(self) -> bool:
        """Whether there is no connection and no partition to activate."""
        return super().idle() and not self.control.active


async def _permits(dispatcher: SubscriptionDispatcher | None) -> int | None:
    """The replicator's permits at the dispatcher; None if it isn't connected."""
    if dispatcher is None:
        return None
    stats = await dispatcher.on_request(GetStats(0))
    return next((each["permits"] for each in stats["consumers"]), None)

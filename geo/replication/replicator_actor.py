"""Actor of a replicator: a subscription, the task that reads it, and the sender to a cluster.

The partition (`velaray.geo.replication.replication_keeper`) opens an RPC connection and requests
``replicate``. The replicator runs as long as that connection is open. The notice ``rest``
announces that the partition is about to be passivated. If the connection breaks without it, or
work is left, the replicator activates the partition again.
"""

from __future__ import annotations

from typing import Any

from velaray.broker.subscription.dispatcher import SubscriptionDispatcher
from velaray.broker.subscription.messages import GetStats
from velaray.broker.subscription.subscription_actor import SubscriptionActor
from velaray.events.ids import ActorKey
from velaray.geo.replication.replicator_control import ReplicatorControl
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RpcConnection


class ReplicatorActor(SubscriptionActor):
    """A subscription actor that replicates while its partition is connected."""

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system)
        #: Runs the replicator.
        self.control = ReplicatorControl(self, lambda: _permits(self._dispatcher))

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        """``replicate`` makes this the controlling connection and sets the settings; ``status``
        is open to every caller."""
        if method == "replicate":
            epoch, told = args
            self._check_epoch(epoch)
            self.control.take(rpc_connection, Remote.of(told))
            return None
        return await super().on_request(rpc_connection, method, args)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """``status``: the state of the replicator; None if it isn't running. ``describe`` includes
        it."""
        replicator = self.control.replicator
        status = None if replicator is None else replicator.status()
        if method == "status":
            return status
        answer = await super().call(method, args)
        return {**answer, "replicator": status} if method == "describe" else answer

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        """Notices of the controlling connection are for the replicator, other notices for the
        subscription."""
        if self.control.controls(rpc_connection):
            self.control.on_notice(method, args)
        else:
            super().on_notice(rpc_connection, method, args)

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

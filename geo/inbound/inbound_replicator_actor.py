"""Inbound replicator: copies what another cluster publishes to a partition.

It has no journal. Its subscription in the other cluster holds its position, and the partition
drops duplicates. The partition (`velaray.geo.inbound.inbound_keeper`) opens an RPC connection and
requests `Pull`. The replicator runs as long as that connection is open.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe, Ledgers, Metrics, request_named
from velaray.events.ids import ActorKey
from velaray.geo.inbound.inbound_ends import Pulling
from velaray.geo.inbound.messages import TO_INBOUND_REPLICATOR, Pull
from velaray.geo.inbound.subscription_progress import PulledSubscriptions
from velaray.geo.replication.messages import ExportedProgress
from velaray.geo.replication.remote_admin import RemoteAdmin
from velaray.geo.replication.replicator import Replicator
from velaray.geo.replication.replicator_messages import Status
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.actor_system import ActorBase, ActorSystem, Address
from velaray.topology.messages import Message, Request
from velaray.topology.metrics import Labels, Sample
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.rpc_server import RpcServer

LIVES = 1 << 12
"""How many starts of an inbound replicator one activation of a partition can distinguish."""


class _Work:
    """A running replicator, and the task that follows the subscriptions."""

    def __init__(
        self, actor_system: ActorSystem, key: ActorKey, epoch: int, remote: Remote
    ) -> None:
        self.remote = remote
        self._ends = Pulling(actor_system, key, remote)
        self.replicator = Replicator(
            actor_system, key, epoch, self._ends, self._permits, self._export, lambda: None
        )
        self.subscriptions = PulledSubscriptions(
            RemoteAdmin(remote),
            key.topic_name,
            self._ends.subscription,
            self.replicator.side_work.progress,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.replicator.run())
            group.create_task(self.subscriptions.run())

    async def _permits(self) -> int | None:
        return await self.subscriptions.permits()

    async def _export(self, name: str, since: Any) -> ExportedProgress:
        return await self.subscriptions.export(name, since)

    def status(self) -> dict[str, Any]:
        """The state for operators, and for ending the import."""
        found = self.subscriptions
        status = self.replicator.status()
        return {
            **status,
            "quiet": self.replicator.quiet,
            "backlog": found.backlog,
            "rounds": found.rounds,
            "progress_reason": found.reason or status["progress_reason"],
        }


class InboundReplicatorActor(ActorBase):
    """Replicates while its partition is connected."""

    accepts = TO_INBOUND_REPLICATOR

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        self.key = key
        self.actor_system = actor_system
        self.rpc_server = RpcServer(self, key.text(), actor_system.host_of(key).rpc)
        self._control: RpcConnection | None = None
        self._epoch = 0
        self._work: _Work | None = None
        self._running: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    # -- life ------------------------------------------------------------------------

    async def start(self) -> Address:
        """Listen for the partition."""
        host = self.actor_system.config.host
        return Address(host, 0, await self.rpc_server.open(host))

    def idle(self) -> bool:
        """Whether no partition and no caller is connected."""
        return not self.rpc_server.connections

    async def stop(self) -> None:
        """Stop, after acknowledging there what is stored here."""
        self.rpc_server.stop()
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    def abort(self) -> None:
        """Stop at once, like a crash."""
        if self._work is not None:
            self._work.replicator.abort()
        self.rpc_server.abort()
        self._end()

    # -- the partition --------------------------------------------------------------------

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a request by name. Raises what `request_named` and `handle` raise."""
        return await self.handle(request_named(self.key, self.accepts, method, args))

    async def handle(self, request: Message) -> Any:
        """Answer `Status` (None if nothing runs), and the requests that every actor answers."""
        match request:
            case Status():
                return None if self._work is None else self._work.status()
            case Describe():
                return {"key": self.key.text()}
            case Metrics():
                return [] if self._work is None else [list(each) for each in self._samples()]
            case Ledgers():
                return []  # it has none
        name = type(request).__name__
        raise RemoteError(Reason.NOT_FOUND, f"a {self.key.kind} answers no {name} here")

    def _samples(self) -> list[Sample]:
        assert self._work is not None
        found = self._work.status()
        oldest_ms = found["oldest_ms"]
        late_ms = self.actor_system.clock_ms() - oldest_ms if oldest_ms else 0
        values = {
            "velaray_pull_connected": int(found["connected"]),
            "velaray_pull_backlog": found["backlog"],
            "velaray_pull_delay_seconds": max(late_ms, 0) / 1000,
            "velaray_pull_rate": found["rate_out"],
            "velaray_pull_throughput": found["throughput_out"],
            "velaray_pull_entries_total": found["entries"],
            "velaray_pull_duplicates_total": found["duplicates"],
            "velaray_pull_passed_over_total": sum(found["passed_over"].values()),
        }
        own = Labels(self.actor_system.config.name, self.key).of_topic()
        labels = {**own, "remote_cluster": self.key.cluster}
        known = {name: value for name, value in values.items() if value is not None}
        return [Sample(name, labels, value) for name, value in known.items()]

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a typed request. `Pull` makes this the controlling connection and sets the
        settings."""
        if not isinstance(request, Pull):
            return await self.handle(request)
        number = request.epoch * LIVES + request.life % LIVES
        self._take_control(rpc_connection, request.epoch, number, request.remote)
        return None

    def _take_control(
        self, rpc_connection: RpcConnection, epoch: int, number: int, remote: Remote
    ) -> None:
        if epoch < self._epoch:
            raise RemoteError(Reason.FENCED, f"a newer activation of the partition uses {self.key}")
        self._epoch = epoch
        if self._control is not None and self._control is not rpc_connection:
            former, self._control = self._control, None
            former.close()
        self._control = rpc_connection
        if self._work is not None and self._work.remote == remote:
            return
        self._end()
        self._work = work = _Work(self.actor_system, self.key, number, remote)
        self._running = asyncio.ensure_future(work.run())
        self._running.add_done_callback(self._ended)

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Ignore notices: none are sent."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Stop replicating when the controlling connection closes. The partition reconnects."""
        if rpc_connection is self._control:
            self._control = None
            self._end()

    def _end(self) -> None:
        running, self._running, self._work = self._running, None, None
        if running is not None and not running.done():
            self._ending.add(running)
            running.cancel()

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._ending.discard(running)
        with contextlib.suppress(asyncio.CancelledError):
            error = running.exception()
            if error is not None:
                self.actor_system.fatal(self, error)

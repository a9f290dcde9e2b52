"""A whole cluster in one process and one event loop, without Ray.

The same actors, runtimes, journals, RPC connections and wire sessions run as under Ray; only
activation differs. Tests and simulation use it, and may kill any actor between two turns of the
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from velaray.actors.machine import Reason
from velaray.actors.runtime import Stopped
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import JournalError, StorageFull
from velaray.journal.store import LedgerStore
from velaray.topology.actor_system import (
    Activation,
    ActorSystem,
    Address,
    MakeActor,
    Unreachable,
    check_survey,
    whole,
)
from velaray.topology.config import ClusterConfig
from velaray.topology.host import ActorHost
from velaray.topology.hosted_actors import HostedActors, IdleActors
from velaray.topology.messages import ReplyT, Request, method_of
from velaray.topology.rpc import RemoteError
from velaray.topology.rpc_server import RpcListener


class InProcessActorSystem(ActorSystem):
    """Activates actors in this process, each in a host of its own or in shared hosts."""

    def __init__(
        self, config: ClusterConfig, store: LedgerStore, make_actor: MakeActor, hosts: int = 0
    ) -> None:
        """``hosts`` is the number of shared hosts; 0: each actor has a host of its own."""
        super().__init__(config, store)
        self._hosted = HostedActors(lambda key: make_actor(key, self))
        self.actors = self._hosted.actors
        self.shared_hosts = [ActorHost(config) for _ in range(hosts)]
        self.isolates = not hosts
        self.failures: list[tuple[ActorKey, BaseException]] = []
        self._hosts: dict[ActorKey, ActorHost] = {}
        self._idle = IdleActors(self._hosted)
        self._stopping: tuple[bool, bool, ActorKind] | None = None

    async def address(self, key: ActorKey) -> Address:
        """Start the actor unless it runs.

        Raises what `HostedActors.address` raises, but `RemoteError` (STORAGE_FULL) if there is no
        room for its journal; `Unreachable` for an actor that `stop` won't stop any more.
        """
        if self._is_late(key):
            raise Unreachable(f"{key} isn't started: the cluster is stopping")
        try:
            return await self._hosted.address(key)
        except StorageFull as error:
            raise RemoteError(Reason.STORAGE_FULL, error.told) from error

    def host_of(self, key: ActorKey) -> ActorHost:
        """The actor's own host, or the shared one of all actors of its topic."""
        if self.shared_hosts:
            return self.shared_hosts[self._place(key)]
        return self._hosts.setdefault(key, ActorHost(self.config))

    def _place(self, key: ActorKey) -> int:
        topic = key.text() if not key.topic else str(key.topic_name)
        return crc32(topic.encode()) % len(self.shared_hosts)

    def listener_at(self, address: Address) -> RpcListener | None:
        """The listener of a shared host."""
        for host in self.shared_hosts:
            if host.rpc.port == address.rpc_port:
                return host.rpc
        return None

    def kill_host(self, number: int) -> None:
        """End a shared host as SIGKILL would, with all its actors."""
        self.shared_hosts[number].abort()
        for key in [key for key in self.actors if self._place(key) == number]:
            self.kill(key)
        self.shared_hosts[number] = ActorHost(self.config)

    async def survey(
        self,
        request: type[Request[ReplyT]],
        timeout_s: float,
        keep: Callable[[ReplyT], ReplyT] = whole,
    ) -> dict[ActorKey, ReplyT | None]:
        """Ask the actors one after the other."""
        check_survey(method_of(request))
        found: dict[ActorKey, ReplyT | None] = dict.fromkeys(self.actors)
        return found | await self._hosted.answers(method_of(request), timeout_s, keep)

    def fatal(self, actor: Activation, error: BaseException) -> None:
        """Record the failure, and end the actor as the end of its process would."""
        self.failures.append((actor.key, error))
        if self.actors.get(actor.key) is actor:
            self.kill(actor.key)

    def kill(self, key: ActorKey) -> None:
        """End an actor as SIGKILL would, or, in a shared host, as a failure of its own would. The
        next use activates it again."""
        host = self._hosts.pop(key, None)
        if host is not None:
            host.abort()
        self._hosted.kill(key)

    async def dismiss(self, key: ActorKey) -> None:
        """Stop an actor in good order; the next use activates it again."""
        await self._hosted.started(key)
        host = self._hosts.pop(key, None)
        try:
            await self._hosted.dismiss(key)
        finally:
            if host is not None:
                host.stop()

    async def passivate_idle(self, limit_s: float) -> None:
        """Stop the actors that were idle for ``limit_s`` seconds (see `IdleActors`)."""
        for key in self._idle.due(limit_s):
            actor = self.actors.get(key)
            if actor is None:  # it has ended meanwhile
                continue
            try:
                await self.dismiss(key)
            except (JournalError, Stopped) as error:
                self.fatal(actor, error)

    async def stop(self) -> None:
        """Stop every actor. Garbage collectors, which are clients, come first; then subscriptions,
        partitions and the catalog; then inbound replicators, which partitions would activate
        again. Actors of a kind whose turn has come aren't started any more: a partition, whose turn
        comes later, would start its replicators for ever."""
        self.drop_rpc()
        while self.actors:  # a stopping actor may activate a garbage collector again
            key = max(self.actors, key=_stops_first)
            if key.kind is not ActorKind.GARBAGE_COLLECTOR:
                self._stopping = _stops_first(key)
            await self.dismiss(key)
        self._stopping = None
        for host in self.shared_hosts:
            host.stop()

    def _is_late(self, key: ActorKey) -> bool:
        if self._stopping is None or key.kind is ActorKind.GARBAGE_COLLECTOR:
            return False
        return _stops_first(key) >= self._stopping and not self._hosted.has_begun(key)


def _stops_first(key: ActorKey) -> tuple[bool, bool, ActorKind]:
    return (
        key.kind is ActorKind.GARBAGE_COLLECTOR,
        key.kind is not ActorKind.INBOUND_REPLICATOR,
        key.kind,
    )

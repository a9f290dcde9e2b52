"""A cluster whose actors share hosts: several actors live in one simulated process.

The hosts run the product's code: `PlacedActors`, `HostedActors`, `ActorHost`, `PlacementTable`.
Each activation has a name of its own, in whose context its callbacks run
(`tests.sim.hosts_contexts`), so that the history and the checkers can tell it from its neighbours.
The simulator ends only whole hosts, as SIGKILL does. When an actor of a host ends, the product must
end what belongs to it; `tests.sim.hosts_watch` reports what runs, writes or answers afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.cluster import (
    Activation,
    SimCluster,
    SimulatedActorSystem,
    StoreHook,
)
from tests.sim.history import History
from tests.sim.hosts_directory import SimDirectory
from tests.sim.hosts_store import HostStore
from tests.sim.hosts_watch import Watch
from tests.sim.loop import HARNESS, NODE, SimLoop, context_of, current_node, within
from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey
from velaray.journal.errors import StorageFull, SyncFailed
from velaray.journal.store import LedgerStore
from velaray.topology.actor_system import ActorBase, Address, Unreachable
from velaray.topology.placed_actors import Misplaced, PlacedActors
from velaray.topology.placement import group_of, host_names
from velaray.topology.rpc import RemoteError, RpcConnection

WATCH_S = 1.0


class SimHost(Activation):
    """A process that runs actors."""

    def __init__(self, name: str, place: str, cluster: HostedCluster) -> None:
        super().__init__(name, None, cluster)
        self.place = place
        """The name of the host, which the next process has as well."""
        self.system: PlacedActorSystem


class HostedActivation(Activation):
    """One activation of an actor in a host."""

    def __init__(self, name: str, key: ActorKey, cluster: HostedCluster, host: SimHost) -> None:
        self.host = host
        super().__init__(name, key, cluster)
        self.stopping = False
        """Whether the product has begun to stop it in good order."""
        self.condemned = False
        """Whether there is a reason to abort it."""
        self.ended: int | None = None
        """The turn of the loop in which it ended."""
        self.finishing = False
        """Whether its journal was starting a ledger when it ended."""
        self.operations = 0
        """Operations of the store that are under way."""

    @property
    def process(self) -> SimHost:
        """Its host."""
        return self.host

    @property
    def dead(self) -> bool:
        """Whether its host was killed."""
        return self.host.dead

    @dead.setter
    def dead(self, value: bool) -> None:
        assert not value, "the simulator ends only hosts"


class HostHook(StoreHook):
    """A host's store knows by the context which actor uses it."""

    def _actor(self) -> Activation:
        node = current_node()
        return node if isinstance(node, HostedActivation) else self._node


class PlacedActorSystem(SimulatedActorSystem):
    """A process's way to the actors of the hosts, which may be its own actors."""

    def __init__(self, cluster: HostedCluster, node: Activation, host: str = "") -> None:
        super().__init__(cluster, node)
        self._hosts = cluster
        self.placed = PlacedActors(host, self._make, cluster.directory, cluster, self.fatal)
        self.isolates = False

    def _make_store(self, cluster: SimCluster, node: Activation) -> LedgerStore:
        hook, base = HostHook(cluster, node), cluster.config.number_base
        return HostStore(cluster.disk, hook=hook, seed=cluster.stores, number_base=base)

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor in its host, and return its address."""
        with within(self.node):
            return await self.placed.address(key)

    async def _open_shared_link(self, key: ActorKey) -> RpcConnection:
        with within(self.node):  # the link belongs to no actor
            return await super()._open_shared_link(key)

    def _make(self, key: ActorKey) -> ActorBase:
        """The actor, in a context of its own from now on."""
        assert isinstance(self.node, SimHost)
        node = self._hosts.begin(key, self.node)
        NODE.set(node)
        actor = self._hosts.make_actor(node, self)
        self._hosts.watch.made(node, actor)
        return actor

    def fatal(self, actor: Any, error: BaseException) -> None:
        """End an actor and no other, as `SharedActorSystem` does."""
        self._hosts.note_failure(self._hosts.watch.condemn(actor), error)
        self.placed.hosted.fail(actor)


class HostedCluster(SimCluster):
    """Hosts, a directory, and faults of them."""

    watch: Watch
    directory: SimDirectory

    def __init__(self, loop: SimLoop, seed: int, history: History, relaxed: bool = False) -> None:
        rng = Random(f"{seed}/hosts")
        count = rng.randint(2, 4)
        self.places = host_names(count)
        self.hosts: dict[str, SimHost] = {}
        self._idle_s = rng.choice([2.0, 6.0, 300.0])
        self.watch = Watch(loop, history)
        self.directory = SimDirectory(self, count)
        super().__init__(loop, seed, history, relaxed)
        self.config = replace(self.config, hosts=count)
        for place in self.places:
            self._open_host(place)

    def _make_system(self, node: Activation) -> SimulatedActorSystem:
        return PlacedActorSystem(self, node)

    def _make_host_system(self, host: SimHost) -> PlacedActorSystem:
        return PlacedActorSystem(self, host, host.place)

    # -- hosts -----------------------------------------------------------------------

    def _open_host(self, place: str) -> None:
        if self.down:
            return
        self._activations += 1
        host = SimHost(f"{place}#{self._activations}", place, self)
        self.processes[host] = None
        self.hosts[place] = host
        self.history.add("host", node=host.name)
        host.system = self._make_host_system(host)
        for work in (host.system.placed.recover(), self._passivate_idle(host)):
            task = self.loop.create_task(work, context=context_of(host))
            task.add_done_callback(self.watch.task_of_host_ended)

    async def _passivate_idle(self, host: SimHost) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            await host.system.placed.passivate_idle(self._idle_s)

    async def address(self, host: str, key: ActorKey) -> Address:  # type: ignore[override]
        """Call a host, which starts the actor unless it runs: `OtherHosts`."""
        await asyncio.sleep(self.rng.random() * 0.005)
        node = self.hosts.get(host)
        if self.down or node is None or node.dead:
            raise Unreachable(f"{key}: {host} is restarting")
        work = self.loop.create_task(node.system.placed.start(key), context=context_of(node))
        return await self._result(node, work, str(key))

    async def _result(self, node: SimHost, work: asyncio.Task[Any], what: str) -> Any:
        while not work.done():
            if node.dead:
                raise Unreachable(f"{what}: {node} died meanwhile")
            await asyncio.wait([work], timeout=0.05)
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, StorageFull):
            raise RemoteError(Reason.STORAGE_FULL, error.told) from error
        if isinstance(error, RemoteError | Misplaced):
            raise error
        raise Unreachable(f"{what}: {error}") from error

    def begin(self, key: ActorKey, host: SimHost) -> HostedActivation:
        """A new activation of an actor."""
        self._activations += 1
        node = HostedActivation(f"{key.text()}#{self._activations}", key, self, host)
        self.history.add("activate", node=node.name, host=host.name)
        self.watch.begun(node, self.directory.answered(host.place, key))
        self.actors[key] = node
        return node

    # -- the ends of hosts and actors ------------------------------------------------

    def kill(self, node: Activation, reset: bool | None = None) -> None:
        """End the process as SIGKILL would: of an actor, its whole host."""
        process = node.process
        assert isinstance(process, Activation)
        if process.dead:
            return
        super().kill(process, reset)
        if isinstance(process, SimHost):
            self.watch.killed(process)
            for key in [key for key, each in self.actors.items() if each.process is process]:
                del self.actors[key]
            delay = self.rng.random() * 2
            self.loop.call_later(delay, self._open_host, process.place, context=context_of(HARNESS))

    def lose(self, node: Activation) -> None:
        """End a process with its machine."""
        self.network.vanish(node.process)
        self.kill(node)

    def start_again(self) -> None:
        """The cluster may be used again."""
        super().start_again()
        for place in self.places:
            if self.hosts[place].dead:
                self._open_host(place)

    def live(self, kind: str = "") -> list[Activation]:
        """Hosts and the proxy, or the running actors of one kind."""
        if not kind:
            return super().live()
        return [node for node in self.running() if node.is_of(kind)]

    def running(self) -> list[HostedActivation]:
        """The activations that have started and haven't ended."""
        return [node for node in self.watch.live.values() if node.actor is not None]

    # -- what operators and faults do ------------------------------------------------

    def forget(self, node: Activation) -> None:
        """Place a running actor's group in another host without telling the one that runs it."""
        if isinstance(node, HostedActivation) and node.ended is None:
            self.history.add("forgotten", node=node.name)
            self.directory.move(group_of(node.key or ActorKey.catalog()))

    def fail(self, node: Activation) -> None:
        """Let one actor fail as after a failed sync."""
        runtime = getattr(node.actor, "runtime", None)
        paused = node.process.paused_until > 0
        if isinstance(node, HostedActivation) and runtime is not None and not paused:
            self.history.add("to fail", node=node.name)
            error = SyncFailed(node.name, "simulated failure of one actor")
            self.note_losses([node.key.text()] if node.key else [])
            self.loop.call_soon(runtime._fail, error, context=context_of(node))

    async def move(self, group: str, to: str, delay_s: float) -> None:
        """Move a group: the directory first, then, perhaps late, the former host."""
        before, after = self.directory.move(group, to)
        self.history.add("move", group=group, before=before, after=after)
        await asyncio.sleep(delay_s)
        await self.hand_over(before, group)

    async def hand_over(self, place: str, group: str) -> None:
        """Have a host stop the actors of a group."""
        node = self.hosts[place]
        if not node.dead:
            work = node.system.placed.hand_over(group)
            task = self.loop.create_task(work, context=context_of(node))
            while not task.done() and not node.dead:
                await asyncio.wait([task], timeout=0.05)

    async def drain(self, place: str) -> None:
        """Move everything out of a host."""
        for group in self.directory.drain(place):
            await self.move(group, "", 0.0)

    async def dismiss(self, key: ActorKey) -> None:
        """Passivate an actor."""
        node = self.actors.get(key)
        if node is None or node.dead or not isinstance(node, HostedActivation):
            return
        self.history.add("passivate", node=node.name)
        work = node.host.system.placed.passivate(key)
        task = self.loop.create_task(work, context=context_of(node.host))
        while not task.done() and not node.dead:
            await asyncio.wait([task], timeout=0.05)

    def fill_disk(self, seconds: float) -> None:
        """Nothing more fits on the disk for a while, whoever asked for it."""
        with within(HARNESS):
            super().fill_disk(seconds)

    def heal(self) -> None:
        """End all faults."""
        super().heal()
        self.directory.resume_all()

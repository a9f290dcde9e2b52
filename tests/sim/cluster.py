"""A cluster of simulated processes over one simulated disk.

Each activation of an actor is a process of its own: its own `SimulatedActorSystem` (clock,
connections, store object), the real actor, runtime and journal. A crash stops the process between
two turns of the loop or at any step of its store; nothing of it runs afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.sim.attic import SimDisk
from tests.sim.history import History
from tests.sim.loop import HARNESS, Node, SimLoop, context_of, current_node
from tests.sim.losses import synced_entries
from tests.sim.moments import Ambush
from tests.sim.network import Network
from tests.sim.pasts import Noted
from tests.sim.shadow import CheckedMachine, Shadow, reader_of
from tests.sim.trimming import NEVER_S, Plan, make_plan
from velaray.admin.api import serve_admin
from velaray.broker.proxy.proxy import Proxy
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.actor_kinds import make_actor
from velaray.journal.errors import Fenced, JournalError, StorageFull, SyncFailed
from velaray.journal.journal import JournalSettings
from velaray.journal.memory import MemoryStore, Step, TornWrite
from velaray.journal.store import LedgerStore, Ownership
from velaray.topology.actor_system import (
    ActorBase,
    ActorSystem,
    Address,
    Unreachable,
    start_actor,
)
from velaray.topology.config import ClusterConfig, PartitionSync
from velaray.topology.messages import Request
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX

SERVICE_PORT = 6650
ADMIN_PORT = 8080
EPOCH_MS = 1_800_000_000_000
SMALL = JournalSettings(
    roll_records=25, roll_bytes=8 << 10, frame_bytes=500, unsynced_bytes=2_000, early_records=10
)
PROXY = "front door"
REPLICATOR = "REPLICATOR"
SERVING = "serve"
REPLICATION_SECRET = b"simulated"
"""The phase of a process that isn't starting a ledger."""


class Activation(Node):
    """One process: an actor's, or the proxy's."""

    def __init__(self, name: str, key: ActorKey | None, cluster: SimCluster) -> None:
        super().__init__(name, cluster.site)
        self.key = key
        self.cluster = cluster
        self.actor: ActorBase | None = None
        self.started: asyncio.Task[Address] | None = None
        self.shadow: Shadow
        self.phase = ""
        """What its journal does just now: "start" or "roll", or else ""."""

    def is_of(self, kind: str) -> bool:
        """Whether it is an actor of this kind; a `REPLICATOR` is a kind of subscription."""
        if self.key is None:
            return False
        if kind == REPLICATOR:
            return self.key.subscription.startswith(REPLICATOR_PREFIX)
        return self.key.kind.name == kind


class SimStore(MemoryStore):
    """A store that deletes a journal file by file, as one in a directory does.

    What it deletes goes into the disk's attic. It may be refused for a while.
    """

    disk: SimDisk

    async def write_manifest(
        self, journal: str, expected: int, data: bytes, owner: Ownership | None = None
    ) -> int:
        """Remember what isn't listed any more."""
        if self.disk._files(journal).version == expected:
            self.disk.note_dropped(journal, data)
        return await super().write_manifest(journal, expected, data, owner)

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Remember what was in it. Raises `SyncFailed` as often as the disk is configured to."""
        key = getattr(current_node(), "key", None)
        collector = key is not None and key.kind is ActorKind.GARBAGE_COLLECTOR
        if self.disk.refuses(journal, ledger_id, collector=collector):
            raise SyncFailed(journal, "simulated refusal to delete")
        self.disk.note_deleted(journal, ledger_id)
        await super().delete_ledger(journal, ledger_id)

    async def delete_journal(self, journal: str) -> None:
        """Remove its ledgers, then the rest; a crash may come in between."""
        for ledger_id in await self.list_ledgers(journal):
            await self.delete_ledger(journal, ledger_id)
        await super().delete_journal(journal)


class NoJitter:
    """A random source for delays without jitter: the recorded histories have none."""

    def uniform(self, a: float, b: float) -> float:
        """``b``, the whole delay."""
        return b


NO_JITTER = NoJitter()


class SimulatedActorSystem(ActorSystem):
    """One process's way to the others."""

    def __init__(self, cluster: SimCluster, node: Activation) -> None:
        cluster.stores += 1
        super().__init__(cluster.config, self._make_store(cluster, node))
        self.journal_settings = SMALL
        self.random = NO_JITTER
        self.node = node
        self.pasts = cluster.pasts
        self._cluster = cluster

    def _make_store(self, cluster: SimCluster, node: Activation) -> LedgerStore:
        hook, base = StoreHook(cluster, node), cluster.config.number_base
        return SimStore(cluster.disk, hook=hook, seed=cluster.stores, number_base=base)

    def clock_ms(self) -> int:
        """The process's own clock."""
        return self._cluster.clock_ms() + self.node.skew_ms

    async def address(self, key: ActorKey) -> Address:
        """Ask the cluster, which activates the actor; raises `Unreachable`, `RemoteError`."""
        await asyncio.sleep(self._cluster.rng.random() * 0.005)
        return await self._cluster.address(key)

    async def dismiss(self, key: ActorKey) -> None:
        """Stop the actor in good order, if it runs."""
        await self._cluster.dismiss(key)

    async def survey(
        self, request: type[Request[Any]], timeout_s: float, keep: Any = None
    ) -> dict[ActorKey, Any]:
        """Nothing in a simulated cluster asks everyone."""
        raise NotImplementedError

    def fatal(self, actor: Any, error: BaseException) -> None:
        """The process ends at once, and says why."""
        if not self.node.dead:
            self._cluster.failed(self.node, error)


class StoreHook:
    """Awaited by a store before each step: adds latency, and the fault that is armed."""

    def __init__(self, cluster: SimCluster, node: Activation) -> None:
        self._cluster = cluster
        self._node = node

    def _actor(self) -> Activation:
        """Whose step it is."""
        return self._node

    async def __call__(self, step: Step, journal: str) -> None:
        cluster, node = self._cluster, self._actor()
        cluster.history.add("store", node=node.name, step=step)
        slow = cluster.slow_disk_s if cluster.loop.time() < cluster.slow_disk_until else 0.0
        await asyncio.sleep((slow or 0.001) * cluster.rng.random())
        for trap in cluster.traps:
            if trap.matches(step, node):
                cluster.traps.remove(trap)
                await trap.spring(cluster, node, journal)
                return


class Trap:
    """A fault that waits for a step of the store."""

    def __init__(self, step: Step, phase: str, kind: str, action: str, size: float) -> None:
        self.step = step
        self.phase = phase
        self.kind = kind
        self.action = action
        self.size = size

    def matches(self, step: Step, node: Activation) -> bool:
        """Whether this is the step."""
        return (
            step is self.step
            and (not self.phase or (node.phase or SERVING) == self.phase)
            and node.key is not None
            and (not self.kind or node.is_of(self.kind))
        )

    async def spring(self, cluster: SimCluster, node: Activation, journal: str) -> None:
        """Do what it does."""
        cluster.history.add(
            "trap", node=node.name, step=self.step, phase=node.phase, action=self.action
        )
        match self.action:
            case "crash":
                cluster.kill(node)
                await asyncio.Event().wait()
            case "torn":
                cluster.kill(node)
                raise TornWrite(int(self.size**2 * 500))
            case "power loss":
                cluster.power_loss(cluster.rng)
                await asyncio.Event().wait()
            case "sync failure":
                cluster.note_losses([journal])
                raise SyncFailed(journal, "simulated I/O error")
            case "full":
                cluster.fill_disk(self.size * 8)
            case "slow":
                await asyncio.sleep(self.size * 20)
            case "stale":
                cluster.forget(node)
                await asyncio.sleep(self.size * 5)


@dataclass(frozen=True)
class Site:
    """Where one of several clusters is: the network is everybody's."""

    name: str
    number: int
    network: Network

    @property
    def service_port(self) -> int:
        """The port of its proxy."""
        return SERVICE_PORT + self.number

    @property
    def admin_port(self) -> int:
        """The port of its administration."""
        return ADMIN_PORT + self.number


class SimCluster:
    """Activations, disk, network and faults of one cluster; of the run, if there is no other."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int | str,
        history: History,
        relaxed: bool = False,
        site: Site | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.loop = loop
        self.relaxed = relaxed
        self.site = "" if site is None else site.name
        self.plan = make_plan(seed) if site is None else plan
        #: Whether the whole cluster is gone, and whether it stays so.
        self.down = self.lost = False
        #: How far a clock was ever ahead.
        self.fastest_ms = 0
        self.history = history
        self.rng = Random(f"{seed}/cluster")
        self.disk = self._make_disk()
        if site is None:
            site = Site("sim", 0, Network(loop, Random(f"{seed}/network"), 0.002))
        self.network = loop.network = site.network
        self.config = ClusterConfig(
            data_dir="simulated",
            incarnation=1,
            rpc_key=b"simulated",
            name=site.name,
            service_port=site.service_port,
            admin_port=site.admin_port,
            tunnel=Random(f"{seed}/tunnel").random() < 0.2,
            partition_sync=PartitionSync.INTERVAL if relaxed else PartitionSync.ALWAYS,
            sync_interval_ms=Random(f"{seed}/sync").choice([200, 1_000, 5_000]),
            maintenance_s=NEVER_S if self.plan is None else self.plan.maintenance_s,
            deletion_retry_s=1.0,
            cluster_number=site.number,
            replication_secret=REPLICATION_SECRET,
        )
        self.actors: dict[ActorKey, Activation] = {}
        self.processes: dict[Activation, None] = {}
        self.failures: list[str] = []
        self.traps: list[Trap] = []
        self.ambushes: list[Ambush] = []
        self.slow_disk_s = self.slow_disk_until = 0.0
        self.clients: list[Any] = []
        self.stores = 0
        self.pasts: list[Noted] = []
        self.faulty = True
        self._activations = 0
        self._proxy: Activation | None = None
        self.admin = self._make_system(self._process("admin", None))

    def _make_disk(self) -> SimDisk:
        return SimDisk()

    # -- processes -------------------------------------------------------------------

    def clock_ms(self) -> int:
        """The true time."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    def _process(self, name: str, key: ActorKey | None) -> Activation:
        self._activations += 1
        where = f"@{self.site}" if self.site else ""
        node = Activation(f"{name}#{self._activations}{where}", key, self)
        self.processes[node] = None
        return node

    async def address(self, key: ActorKey) -> Address:
        """Activate the actor unless it runs.

        As under Ray: raises `RemoteError` if it refuses to start, else `Unreachable`.
        """
        node = self.actors.get(key)
        if self.down:
            raise Unreachable(f"{key}: the whole cluster is down")
        if node is None or node.dead:
            node = self.actors[key] = self._process(key.text(), key)
            self.history.add("activate", node=node.name)
            node.started = self.loop.create_task(self._start(node), context=context_of(node))
        assert node.started is not None
        while not node.started.done():
            if node.dead:
                raise Unreachable(f"{key} died while it started")
            await asyncio.wait([node.started], timeout=0.05)
        error = node.started.exception()
        if error is None:
            return node.started.result()
        self.kill(node)
        if isinstance(error, RemoteError):
            raise error
        raise Unreachable(f"{key}: {error}") from error

    def _make_system(self, node: Activation) -> SimulatedActorSystem:
        return SimulatedActorSystem(self, node)

    def make_actor(self, node: Activation, actor_system: ActorSystem) -> ActorBase:
        """The actor of an activation, with its checks."""
        assert node.key is not None
        actor = make_actor(node.key, actor_system)
        if node.key.kind is not ActorKind.GARBAGE_COLLECTOR:  # which has no journal
            read = reader_of(MemoryStore(self.disk), node.key)
            checked = CheckedMachine(actor._machine, read)  # type: ignore[attr-defined]
            actor._machine = checked  # type: ignore[attr-defined]
            node.shadow = Shadow(checked)
        return actor

    async def _start(self, node: Activation) -> Address:
        actor = self.make_actor(node, self._make_system(node))
        address = await start_actor(actor)
        node.actor = actor
        return address

    def lose(self, node: Activation) -> None:
        """End a process with its machine: its connections stay open, and silent."""
        self.network.vanish(node)
        self.kill(node)

    def kill(self, node: Activation, reset: bool | None = None) -> None:
        """End a process as SIGKILL would."""
        if node.dead:
            return
        node.dead = True
        self.history.add("dead", node=node.name)
        self.processes.pop(node, None)
        if node.key is not None and self.actors.get(node.key) is node:
            del self.actors[node.key]
        self.network.kill(node, self.rng.random() < 0.5 if reset is None else reset)

    def forget(self, node: Activation) -> None:
        """Take a live actor for dead: the next use activates it a second time."""
        if node.key is not None and self.actors.get(node.key) is node:
            self.history.add("forgotten", node=node.name)
            del self.actors[node.key]

    def failed(self, node: Activation, error: BaseException) -> None:
        """A process ends by its own doing. The journal's errors under faults are expected.

        A full disk is not: a running actor refuses commands and continues.
        """
        self.note_failure(node, error)
        self.kill(node)

    def note_failure(self, node: Activation, error: BaseException) -> None:
        """Record the failure of an actor, and judge it."""
        self.history.add("fatal", node=node.name, error=f"{type(error).__name__}: {error}")
        stopping = isinstance(error, JournalError) and not isinstance(error, StorageFull)
        if not (stopping and self.faulty) and not isinstance(error, Fenced):
            self.failures.append(f"{node.name} ended: {type(error).__name__}: {error}")

    async def dismiss(self, key: ActorKey) -> None:
        """Passivate an actor."""
        node = self.actors.pop(key, None)
        if node is None or node.dead:
            return
        self.history.add("passivate", node=node.name)
        if node.actor is not None:
            stop = self.loop.create_task(node.actor.stop(), context=context_of(node))
            while not stop.done() and not node.dead:
                await asyncio.wait([stop], timeout=0.05)
        self.kill(node)

    async def open_proxy(self) -> None:
        """Start the proxy, also after a crash."""
        if not self.down and (self._proxy is None or self._proxy.dead):
            node = self._proxy = self._process(PROXY, None)
            work = self._start_proxy(self._make_system(node))
            started = self.loop.create_task(work, context=context_of(node))
            while not started.done() and not node.dead:
                await asyncio.wait([started], timeout=0.05)

    async def _start_proxy(self, actor_system: SimulatedActorSystem) -> None:
        await Proxy(actor_system).start(self.config.service_port)
        await serve_admin(actor_system, actor_system.config.host, self.config.admin_port)

    async def keep_proxy_open(self) -> None:
        """Restart the proxy's process after a crash."""
        while True:
            await asyncio.sleep(0.5)
            await self.open_proxy()

    def live(self, kind: str = "") -> list[Activation]:
        """Processes that run, of one kind of actor ("" for all but the admin's)."""
        return [
            node
            for node in self.processes
            if node is not self.admin.node and (not kind or node.is_of(kind))
        ]

    # -- faults ----------------------------------------------------------------------

    def fill_disk(self, seconds: float) -> None:
        """Nothing more fits on the disk for a while."""
        used = sum(files.size() for files in self.disk._journals.values())
        self.disk.capacity = used
        self.loop.call_later(seconds, self._make_space, used)

    def _make_space(self, used: int) -> None:
        if self.disk.capacity == used:
            self.disk.capacity = None

    def power_loss(self, rng: Random) -> None:
        """Every server process dies, and the disk loses what wasn't synced."""
        for node in self.live():
            self.kill(node, reset=True)
        self.note_losses(self.disk._journals)
        self.disk.power_loss(lambda count: [n for n in range(count) if rng.random() < 0.5])

    def shut_down(self, rng: Random, silent: bool) -> None:
        """Crash the whole cluster until `start_again`; ``silent``: peers get no reset."""
        self.down = True
        if silent:
            for node in self.live():
                self.lose(node)
        self.power_loss(rng)

    def start_again(self) -> None:
        """It may be used again, with what its disk had synced; not if it is lost."""
        self.down = self.lost

    def note_losses(self, journals: Iterable[str]) -> None:
        """Say which entries of relaxed partitions may be lost now: those that aren't synced."""
        if not self.relaxed:
            return
        for journal in journals:
            key = ActorKey.parse(journal)
            if key.kind is not ActorKind.PARTITION:
                continue
            for ledger_id, file in self.disk._files(journal).ledgers.items():
                if file.pending:
                    synced = synced_entries(bytes(file.durable))
                    self.history.add(
                        "may lose", topic=str(key.topic_name), ledger=ledger_id, entries=synced
                    )

    def heal(self) -> None:
        """End all faults.

        Clocks that are ahead stay so. Clocks that are behind are corrected: delayed messages
        would wait for them for up to an hour.
        """
        self.faulty = False
        self.disk.refusals = self.disk.to_stick = 0
        for node in self.processes:
            node.skew_ms = max(node.skew_ms, 0)
        self.traps.clear()
        self.ambushes.clear()
        self.disk.capacity = None
        self.slow_disk_until = 0.0
        self.network.heal()

    def note_loop_error(self, loop: Any, context: dict[str, Any]) -> None:
        """Record an error that reached the loop's exception handler as a failure of the run."""
        error = context.get("exception")
        node = current_node()
        if node.dead or (isinstance(error, JournalError) and node is not HARNESS):
            return
        text = f"{node}: {context.get('message')}: {type(error).__name__}: {error}"
        self.history.add("loop error", text=text)
        self.failures.append(text)

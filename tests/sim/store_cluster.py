"""A cluster of hosts whose journals are in a simulated object store.

Each process has a store of its own, as in the product: a log for all its journals. The work that
its journals share (commits to the log, adoptions of pages, unpacking) belongs to the process, not
to the actor that began it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from tests.sim.attic import SimDisk
from tests.sim.cluster import Activation, SimCluster, SimulatedActorSystem
from tests.sim.history import History
from tests.sim.hosts_cluster import HostedCluster, PlacedActorSystem, SimHost
from tests.sim.hosts_store import OPERATIONS, WRITER_OPERATIONS, counted
from tests.sim.loop import Node, SimLoop, context_of, current_node, within
from tests.sim.store_bucket import SimBucket
from tests.sim.store_requests import SimObjects, StoreTrap, Weather
from velaray.events.ids import ActorKind
from velaray.journal.errors import SyncFailed
from velaray.journal.objects import sealing
from velaray.journal.objects.activation import Activation as JournalActivation
from velaray.journal.objects.adoption import LogReader
from velaray.journal.objects.conditional import ConditionalObjects
from velaray.journal.objects.host_log import HostLog, HostLogSettings
from velaray.journal.objects.housekeeping import Housekeeper, HousekeepingSettings
from velaray.journal.objects.journal_record import Status, Tail
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.log_writer import LogWriter
from velaray.journal.objects.sealing import GONE, SealPatience
from velaray.journal.store import LedgerStore

Replace = Callable[[Any, str, Any], None]

ERROR_RATES = (0.0, 0.002, 0.01, 0.03)
STALL_RATES = (0.0, 0.002, 0.01)
KILLED = ("unpack", "seal", "adopt")
"""What a process was about when it was killed, as it is counted."""


class SimObjectStore(ObjectLedgerStore):
    """The store of one simulated process."""

    def __init__(self, cluster: StoreCluster, node: Activation) -> None:
        rng = Random(f"{cluster.store_seed}/{cluster.stores}")
        spared = node.name.startswith("admin")
        objects, generation = SimObjects(cluster, rng, spared), cluster.config.incarnation
        conditional = ConditionalObjects(objects, rng.randbytes, rng, cluster.patience_s)
        patience = SealPatience(conditional, generation, cluster.quiet_s, cluster.ask_owner)
        super().__init__(
            objects,
            number_base=cluster.config.number_base,
            settings=cluster.log_settings,
            generation=generation,
            before_seal=patience.wait,
            random_bytes=rng.randbytes,
            source=rng,
            number_block=2,
            housekeeping=cluster.housekeeping,
            patience_s=cluster.patience_s,
        )
        self.disk = cluster.disk

    async def adopt(self, mine: JournalActivation) -> None:
        """Adopt; the reading itself goes on if its actor ends."""
        tail = mine.record.tail
        if mine.record.status is Status.OPENING and tail is not None and mine.adoption is None:
            with within(current_node().process):
                mine.adoption = asyncio.create_task(self._adopt(mine, tail))
        await super().adopt(mine)

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        """Delete. Raises `SyncFailed` as often as the disk is configured to."""
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

    def is_adopting(self) -> bool:
        """Whether a journal has begun to read its former tail and hasn't opened."""
        return any(
            mine.adoption is not None and mine.record.status is Status.OPENING and not mine.cut
            for mine in self.activations.values()
        )


for _name in (*OPERATIONS, "release"):
    setattr(SimObjectStore, _name, counted(getattr(SimObjectStore, _name)))


class StoreActorSystem(PlacedActorSystem):
    """A process's way to the others, with journals in the store."""

    def _make_store(self, cluster: SimCluster, node: Activation) -> LedgerStore:
        assert isinstance(cluster, StoreCluster)
        return SimObjectStore(cluster, node)


class StoreCluster(HostedCluster):
    """Hosts over one object store. Nothing is on a disk, so a loss of power loses nothing but the
    processes, and the store is never full."""

    def __init__(self, loop: SimLoop, seed: int, history: History, relaxed: bool = False) -> None:
        rng = Random(f"{seed}/store/settings")
        self.store_seed = f"{seed}/store"
        self.bucket = SimBucket()
        self.weather = Weather()
        self.store_traps: list[StoreTrap] = []
        self.killed: Counter[str] = Counter()
        self.log_settings = HostLogSettings(rng.choice((0.01, 0.03, 0.1)), largest_commit=2_000)
        self.housekeeping = HousekeepingSettings(
            unpack_bytes=rng.choice((4_000, 20_000)),
            unpack_objects=rng.choice((8, 30)),
            unpack_after_s=rng.choice((1.0, 4.0)),
            look_s=0.5,
        )
        self.patience_s = rng.choice((4.0, 4.0, 20.0))
        self.quiet_s = rng.choice((0.0, 0.5, 0.5, sealing.QUIET_S))
        self.asking = Random(f"{seed}/store/asking")
        self.released = 0
        self.doing: dict[Node, Counter[str]] = {}
        self.rates = (rng.choice(ERROR_RATES), rng.choice(STALL_RATES))
        super().__init__(loop, seed, history, relaxed)

    def _make_disk(self) -> SimDisk:
        return self.bucket.disk

    def _make_system(self, node: Activation) -> SimulatedActorSystem:
        return StoreActorSystem(self, node)

    def _make_host_system(self, host: SimHost) -> PlacedActorSystem:
        return StoreActorSystem(self, host, host.place)

    async def ask_owner(self, journal: str, tail: Tail) -> int | None:
        """Ask every host for a journal, as `RayOwners` does. A paused host doesn't answer in time,
        and sometimes no answer arrives."""
        hosts = list(self.hosts.values())
        answers = [await self._ask_host(host, journal, tail) for host in hosts]
        for answer in answers:
            if answer is not None and answer != GONE:
                self.released += 1
                return answer
        return None if None in answers else GONE

    async def _ask_host(self, host: SimHost, journal: str, tail: Tail) -> int | None:
        store = host.system.store
        assert isinstance(store, SimObjectStore)
        if host.dead:
            return None
        work = store.release_to_successor(journal, tail)
        asked = self.loop.create_task(work, context=context_of(host))
        while not asked.done() and not host.dead:
            done, _ = await asyncio.wait({asked}, timeout=1.0)
            if not done:
                return None
        return asked.result() if asked.done() and self.asking.random() < 0.9 else None

    # -- faults ----------------------------------------------------------------------

    def begin_storm(self) -> None:
        """Let requests fail and stall from now on."""
        self.weather.error_rate, self.weather.stall_rate = self.rates

    def end_process(self, node: Node) -> None:
        """End the process that made a request."""
        if isinstance(node, Activation):
            self.kill(node)

    def kill(self, node: Activation, reset: bool | None = None) -> None:
        """End a process, and count what it was about."""
        process = node.process
        if isinstance(process, SimHost) and not process.dead and self.faulty:
            self.killed["host"] += 1
            for what, times in self.doing.get(process, Counter()).items():
                self.killed[what] += times > 0
            store = process.system.store
            assert isinstance(store, SimObjectStore)
            self.killed["adopt"] += store.is_adopting()
        super().kill(node, reset)

    def power_loss(self, rng: Random) -> None:
        """Every server process dies; the store is elsewhere."""
        for node in self.live():
            self.kill(node, reset=True)

    def trouble(self, seconds: float) -> None:
        """The store refuses most requests for a while."""
        self.weather.troubled_until_s = self.loop.time() + seconds

    def slow_down_store(self, longest_s: float, seconds: float) -> None:
        """Requests take longer for a while."""
        self.weather.slow_s = longest_s
        self.weather.slow_until_s = self.loop.time() + seconds

    def heal(self) -> None:
        """End all faults."""
        super().heal()
        self.weather.clear()
        self.store_traps.clear()


def watch_store(replace: Replace, cluster: StoreCluster) -> None:
    """Give shared work to the process, and note what a process is about."""
    _share_work(replace)
    _note_work(replace, cluster)
    for name in WRITER_OPERATIONS:
        replace(LogWriter, name, counted(getattr(LogWriter, name)))


def _share_work(replace: Replace) -> None:
    def of_the_process(method: Any) -> Any:
        def shared(self: Any, *arguments: Any) -> Any:
            with within(current_node().process):
                return method(self, *arguments)

        return shared

    replace(HostLog, "_send_when_due", of_the_process(HostLog._send_when_due))
    replace(HostLog, "_next_look", of_the_process(HostLog._next_look))
    replace(Housekeeper, "wake", of_the_process(Housekeeper.wake))
    replace(LogReader, "_ask", of_the_process(LogReader._ask))


def _note_work(replace: Replace, cluster: StoreCluster) -> None:
    write_part = Housekeeper._write_part
    create = ConditionalObjects.create

    def doing() -> Counter[str]:
        return cluster.doing.setdefault(current_node().process, Counter())

    async def wrote_part(self: Housekeeper, *arguments: Any) -> Any:
        doing()["unpack"] = 1
        return await write_part(self, *arguments)

    def unpacking(unpack: Any) -> Any:
        async def unpacked(self: Housekeeper, *arguments: Any) -> None:
            try:
                await unpack(self, *arguments)
            finally:
                doing()["unpack"] = 0

        return unpacked

    async def created(self: ConditionalObjects, name: str, kind: Any, payload: bytes) -> str:
        if kind.name != "SEAL":
            return await create(self, name, kind, payload)
        now = doing()
        now["seal"] += 1
        try:
            return await create(self, name, kind, payload)
        finally:
            now["seal"] -= 1

    replace(Housekeeper, "_write_part", wrote_part)
    for name in ("unpack", "_unpack_closed"):
        replace(Housekeeper, name, unpacking(getattr(Housekeeper, name)))
    replace(ConditionalObjects, "create", created)

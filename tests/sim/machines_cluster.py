"""A cluster over an object store whose machines come and go, and which is backed up.

A machine is some hosts. One that joins has nothing but the store: its hosts start, the directory
places actors in them, and topics move there, as `velaray.joining` does it on Ray. One that is lost
takes its hosts with it, and its connections stay silent; the hosts are started again elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from tests.sim.faults import QUIET_S, STORM_S, Fault
from tests.sim.history import History
from tests.sim.loop import SimLoop
from tests.sim.store_backups import Backups, BackupTrap
from tests.sim.store_bucket import SimBucket
from tests.sim.store_cluster import StoreCluster
from tests.sim.store_faults import MID, do_fault_with_store, make_store_faults
from velaray.topology.placement import BACKGROUND_HOST, host_name

MOVES = 10
"""The most groups that move after a machine has joined."""
HOSTS_OF_A_MACHINE = 2
JOINS, LOSSES, BACKUPS = 3, 3, 3
"""The most of each in a run."""
SOON_S = 0.5
"""What interrupts a join or a backup happens within this time of its beginning."""
PASSES = 40
_LOOK_S = 0.2
CLOCKS = "clock jump"
"""Backups need clocks that don't differ by more than they allow for."""


class MachinesCluster(StoreCluster):
    """A cluster that machines join and leave."""

    def __init__(self, loop: SimLoop, seed: int, history: History, relaxed: bool = False) -> None:
        self.counted: Counter[str] = Counter()
        self.doubts: list[str] = []
        super().__init__(loop, seed, history, relaxed)
        self.backups = Backups(self, seed)

    # -- machines --------------------------------------------------------------------

    async def join(self, count: int) -> None:
        """A machine with so many hosts joins."""
        free = (host_name(number) for number in range(len(self.places) + count))
        names = [name for name in free if name not in self.places][:count]
        self.history.add("join", hosts=names)
        self.counted["machines joined"] += 1
        for name in names:
            self.places.append(name)
            self._open_host(name)
        await asyncio.sleep(self.rng.random() * _LOOK_S)
        for name in names:
            while not self.directory.add_host(name):
                await asyncio.sleep(_LOOK_S)
            if not self.directory.takes(name):
                self.doubts.append(f"{name} has joined, and no actor is ever placed in it")
        for _ in range(MOVES):
            found = self.directory.level()
            if found is None:
                return
            self.counted["groups moved to joined machines"] += 1
            group, before = found
            await self.hand_over(before, group)

    def lose_machine(self, rng: Random) -> None:
        """Some hosts are gone at once, without notice to their peers."""
        live = [host for _, host in sorted(self.hosts.items()) if not host.dead]
        victims = rng.sample(live, min(len(live), rng.randint(1, len(self.places))))
        if victims:
            self.counted["machines lost"] += 1
        for host in victims:
            self.lose(host)

    async def resettle(self, place: str) -> None:
        """A host moves to a machine that came back: it is drained and ends; another process takes
        its name."""
        await self.drain(place)
        former = self.hosts[place]
        self.kill(former)
        while self.hosts[place] is former and not self.down:
            await asyncio.sleep(_LOOK_S)
        self.directory.resume(place)

    async def kill_one_soon(self, rng: Random) -> None:
        """Kill a host while something else is under way."""
        await asyncio.sleep(rng.random() * SOON_S)
        live = [host for _, host in sorted(self.hosts.items()) if not host.dead]
        if live and self.faulty:
            self.kill(rng.choice(live))

    # -- the store -------------------------------------------------------------------

    def go_on_with(self, bucket: SimBucket) -> None:
        """All machines and the store are lost; there is another store."""
        for node in self.live():
            self.kill(node)
        self.bucket = bucket
        self.disk = bucket.disk
        self.pasts.clear()
        self.admin = self._make_system(self._process("admin", None))
        self.directory.restart(_LOOK_S)


def make_machines_faults(seed: int) -> list[Fault]:
    """The faults of a seed, by time: those of the same seed over a store, without jumps of clocks,
    and some of machines and backups."""
    faults = [fault for fault in make_store_faults(seed) if fault.what != CLOCKS]
    rng = Random(f"{seed}/machines/faults")
    numbers = {
        "join": rng.randint(0, JOINS),
        "lose machine": rng.randint(0, LOSSES),
        "resettle": int(rng.random() < 0.3),
        "back up": rng.randint(0, BACKUPS),
    }
    for what, count in numbers.items():
        for _ in range(count):
            at = round(rng.uniform(QUIET_S, STORM_S), 6)
            faults.append(Fault(at, what, "", rng.random()))
    if rng.random() < 0.5:
        at, moment = round(rng.uniform(QUIET_S, STORM_S), 6), rng.choice(MID)
        faults.append(Fault(at, "back up at", "", rng.random(), phase=moment))
    return sorted(faults, key=lambda fault: fault.at)


async def carry_out_with_machines(cluster: MachinesCluster, faults: list[Fault], seed: int) -> None:
    """Run the faults; returns after the last one."""
    rng, more = Random(f"{seed}/store/targets"), Random(f"{seed}/machines/targets")
    if faults:
        cluster.begin_storm()
    for fault in faults:
        await asyncio.sleep(max(0.0, fault.at - cluster.loop.time()))
        cluster.history.add("fault", fault=str(fault))
        if not _do(cluster, fault, more):
            do_fault_with_store(cluster, fault, rng)


def _do(cluster: MachinesCluster, fault: Fault, rng: Random) -> bool:
    """Carry out a fault of machines, or make a backup; returns whether it is one."""
    loop = cluster.loop
    match fault.what:
        case "join":
            loop.create_task(cluster.join(rng.randint(1, HOSTS_OF_A_MACHINE))).set_name("operator")
        case "lose machine":
            cluster.lose_machine(rng)
            return True
        case "resettle":
            place = rng.choice([name for name in cluster.places if name != BACKGROUND_HOST])
            loop.create_task(cluster.resettle(place)).set_name("operator")
            return True
        case "back up":
            cluster.backups.begin()
        case "back up at":
            trap = BackupTrap(cluster.backups, fault.phase, fault.size, int(fault.size * PASSES))
            cluster.store_traps.append(trap)
            return True
        case _:
            return False
    if fault.size < 0.5:
        loop.create_task(cluster.kill_one_soon(rng)).set_name("killer")
    return True

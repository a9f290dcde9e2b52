"""Faults of a run over an object store: those of hosts, and those of the store's requests.

What only a disk does becomes something that a store does: a loss of power ends every process, a
full disk is a store in trouble, a slow disk a slow store, a trap at a step of the disk one at a
request.
"""

from __future__ import annotations

import asyncio
from random import Random

from tests.sim.faults import QUIET_S, STORM_S, Fault
from tests.sim.hosts_faults import do_fault_with_hosts, make_hosts_faults
from tests.sim.store_cluster import StoreCluster
from tests.sim.store_requests import ACTIONS, KILLS, Moment, StoreTrap

TRAPPED = (
    *(Moment.COMMIT, Moment.SEAL, Moment.TAKE, Moment.OPEN, Moment.NAME_PARTS) * 3,
    *(Moment.WRITE_PART, Moment.READ_LOG) * 2,
    *(Moment.CLOSE, Moment.LIST, Moment.WRITE_FLOOR, Moment.READ_RECORD, Moment.DELETE),
)
MID = (Moment.WRITE_PART, Moment.NAME_PARTS, Moment.SEAL, Moment.READ_LOG, Moment.OPEN)
"""Requests in the middle of unpacking, sealing and adopting."""
MOST = 8
OUTAGE_S = 6.0
SLOW_S = 0.3
LASTS_S = 5.0
PASSES = 6


def make_store_faults(seed: int) -> list[Fault]:
    """The faults of a seed, by time: in one run of ten none, in the others up to `MOST` traps
    besides those of the same seed with hosts."""
    rng = Random(f"{seed}/store/faults")
    if rng.random() < 0.1:
        return []
    faults = make_hosts_faults(seed)
    for _ in range(rng.randint(1, MOST)):
        at = round(rng.uniform(QUIET_S, STORM_S), 6)
        if rng.random() < 0.4:
            moment, action = rng.choice(MID), rng.choice(KILLS)
        else:
            moment, action = rng.choice(TRAPPED), rng.choice(ACTIONS)
        faults.append(Fault(at, "store trap", "", rng.random(), phase=moment, action=action))
    return sorted(faults, key=lambda fault: fault.at)


async def carry_out_with_store(cluster: StoreCluster, faults: list[Fault], seed: int) -> None:
    """Run the faults; returns after the last one."""
    rng = Random(f"{seed}/store/targets")
    if faults:
        cluster.begin_storm()
    for fault in faults:
        await asyncio.sleep(max(0.0, fault.at - cluster.loop.time()))
        cluster.history.add("fault", fault=str(fault))
        do_fault_with_store(cluster, fault, rng)


def do_fault_with_store(cluster: StoreCluster, fault: Fault, rng: Random) -> None:
    """Let a fault happen now."""
    if not _do(cluster, fault, rng):
        do_fault_with_hosts(cluster, fault, rng)


def _do(cluster: StoreCluster, fault: Fault, rng: Random) -> bool:
    """Carry out a fault of the store; returns whether it is one."""
    size = fault.size
    match fault.what:
        case "store trap":
            passes = int(rng.random() * PASSES)
            cluster.store_traps.append(StoreTrap(Moment(fault.phase), fault.action, size, passes))
        case "trap" | "tear":
            moment, action = rng.choice(TRAPPED), rng.choice(ACTIONS)
            trap = StoreTrap(moment, action, size, int(rng.random() * PASSES))
            cluster.store_traps.append(trap)
        case "full disk":
            cluster.trouble(size * OUTAGE_S)
        case "slow disk":
            cluster.slow_down_store(size * SLOW_S, LASTS_S)
        case "fail while it writes":
            nodes = cluster.live(fault.kind) or cluster.live("PARTITION")
            writing = [node for node in nodes if getattr(node, "operations", 0)] or nodes
            if writing:
                cluster.fail(rng.choice(writing))
        case _:
            return False
    return True

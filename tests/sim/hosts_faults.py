"""Faults of a run with hosts: those of a run without, and those of hosts and their directory.

As without hosts the list is made from the seed, and a prefix of it is a milder run.
"""

from __future__ import annotations

import asyncio
from random import Random

from tests.sim.cluster import SERVING, Activation, SimCluster, Trap
from tests.sim.faults import QUIET_S, STORM_S, Fault, do_fault, make_faults
from tests.sim.hosts_cluster import HostedCluster
from velaray.journal.memory import Step

KINDS = (
    *("PARTITION",) * 4,
    *("SUBSCRIPTION",) * 3,
    *("CATALOG", "COORDINATOR", "SCHEMA_REGISTRY", "GARBAGE_COLLECTOR"),
)
OF_HOSTS = {
    "fail": 6,
    "fail while it writes": 8,
    "kill": 2,
    "move": 8,
    "forget": 3,
    "passivate": 3,
    "drain": 1,
    "resume": 1,
    "restart directory": 2,
}
MOST = 12
"""The most faults of hosts in a run."""
STEPS = (Step.WRITE, Step.SYNC, Step.CONFIRM, Step.MARK, Step.RETURN)
LATE_S = 1.0
"""The longest delay between a move in the directory and the request to the former host."""
AWAY_S = 3.0
"""The longest time without a directory."""
SLOW_S = 0.01
"""An operation of the store takes so much longer, at most, when its actor fails meanwhile."""


class FailingTrap(Trap):
    """An actor fails for another reason while an operation of the store is under way."""

    async def spring(self, cluster: SimCluster, node: Activation, journal: str) -> None:
        """Let it fail, and the operation go on."""
        assert isinstance(cluster, HostedCluster)
        cluster.fail(node)
        await asyncio.sleep(self.size * SLOW_S)


def make_hosts_faults(seed: int) -> list[Fault]:
    """The faults of a seed, by time: in one run of ten none, in the others up to `MOST` of hosts
    besides those of the same seed without hosts."""
    rng = Random(f"{seed}/hosts/faults")
    if rng.random() < 0.1:
        return []
    faults = make_faults(seed) if rng.random() < 0.6 else []
    for _ in range(rng.randint(1, MOST)):
        what = rng.choices(list(OF_HOSTS), list(OF_HOSTS.values()))[0]
        at = round(rng.uniform(QUIET_S, STORM_S), 6)
        faults.append(Fault(at, what, rng.choice(KINDS), rng.random()))
    return sorted(faults, key=lambda fault: fault.at)


async def carry_out_with_hosts(cluster: HostedCluster, faults: list[Fault], seed: int) -> None:
    """Run the faults; returns after the last one."""
    rng = Random(f"{seed}/hosts/targets")
    for fault in faults:
        await asyncio.sleep(max(0.0, fault.at - cluster.loop.time()))
        cluster.history.add("fault", fault=str(fault))
        do_fault_with_hosts(cluster, fault, rng)


def do_fault_with_hosts(cluster: HostedCluster, fault: Fault, rng: Random) -> None:
    """Let a fault happen now."""
    if not _do(cluster, fault, rng):
        do_fault(cluster, fault, rng)


def _do(cluster: HostedCluster, fault: Fault, rng: Random) -> bool:
    """Carry out a fault of hosts; returns whether it is one."""
    pick, size = rng.random(), fault.size
    match fault.what:
        case "fail":
            nodes = cluster.live(fault.kind) or cluster.live("PARTITION")
            if nodes:
                cluster.fail(nodes[int(pick * len(nodes))])
        case "fail while it writes":
            step = STEPS[int(pick * len(STEPS))]
            cluster.traps.append(FailingTrap(step, SERVING, fault.kind, fault.what, size))
        case "move":
            groups = cluster.directory.groups()
            if groups:
                group = groups[int(pick * len(groups))]
                to = rng.choice(cluster.places) if rng.random() < 0.5 else ""
                late_s = size * LATE_S if rng.random() < 0.5 else 0.0
                _begin(cluster, cluster.move(group, to, late_s))
        case "drain":
            _begin(cluster, cluster.drain(cluster.places[int(pick * len(cluster.places))]))
        case "resume":
            cluster.directory.resume_all()
        case "restart directory":
            cluster.directory.restart(size**2 * AWAY_S)
        case _:
            return False
    return True


def _begin(cluster: HostedCluster, work: object) -> None:
    cluster.loop.create_task(work).set_name("operator")  # type: ignore[arg-type]

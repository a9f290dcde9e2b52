"""Faults of a run: a list made from the seed, carried out at their times.

A prefix of the list is a milder run of the same seed: that is how failing runs are shrunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.sim.cluster import PROXY, SERVING, Activation, SimCluster, Trap
from tests.sim.moments import ACTIONS, MOMENTS, Ambush
from tests.sim.schemas import has_schemas
from tests.sim.transaction_cast import has_transactions
from velaray.journal.memory import Step

QUIET_S = 1.0
STORM_S = 12.0
"""Faults happen between these times, in virtual seconds."""

LATE_S = 4.0
"""So late, at most, arrives what was under way when a connection broke for its sender."""

KINDS = ("CATALOG", "PARTITION", "PARTITION", "SUBSCRIPTION", "SUBSCRIPTION")
STEPS = (
    *(Step.WRITE, Step.SYNC, Step.CONFIRM, Step.MARK, Step.RETURN) * 3,
    Step.READ_MANIFEST,
    Step.WRITE_MANIFEST,
    Step.MANIFEST_WRITTEN,
    Step.CREATE,
    Step.READ,
    Step.READ_MARK,
    Step.RECLAIM,
    Step.WRITE_INDEX,
    Step.DELETE,
)
_OF_A_NEW_LEDGER = (
    Step.CREATE,
    Step.WRITE,
    Step.SYNC,
    Step.RETURN,
    Step.WRITE_MANIFEST,
    Step.MANIFEST_WRITTEN,
    Step.WRITE_INDEX,
)
"""What happens while a journal starts a ledger: it writes a checkpoint, then lists the ledger."""
_WRITING = (Step.WRITE, Step.MARK)
_WEIGHTS = {
    "trap": 10,
    "tear": 2,
    "kill": 3,
    "lose": 1,
    "power loss": 1,
    "forget": 2,
    "pause": 2,
    "full disk": 1,
    "slow disk": 1,
    "cut": 2,
    "late": 4,
    "block": 2,
    "delay": 1,
    "clock jump": 1,
    "passivate": 2,
    "kill door": 1,
    "kill client": 3,
}
_OF_TRANSACTIONS = {
    "ambush": 8,
    "trap": 5,
    "tear": 1,
    "kill": 3,
    "lose": 1,
    "forget": 2,
    "pause": 1,
    "block": 1,
    "clock jump": 2,
    "full disk": 1,
    "late": 1,
    "passivate": 1,
}
_OF_DELETIONS = {
    "trap": 4,
    "kill": 4,
    "refuse": 3,
    "stick": 2,
    "forget": 2,
    "pause": 1,
    "block": 1,
    "late": 1,
    "passivate": 1,
}
_WHO_DELETES = ("DELETER", "DELETER", "DELETER", "PARTITION", "CATALOG")
REFUSALS = 8
"""So often, at most, is deleting refused: fewer times than an event is tried."""
STUCK = 3
"""So many ledgers, at most, can't be deleted until their events are dead letters."""
_OF_SCHEMAS = ("SCHEMA_REGISTRY", "SCHEMA_REGISTRY", "PARTITION")
_THEIR_KINDS = ("COORDINATOR", "COORDINATOR", "COORDINATOR", "PARTITION", "SUBSCRIPTION")


@dataclass(frozen=True)
class Fault:
    """One fault: ``size`` (0 to 1) says how long or how much."""

    at: float
    what: str
    kind: str
    size: float
    step: Step = Step.WRITE
    phase: str = ""
    action: str = ""

    def __str__(self) -> str:
        trap = f" {self.action} at {self.step} {self.phase}" if self.what == "trap" else ""
        named = self.what in ("ambush", "store trap")
        trap = f" {self.action} at {self.phase}" if named else trap
        return f"{self.at:.3f} s: {self.what}{trap} ({self.kind}, {self.size:.2f})"


def make_faults(seed: int, relaxed: bool = False) -> list[Fault]:
    """The faults of a seed, by time. One run in ten has none.

    If partitions are synced on a timer, the power is lost up to three times more. If there are
    transactions, up to seven more faults hit their coordinators and participants. If there are
    schemas, up to six more hit their registries and partitions. In one run of three, up to six
    more hit the actors that delete ledgers.
    """
    rng = Random(f"{seed}/faults")
    count = 0 if rng.random() < 0.1 else rng.randint(1, 14)
    times = sorted(rng.uniform(QUIET_S, STORM_S) for _ in range(count))
    faults = [make_fault(rng, round(at, 6)) for at in times]
    if relaxed:
        more = Random(f"{seed}/power")
        times = [more.uniform(QUIET_S, STORM_S) for _ in range(more.randint(0, 3))]
        faults += [Fault(round(at, 6), "power loss", "", 0.0) for at in times]
    elif has_transactions(seed):
        more = Random(f"{seed}/coordinators")
        times = [more.uniform(QUIET_S, STORM_S) for _ in range(more.randint(0, 7))]
        faults += [make_fault(more, round(at, 6), _OF_TRANSACTIONS, _THEIR_KINDS) for at in times]
    if has_schemas(seed):
        more = Random(f"{seed}/registries")
        times = [more.uniform(QUIET_S, STORM_S) for _ in range(more.randint(0, 6))]
        faults += [make_fault(more, round(at, 6), _WEIGHTS, _OF_SCHEMAS) for at in times]
    more = Random(f"{seed}/deleters")
    if more.random() < 1 / 3:
        times = [more.uniform(QUIET_S, STORM_S) for _ in range(more.randint(1, 6))]
        faults += [make_fault(more, round(at, 6), _OF_DELETIONS, _WHO_DELETES) for at in times]
    faults.sort(key=lambda fault: fault.at)
    return faults


def make_fault(
    rng: Random,
    at: float,
    weights: Mapping[str, int] = _WEIGHTS,
    kinds: Sequence[str] = KINDS,
) -> Fault:
    """One of a seed's faults, drawn by ``weights``, for an actor of one of ``kinds``."""
    what = rng.choices(list(weights), list(weights.values()))[0]
    kind, size = rng.choice(kinds), rng.random()
    if what == "ambush":
        moment, action = rng.choice(MOMENTS[kind]), rng.choice(ACTIONS)
        return Fault(at, what, kind, size, phase=moment, action=action)
    if what != "trap":
        return Fault(at, what, kind, size)
    phase = rng.choice(["", "", "start", "roll"])
    step = rng.choice(_OF_A_NEW_LEDGER if phase else STEPS)
    actions = ["crash", "crash", "crash", "slow", "stale"]
    if step in _WRITING:
        actions += ["torn", "torn"]
    if step is Step.SYNC:
        actions += ["sync failure", "power loss", "power loss"]
    if step in (Step.WRITE, Step.CREATE, Step.WRITE_MANIFEST):
        actions += ["full"]
    if rng.random() < 0.2:
        kind = ""
    return Fault(at, what, kind, size, step, phase, rng.choice(actions))


async def carry_out(cluster: SimCluster, faults: list[Fault], seed: int) -> None:
    """Run the faults; returns after the last one."""
    rng = Random(f"{seed}/targets")
    for fault in faults:
        await asyncio.sleep(max(0.0, fault.at - cluster.loop.time()))
        cluster.history.add("fault", fault=str(fault))
        do_fault(cluster, fault, rng)


def do_fault(cluster: SimCluster, fault: Fault, rng: Random) -> None:
    """Let a fault happen now."""
    pick, size = rng.random(), fault.size
    nodes = cluster.live(fault.kind) or cluster.live()
    node = nodes[int(pick * len(nodes))] if nodes else None
    match fault.what:
        case "trap":
            cluster.traps.append(Trap(fault.step, fault.phase, fault.kind, fault.action, size))
        case "ambush":
            passes = int(pick * 4)
            ambush = Ambush(fault.kind, fault.phase, fault.action, passes, size)
            cluster.ambushes.append(ambush)
        case "tear":
            cluster.traps.append(Trap(Step.WRITE, SERVING, fault.kind, "torn", size))
        case "power loss":
            cluster.power_loss(rng)
        case "refuse":
            cluster.disk.refusals = max(cluster.disk.refusals, int(size * REFUSALS))
        case "stick":
            cluster.disk.to_stick += 1 + int(size * STUCK)
        case "full disk":
            cluster.fill_disk(size * 8)
        case "slow disk":
            cluster.slow_disk_s, cluster.slow_disk_until = size, cluster.loop.time() + 5
        case "delay":
            cluster.network.slow_down(size, 5.0)
        case "kill door":
            for proxy in [node for node in cluster.live() if node.name.startswith(PROXY)]:
                cluster.kill(proxy)
        case "kill client":
            clients = cluster.clients
            clients[int(pick * len(clients))].crash(size)
        case "cut":
            ends = list(cluster.network.ends.values())
            if ends:
                cluster.network.cut(ends[int(pick * len(ends))])
        case "late":
            ends = cluster.network.busy_ends()
            if ends:
                end = ends[int(pick * len(ends))]
                cluster.history.add("severed", end=str(end.node), other=str(end.peer.node))
                cluster.network.sever(end, size * LATE_S)
        case _ if node is not None:
            _do_to(cluster, fault, node, rng)


def _do_to(cluster: SimCluster, fault: Fault, node: Activation, rng: Random) -> None:
    size = fault.size
    match fault.what:
        case "kill":
            cluster.kill(node)
        case "lose":
            cluster.lose(node)
        case "forget":
            cluster.forget(node)
        case "pause":
            cluster.loop.pause(node.process, size * 10)
        case "block":
            others = [other for other in cluster.live() if other is not node.process]
            other = rng.choice(others) if others and rng.random() < 0.5 else None
            cluster.network.block(node.process, other, size * 20)
        case "clock jump":
            node.process.skew_ms += int((size - 0.5) * 7_200_000)
            cluster.fastest_ms = max(cluster.fastest_ms, node.process.skew_ms)
        case "passivate" if node.key is not None:
            task = cluster.loop.create_task(cluster.dismiss(node.key))
            task.set_name("passivation")

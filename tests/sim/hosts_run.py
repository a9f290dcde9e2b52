"""One run of a seed with hosts: the world of other runs, in a cluster whose actors share hosts."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

from tests.sim.faults import Fault
from tests.sim.history import History
from tests.sim.hosts_cluster import HostedCluster
from tests.sim.hosts_contexts import watch_hosts
from tests.sim.hosts_faults import carry_out_with_hosts, make_hosts_faults
from tests.sim.loop import SimLoop
from tests.sim.run import BROKEN, MAX_TURNS, Outcome, World, quiet, simulated


class HostsWorld(World):
    """Everything of one run with hosts."""

    cluster: HostedCluster

    def _make_cluster(
        self, loop: SimLoop, seed: int, history: History, relaxed: bool
    ) -> HostedCluster:
        return HostedCluster(loop, seed, history, relaxed)

    async def _carry_out(self) -> None:
        await carry_out_with_hosts(self.cluster, self._faults, self._seed)

    def watch(self, patch: Any) -> None:
        """Watch the product."""
        watch_hosts(patch, self.cluster.watch)

    def counts(self) -> Counter[str]:
        """What is counted over a campaign."""
        return Counter()

    def problems(self) -> list[str]:
        """The faults that the run found."""
        return self.cluster.watch.problems + super().problems()


def run_hosts(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them."""
    faults = make_hosts_faults(seed)[:fault_count]
    with quiet():
        return run_hosts_world(HostsWorld, seed, faults)


def run_hosts_world(kind: type[HostsWorld], seed: int, faults: list[Fault]) -> Outcome:
    """Run ``seed`` with these faults in a world of this kind, within `quiet`."""
    loop = SimLoop(MAX_TURNS)
    history = History(loop.time)
    problems: list[str] = []
    with simulated(loop, seed, history), ExitStack() as undo:

        def replace(owner: Any, name: str, value: Any) -> None:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        world = kind(loop, seed, faults, history, relaxed=False)
        world.watch(replace)
        loop.set_exception_handler(world.cluster.note_loop_error)
        try:
            loop.run_until_complete(world.live())
        except BROKEN as error:
            problems.append(f"{type(error).__name__}: {error}")
        problems += world.problems()
        turns = loop.turns
        loop.finish()
    return Outcome(seed, list(faults), problems, history, turns, hosts=True, counts=world.counts())

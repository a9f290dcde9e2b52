"""What becomes of clocks that were set wrong when a run's faults end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.sim.cluster import EPOCH_MS, SimCluster, SimulatedActorSystem
from tests.sim.history import History


def test_clocks_that_are_behind_are_corrected_and_others_kept() -> None:
    loop: Any = SimpleNamespace(time=lambda: 2.0)
    cluster = SimCluster(loop, 1, History(loop.time))
    actor_systems = [
        SimulatedActorSystem(cluster, cluster._process(name, None)) for name in ("slow", "fast")
    ]
    for actor_system, skew_ms in zip(actor_systems, (-1_500_000, 1_500_000), strict=True):
        actor_system.node.skew_ms = skew_ms
    cluster.heal()
    right = EPOCH_MS + 2_000
    assert [actor_system.clock_ms() for actor_system in actor_systems] == [right, right + 1_500_000]

"""What becomes of clocks that were set wrong when a run's faults end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.sim.cluster import EPOCH_MS, ActorFabric, SimCluster
from tests.sim.history import History


def test_clocks_that_are_behind_are_set_right_and_others_stay() -> None:
    loop: Any = SimpleNamespace(time=lambda: 2.0)
    cluster = SimCluster(loop, 1, History(loop.time))
    fabrics = [ActorFabric(cluster, cluster._process(name, None)) for name in ("slow", "fast")]
    for fabric, skew_ms in zip(fabrics, (-1_500_000, 1_500_000), strict=True):
        fabric.node.skew_ms = skew_ms
    cluster.heal()
    right = EPOCH_MS + 2_000
    assert [fabric.clock_ms() for fabric in fabrics] == [right, right + 1_500_000]

"""Faults of a run of several clusters: those of each cluster, and those between them.

As with one cluster the list is made from the seed, and a prefix of it is a milder run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tests.sim.cluster import REPLICATOR, SimCluster
from tests.sim.faults import LATE_S, QUIET_S, STORM_S, Fault, do_fault, make_fault

KINDS = ("CATALOG", "PARTITION", "PARTITION", "SUBSCRIPTION", "SUBSCRIPTION", REPLICATOR)
BETWEEN = {
    "part": 4,
    "part one way": 3,
    "slow way": 3,
    "cut between": 3,
    "late between": 6,
    "crash all": 2,
}
_LONGEST_S = 10.0


@dataclass(frozen=True)
class GeoFault:
    """A fault within a cluster, ``where``, or between it and another one, ``other``."""

    where: str
    fault: Fault
    other: str = ""

    def __str__(self) -> str:
        way = f"{self.where} to {self.other}" if self.other else f"in {self.where}"
        return f"{way}, {self.fault}"


def make_geo_faults(seed: int, clusters: tuple[str, ...]) -> list[GeoFault]:
    """The faults of a seed, by time: up to ten within clusters, up to eight between them. One run
    in ten has none."""
    rng = Random(f"{seed}/geo/faults")
    if rng.random() < 0.1:
        return []
    faults = []
    for _ in range(rng.randint(0, 10)):
        fault = make_fault(rng, _moment(rng), kinds=KINDS)
        faults.append(GeoFault(rng.choice(clusters), fault))
    for _ in range(rng.randint(0, 8)):
        what = rng.choices(list(BETWEEN), list(BETWEEN.values()))[0]
        one, other = rng.sample(clusters, 2)
        faults.append(GeoFault(one, Fault(_moment(rng), what, "", rng.random()), other))
    return sorted(faults, key=lambda each: each.fault.at)


def _moment(rng: Random) -> float:
    return round(rng.uniform(QUIET_S, STORM_S), 6)


async def carry_out_geo(
    clusters: Mapping[str, SimCluster], faults: list[GeoFault], seed: int
) -> None:
    """Run the faults; returns after the last one. A cluster that is lost has none."""
    rng = Random(f"{seed}/geo/targets")
    for each in faults:
        cluster = clusters[each.where]
        await asyncio.sleep(max(0.0, each.fault.at - cluster.loop.time()))
        if cluster.down:
            continue
        cluster.history.add("fault", fault=str(each))
        if each.other:
            _do_between(cluster, each, rng)
        else:
            do_fault(cluster, each.fault, rng)


def _do_between(cluster: SimCluster, each: GeoFault, rng: Random) -> None:
    network, one, other, size = cluster.network, each.where, each.other, each.fault.size
    ways = {(one, other), (other, one)}
    ends = [end for end in network.ends.values() if (end.node.site, end.peer.node.site) in ways]
    ends = [end for end in ends if end.get_write_buffer_size()] or ends
    end = ends[int(rng.random() * len(ends))] if ends else None
    match each.fault.what:
        case "part":
            network.separate(one, other, size * _LONGEST_S)
            network.separate(other, one, size * _LONGEST_S)
        case "part one way":
            network.separate(one, other, size * _LONGEST_S)
        case "slow way":
            network.slow_way(one, other, size * 2, _LONGEST_S)
        case "cut between" if end is not None:
            network.cut(end)
        case "late between" if end is not None:
            cluster.history.add("severed", end=str(end.node), other=str(end.peer.node))
            network.sever(end, size * LATE_S)
        case "crash all":
            cluster.shut_down(rng, silent=rng.random() < 0.5)
            cluster.loop.call_later(size * 4, cluster.start_again)

"""One run of a seed with several clusters."""

from __future__ import annotations

from tests.sim.geo_cast import GeoPlan, make_geo_plan
from tests.sim.geo_faults import GeoFault, make_geo_faults
from tests.sim.geo_history import GeoHistory
from tests.sim.geo_progress import remembered
from tests.sim.geo_workload import GeoConnection
from tests.sim.geo_world import GeoWorld
from tests.sim.loop import SimLoop
from tests.sim.run import BROKEN, Outcome, quiet, simulated

MAX_TURNS = 1_500_000


def run_geo(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them."""
    plan = make_geo_plan(seed)
    faults = make_geo_faults(seed, plan.clusters)[:fault_count]
    with quiet():
        return _run(seed, plan, faults)


def _run(seed: int, plan: GeoPlan, faults: list[GeoFault]) -> Outcome:
    loop = SimLoop(MAX_TURNS)
    history = GeoHistory(loop.time)
    problems: list[str] = []
    with simulated(loop, seed, history, GeoConnection), remembered() as sent:
        world = GeoWorld(loop, seed, faults, history, plan, sent)
        anybody = world.clusters[plan.clusters[0]]
        loop.set_exception_handler(anybody.note_loop_error)
        try:
            loop.run_until_complete(world.live())
        except BROKEN as error:
            problems.append(f"{type(error).__name__}: {error}")
        problems += world.problems()
        turns = loop.turns
        loop.finish()
    return Outcome(seed, list(faults), problems, history, turns, geo=True)

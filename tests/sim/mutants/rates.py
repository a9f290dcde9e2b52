"""Bugs of the limits of rates."""

from __future__ import annotations

from tests.sim.mutants.mutant import Mutant, do_nothing
from velaray.broker.partition.channel.throttle import Throttle

MUTANTS: dict[str, Mutant] = {
    "never-serve-limited": Mutant(
        "consumers that wait for a rate are never served again",
        ((Throttle, "_schedule", do_nothing),),
        within=20,
        rates=True,
    ),
}

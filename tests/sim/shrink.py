"""Failing runs, made as small as a prefix of their faults can make them."""

from __future__ import annotations

from pathlib import Path

from tests.sim.geo_run import run_geo
from tests.sim.hosts_run import run_hosts
from tests.sim.kind import Kind
from tests.sim.machines_run import run_machines
from tests.sim.rates import run_rates
from tests.sim.run import Outcome, run
from tests.sim.store_run import run_store


def run_as(seed: int, fault_count: int | None, kind: Kind) -> Outcome:
    """A run of ``seed``."""
    if kind.geo:
        return run_geo(seed, fault_count)
    if kind.hosts:
        return run_hosts(seed, fault_count)
    if kind.store:
        return run_store(seed, fault_count)
    if kind.machines:
        return run_machines(seed, fault_count)
    if kind.rates:
        return run_rates(seed, fault_count)
    return run(seed, fault_count, relaxed=kind.relaxed)


def kind_of(outcome: Outcome) -> Kind:
    """The kind of a run that is over."""
    return Kind(
        *(outcome.relaxed, outcome.geo, outcome.hosts, outcome.rates),
        *(outcome.store, outcome.machines),
    )


def shrink(outcome: Outcome) -> Outcome:
    """The run of the same seed with the shortest prefix of its faults that still fails."""
    for count in range(len(outcome.faults)):
        smaller = run_as(outcome.seed, count, kind_of(outcome))
        if smaller.problems:
            return smaller
    return outcome


def report(outcome: Outcome, folder: Path, mutant: str | None = None) -> str:
    """Shrink a failing run, write its history to ``folder``, say what is known about it.

    ``mutant`` is the one that is applied, for the command that repeats the run.
    """
    small = shrink(outcome)
    name = f"{mutant}-{outcome.seed}" if mutant else f"seed-{outcome.seed}"
    name = f"geo-{name}" if outcome.geo else f"hosts-{name}" if outcome.hosts else name
    name = f"rates-{name}" if outcome.rates else name
    name = f"store-{name}" if outcome.store else name
    name = f"machines-{name}" if outcome.machines else name
    options = kind_of(outcome).option()
    options += f" --mutant {mutant}" if mutant else ""
    path = folder / f"{name}.jsonl"
    small.history.dump(path)
    lines = [
        f"seed {outcome.seed} fails: python -m tests.sim --seed {outcome.seed} "
        f"--faults {len(small.faults)}{options}",
        *(f"  {problem[:400]}" for problem in small.problems[:8]),
        f"  with {len(small.faults)} of {len(outcome.faults)} faults:",
        *(f"    {fault}" for fault in small.faults),
        f"  history: {path}",
    ]
    return "\n".join(lines)

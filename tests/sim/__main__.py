"""``python -m tests.sim --seed N`` runs one seed, ``--seeds N`` the first N (from ``--first``).

``--seed`` takes several seeds as well.

``--mutants`` runs every mutant until it is found, and prints the table of `docs/testing.md`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HASH_SEED = "0"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--seed", type=int, nargs="+", metavar="SEED", help="run only this seed, or these seeds"
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--faults", type=int, help="only so many of the seed's faults")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--relaxed", action="store_true", help="sync partitions on a timer, not at every commit"
    )
    kind.add_argument(
        "--geo", action="store_true", help="several clusters that replicate to each other"
    )
    kind.add_argument(
        "--hosts", action="store_true", help="several actors in each process of the cluster"
    )
    kind.add_argument(
        "--rates", action="store_true", help="policies that limit publishing and deliveries"
    )
    kind.add_argument(
        "--store", action="store_true", help="as --hosts, with the journals in an object store"
    )
    kind.add_argument(
        "--machines",
        action="store_true",
        help="as --store, with machines that join and machines that are lost, and backups",
    )
    parser.add_argument("--mutant", help="break the product in this way first")
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="MUTANT",
        help="find these mutants (all of them, if none is named) and print the table",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)"
    )
    parser.add_argument("--digest", action="store_true", help="print the history's digest")
    parser.add_argument("--history", type=Path, help="where histories of failing runs go")
    return parser.parse_args()


def main() -> int:
    """Returns 0 if every run was sound, or every mutant was found."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings are ordered by their hashes: fixed, or a seed means nothing.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    chosen = _arguments()
    return _run_seeds(chosen) if chosen.mutants is None else _find_mutants(chosen)


def _known(mutants: list[str]) -> bool:
    from tests.sim.mutants import MUTANTS

    unknown = [name for name in mutants if name not in MUTANTS]
    for name in unknown:
        print(f"no mutant is called {name}; there are: {', '.join(MUTANTS)}", file=sys.stderr)
    return not unknown


def _run_seeds(chosen: argparse.Namespace) -> int:
    seeds = chosen.seed or list(range(chosen.first, chosen.first + chosen.seeds))
    options = "" if chosen.faults is None else f" --faults {chosen.faults}"
    options += " --relaxed" if chosen.relaxed else ""
    options += " --geo" if chosen.geo else ""
    options += " --hosts" if chosen.hosts else ""
    options += " --rates" if chosen.rates else ""
    options += " --store" if chosen.store else ""
    options += " --machines" if chosen.machines else ""
    options += f" --mutant {chosen.mutant}" if chosen.mutant else ""
    if len(seeds) == 1:
        print(f"seed {seeds[0]}: python -m tests.sim --seed {seeds[0]}{options}", flush=True)
    else:
        named = f"{seeds[0]} to {seeds[-1]}" if chosen.seed is None else f"{seeds}"[1:-1]
        print(f"seeds {named}: each one with python -m tests.sim --seed N{options}", flush=True)
    if chosen.mutant and not _known([chosen.mutant]):
        return 2
    from tests.sim.campaign import Orders, examine_all
    from tests.sim.kind import Kind

    jobs = max(1, min(chosen.jobs, len(seeds)))
    folder = chosen.history or Path(tempfile.gettempdir()) / "velaray-sim"
    failed, done, machine_s, began = [], 0, 0.0, time.monotonic()
    orders = Orders(
        *(chosen.faults, chosen.mutant, chosen.digest, folder),
        Kind(
            *(chosen.relaxed, chosen.geo, chosen.hosts, chosen.rates),
            *(chosen.store, chosen.machines),
        ),
    )
    counts: Counter[str] = Counter()
    for verdict in examine_all(seeds, jobs, orders):
        done += 1
        counts += verdict.counts
        machine_s += verdict.cpu_s
        if chosen.digest:
            print(f"history of seed {verdict.seed}: {verdict.digest}")
        if verdict.report:
            failed.append(verdict.seed)
            print(verdict.report, flush=True)
            if chosen.mutant:
                break
    seconds = max(time.monotonic() - began, 1e-9)
    if counts:
        print("; ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    print(
        f"{done} seeds in {seconds:.0f} s ({done / seconds:.1f}/s), {machine_s:.0f} s of machine "
        f"time in {jobs} processes; failing: {len(failed)} {failed or ''}".rstrip()
    )
    return 1 if failed else 0


def _find_mutants(chosen: argparse.Namespace) -> int:
    print(
        "mutants, seeds from 1 on: each one with python -m tests.sim --mutant MUTANT --seed N",
        flush=True,
    )
    from tests.sim.campaign import hunt_all
    from tests.sim.mutants import MUTANTS
    from tests.sim.table import HEAD, row

    if not _known(chosen.mutants):
        return 2
    names = chosen.mutants or list(MUTANTS)
    lost, machine_s, began = [], 0.0, time.monotonic()
    print(f"\n{HEAD}", flush=True)
    for hunt in hunt_all(names, max(1, min(chosen.jobs, len(names)))):
        machine_s += hunt.cpu_s
        print(row(hunt), flush=True)
        if hunt.seed is None:
            lost.append(hunt.mutant)
    seconds = time.monotonic() - began
    print(
        f"\n{len(names)} mutants in {seconds:.0f} s, {machine_s:.0f} s of machine time; "
        f"not found: {len(lost)} {lost or ''}".rstrip()
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())

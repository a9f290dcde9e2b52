"""``python -m tests.sim --seed N`` runs one seed, ``--seeds N`` the first N (from ``--first``)."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

HASH_SEED = "0"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and no other")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--faults", type=int, help="only so many of the seed's faults")
    parser.add_argument("--mutant", help="break the product in this way first")
    parser.add_argument("--digest", action="store_true", help="print the history's digest")
    parser.add_argument("--history", type=Path, help="where histories of failing runs go")
    return parser.parse_args()


def main() -> int:
    """Returns 0 if every run was sound."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # Sets of strings are ordered by their hashes: fixed, or a seed means nothing.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    from tests.sim.mutants import MUTANTS
    from tests.sim.run import run
    from tests.sim.shrink import report

    chosen = _arguments()
    one = chosen.seed is not None
    seeds = [chosen.seed] if one else range(chosen.first, chosen.first + chosen.seeds)
    print(
        f"seed {seeds[0]}: python -m tests.sim --seed {seeds[0]}"
        if one
        else f"seeds {seeds[0]} to {seeds[-1]}: each one with python -m tests.sim --seed N",
        flush=True,
    )
    folder = chosen.history or Path(tempfile.gettempdir()) / "velaray-sim"
    failed, done, began = [], 0, time.monotonic()
    with MUTANTS[chosen.mutant].applied() if chosen.mutant else nullcontext():
        for seed in seeds:
            outcome = run(seed, fault_count=chosen.faults)
            done += 1
            if chosen.digest:
                print(f"history of seed {seed}: {outcome.history.digest()}")
            if outcome.problems:
                failed.append(seed)
                print(report(outcome, folder), flush=True)
                if chosen.mutant:
                    break
    seconds = time.monotonic() - began
    print(f"{done} seeds in {seconds:.0f} s, failing: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

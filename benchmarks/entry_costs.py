"""What an entry costs the server: instructions, and the functions that they are spent in.

    python -m benchmarks.entry_costs                        a table of functions for every load
    python -m benchmarks.entry_costs run publish 20000      one load, for a sampling profiler
    python -m benchmarks.entry_costs count publish          instructions per entry, by valgrind
    python -m benchmarks.entry_costs compare OTHER publish  the same of two trees

`benchmarks.entry_loads` has the loads. Instructions are those of the whole process in user mode, as
valgrind counts them: of a run with many entries, less those of a run with few. So start and end
cancel out, and another program on the machine changes nothing. Functions are timed by cProfile in
CPU time of the cluster's thread. Its own cost is part of each call, so times are too long, and
shares of small functions too high. The numbers of calls are exact.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from benchmarks.entry_loads import LOADS

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = 20_000
FEW, MANY = 1_000, 5_000
PAIRS = 6
TOP = 15
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


class Function(NamedTuple):
    """What one function took, per entry."""

    name: str
    calls: float
    own_us: float
    share: float


def functions(load: str, entries: int = ENTRIES) -> list[Function]:
    """The functions of a load, those with the most time of their own first."""
    profile = cProfile.Profile(time.thread_time)
    LOADS[load](entries, lambda: profile)
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in stats.values())
    found = [
        Function(_name(*place), calls / entries, own / entries * 1e6, own / total)
        for place, (_, calls, own, _, _) in stats.items()
    ]
    return sorted(found, key=lambda each: -each.own_us)


def _name(path: str, line: int, name: str) -> str:
    """``path::function``, or the name of a built-in function."""
    if path == "~":
        return name.strip("<>")
    try:
        path = str(Path(path).resolve().relative_to(ROOT))
    except ValueError:
        path = Path(path).name
    return f"{path}::{name}"


def table(found: list[Function]) -> str:
    """The first functions as a table in Markdown, and the sum of the others."""
    rows = ["| function | calls | own time | share |", "| --- | ---: | ---: | ---: |"]
    for each in found[:TOP]:
        own = f"{each.own_us:.2f} µs | {each.share:.1%}"
        rows.append(f"| `{each.name}` | {each.calls:.2f} | {own} |")
    others = found[TOP:]
    own = f"{sum(each.own_us for each in others):.2f} µs | {sum(e.share for e in others):.1%}"
    rows.append(f"| {len(others)} others | {sum(each.calls for each in others):.2f} | {own} |")
    return "\n".join(rows)


def instructions(load: str, tree: Path = ROOT) -> float:
    """Instructions per entry of a load in a tree. Raises `subprocess.CalledProcessError`."""
    few, many = (_counted(load, entries, tree) for entries in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _counted(load: str, entries: int, tree: Path) -> int:
    """Instructions of a process that runs a load with the velaray of ``tree``."""
    with tempfile.NamedTemporaryFile("r") as log:
        subprocess.run(
            [
                *("valgrind", "--tool=cachegrind", "--cache-sim=no", f"--log-file={log.name}"),
                *("--cachegrind-out-file=/dev/null", sys.executable),
                *("-m", "benchmarks.entry_costs"),
                *("run", load, str(entries)),
            ],
            check=True,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
        )
        found = _COUNTED.search(log.read())
    assert found is not None, "valgrind counts instructions"
    return int(found[1].replace(",", ""))


def compare(other: Path, load: str, pairs: int = PAIRS) -> None:
    """Print the instructions per entry of this tree and of ``other``, in turns."""
    ratios = []
    for number in range(1, pairs + 1):
        there, here = instructions(load, other), instructions(load)
        ratio = here / there
        ratios.append(ratio)
        print(f"{load} {number}: {there:,.0f} there, {here:,.0f} here, {ratio:.3f}", flush=True)
    print(f"{load}: {min(ratios):.3f} to {max(ratios):.3f}")


def main(words: list[str]) -> None:
    """See the module's text."""
    match words:
        case ["run", load, entries]:
            LOADS[load](int(entries), nullcontext)
        case ["count", *loads]:
            for load in loads or LOADS:
                print(f"{load}: {instructions(load):,.0f} instructions per entry", flush=True)
        case ["compare", other, load, *pairs]:
            compare(Path(other).resolve(), load, *map(int, pairs))
        case loads:
            for load in loads or LOADS:
                print(f"## {load}\n\n{table(functions(load))}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

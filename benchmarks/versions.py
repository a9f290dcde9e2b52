"""Compare this tree with another version of velaray: ``python -m benchmarks.versions OTHER``.

Both versions run at once, each with a cluster of its own, and take turns workload by workload; the
order alternates. Clusters are started anew after some pairs: a process can be 10 % faster or slower
than another one of the same code for as long as it lives. With ``--apart`` the versions take turns
start by start instead, so that neither runs beside the idle processes of the other, and a pair is
two clusters' medians, since single values can be two to four times the others (see the README).
Each measure gets the geometric mean of the pairs' ratios (this tree over the other) and its 95 %
confidence interval (Student's t of the ratios' logarithms).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import plan
from benchmarks.contract import LISTS, UNBATCHED
from benchmarks.loads.measure import Values
from benchmarks.machine import describe_machine
from benchmarks.model import Interval
from benchmarks.plan import Cell

DRIVER = Path(__file__).with_name("version_driver.py")
LOGS = Path(__file__).parent / "out" / "logs"
LOADS = ["throughput", "latency", "fan-out"]
WAYS = ("", LISTS, UNBATCHED)
STOP_WITHIN_S = 90.0


Measured = tuple[Cell, str]
"""A workload and one of its measures."""
Found = dict[Measured, list[float]]
"""The values of each, in the order of measuring."""


@dataclass(slots=True)
class Version:
    """A tree whose driver runs."""

    tree: Path
    process: subprocess.Popen[str]
    values: Found

    def run(self, cell: Cell, topic: str, counts: bool) -> None:
        """Run a workload; keep its values if it ``counts``."""
        request = {"load": cell.load, "topic": topic, "way": cell.way, **cell.arguments}
        assert self.process.stdin is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        found: Values = self.answer()
        if not counts:
            return
        for measure, (_, value) in found.items():
            self.values.setdefault((cell, measure), []).append(value)

    def answer(self) -> Any:
        """The next answer. Raises `RuntimeError` if the driver has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the benchmark of {self.tree} has ended; see {LOGS}")
        return json.loads(line)


@contextmanager
def running(tree: Path, name: str, values: Found) -> Iterator[Version]:
    """A tree's cluster and its driver, which adds to ``values``; both end with the context."""
    LOGS.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    command = [sys.executable, str(DRIVER), str(LOGS / f"version-{name}.log")]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        version = Version(tree, process, values)
        version.answer()
        yield version
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(STOP_WITHIN_S)


def title(cell: Cell) -> str:
    """What the table and ``--only`` call a workload."""
    return f"{cell.load} {cell.case} {cell.way}".strip()


def workloads(seconds: float, only: list[str]) -> list[Cell]:
    """The workloads to compare: those titled in ``only``, all if it is empty."""
    groups = plan.cells(LOADS, [plan.VELARAY], seconds)
    cells = [cell for group in groups for cell in group if cell.way in WAYS]
    return [cell for cell in cells if not only or title(cell) in only]


def compare(mine: Version, other: Version, pairs: int, cells: list[Cell]) -> None:
    """Add ``pairs`` values of each measure to both; a first pair warms up and isn't counted."""
    for number in range(pairs + 1):
        for at, cell in enumerate(cells):
            order = (mine, other) if (number + at) % 2 else (other, mine)
            for version in order:
                os.sync()
                version.run(cell, f"pair-{number}-{at}", counts=number > 0)


def measure_apart(trees: list[tuple[Path, str, Found]], repeats: int, cells: list[Cell]) -> None:
    """One cluster of each version after the other; adds the median of ``repeats`` values of each.

    A first value of each workload warms up and isn't counted.
    """
    for tree, name, values in trees:
        found: Found = {}
        with running(tree, name, found) as version:
            for number in range(repeats + 1):
                for at, cell in enumerate(cells):
                    os.sync()
                    version.run(cell, f"apart-{number}-{at}", counts=number > 0)
        for key, each in found.items():
            values.setdefault(key, []).append(statistics.median(each))


def show(mine: Found, other: Found, console: Console) -> None:
    """Print a row per workload and measure."""
    table = Table("workload", "measure", "this", "other", "ratio", "95 %")
    for (cell, measure), values in mine.items():
        others = other[cell, measure]
        if min(values) <= 0 or min(others) <= 0:
            continue
        found = Interval.of([a / b for a, b in zip(values, others, strict=True)])
        table.add_row(
            title(cell),
            measure,
            f"{statistics.median(values):.4g}",
            f"{statistics.median(others):.4g}",
            f"{found.mean:.3f}",
            f"{found.low:.3f} to {found.high:.3f}",
        )
    console.print(table)


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("other", type=Path, help="a clone at the other version")
    parser.add_argument("--pairs", type=int, default=12, help="how often both are measured")
    parser.add_argument(
        "--starts", type=int, default=4, help="how often both clusters are started in all"
    )
    parser.add_argument(
        "--apart", action="store_true", help="run one version's cluster at a time; see above"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a workload")
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORKLOAD", help="as the table calls it"
    )
    chosen = parser.parse_args()
    if chosen.pairs < 2:
        parser.error("--pairs must be 2 or more: an interval needs two ratios")
    if chosen.apart and chosen.starts < 2:
        parser.error("--apart needs --starts of 2 or more: each start gives one ratio")
    if not 1 <= chosen.starts <= chosen.pairs:
        parser.error("--starts must be 1 or more, and at most --pairs")
    if not (chosen.other / "benchmarks" / "worker.py").is_file():
        parser.error(f"{chosen.other} is no clone of velaray")
    cells = workloads(chosen.seconds, chosen.only)
    unknown = set(chosen.only) - {title(cell) for cell in cells}
    if unknown:
        known = ", ".join(repr(title(cell)) for cell in workloads(chosen.seconds, []))
        parser.error(f"no workload is called {', '.join(sorted(unknown))}; there are {known}")
    console = Console(width=160)
    mine: Found = {}
    other: Found = {}
    for number in range(chosen.starts):
        pairs = (chosen.pairs + number) // chosen.starts
        if chosen.apart:
            trees = [(Path.cwd(), "this", mine), (chosen.other.resolve(), "other", other)]
            measure_apart(trees if number % 2 else trees[::-1], pairs, cells)
            continue
        with ExitStack() as stack:
            this = stack.enter_context(running(Path.cwd(), "this", mine))
            former = stack.enter_context(running(chosen.other.resolve(), "other", other))
            compare(this, former, pairs, cells)
    for name, value in describe_machine().items():
        console.print(f"{name}: {value}")
    show(mine, other, console)


if __name__ == "__main__":
    main()

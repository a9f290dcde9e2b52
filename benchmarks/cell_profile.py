"""Where the processes of one workload spend their CPU: ``python -m benchmarks.cell_profile CELL``.

CELL is a workload as tables call it, such as ``"throughput 100 B own client"``. py-spy samples the
client's process and the server's while the workload runs once more after a warm-up. Each busy
process gets a table: what share of its CPU the kernel takes, and the functions that held Python's
lock (GIL). Work outside of the lock, such as checksums of large buffers, system calls and the C++
client, isn't in the samples.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import plan
from benchmarks.processes import TICKS_PER_S, cpu_ticks, descendants
from benchmarks.versions import LOGS, title
from benchmarks.worker import Remote

SAMPLES_PER_S = 200
LEAST_SHARE = 0.05
"""Processes below this share of all samples aren't shown."""
SHOWN = 12


@dataclass
class Samples:
    """What py-spy saw of one process."""

    total: int = 0
    own: Counter[str] = field(default_factory=Counter)
    """By function, the samples in it and not in another Python function that it calls."""


def read(raw: str) -> dict[int, Samples]:
    """The samples of each process, from py-spy's raw format."""
    found: dict[int, Samples] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        # The processes that started this one come first.
        processes = [frame for frame in frames if frame.startswith("process ")]
        if not processes or frames[-1] == processes[-1]:
            continue
        pid = int(processes[-1].removeprefix("process ").partition(":")[0])
        samples = found.setdefault(pid, Samples())
        samples.total += int(count)
        samples.own[_function(frames[-1])] += int(count)
    return found


def _function(frame: str) -> str:
    """``name (path/of/module.py:12)`` without the line, and with the end of a long path."""
    name, _, place = frame.rpartition(" (")
    path = place.rstrip(")").rpartition(":")[0] or place.rstrip(")")
    return f"{'/'.join(path.split('/')[-2:])} {name}".strip()


def sample(cell: plan.Cell) -> tuple[dict[int, Samples], dict[int, tuple[int, int]], int]:
    """Run the workload; return samples and ticks of each process, and the client's process."""
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        raise SystemExit("py-spy is missing: install velaray[bench]")
    LOGS.mkdir(parents=True, exist_ok=True)
    remote = Remote(cell.peer, LOGS / f"profile-{cell.peer}.log")
    try:
        remote.settings()
        _run(remote, cell, "warm")
        client = remote.pid
        before = {pid: cpu_ticks(pid) for pid in descendants(client)}
        with tempfile.NamedTemporaryFile("r", suffix=".raw") as out:
            command = [spy, "record", "--pid", str(client), "--subprocesses", "--gil"]
            command += ["--rate", str(SAMPLES_PER_S), "--duration", "unlimited"]
            command += ["--format", "raw", "--output", out.name]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()  # it samples when it has said so
                _run(remote, cell, "measured")
                process.send_signal(signal.SIGINT)
                process.communicate()
            raw = out.read()
            if not raw:
                raise SystemExit("py-spy has no samples: it needs the right to trace processes")
        ticks = {}
        for pid in before.keys() & set(descendants(client)):
            (user, kernel), (user_before, kernel_before) = cpu_ticks(pid), before[pid]
            ticks[pid] = user - user_before, kernel - kernel_before
    finally:
        remote.close()
    return read(raw), ticks, client


def _run(remote: Remote, cell: plan.Cell, topic: str) -> None:
    remote.run(cell.load, plan.WITHIN_S, way=cell.way, **cell.arguments_on(topic))


def show(console: Console, name: str, samples: Samples, ticks: tuple[int, int]) -> None:
    """Print the table of one process."""
    cpu_s = sum(ticks) / TICKS_PER_S
    kernel = ticks[1] / max(sum(ticks), 1)
    title = f"{name}: {cpu_s:.1f} s of CPU, {kernel:.0%} in the kernel"
    table = Table("function", "samples with the lock", title=title)
    for function, count in samples.own.most_common(SHOWN):
        table.add_row(function, f"{count / samples.total:.0%}")
    console.print(table)


def main() -> None:
    """Parse the command line, sample, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cell_profile", description=__doc__)
    parser.add_argument("cell", help="as tables call it")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the workload")
    chosen = parser.parse_args()
    groups = plan.cells(list(plan.LOADS), [plan.VELARAY], chosen.seconds)
    cells = {title(cell): cell for group in groups for cell in group}
    if chosen.cell not in cells:
        parser.error(f"no workload is called {chosen.cell!r}; there are {', '.join(cells)}")
    found, ticks, client = sample(cells[chosen.cell])
    console = Console(width=120)
    total = sum(each.total for each in found.values())
    for pid, samples in sorted(found.items(), key=lambda item: -item[1].total):
        if samples.total >= LEAST_SHARE * total:
            name = "client" if pid == client else "server"
            show(console, name, samples, ticks.get(pid, (0, 0)))


if __name__ == "__main__":
    main()

"""The comparison with other systems: all of them at once, taking turns."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import plan
from benchmarks.contract import Absent
from benchmarks.loads import disk
from benchmarks.loads.measure import Values
from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.plan import Cell
from benchmarks.worker import Failed, Remote

DISK = "disk"
WARM_UP = -1
_SETTINGS = {
    "throughput": {
        "publish": "one producer for the given time, or 1 GiB, until every receipt arrived",
        "drain": "all that was published, by one consumer, an acknowledgement per message",
        "CPU": "seconds per million messages; servers: the processes that serve the topic",
        "disk": "write_bytes of /proc/PID/io of the servers over bytes of payload",
    },
    "latency": {
        "end to end": "from sending to the consumer's Python code, both in one process",
        "receipt": "from sending to the sender's knowledge that the message is kept",
    },
    "fan-out": {
        "how": "one producer, at most 10,000 messages ahead of any subscription; counted until "
        "every subscription has acknowledged everything",
        "read": "rchar of /proc/PID/io of the servers; velaray reads sockets otherwise",
    },
    "topics": {"how": "each topic has a producer, and each producer a thread of one process"},
    "transactions": {
        "how": "100 B; each transaction receives, sends and acknowledges so many messages",
        "commit": "from the call to its return; everything before it has its receipt, but Kafka's",
    },
    "open transactions": {
        "how": "messages without transactions, 100 B, while transactions are open"
    },
}


@dataclass(slots=True)
class Comparison:
    """What was found: a result per workload, peers' settings, and what is missing and why."""

    results: list[Result]
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rounds: int = 0
    took: dict[str, float] = field(default_factory=dict)


def run(loads: list[str], options: Options, logs: Path, console: Console) -> Comparison:
    """Run these workloads in rounds until all are done or the time is up."""
    deadline = time.monotonic() + 60 * options.minutes
    logs.mkdir(parents=True, exist_ok=True)
    samples = {load: Samples() for load in (*loads, DISK)}
    found = Comparison([])
    with _running(options, logs, found, console) as remotes:
        groups = plan.cells(loads, list(remotes), options.seconds)
        warm_up = plan.warm_up(loads, list(remotes), options.seconds)
        total = options.rounds * sum(map(len, groups)) + len(warm_up)
        with _progress(console) as progress:
            task = progress.add_task("warm-up", total=total)
            for cell in warm_up:
                _measure(cell, WARM_UP, remotes, {cell.load: Samples()}, found)
                progress.advance(task)
            for number in range(options.rounds):
                began = time.monotonic()
                _add(samples[DISK], Cell(DISK, "64 KiB", "disk", "", {}), disk.run(options.seconds))
                for group in groups:
                    for cell in plan.in_turn(group, number):
                        progress.update(task, description=f"{cell.load} {cell.case} {cell.subject}")
                        if time.monotonic() < deadline:
                            _measure(cell, number, remotes, samples, found)
                        progress.advance(task)
                    if not console.is_terminal:
                        took = time.monotonic() + 60 * options.minutes - deadline
                        place = f"{group[0].load}, {group[0].case}"
                        console.print(f"{took:5.0f} s: round {number + 1}, {place} done")
                found.rounds = number + 1
                if time.monotonic() + 0.9 * (time.monotonic() - began) > deadline:
                    break
    if time.monotonic() > deadline or found.rounds < options.rounds:
        found.notes.append(
            f"{options.minutes:g} minutes sufficed for {found.rounds} of {options.rounds} rounds"
        )
    for load, values in samples.items():
        result = Result(load, _SETTINGS.get(load, {}), plan.REDIS, values.rows())
        if result.rows:
            found.results.append(result)
    return found


def _measure(
    cell: Cell,
    number: int,
    remotes: dict[str, Remote],
    samples: dict[str, Samples],
    found: Comparison,
) -> None:
    remote = remotes[cell.peer]
    if not remote.alive:
        return
    topic = re.sub(r"[^\w-]+", "-", f"{cell.load}-{number}-{cell.case}-{cell.way}")
    os.sync()  # what others wrote without syncing it is not for this one to wait for
    began = time.monotonic()
    try:
        values = remote.run(cell.load, plan.WITHIN_S, way=cell.way, **cell.arguments_on(topic))
    except Failed as error:
        found.notes.append(f"{cell.load}, {cell.case}, {cell.subject}, round {number + 1}: {error}")
        return
    finally:
        name = f"{cell.load}, {cell.case}, {cell.subject}"
        found.took[name] = found.took.get(name, 0.0) + time.monotonic() - began
    _add(samples[cell.load], cell, values)


def _add(samples: Samples, cell: Cell, values: Values) -> None:
    for measure, (unit, value) in values.items():
        # Others read their sockets with the same calls as files.
        if not measure.startswith("read from files") or cell.peer == plan.VELARAY:
            samples.add(cell.case, cell.subject, measure, unit, value)


@contextmanager
def _running(
    options: Options, logs: Path, found: Comparison, console: Console
) -> Iterator[dict[str, Remote]]:
    """Start the peers beside each other; note those that can't be."""
    with ExitStack() as stack:
        remotes = {}
        began = time.monotonic()
        for name in options.peers:
            remotes[name] = Remote(name, logs / f"{name}.log")
            stack.callback(remotes[name].close)
        for name in options.peers:
            try:
                found.peers[name] = remotes[name].settings()
            except (Absent, Failed) as error:
                note = f"{name} is left out: {error}"
                found.notes.append(note)
                console.print(note, markup=False)
                del remotes[name]
        for remote in remotes.values():
            stack.callback(remote.dismiss)  # all of them before any is waited for
        console.print(f"{len(remotes)} systems started in {time.monotonic() - began:.0f} s")
        yield remotes


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<48}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )

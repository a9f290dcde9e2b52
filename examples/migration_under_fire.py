"""A tenant moves from one cluster to another under load, while processes of both are killed.

Starts two clusters on this machine, each on a Ray of its own, and a tenant in the first one with a
topic of flights that left New York City in 2013: two producers, a Shared subscription with gaps and
delayed messages whose acknowledgements are confirmed one by one, a Failover subscription for the
order per key, and a Shared one of the official client. Then the tenant is moved, while SIGKILL hits
replicators, partitions, subscriptions and catalogs. The clients know the first cluster's address
only, and are never started again. Then it does all of it once more with the subscriptions'
mark-delete alone, as Pulsar's snapshots tell it, and shows both side by side.

Exits with 0 only if nothing was lost, no message came again whose acknowledgement was confirmed,
nothing was stored twice, and each key's messages came in order; of the second run everything but
the duplicates must hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from flights import flights
from flights_load import Load, Published
from hosted_clusters import HostedCluster, Kill, hosted
from rich.console import Console
from rich.live import Live
from rich.table import Table
from under_fire import add_store_option, create_topic, isolate, place_in, quiet_clients, wait_for

import velaray

TENANT = "acme"
NAMESPACE = f"{TENANT}/airports"
TOPIC = f"persistent://{NAMESPACE}/flights"
SUBSCRIPTIONS = ("counted", "ordered", "official")
PARTITIONS = 2
FLIGHTS = 100_000
"""More than are published."""
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
LOOK_S = 0.1
AIM_S = 0.2
PATIENCE_S = 60.0
KINDS = ("replicator", "partition", "subscription", "catalog")
# The processes to kill, by cluster, before the migration, in its phases, and after it.
PLAN: Mapping[str, Sequence[tuple[str, str]]] = {
    "before": (("partition", "a"), ("subscription", "a"), ("catalog", "a"), ("partition", "a")),
    "replicating": (("replicator", "a"), ("partition", "b"), ("catalog", "a"), ("replicator", "a")),
    "fenced": (("partition", "a"), ("replicator", "a"), ("partition", "b"), ("catalog", "a")),
    "after": (("subscription", "b"), ("partition", "b"), ("catalog", "b"), ("partition", "b")),
}
console = Console()


@dataclass
class Run:
    """One migration under load: what the display shows of it, and what came out."""

    progress: str
    load: Load
    kills: Counter[str] = field(default_factory=Counter)
    migration: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    stored: Counter[int] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    lasted_s: float = 0.0

    @property
    def phase(self) -> str:
        """Of the migration."""
        return str(self.migration.get("phase", "not begun"))

    @property
    def fence_s(self) -> float:
        """How long clients were kept away."""
        steps = dict(map(tuple, self.migration.get("steps", ())))
        return (steps.get("switched", 0) - steps.get("fenced", 0)) / 1000

    def demand(self, holds: bool, problem: str) -> None:
        """Note what isn't as it should be."""
        if not holds:
            self.problems.append(problem)

    def display(self) -> Table:
        """The figures of this moment."""
        load, detail = self.load, self.migration.get("detail") or {}
        table = Table.grid()
        taken = (
            f"{name} [green]{len(tally.seen):,}[/]"
            for name, tally in zip(SUBSCRIPTIONS, load.tallies, strict=True)
        )
        held = sum(taker.held for taker in load.with_gaps)
        table.add_row(
            f"[bold]{time.monotonic() - self.began:5.1f} s[/]   "
            f"published [cyan]{load.published:,}[/]   {'   '.join(taken)}   "
            f"held back [yellow]{held:,}[/]"
        )
        table.add_row(
            f"[bold]{self.phase}[/]   lag [cyan]{detail.get('lag', 0):,}[/] entries, "
            f"{detail.get('progress_lag_ms', 0) / 1000:.1f} s of progress   "
            f"{detail.get('waiting_for', '')}"
        )
        kills = "   ".join(f"{kind}s [red]{self.kills[kind]}[/]" for kind in KINDS)
        table.add_row(f"[red]SIGKILL {self.kills.total()}[/]   {kills}")
        return table


class Watcher(threading.Thread):
    """Asks the source how the migration goes, until it's over."""

    def __init__(self, source: HostedCluster, run: Run) -> None:
        super().__init__(daemon=True)
        self._admin = source.admin
        self._run = run
        self.stopping = threading.Event()

    def run(self) -> None:
        """Look again and again."""
        while not self._run.migration.get("over") and not self.stopping.wait(LOOK_S):
            try:
                found = self._admin.migration(TENANT)
            except (velaray.client.admin.AdminError, OSError):
                continue  # its catalog is being restarted
            if found["phase"] != self._run.phase:
                console.print(f"[bold]{found['phase']}[/]")
            self._run.migration = found


def shoot(run: Run, kill: Kill) -> bool:
    """Kill one process of a kind; False if none lives just now."""
    found = kill.shoot(TENANT)
    if found is None:
        return False
    run.kills[kill.kind] += 1
    found = found.replace(f"/{NAMESPACE}", "")
    console.print(f"[red]SIGKILL[/] cluster {kill.cluster.name}: {found}")
    return True


def fire(
    run: Run, stage: str, clusters: Mapping[str, HostedCluster], options: argparse.Namespace
) -> None:
    """Kill what is planned for a stage, spread over it; in a phase, as long as that lasts. What was
    over too soon is made up for after the migration."""
    is_phase = stage in ("replicating", "fenced")
    count = len(PLAN) * options.kills - run.kills.total() if stage == "after" else options.kills
    plan = islice(cycle(PLAN[stage]), count)
    left = [Kill(kind, clusters[name]) for kind, name in plan]
    pause = threading.Event()
    patience = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < patience and (not is_phase or run.phase == stage):
        if shoot(run, left[0]):
            del left[0]
            pause.wait(AIM_S if is_phase else options.seconds / count)
        else:
            pause.wait(AIM_S)


def make_tenant(admin: velaray.Admin, clusters: Sequence[str]) -> None:
    """One whose namespace keeps everything, so that it can be counted in the end."""
    admin.create_tenant(TENANT, allowed_clusters=clusters)
    admin.create_namespace(NAMESPACE)
    admin.set_policy(NAMESPACE, "retention", FOR_EVER)
    create_topic(admin, TOPIC, PARTITIONS)
    isolate(admin, TOPIC)


def move(run: Run, clusters: Mapping[str, HostedCluster], options: argparse.Namespace) -> bool:
    """Have the tenant move, killing on; whether it is done in time."""
    watcher = Watcher(clusters["a"], run)
    clusters["a"].admin.migrate_tenant(TENANT, "b", progress=run.progress)
    watcher.start()
    for phase in ("replicating", "fenced"):
        wait_for(lambda phase=phase: phase in _phases(run), PATIENCE_S)
        fire(run, phase, clusters, options)
    watcher.join(PATIENCE_S)
    watcher.stopping.set()
    return run.phase == "done"


def _phases(run: Run) -> list[str]:
    return [phase for phase, _ in run.migration.get("steps", ())]


def backlog(cluster: HostedCluster) -> int | None:
    """Entries that some subscription hasn't acknowledged; None if not all could be asked."""
    total = 0
    try:
        for number in range(PARTITIONS):
            found = cluster.admin.stats(f"{TOPIC}-partition-{number}")["subscriptions"]
            total += sum(found[name]["msgBacklog"] for name in SUBSCRIPTIONS)
    except (velaray.client.admin.AdminError, OSError):
        return None
    return total


def stored(service_url: str) -> Counter[int]:
    """Every number in the topic, and how often it is there."""
    found: Counter[int] = Counter()
    with velaray.Client(service_url) as client:
        for part in client.get_topic_partitions(TOPIC):
            reader = client.create_reader(part, velaray.MessageId.earliest)
            while reader.has_message_available():
                found[Published.of(reader.read_next(30_000).data()).number] += 1
    return found


def under_load(
    run: Run, clusters: Mapping[str, HostedCluster], options: argparse.Namespace
) -> None:
    """Publish, consume and kill, from before the migration until everything is consumed."""
    load = run.load
    load.start(list(islice(flights(), FLIGHTS)), options.per_second, options.longest_delay)
    with Live(console=console, get_renderable=run.display, refresh_per_second=4):
        fire(run, "before", clusters, options)
        run.demand(move(run, clusters, options), f"the migration is {run.phase}: {run.migration}")
        fire(run, "after", clusters, options)
        run.demand(load.finish_publishing(PATIENCE_S), "not every message has its receipt")
        load.release()
        run.demand(wait_for(load.is_drained, PATIENCE_S), "not everything was acknowledged")
        run.demand(wait_for(lambda: backlog(clusters["b"]) == 0, PATIENCE_S), "a backlog is left")


def judge(run: Run, options: argparse.Namespace) -> None:
    """Note all that isn't as it must be after the run."""
    load = run.load
    wanted = load.confirmed()
    run.problems += load.failures()
    run.demand(len(wanted) > 0, "nothing was published")
    run.demand(not load.lost(), f"{load.lost()} messages didn't come")
    run.demand(not wanted - run.stored.keys(), "messages aren't stored in the other cluster")
    run.demand(max(run.stored.values(), default=0) <= 1, "messages are stored twice")
    run.demand(not load.ordered.out_of_order, "messages of a key came out of order")
    for tally in load.tallies:
        run.demand(not tally.too_early, "delayed messages came too early")
    again = duplicates(load)
    run.demand(run.progress != "exact" or not again, f"{again} came again after being confirmed")
    planned = len(PLAN) * options.kills
    run.demand(run.kills.total() >= planned, f"only {run.kills.total()} were killed")


def duplicates(load: Load) -> int:
    """Messages that were delivered again after their acknowledgement was confirmed."""
    return sum(len(tally.duplicates) for tally in load.tallies)


def carry_out(progress: str, folder: Path, options: argparse.Namespace) -> Run:
    """One run, on two new clusters."""
    console.rule(f"progress {progress}")
    folder.mkdir(parents=True)
    place = place_in(options.store, folder)
    with hosted(folder, place, ("a", "b"), progress) as (a, b):
        console.print(f"cluster a at {a.service_url}, cluster b at {b.service_url}; {place}")
        make_tenant(a.admin, (a.name, b.name))
        run = Run(progress, Load(a.service_url, TOPIC, folder / "pulsar-client.log"))
        try:
            under_load(run, {"a": a, "b": b}, options)
            run.stored = stored(b.service_url)
        finally:
            run.load.close()
        run.lasted_s = time.monotonic() - run.began
        judge(run, options)
    return run


def compare(runs: Sequence[Run]) -> Table:
    """What came out, side by side."""
    table = Table("", *(run.progress for run in runs), title=f"tenant {TENANT} moved from a to b")
    rows = {
        "published with a receipt": lambda run: f"{run.load.published:,}",
        "deliveries": lambda run: f"{sum(each.deliveries for each in run.load.tallies):,}",
        "confirmed acknowledgements": lambda run: (
            f"{sum(each.confirmations for each in run.load.tallies):,}"
        ),
        "lost": lambda run: f"{run.load.lost():,}",
        "came again though confirmed": lambda run: f"{duplicates(run.load):,}",
        "stored twice": lambda run: f"{sum(n > 1 for n in run.stored.values()):,}",
        "out of order in their key": lambda run: f"{len(run.load.ordered.out_of_order):,}",
        "delayed, but too early": lambda run: (
            f"{sum(len(each.too_early) for each in run.load.tallies):,}"
        ),
        "seconds from fence to switch": lambda run: f"{run.fence_s:.1f}",
        "longest without a receipt (s)": lambda run: " and ".join(
            f"{each.silence_s:.1f}" for each in run.load.publishers
        ),
        "killed": lambda run: ", ".join(f"{run.kills[kind]} {kind}s" for kind in KINDS),
        "seconds in all": lambda run: f"{run.lasted_s:.0f}",
    }
    for name, figure in rows.items():
        table.add_row(name, *map(figure, runs))
    return table


def main() -> int:
    """Read the options and run; the exit code says whether everything came out right."""
    quiet_clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-second", type=float, default=200.0, help="messages published")
    parser.add_argument("--seconds", type=float, default=20.0, help="before and after the move")
    parser.add_argument("--longest-delay", type=float, default=20.0, help="of a delayed message")
    parser.add_argument("--kills", type=int, default=4, help="processes to kill in each stage")
    parser.add_argument("--only", choices=("exact", "snapshots"), help="make one run alone")
    parser.add_argument("--keep", type=Path, help="keep journals and logs in this folder")
    add_store_option(parser)
    options = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="velaray-demo-") as folder:
        for progress in [options.only] if options.only else ["exact", "snapshots"]:
            runs.append(carry_out(progress, (options.keep or Path(folder)) / progress, options))
    console.print(compare(runs))
    for run in runs:
        for problem in run.problems:
            console.print(f"[red]{run.progress}: {problem}[/]")
    good = not any(run.problems for run in runs)
    console.print("[bold green]all as it should be[/]" if good else "[bold red]FAILED[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

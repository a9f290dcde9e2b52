"""A year of flights through a topic whose actors are killed all the while.

Starts a cluster on this machine, publishes the 336,776 flights that left New York City in
2013 to four partitions keyed by tail number, and has three worker processes count them per
carrier, while SIGKILL hits partitions, subscriptions, the catalog and a worker at random.
Exits with 0 only if the workers' counts equal those taken straight from the file: every
flight counted, each exactly once after de-duplication by message id, in order per tail
number, and nothing left in the backlog.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import ray
from flights import Flight, flights
from rich.console import Console
from rich.live import Live
from rich.table import Table
from under_fire import (
    Victim,
    actor_of,
    add_store_option,
    create_topic,
    isolate,
    place_in,
    quiet_clients,
    sigkill,
    victims,
)

import velaray
from velaray.cluster import Cluster

TOPIC = "persistent://public/default/flights"
SUBSCRIPTION = "carriers"
PARTITIONS = 4
WORKERS = 3
KINDS = ("partition", "subscription")
DRAIN_TIMEOUT_S = 60.0
console = Console()


@dataclass
class Progress:
    """What the display shows."""

    total: int
    published: int = 0
    acknowledged: int = 0
    kills: int = 0
    recoveries: int = 0
    began: float = field(default_factory=time.monotonic)

    def table(self) -> Table:
        """The figures of this moment."""
        table = Table.grid(padding=(0, 2))
        table.add_row(
            f"[bold]{time.monotonic() - self.began:5.1f} s[/]",
            f"published [cyan]{self.published:,}[/]/{self.total:,}",
            f"acked [green]{self.acknowledged:,}[/]",
            f"kills [red]{self.kills}[/]",
            f"recoveries [yellow]{self.recoveries}[/]",
        )
        return table


class Workers:
    """The worker processes and their logs."""

    def __init__(self, service_url: str, folder: Path) -> None:
        self._service_url = service_url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._counted: dict[Path, tuple[int, int]] = {}

    def start(self) -> None:
        """Start one more worker."""
        log = self._folder / f"worker-{len(self._processes)}.log"
        log.touch()
        script = Path(__file__).with_name("flights_worker.py")
        arguments = [self._service_url, TOPIC, SUBSCRIPTION, str(log)]
        self._processes.append(subprocess.Popen([sys.executable, str(script), *arguments]))

    def kill_one(self, chance: random.Random) -> int:
        """SIGKILL a worker and start another; returns the process id."""
        victim = chance.choice([each for each in self._processes if each.poll() is None])
        victim.kill()
        victim.wait()
        self.start()
        return victim.pid

    def stop(self) -> None:
        """End every worker, and wait for it."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(timeout=30)

    def lines(self) -> int:
        """How many flights were counted so far, in all logs; reads only what is new."""
        for log in self._folder.glob("worker-*.log"):
            offset, lines = self._counted.get(log, (0, 0))
            with log.open("rb") as raw:
                raw.seek(offset)
                new = raw.read()
            self._counted[log] = (offset + len(new), lines + new.count(b"\n"))
        return sum(lines for _, lines in self._counted.values())


class Counted(NamedTuple):
    """A flight as a worker counted it."""

    at: int
    message_id: str
    flight: Flight


def read_logs(folder: Path) -> list[Counted]:
    """Everything the workers counted, in the order they did. A torn last line is left out."""
    counted = []
    for log in folder.glob("worker-*.log"):
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                message_id, number, tail, carrier, delay, at = line.rstrip("\n").split("\t")
                minutes = None if delay == "None" else float(delay)
                flight = Flight(int(number), tail, carrier, minutes)
                counted.append(Counted(int(at), message_id, flight))
    return sorted(counted)


def totals(every: Iterable[Flight]) -> dict[str, tuple[int, float]]:
    """Flights and minutes of delay per carrier."""
    counts: Counter[str] = Counter()
    delays: defaultdict[str, float] = defaultdict(float)
    for flight in every:
        counts[flight.carrier] += 1
        delays[flight.carrier] += flight.delay or 0.0
    return {carrier: (counts[carrier], delays[carrier]) for carrier in counts}


class Sniper(threading.Thread):
    """Kills an actor's or a worker's process every now and then, and watches it come back."""

    def __init__(
        self, cluster: Cluster, workers: Workers, progress: Progress, kills: int, pause_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._workers = workers
        self._progress = progress
        self._kills = kills
        self._pause_s = pause_s
        self._chance = random.Random()
        self._dead: dict[str, int] = {}
        self.stopping = threading.Event()

    def run(self) -> None:
        """Kill each kind in turn, then kinds at random, until enough were killed."""
        targets = ["partition", "subscription", "catalog", "worker"]
        self._chance.shuffle(targets)
        while not self.stopping.wait(self._pause_s * self._chance.uniform(0.6, 1.4)):
            if self._progress.kills >= self._kills:
                self._watch()
                continue
            target = targets.pop() if targets else self._chance.choice(KINDS)
            self._shoot(target)

    def _shoot(self, target: str) -> None:
        if target == "worker":
            self._report(Victim("a worker", self._workers.kill_one(self._chance)))
            return
        self._watch()
        found = actor_of(target, self._cluster, self._chance)
        if found is not None and sigkill(found.pid):
            self._dead[found.name] = found.pid
            self._report(found)

    def _report(self, killed: Victim) -> None:
        self._progress.kills += 1
        console.print(f"[red]SIGKILL[/] {killed}")

    def _watch(self) -> None:
        """Count the killed actors that came back."""
        running = {each.name: each.pid for each in victims(self._cluster)}
        for name, pid in list(self._dead.items()):
            if running.get(name, pid) != pid:
                del self._dead[name]
                self._progress.recoveries += 1


def publish(service_url: str, every: list[Flight], progress: Progress, seconds: float) -> None:
    """Publish all flights at an even pace over ``seconds``."""
    failures: list[object] = []

    def sent(result: object, message_id: object) -> None:
        progress.published += 1
        if result != velaray.Result.Ok:
            failures.append(result)

    with velaray.Client(service_url) as client:
        producer = client.create_producer(
            TOPIC,
            producer_name="airports",
            compression_type=velaray.CompressionType.LZ4,
            batching_enabled=True,
            batching_type=velaray.BatchingType.KeyBased,
            batching_max_publish_delay_ms=20,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        began = time.monotonic()
        for flight in every:
            if flight.number % 500 == 0:
                ahead = seconds * flight.number / len(every) - (time.monotonic() - began)
                if ahead > 0:
                    threading.Event().wait(ahead)
            producer.send_async(flight.to_bytes(), sent, partition_key=flight.tail)
        producer.flush()
        producer.close()
    if failures:
        raise SystemExit(f"{len(failures)} flights could not be published: {failures[0]}")


def backlog() -> int:
    """Un-acknowledged entries of the subscription, as its partitions tell."""
    partitions = ray.get(velaray.handle(TOPIC).stats.remote()).values()
    return sum(each["subscriptions"][SUBSCRIPTION]["backlog"] for each in partitions)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while time.monotonic() < deadline:
        try:
            if condition():
                return True
        except ray.exceptions.RayError:
            pass  # an actor is being restarted; it is asked again
        pause.wait(0.2)
    return False


def compare(every: list[Flight], counted: list[Counted], left: int) -> bool:
    """Print both tables side by side and every fault; True if there is none."""
    firsts: dict[str, Flight] = {}
    for each in counted:
        firsts.setdefault(each.message_id, each.flight)
    distinct = list(firsts.values())
    expected, actual = totals(every), totals(distinct)
    table = Table("carrier", "flights", "counted", "delay (min)", "counted", title="per carrier")
    for carrier in sorted(expected.keys() | actual.keys()):
        flights_in_file, delay_in_file = expected.get(carrier, (0, 0.0))
        flights_counted, delay_counted = actual.get(carrier, (0, 0.0))
        same = (flights_in_file, delay_in_file) == (flights_counted, delay_counted)
        table.add_row(
            carrier,
            f"{flights_in_file:,}",
            f"{flights_counted:,}",
            f"{delay_in_file:,.0f}",
            f"{delay_counted:,.0f}",
            style="" if same else "bold red",
        )
    console.print(table)
    times = Counter(flight.number for flight in distinct)
    missing = sum(flight.number not in times for flight in every)
    repeated = sum(count > 1 for count in times.values())
    reordered = 0
    newest: dict[str, int] = {}
    for flight in distinct:
        reordered += newest.get(flight.tail, -1) > flight.number
        newest[flight.tail] = max(newest.get(flight.tail, -1), flight.number)
    console.print(
        f"missing {missing}, more than once after de-duplication {repeated}, out of order "
        f"{reordered}, backlog {left}; {len(counted) - len(distinct):,} messages were delivered "
        "again after a crash and recognised by their ids"
    )
    return expected == actual and not (missing or repeated or reordered or left)


def run(options: argparse.Namespace, folder: Path) -> bool:
    """The whole demo; True if nothing was lost, doubled, reordered or left behind."""
    every = list(flights())[: options.flights]
    progress = Progress(len(every))
    place = place_in(options.store, folder)
    with Cluster.start(place, service_port=0, admin_port=0) as cluster:
        console.print(f"cluster at {cluster.service_url}, journals in {place}")
        admin = velaray.Admin(cluster.admin_url)
        create_topic(admin, TOPIC, PARTITIONS)
        isolate(admin, TOPIC)
        workers = Workers(cluster.service_url, folder)
        for _ in range(WORKERS):
            workers.start()
        sniper = Sniper(cluster, workers, progress, options.kills, options.seconds / options.kills)
        publisher = threading.Thread(
            target=publish, args=(cluster.service_url, every, progress, options.seconds)
        )
        with Live(console=console, get_renderable=progress.table, refresh_per_second=4):
            publisher.start()
            sniper.start()

            def finished() -> bool:
                progress.acknowledged = workers.lines()
                return not publisher.is_alive() and progress.kills >= options.kills

            wait_for(finished, options.seconds * 2 + DRAIN_TIMEOUT_S)
            sniper.stopping.set()
            sniper.join()
            publisher.join()

            def drained() -> bool:
                progress.acknowledged = workers.lines()
                return progress.acknowledged >= len(every) and backlog() == 0

            wait_for(drained, DRAIN_TIMEOUT_S)
            left = backlog()
        workers.stop()
        if progress.kills < options.kills:
            console.print(f"[red]only {progress.kills} kills[/]")
            return False
    return compare(every, read_logs(folder), left)


def main() -> int:
    """Read the options and run; the exit code says whether everything came out right."""
    quiet_clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=336_776, help="how many of the flights")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to publish")
    parser.add_argument("--kills", type=int, default=12, help="how many processes to kill")
    add_store_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velaray-demo-") as folder:
        good = run(options, Path(folder))
    console.print("[bold green]all as it should be[/]" if good else "[bold red]FAILED[/]")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

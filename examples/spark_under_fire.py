"""Flights through Spark Structured Streaming, exactly once, while everything on the way is killed.

Starts a cluster on this machine and Spark on the same Ray. Publishes flights that left New York
City in 2013, in the order of their departure, to one topic; a streaming query sums up flights and
delays per hour and carrier, with a watermark, and writes them to a second topic. Meanwhile
SIGKILL hits the query's driver, which goes on from its checkpoint, Spark's executors, partitions
and transaction coordinators. Exits with 0 only if the second topic holds exactly the rows that a
computation over the file has, each of them once.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

from delays_query import DELAYS, FLIGHTS, Task
from flights import delay_of, rows
from rich.console import Console
from rich.live import Live
from rich.table import Table
from under_fire import (
    Victim,
    actor_of,
    add_store_option,
    create_topic,
    exists,
    isolate,
    place_in,
    quiet_clients,
    sigkill,
    wait_for,
)

import velaray
from velaray.cluster import Cluster
from velaray.pipelines import SparkOnRay
from velaray.topology.ray_connection import start_ray

PARTITIONS = {FLIGHTS: 4, DELAYS: 2}
EXECUTORS = 2
ROUND = ("driver", "executor", *3 * ("partition", "coordinator"))
KINDS = tuple(dict.fromkeys(ROUND))
OF_SPARK = ("driver", "executor")
NEXT_BATCH_S = 60.0
DRAIN_TIMEOUT_S = 120.0
AFTER_ALL = timedelta(days=30)
console = Console()


class Flight(NamedTuple):
    """One flight: when and by whose plane it was to leave, minutes that it arrived late."""

    time: datetime
    tail: str
    carrier: str
    delay: float | None


class Delays(NamedTuple):
    """A row of the result."""

    hour: str
    carrier: str
    flights: int
    minutes: float


def departures() -> list[Flight]:
    """Every flight of the file, by departure."""
    found = [
        Flight(
            datetime.fromisoformat(row["time_hour"]), row["tailnum"], row["carrier"], delay_of(row)
        )
        for row in rows()
    ]
    return sorted(found, key=lambda flight: flight.time)


def expected_rows(every: list[Flight]) -> list[Delays]:
    """The result, computed from the file."""
    delays: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for flight in every:
        delays[f"{flight.time:%Y-%m-%d %H}", flight.carrier].append(flight.delay or 0.0)
    return [Delays(*key, len(each), sum(each)) for key, each in delays.items()]


@dataclass
class Figures:
    """What the display shows."""

    total: int
    published: int = 0
    batches: int = 0
    found: list[Delays] = field(default_factory=list)
    drivers: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def counted(self) -> int:
        """Flights in the rows that were found."""
        return sum(row.flights for row in self.found)

    def table(self) -> Table:
        """The figures of this moment."""
        table = Table.grid(padding=(0, 3))
        table.add_row(
            f"[bold]{time.monotonic() - self.began:5.1f} s[/]",
            f"published [cyan]{self.published:,}[/]/{self.total:,}",
            f"batches committed [green]{self.batches}[/]",
            f"rows in the topic [green]{len(self.found):,}[/]",
            f"flights in them [green]{self.counted():,}[/]",
        )
        table.add_row(
            f"[red]SIGKILL {self.kills.total()}[/]",
            *(f"{kind}s [red]{self.kills[kind]}[/]" for kind in KINDS),
        )
        return table


class Driver(threading.Thread):
    """Keeps a process of the query running: starts another when it ends, from the checkpoint."""

    def __init__(self, task: Task, folder: Path, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._task = task
        self._log = folder / "driver.log"
        self._figures = figures
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self.pids: tuple[int, ...] = ()

    def run(self) -> None:
        """Until told to stop."""
        script = Path(__file__).with_name("delays_query.py")
        while not self._stopping.is_set():
            with self._log.open("ab") as log:
                pipe = subprocess.PIPE
                process = subprocess.Popen(
                    [sys.executable, str(script)], stdin=pipe, stdout=pipe, stderr=log
                )
            assert process.stdin is not None and process.stdout is not None
            with process:
                self._process = process
                self._figures.drivers += 1
                process.stdin.write(pickle.dumps(self._task))
                process.stdin.flush()
                if jvm := process.stdout.readline():
                    self.pids = (process.pid, int(jvm))
                process.wait()
                self.pids = ()

    def stop(self) -> None:
        """End the query after its batch, and its process."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self.join(60.0)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self.join()

    def last_words(self) -> str:
        """The end of the log of all of them."""
        return self._log.read_text(errors="replace")[-3000:]


def executors(folder: str) -> list[int]:
    """The executors' JVMs of the Spark cluster with this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" not in command:
                continue
            if folder.encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended
    return found


class Sniper(threading.Thread):
    """Kills a living process every now and then, of each kind in its turn.

    Spark is left alone after a kill until it has committed a batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        spark_folder: str,
        driver: Driver,
        figures: Figures,
        options: argparse.Namespace,
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._spark_folder = spark_folder
        self._driver = driver
        self._figures = figures
        self._kills = options.kills
        self._chance = random.Random()
        self._quiet_until = (0, math.inf)
        self._pause_s = options.seconds / options.kills
        self.stopping = threading.Event()

    def run(self) -> None:
        """Kill until there were enough."""
        turn: list[str] = []
        while self._figures.kills.total() < self._kills:
            if self.stopping.wait(self._pause_s * self._chance.uniform(0.6, 1.4)):
                return
            if not turn:
                turn = self._chance.sample(ROUND, len(ROUND))
            if self._shoot(turn[-1]):
                turn.pop()

    def _shoot(self, kind: str) -> bool:
        """Kill a process of a kind; False if none could be found, or it was gone already."""
        if kind in OF_SPARK:
            batch, time_s = self._quiet_until
            if self._figures.batches <= batch and time.monotonic() < time_s:
                return False
        found = self._victim(kind)
        if found is None or not sigkill(found.pid):
            return False
        if kind in OF_SPARK:
            self._quiet_until = (self._figures.batches, time.monotonic() + NEXT_BATCH_S)
        self._figures.kills[kind] += 1
        at = time.monotonic() - self._figures.began
        console.print(f"{at:5.1f} s [red]SIGKILL[/] {found}")
        return True

    def _victim(self, kind: str) -> Victim | None:
        if kind not in OF_SPARK:
            return actor_of(kind, self._cluster, self._chance)
        pids = self._driver.pids if kind == "driver" else executors(self._spark_folder)
        alive = [pid for pid in pids if exists(pid)]
        if not alive:
            return None
        pid = self._chance.choice(alive)
        name = {"executor": "an executor"}.get(kind)
        return Victim(name or ("the driver" if pid == pids[0] else "the driver's JVM"), pid)


class Watcher(threading.Thread):
    """Reads the growing result, and the progress of the query."""

    def __init__(self, service_url: str, checkpoint: Path, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._service_url = service_url
        self._checkpoint = checkpoint
        self._figures = figures
        self.stopping = threading.Event()

    def run(self) -> None:
        """Until told to stop."""
        with velaray.Client(self._service_url) as client:
            readers = [
                client.create_reader(part, velaray.MessageId.earliest)
                for part in client.get_topic_partitions(DELAYS)
            ]
            while not self.stopping.wait(0.5):
                commits = (self._checkpoint / "commits").glob("[0-9]*")
                self._figures.batches = max((int(each.name) + 1 for each in commits), default=0)
                for reader in readers:
                    try:
                        self._figures.found += everything_of(reader)
                    except velaray.VelarayError:
                        continue  # it is being restarted


def everything_of(reader: velaray.Reader) -> Iterator[Delays]:
    """The rows that can be read now."""
    while reader.has_message_available():
        yield Delays(*json.loads(reader.read_next(30_000).data()).values())


def read_up_to(checkpoint: Path) -> dict[str, tuple[int, int]]:
    """Ledger and entry up to which the query has committed, for each partition."""
    numbers = [int(each.name) for each in (checkpoint / "commits").glob("[0-9]*")]
    if not numbers:
        return {}
    *_, offset = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()
    partitions: dict[str, dict[str, str]] = json.loads(offset)["partitions"]
    return {part: _position(progress["after"]) for part, progress in partitions.items()}


def _position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


class Publisher(threading.Thread):
    """Publishes the flights, day after day: none before the day before it is stored.

    Each process that is killed lets some more of them go: there is work to do after each.
    When the query has read all, one more follows from much later, which ends all hours.
    """

    def __init__(
        self, task: Task, every: list[Flight], figures: Figures, options: argparse.Namespace
    ) -> None:
        super().__init__(daemon=True)
        self._task = task
        self._every = every
        self._figures = figures
        self._seconds = options.seconds
        self._kills = options.kills
        self._ends: dict[str, tuple[int, int]] = {}
        self.enough = threading.Event()
        self.failure: object = None

    def run(self) -> None:
        """At an even pace and as there are kills, or without waiting when ``enough`` is set."""
        with velaray.Client(self._task.service_url) as client:
            producer = client.create_producer(
                FLIGHTS, batching_enabled=True, block_if_queue_full=True, send_timeout_millis=0
            )
            began = time.monotonic()
            for _, day in groupby(self._every, lambda flight: flight.time.date()):
                share = self._figures.published / len(self._every)
                self.enough.wait(max(0.0, share * self._seconds - (time.monotonic() - began)))
                while share > (self._figures.kills.total() + 1) / (self._kills + 1):
                    if self.enough.wait(0.1):
                        break
                self._publish(producer, list(day))
            wait_for(self._all_is_read, DRAIN_TIMEOUT_S)
            last = self._every[-1]
            self._publish(producer, [last._replace(time=last.time + AFTER_ALL)])

    def _publish(self, producer: velaray.Producer, flights: list[Flight]) -> None:
        for flight in flights:
            producer.send_async(
                json.dumps({"carrier": flight.carrier, "delay": flight.delay}).encode(),
                self._sent,
                partition_key=flight.tail,
                event_timestamp=int(flight.time.timestamp() * 1000),
            )
        producer.flush()

    def _sent(self, result: velaray.Result, message_id: velaray.MessageId | None) -> None:
        if result != velaray.Result.Ok or message_id is None:
            self.failure = result
            return
        self._figures.published += 1
        part = f"{FLIGHTS}-partition-{message_id.partition()}"
        at = (message_id.ledger_id(), message_id.entry_id())
        self._ends[part] = max(at, self._ends.get(part, at))

    def _all_is_read(self) -> bool:
        read = read_up_to(Path(self._task.checkpoint))
        return all(read.get(part, (-1, -1)) >= end for part, end in self._ends.items())


def compare(every: list[Flight], found: list[Delays]) -> bool:
    """Print both results side by side and every difference; True if there is none."""
    wanted, there = Counter(expected_rows(every)), Counter(found)
    missing, surplus = wanted - there, there - wanted
    pairs = ("rows", "in topic", "flights", "in topic", "delay (min)", "in topic")
    table = Table("carrier", *pairs, "missing", "surplus", title="of the file, and in the topic")
    for carrier in sorted({row.carrier for row in wanted | there}):
        both = zip(_totals(wanted, carrier), _totals(there, carrier), strict=True)
        faults = [_totals(each, carrier)[0] for each in (missing, surplus)]
        table.add_row(
            carrier,
            *(f"{figure:,.0f}" for pair in both for figure in pair),
            *(str(fault) for fault in faults),
            style="bold red" if any(faults) else "",
        )
    console.print(table)
    for what, rows_ in (("missing", missing), ("surplus", surplus)):
        for row in islice(sorted(rows_.elements()), 5):
            console.print(f"[red]{what}[/] {row}")
    console.print(
        f"{wanted.total():,} rows of the file, {there.total():,} in the topic:"
        f" {missing.total()} missing, {surplus.total()} too many"
    )
    return not missing and not surplus


def _totals(counted: Counter[Delays], carrier: str) -> tuple[int, int, float]:
    mine = [row for row in counted.elements() if row.carrier == carrier]
    return len(mine), sum(row.flights for row in mine), sum(row.minutes for row in mine)


def contents(service_url: str) -> list[Delays]:
    """Every row of the result."""
    found: list[Delays] = []
    with velaray.Client(service_url) as client:
        for part in client.get_topic_partitions(DELAYS):
            with client.create_reader(part, velaray.MessageId.earliest) as reader:
                found += everything_of(reader)
    return found


def process(
    cluster: Cluster,
    spark: SparkOnRay,
    every: list[Flight],
    options: argparse.Namespace,
    folder: Path,
) -> bool:
    """Publish, process and kill; True if it all came to its end, with enough kills."""
    figures = Figures(len(every))
    checkpoint = folder / "checkpoint"
    task = Task(spark.session_maker(), cluster.service_url, str(checkpoint))
    driver = Driver(task, folder, figures)
    watcher = Watcher(cluster.service_url, checkpoint, figures)
    publisher = Publisher(task, every, figures, options)
    sniper = Sniper(cluster, spark.folder, driver, figures, options)
    with Live(console=console, get_renderable=figures.table, refresh_per_second=4):
        for thread in (driver, watcher, publisher):
            thread.start()
        if wait_for(lambda: figures.batches > 0, DRAIN_TIMEOUT_S):
            sniper.start()
            sniper.join(options.seconds + 2 * DRAIN_TIMEOUT_S)
        sniper.stopping.set()
        publisher.enough.set()
        publisher.join(2 * DRAIN_TIMEOUT_S)
        ended = wait_for(lambda: figures.counted() >= len(every), DRAIN_TIMEOUT_S)
        watcher.stopping.set()
        watcher.join()
        driver.stop()
    kills = ", ".join(f"{figures.kills[kind]} {kind}s" for kind in KINDS)
    console.print(
        f"{time.monotonic() - figures.began:.0f} s; {figures.batches} batches committed by"
        f" {figures.drivers} drivers\n"
        f"SIGKILL hit {figures.kills.total()} living processes: {kills}"
    )
    if not ended:
        console.print(
            f"[red]not all flights were counted[/]; the driver's log ends:\n{driver.last_words()}"
        )
    if publisher.failure is not None:
        console.print(f"[red]publishing failed: {publisher.failure}[/]")
    return ended and publisher.failure is None and figures.kills.total() >= options.kills


def run(options: argparse.Namespace, folder: Path) -> bool:
    """The whole demo; True if the result is the file's, to the row."""
    every = departures()[: options.flights]
    start_ray(num_cpus=EXECUTORS, object_store_memory=100 << 20)
    place = place_in(options.store, folder)
    with Cluster.start(place, service_port=0, admin_port=0) as cluster:
        console.print(f"cluster at {cluster.service_url}, journals in {place}")
        admin = velaray.Admin(cluster.admin_url)
        for topic, partitions in PARTITIONS.items():
            create_topic(admin, topic, partitions)
        isolate(admin, DELAYS)
        # What no subscription waits for may be trimmed away.
        admin.create_subscription(DELAYS, "auditor", velaray.MessageId.earliest)
        admin.create_subscription(FLIGHTS, "auditor", velaray.MessageId.earliest)
        with SparkOnRay(workers=EXECUTORS) as spark:
            console.print(f"Spark at {spark.master_url}, on the same Ray")
            good = process(cluster, spark, every, options, folder)
        return compare(every, contents(cluster.service_url)) and good


def main() -> int:
    """Read the options and run; the exit code says whether everything came out right."""
    quiet_clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=100_000, help="how many of the flights")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long to publish")
    parser.add_argument("--kills", type=int, default=24, help="how many processes to kill")
    add_store_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velaray-demo-") as folder:
        good = run(options, Path(folder))
    console.print("[bold green]all as it should be[/]" if good else "[bold red]FAILED[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""A hundred thousand flights processed exactly once while everything that does it is killed.

Starts a cluster on this machine, publishes flights that left New York City in 2013 to one topic,
and runs a transform on Ray: of every flight it publishes the carrier to a second topic, and of
those that were late the delay to a third, with the acknowledgement in one transaction. Meanwhile
SIGKILL hits transaction coordinators, partitions, subscriptions and the transform's workers.
Exits with 0 only if both topics hold exactly what the file says, each message as often as it
should be there, nothing is left in the backlog, and no transaction is left open.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from flights import Flight, flights
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
from velaray.pipelines import Output, Transform, TransformRun

FLIGHTS = "persistent://public/default/flights"
CARRIERS = "persistent://public/default/carriers"
DELAYS = "persistent://public/default/delays"
PARTITIONS = {FLIGHTS: 4, CARRIERS: 2, DELAYS: 2}
SUBSCRIPTION = "split"
WORKERS = 3
BATCH = 50
BATCH_IN_STORE = 250
"""A transaction takes about half a second if journals are in an object store."""
TRANSACTION_TIMEOUT_S = 10.0
KINDS = ("coordinator", "partition", "subscription", "worker")
LATE_MINUTES = 15
DRAIN_TIMEOUT_S = 180.0
console = Console()


def outputs_of(flight: Flight) -> Iterator[Output]:
    """What one flight becomes."""
    yield Output(CARRIERS, _row(flight.number, flight.carrier), flight.carrier)
    if flight.delay is not None and flight.delay >= LATE_MINUTES:
        yield Output(DELAYS, _row(flight.number, flight.tail, flight.delay), flight.tail)


def _row(*values: Any) -> bytes:
    return json.dumps(values).encode()


def split(messages: list[velaray.Message]) -> Iterator[Output]:
    """The transform's function."""
    for message in messages:
        yield from outputs_of(Flight.from_bytes(message.data()))


@dataclass
class Figures:
    """What the display shows besides the transform's own counts."""

    total: int
    published: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    coordinators: dict[int, dict[str, Any]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def transactions(self, name: str) -> int:
        """A figure of all coordinators together, as they last told it."""
        return sum(stats[name] for stats in list(self.coordinators.values()))


def display(figures: Figures, run: TransformRun) -> Table:
    """The figures of this moment."""
    progress = run.progress()
    backlog = "?" if progress.backlog is None else f"{progress.backlog:,}"
    table = Table.grid(padding=(0, 3))
    table.add_row(
        f"[bold]{time.monotonic() - figures.began:5.1f} s[/]",
        f"published [cyan]{figures.published:,}[/]/{figures.total:,}",
        f"consumed [green]{progress.counts.consumed:,}[/]",
        f"produced [green]{progress.counts.produced:,}[/]",
        f"backlog {backlog} entries",
    )
    table.add_row(
        "transactions",
        f"open [cyan]{figures.transactions('ongoingTxnSize')}[/]",
        f"committed [green]{figures.transactions('committedTxnCount'):,}[/]",
        f"aborted [yellow]{figures.transactions('abortedTxnCount'):,}[/]",
        f"of these timed out [yellow]{figures.transactions('timedOutTxnCount'):,}[/]",
    )
    table.add_row(
        f"[red]SIGKILL {figures.kills.total()}[/]",
        *(f"{kind}s [red]{figures.kills[kind]}[/]" for kind in KINDS),
    )
    return table


class Watcher(threading.Thread):
    """Asks the coordinators for their figures, again and again."""

    def __init__(self, admin_url: str, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._admin = velaray.Admin(admin_url)
        self._figures = figures
        self.stopping = threading.Event()

    def run(self) -> None:
        """Until told to stop."""
        while not self.stopping.wait(0.5):
            self.look()

    def look(self) -> bool:
        """Whether all of them answered."""
        try:
            self._figures.coordinators = self._admin.coordinators()
        except (velaray.client.admin.AdminError, OSError):
            return False  # one of them is being restarted
        return True


class Sniper(threading.Thread):
    """Kills a living process every now and then, of each kind as often as of the others."""

    def __init__(
        self, cluster: Cluster, run: TransformRun, figures: Figures, kills: int, pause_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._run = run
        self._figures = figures
        self._kills = kills
        self._pause_s = pause_s
        self._chance = random.Random()
        self.stopping = threading.Event()

    def run(self) -> None:
        """Kill until there were enough."""
        turn: list[str] = []
        while self._figures.kills.total() < self._kills:
            if self.stopping.wait(self._pause_s * self._chance.uniform(0.6, 1.4)):
                return
            if not turn:
                turn = self._chance.sample(KINDS, len(KINDS))
            if self._shoot(turn[-1]):
                turn.pop()

    def _shoot(self, kind: str) -> bool:
        """Kill a process of a kind; False if none could be found, or it was gone already."""
        if kind == "worker":
            found = self._worker()
        else:
            found = actor_of(kind, self._cluster, self._chance)
        if found is None or not sigkill(found.pid):
            return False
        self._figures.kills[kind] += 1
        console.print(f"[red]SIGKILL[/] {found}")
        return True

    def _worker(self) -> Victim | None:
        pids = [pid for pid in self._run.progress().workers if exists(pid)]
        return Victim("a worker", self._chance.choice(pids)) if pids else None


def publish(service_url: str, every: list[Flight], figures: Figures, seconds: float) -> None:
    """Publish all flights at an even pace over ``seconds``."""
    failures: list[object] = []

    def sent(result: object, message_id: object) -> None:
        figures.published += 1
        if result != velaray.Result.Ok:
            failures.append(result)

    with velaray.Client(service_url) as client:
        producer = client.create_producer(
            FLIGHTS,
            producer_name="airports",
            compression_type=velaray.CompressionType.LZ4,
            batching_enabled=True,
            batching_max_messages=100,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )
        began = time.monotonic()
        for number, flight in enumerate(every):
            if number % 500 == 0:
                ahead = seconds * number / len(every) - (time.monotonic() - began)
                if ahead > 0:
                    threading.Event().wait(ahead)
            producer.send_async(flight.to_bytes(), sent, partition_key=flight.tail)
        producer.flush()
        producer.close()
    if failures:
        raise SystemExit(f"{len(failures)} flights could not be published: {failures[0]}")


def contents(service_url: str, topic: str) -> Counter[bytes]:
    """Every message of a topic, and how often it is there."""
    found: Counter[bytes] = Counter()
    with velaray.Client(service_url) as client:
        for part in client.get_topic_partitions(topic):
            reader = client.create_reader(part, velaray.MessageId.earliest)
            while reader.has_message_available():
                found[reader.read_next(30_000).data()] += 1
    return found


def compare(service_url: str, every: list[Flight]) -> bool:
    """Compare the topics with the file; True if they are equal, as multisets."""
    expected: dict[str, Counter[bytes]] = {CARRIERS: Counter(), DELAYS: Counter()}
    for flight in every:
        for output in outputs_of(flight):
            assert output.value is not None
            expected[output.topic][output.value] += 1
    table = Table("topic", "in the file", "in the topic", "missing", "too many")
    good = True
    for topic, wanted in expected.items():
        found = contents(service_url, topic)
        missing, surplus = (wanted - found).total(), (found - wanted).total()
        good = good and not missing and not surplus
        table.add_row(
            topic.rpartition("/")[2],
            f"{wanted.total():,}",
            f"{found.total():,}",
            str(missing),
            str(surplus),
            style="bold red" if missing or surplus else "",
        )
    console.print(table)
    return good


def process(
    cluster: Cluster, every: list[Flight], options: argparse.Namespace, figures: Figures
) -> bool:
    """Publish, process and kill; True if it all came to its end, with enough kills."""
    transform = Transform(
        split,
        FLIGHTS,
        SUBSCRIPTION,
        batch_size=BATCH if options.store is None else BATCH_IN_STORE,
        transaction_timeout=TRANSACTION_TIMEOUT_S,
    )
    watcher = Watcher(cluster.admin_url, figures)
    publisher = threading.Thread(
        target=publish, args=(cluster.service_url, every, figures, options.seconds)
    )
    with TransformRun(transform, WORKERS, service_url=cluster.service_url) as run:
        sniper = Sniper(cluster, run, figures, options.kills, options.seconds / options.kills)
        with Live(
            console=console, get_renderable=lambda: display(figures, run), refresh_per_second=4
        ):
            for thread in (publisher, watcher, sniper):
                thread.start()
            publisher.join()
            sniper.join(DRAIN_TIMEOUT_S)
            sniper.stopping.set()
            sniper.join()
            progress = run.drain(DRAIN_TIMEOUT_S)
            watcher.stopping.set()
            watcher.join()
            ended = wait_for(
                lambda: watcher.look() and not figures.transactions("ongoingTxnSize"),
                TRANSACTION_TIMEOUT_S + 60.0,
            )
    counts = progress.counts
    console.print(
        f"{time.monotonic() - figures.began:.0f} s; "
        f"{figures.transactions('committedTxnCount'):,} transactions committed, "
        f"{figures.transactions('abortedTxnCount'):,} aborted, "
        f"{figures.transactions('ongoingTxnSize')} left open; "
        f"{progress.deaths} workers were replaced, others began anew {counts.failures} times"
    )
    kills = ", ".join(f"{figures.kills[kind]} {kind}s" for kind in KINDS)
    console.print(f"SIGKILL hit {figures.kills.total()} living processes: {kills}")
    return ended and figures.kills.total() >= options.kills


def backlog(admin_url: str) -> int:
    """Un-acknowledged entries of the flights."""
    admin = velaray.Admin(admin_url)
    parts = [f"{FLIGHTS}-partition-{number}" for number in range(PARTITIONS[FLIGHTS])]
    every = [admin.stats(part)["subscriptions"][SUBSCRIPTION]["msgBacklog"] for part in parts]
    return sum(every)


def run(options: argparse.Namespace, folder: Path) -> bool:
    """The whole demo; True if every flight counted exactly once, and nothing is left over."""
    every = list(islice(flights(), options.flights))
    place = place_in(options.store, folder)
    with Cluster.start(place, service_port=0, admin_port=0) as cluster:
        console.print(f"cluster at {cluster.service_url}, journals in {place}")
        admin = velaray.Admin(cluster.admin_url)
        for topic, partitions in PARTITIONS.items():
            create_topic(admin, topic, partitions)
            if topic != FLIGHTS:  # what no subscription waits for may be trimmed away
                admin.create_subscription(topic, "auditor", velaray.MessageId.earliest)
        isolate(admin, DELAYS)
        good = process(cluster, every, options, Figures(len(every)))
        left = backlog(cluster.admin_url)
        console.print(f"backlog {left}")
        return compare(cluster.service_url, every) and good and not left


def main() -> int:
    """Read the options and run; the exit code says whether everything came out right."""
    quiet_clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=100_000, help="how many of the flights")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long to publish")
    parser.add_argument("--kills", type=int, default=60, help="how many processes to kill")
    parser.add_argument("--keep", type=Path, help="keep the journals in this folder")
    add_store_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="velaray-demo-") as folder:
        good = run(options, options.keep or Path(folder))
    console.print("[bold green]all as it should be[/]" if good else "[bold red]FAILED[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

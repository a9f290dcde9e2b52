"""Flights published and consumed while every machine of the cluster is lost, disk and all.

Makes three "machines" out of Linux namespaces, each with processes, an address and a disk of its
own, and starts Ray on them and velaray over them. They share no directory: the journals are in an
S3-compatible store. Clients publish flights that left New York City in 2013 and acknowledge what
they get, while the machines are killed and their disks removed: first one whose connections end,
then one that is cut off the network before, then the one with Ray's head. Ray ends without its
head, so the cluster starts again on the machines that are left. In the end all machines are killed,
and the cluster starts on a new one. The clients are never started again.

Prints how long it took after each loss until every partition served again. Exits with 0 only if no
message with a receipt was lost, none was redelivered after its acknowledgement was confirmed, none
was stored twice, and the messages of each key came in order.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import jwt
from flights import flights
from flights_load import Load, Published
from machines import NETWORK, SWITCH, Machine, NoMachinesError, namespaces, switch
from rich.console import Console
from rich.live import Live
from rich.table import Table
from under_fire import quiet_clients, wait_for

import velaray
from benchmarks.contract import Absent
from tests.support.s3_server import installed, program, running
from velaray.cluster import NODE_HEALTH

NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/flights"
PARTITIONS = 6
FLIGHTS = 200_000
"""More than are published."""
FOR_EVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
HOSTS = 3
CLIENTS = {"own": "velaray's client", "official": "Pulsar's client"}
PATIENCE_S = 120.0
OPERATION_TIMEOUT_S = 15
"""Clients look for a machine that serves with pauses that grow until this time is over."""
SERVICE_PORT, ADMIN_PORT, RAY_PORT = 6650, 8080, 6399
OBJECT_STORE_BYTES = 80 << 20
INSIDE = "--inside"
RAY = ("-c", "from ray.scripts.scripts import main; main()", "start", "--block", "--num-cpus=1")
VELARAY = ("-c", "from velaray.cli.app import main; main()", "start")
console = Console()


class Site:
    """Machines with a cluster on them, whose journals are in a store."""

    def __init__(self, store: str, environment: Mapping[str, str], logs: Path) -> None:
        """``environment`` leads to the store."""
        self._store = store
        self._logs = logs
        self._secret = secrets.token_bytes(32)
        self._environment = {
            **environment,
            **NODE_HEALTH,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.token = jwt.encode({"sub": "admin"}, self._secret, algorithm="HS256")
        self.machines: dict[str, Machine] = {}
        self._key = ""
        self.head = ""

    def add(self, name: str, number: int) -> None:
        """A new machine, with an empty disk. ``number`` is the last part of its address."""
        address = f"{NETWORK.rpartition('.')[0]}.{number}"
        machine = Machine(name, address, self._logs, self._environment)
        self._key = machine.put("token.key", self._secret)  # at the same place on each of them
        self.machines[name] = machine

    def start(self, head: str) -> None:
        """Start Ray on all machines and velaray over them, with nothing but the store."""
        self.head = head
        self._start_ray(head)
        others = [name for name in self.machines if name != head]
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._start_ray, others))
        machine = self.machines[head]
        where = ("--store", self._store, "--host", NETWORK, "--token-secret", self._key)
        ray = ("--ray-address", f"{machine.address}:{RAY_PORT}")
        hosts = ("--placement", "shared", "--hosts", str(HOSTS))
        machine.run_until("velaray", "velaray is running", *VELARAY, *where, *ray, *hosts)

    def join(self, name: str) -> None:
        """Start Ray on one more machine, and return when its proxy serves."""
        self._start_ray(name)
        if not wait_for(lambda: self._answers(name), PATIENCE_S):
            raise SystemExit(f"machine {name} has no proxy after {PATIENCE_S:g} s")

    def _start_ray(self, name: str) -> None:
        machine, head = self.machines[name], self.machines[self.head]
        first = ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
        machine.run_until(
            "ray",
            "Ray runtime started",
            *RAY,
            *(first if machine is head else (f"--address={head.address}:{RAY_PORT}",)),
            f"--node-ip-address={machine.address}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--resources={json.dumps({'velaray_data': 1})}",
        )

    def admin(self, name: str) -> velaray.Admin:
        """The admin interface on a machine."""
        address = self.machines[name].address
        return velaray.Admin(f"http://{address}:{ADMIN_PORT}", token=self.token)

    def _answers(self, name: str) -> bool:
        with self.admin(name) as admin:
            try:
                admin.hosts()
            except (velaray.client.admin.AdminError, OSError):
                return False
        return True

    def actors_of(self, name: str) -> int:
        """The number of actors that run on a machine."""
        node = self.machines[name].ray_node()
        with self.admin(self.head) as admin:
            return sum(len(host["actors"]) for host in admin.hosts() if host["node"] == node)

    def lose(self, name: str, *, cut_off: bool = False) -> None:
        """Kill a machine. If it is ``cut_off`` before, its connections don't end."""
        machine = self.machines.pop(name)
        if cut_off:
            machine.unplug()
        machine.kill()

    def start_again(self, head: str) -> None:
        """Start the cluster again on the machines that are there, on which Ray lost its head."""
        for machine in self.machines.values():
            machine.end_processes()
        self.start(head)

    def close(self) -> None:
        """End all machines."""
        for machine in self.machines.values():
            machine.kill()


@dataclass
class Loss:
    """The loss of machines, and how long it lasted."""

    what: str
    actors: int
    seconds: dict[str, float] = field(default_factory=dict)
    """By client, the seconds until it had receipts and deliveries of all partitions again."""

    def __str__(self) -> str:
        return " and ".join(f"{name} after {self.told(client)}" for client, name in CLIENTS.items())

    def told(self, client: str) -> str:
        """The seconds of a client; "never" if it took too long."""
        return f"{self.seconds[client]:.1f} s" if client in self.seconds else "never"


@dataclass
class Run:
    """What the display shows, and what came out."""

    load: Load
    losses: list[Loss] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stored: Counter[int] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def demand(self, holds: bool, problem: str) -> None:
        """Note what isn't as it should be."""
        if not holds:
            self.problems.append(problem)

    def tell(self, text: str) -> None:
        """Print a line with the time."""
        console.print(f"[bold]{time.monotonic() - self.began:5.1f} s[/] {text}")

    def display(self) -> Table:
        """The figures of this moment."""
        table = Table.grid(padding=(0, 3))
        taken = (f"{len(tally.seen):,}" for tally in self.load.tallies)
        confirmed = sum(tally.confirmations for tally in self.load.tallies)
        table.add_row(
            f"[bold]{time.monotonic() - self.began:5.1f} s[/]",
            f"published [cyan]{self.load.published:,}[/]",
            f"received [green]{', '.join(taken)}[/]",
            f"confirmed [green]{confirmed:,}[/]",
            f"losses [red]{len(self.losses)}[/]",
        )
        return table


@contextmanager
def losing(run: Run, site: Site, what: str, names: Sequence[str]) -> Iterator[None]:
    """Note what machines had before they are lost, and how long it takes to serve again."""
    actors = sum(site.actors_of(name) for name in names)
    loss = Loss(what, actors)
    run.tell(f"[red]{what}[/], with {actors} actors, and the disk removed")
    began, began_ms = time.monotonic(), time.time() * 1000
    run.losses.append(loss)
    yield

    def everything_is_served() -> bool:
        for client in CLIENTS:
            if client not in loss.seconds and run.load.serves(client, began_ms, PARTITIONS):
                loss.seconds[client] = time.monotonic() - began
        return len(loss.seconds) == len(CLIENTS)

    good = wait_for(everything_is_served, PATIENCE_S)
    run.demand(good, f"{what}: not everything is served again")
    run.tell(f"  all partitions serve again: [cyan]{loss}[/]")


def lose_one(run: Run, site: Site) -> None:
    """Lose a machine; a new one joins."""
    with losing(run, site, "machine c is killed", ["c"]):
        site.lose("c")
    replace(run, site, "c2", 3)


def lose_one_cut_off(run: Run, site: Site) -> None:
    """Lose a machine whose connections don't end; a new one joins."""
    with losing(run, site, "machine b is cut off and killed", ["b"]):
        site.lose("b", cut_off=True)
    replace(run, site, "b2", 2)


def lose_head(run: Run, site: Site) -> None:
    """Lose the machine with Ray's head; the cluster starts again on the others."""
    with losing(run, site, "machine a, with Ray's head, is killed", ["a"]):
        site.lose("a")
        run.tell("  Ray ends without its head: the cluster starts again on machines b2 and c2")
        site.start_again("b2")
        run.tell("  it has started")


def lose_all(run: Run, site: Site) -> None:
    """Lose all machines; the cluster starts on a new one."""
    with losing(run, site, "all machines are killed", ["b2", "c2"]):
        for name in ("b2", "c2"):
            site.lose(name)
        run.tell("  the cluster starts on machine d, which is new, from the store alone")
        site.add("d", 1)
        site.start("d")
        run.tell("  it has started")


LOSSES = (lose_one, lose_one_cut_off, lose_head, lose_all)


def fire(run: Run, site: Site, calm_s: float, losses: int) -> None:
    """Lose every machine, one after the other, then all of them; or the first ``losses`` only."""
    calm = threading.Event()
    for lose in LOSSES[:losses]:
        calm.wait(calm_s)
        lose(run, site)
    calm.wait(calm_s)


def replace(run: Run, site: Site, name: str, number: int) -> None:
    """Have a new machine take the address of a lost one."""
    site.add(name, number)
    site.join(name)
    run.tell(f"machine {name} has joined, with the address of the lost one and an empty disk")


def backlog(site: Site) -> int | None:
    """Entries that some subscription hasn't acknowledged; None if not all could be asked."""
    total = 0
    with site.admin(site.head) as admin:
        try:
            for number in range(PARTITIONS):
                found = admin.stats(f"{TOPIC}-partition-{number}")["subscriptions"]
                total += sum(each["msgBacklog"] for each in found.values())
        except (velaray.client.admin.AdminError, OSError):
            return None
    return total


def stored(site: Site, service_url: str) -> Counter[int]:
    """Every number in the topic, and how often it is there."""
    found: Counter[int] = Counter()
    authentication = velaray.AuthenticationToken(site.token)
    with velaray.Client(service_url, authentication=authentication) as client:
        for part in client.get_topic_partitions(TOPIC):
            reader = client.create_reader(part, velaray.MessageId.earliest)
            while reader.has_message_available():
                found[Published.of(reader.read_next(30_000).data()).number] += 1
    return found


def judge(run: Run) -> None:
    """Note all that isn't as it must be after the run."""
    load = run.load
    wanted = load.confirmed()
    run.problems += load.failures()
    run.demand(len(wanted) > 0, "nothing was published")
    run.demand(not load.lost(), f"{load.lost()} messages didn't come")
    run.demand(not wanted - run.stored.keys(), "messages with a receipt aren't stored")
    run.demand(max(run.stored.values(), default=0) <= 1, "messages are stored twice")
    run.demand(not load.ordered.out_of_order, "messages of a key came out of order")
    again = sum(len(tally.duplicates) for tally in load.tallies)
    run.demand(not again, f"{again} messages were redelivered after being confirmed")


def report(run: Run) -> None:
    """Print the losses and what came out."""
    losses = Table("loss", "actors", *CLIENTS.values(), title="until all partitions serve again")
    for loss in run.losses:
        losses.add_row(loss.what, str(loss.actors), *map(loss.told, CLIENTS))
    console.print(losses)
    load = run.load
    rows = {
        "published with a receipt": load.published,
        "deliveries": sum(tally.deliveries for tally in load.tallies),
        "confirmed acknowledgements": sum(tally.confirmations for tally in load.tallies),
        "lost": load.lost(),
        "redelivered though confirmed": sum(len(tally.duplicates) for tally in load.tallies),
        "stored twice": sum(count > 1 for count in run.stored.values()),
        "out of order in their key": len(load.ordered.out_of_order),
    }
    outcome = Table("", "messages")
    for name, figure in rows.items():
        outcome.add_row(name, f"{figure:,}")
    console.print(outcome)
    console.print(f"{time.monotonic() - run.began:.0f} s in all")
    for problem in run.problems:
        console.print(f"[red]{problem}[/]")


def under_load(run: Run, site: Site, options: argparse.Namespace) -> None:
    """Publish, consume and lose machines, until everything is consumed."""
    load = run.load
    load.start(list(islice(flights(), FLIGHTS)), options.per_second, options.longest_delay)
    with Live(console=console, get_renderable=run.display, refresh_per_second=4):
        fire(run, site, options.seconds, options.losses)
        run.demand(load.finish_publishing(PATIENCE_S), "not every message has its receipt")
        load.release()
        run.demand(wait_for(load.is_drained, PATIENCE_S), "not everything was acknowledged")
        run.demand(wait_for(lambda: backlog(site) == 0, PATIENCE_S), "a backlog is left")


def carry_out(options: argparse.Namespace, folder: Path) -> bool:
    """The whole demo; True if everything came out right."""
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(switch())
        server = stack.enter_context(running(folder / "s3", SWITCH))
        site = Site(server.new_store(), server.environment, folder)
        stack.callback(site.close)
        for number, name in enumerate("abc", 1):
            site.add(name, number)
        site.start("a")
        with site.admin("a") as admin:
            admin.set_policy(NAMESPACE, "retention", FOR_EVER)
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        addresses = [each.address for each in site.machines.values()]
        service_url = "pulsar://" + ",".join(f"{each}:{SERVICE_PORT}" for each in addresses)
        log = folder / "pulsar-client.log"
        load = Load(service_url, TOPIC, log, site.token, OPERATION_TIMEOUT_S)
        run = Run(load, began=began)
        run.tell(f"Ray and velaray run on machines a, b and c; the store is {server.url}")
        try:
            under_load(run, site, options)
            run.stored = stored(site, service_url)
        finally:
            run.load.close()
        judge(run)
        report(run)
    return not run.problems


def main() -> int:
    """Read the options and run; the exit code says whether everything came out right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-second", type=float, default=200.0, help="messages published")
    parser.add_argument("--seconds", type=float, default=10.0, help="between losses")
    numbers = range(1, len(LOSSES) + 1)
    parser.add_argument(
        "--losses", type=int, default=len(LOSSES), choices=numbers, help="how many of four"
    )
    parser.add_argument("--longest-delay", type=float, default=20.0, help="of a delayed message")
    parser.add_argument("--keep", type=Path, help="keep the store and logs in this folder")
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if not options.inside:
            begun = namespaces()
            if not installed().exists():
                console.print("Go builds the S3 server: once, 4 minutes of processor time")
            program()
            os.execvp(begun[0], [*begun, sys.executable, *sys.argv, INSIDE])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        quiet_clients()
        with tempfile.TemporaryDirectory(prefix="velaray-demo-") as folder:
            good = carry_out(options, options.keep or Path(folder))
    except (Absent, NoMachinesError) as error:
        raise SystemExit(f"this demo can't run here: {error}") from error
    console.print("[bold green]all as it should be[/]" if good else "[bold red]FAILED[/]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

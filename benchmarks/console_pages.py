"""The time until each page of the console answers, while topics with a producer each are in use.

Run as ``python -m benchmarks.console_pages [--topics N] [--rounds N] [--subscriptions N]``; other
options are those of ``velaray start --local``, which runs in a process of its own. This process
publishes, and asks for each page `--rounds` times over one connection. The time is from the request
to the last byte of the answer.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

import velaray
from velaray.client.admin import Admin

TOPIC = "persistent://public/default/topic-0001"
SUBSCRIPTION = "s0"
STOP_WITHIN_S = 60.0
_COMMAND = "from velaray.cli.app import main; main()"


def paths(admin: Admin) -> dict[str, str]:
    """The pages, each by its path; those of one topic are about a topic in use."""
    ledger = admin.topics.internal_stats(TOPIC)["ledgers"][0]["ledgerId"]
    actor = next(each for each in admin.actors() if each.startswith("partition/public/default"))
    of_subscription = f"topic={TOPIC}&name={SUBSCRIPTION}"
    return {
        "attention": "/",
        "topics": "/console/topics",
        "topics, last page": "/console/topics?page=1000000",
        "topics, searched": "/console/topics?q=topic-09",
        "topic": f"/console/topic?topic={TOPIC}",
        "policies": f"/console/policies?where={TOPIC}",
        "messages": f"/console/messages?topic={TOPIC}",
        "message": f"/console/message?topic={TOPIC}&id={ledger}:0",
        "subscription": f"/console/subscription?{of_subscription}",
        "preview": f"/console/subscription/preview?{of_subscription}&move=seek&to=earliest",
        "time": "/console/time",
        "moment": f"/console/time?actor={actor}",
        "dead-letters": "/console/dead-letters",
        "transactions": "/console/transactions",
        "schemas": f"/console/schemas?topic={TOPIC}",
        "pipelines": "/console/pipelines",
        "clusters": "/console/clusters",
        "hosts": "/console/hosts",
        "audit": "/console/audit",
        "settings": "/console/settings",
    }


@contextmanager
def cluster(extra: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A cluster in a process of its own: its addresses for clients and for the console."""
    with tempfile.TemporaryDirectory(prefix="velaray-bench-") as directory:
        ports = ("--service-port", "0", "--admin-port", "0")
        words = [sys.executable, "-c", _COMMAND, "start", "--local", "--data", directory, *ports]
        process = subprocess.Popen([*words, *extra], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        found: dict[str, str] = {}
        while not {"service", "admin"} <= found.keys():
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"velaray start --local ended with {process.wait()}")
            name, _, value = line.partition(" ")
            found[name] = value.strip().split()[0] if value.strip() else ""
        try:
            yield found["service"], found["admin"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_WITHIN_S)


@contextmanager
def in_use(service: str, topics: int, subscriptions: int, rate: float) -> Iterator[None]:
    """Topics with a producer each, which publish ``rate`` messages a second together."""
    with velaray.Client(service) as client:
        names = [f"topic-{number:04}" for number in range(topics)]
        consumers = [
            client.subscribe(name, f"s{number}", velaray.ConsumerType.Shared)
            for name in names
            for number in range(subscriptions)
        ]
        producers = [client.create_producer(name, block_if_queue_full=True) for name in names]
        for producer in producers:
            producer.send(b"x" * 100)
        ended = threading.Event()

        def publish() -> None:
            while True:
                for producer in producers:
                    if ended.wait(1 / rate):
                        return
                    producer.send_async(b"x" * 100)

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            del consumers


def timed(connection: http.client.HTTPConnection, path: str) -> tuple[float, int, bytes]:
    """Milliseconds of a page, its status and its text."""
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read()
    return (time.perf_counter() - began) * 1000, answer.status, text


def measure(admin_url: str, rounds: int) -> dict[str, tuple[list[float], int, int]]:
    """Milliseconds of each page by name, how many answers left a part out, and the last status."""
    connection = http.client.HTTPConnection(urlsplit(admin_url).netloc, timeout=60)
    found: dict[str, tuple[list[float], int, int]] = {}
    pages = paths(Admin(admin_url))
    for _ in range(rounds):
        for name, path in pages.items():
            took, status, text = timed(connection, path)
            times, partial, _ = found.get(name, ([], 0, 0))
            found[name] = [*times, took], partial + (b"Not known now" in text), status
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--subscriptions", type=int, default=1)
    parser.add_argument("--rate", type=float, default=200, help="messages a second over all topics")
    given, extra = parser.parse_known_args()
    table = Table(title=f"{given.topics} topics, {given.rounds} rounds; milliseconds of a page")
    for name in ("page", "status", "median", "longest", "over 200", "parts missing"):
        table.add_column(name)
    with (
        cluster(extra) as (service, admin_url),
        in_use(service, given.topics, given.subscriptions, given.rate),
    ):
        for name, (times, partial, status) in measure(admin_url, given.rounds).items():
            over = sum(each > 200 for each in times)
            row = (name, status, f"{median(times):.0f}", f"{max(times):.0f}", over, partial)
            table.add_row(*map(str, row))
    Console(width=int(os.environ.get("COLUMNS", "100"))).print(table)


if __name__ == "__main__":
    main()

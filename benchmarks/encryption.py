"""What encryption at rest costs: throughput with it and without, in turns, on two clusters.

Run as ``python -m benchmarks.encryption [rounds]``. Each cell publishes messages, drains them with
one client, and then reads the files of their ledgers; the ratio is that of the medians. Both
clusters run all the time, each in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import velaray
from benchmarks.tls import CLIENTS, LOADS, Load
from velaray.pipelines import ledgers
from velaray.pipelines.spark_positions import Start

PHASES = ("Publish", "Drain", "Read files")


class Place(NamedTuple):
    """A cluster: its URL, its data and its keys ("": none)."""

    url: str
    data: str
    keys: str


def _serve(data: str, keys: str, ready: Connection) -> None:
    options: Any = {"encryption_keys": keys}
    with velaray.LocalCluster.start(data, **options) as cluster:
        ready.send(cluster.service_url)
        ready.recv()


@contextmanager
def cluster(data: Path, keys: str) -> Iterator[Place]:
    """A cluster in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(str(data), keys, there))
    process.start()
    try:
        yield Place(here.recv(), str(data), keys)
    finally:
        here.send(None)
        process.join()


def _measured(place: Place, topic: str, load: Load) -> tuple[float, float, float]:
    """The seconds of each phase."""
    published, drained = CLIENTS[load.client](place.url, "", topic, load)
    began = time.perf_counter()
    bounds = Start.parse("earliest"), Start.parse("latest")
    parts = ledgers.plan(place.data, [topic], *bounds, encryption_keys=place.keys)
    rows = sum(batch.num_rows for part in parts for batch in part.read(["value"]))
    assert rows == load.count
    return published, drained, time.perf_counter() - began


def main(rounds: int = 5) -> None:
    """Measure all loads in turns, and print a row of a table for each."""
    print("| Client | Size | " + " | ".join(f"{p}, msg/s | with keys | ratio" for p in PHASES), "|")
    print("|---|---:|" + "---:|" * 3 * len(PHASES))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        root = Path(folder)
        (root / "keys").mkdir()
        (root / "keys" / "001").write_bytes(b64encode(os.urandom(32)))
        plain, encrypted = (
            running.enter_context(cluster(root / name, keys))
            for name, keys in (("plain", ""), ("encrypted", str(root / "keys")))
        )
        for load in LOADS:
            print(_row(load, rounds, plain, encrypted), flush=True)


def _row(load: Load, rounds: int, plain: Place, encrypted: Place) -> str:
    found: dict[Place, list[tuple[float, float, float]]] = {plain: [], encrypted: []}
    for number in range(-1, rounds):
        for place in (plain, encrypted) if number % 2 else (encrypted, plain):
            topic = f"t-{load.client.split(',')[0]}-{load.size}-{number}"
            taken = _measured(place, topic, load)
            if number >= 0:  # the first round warms up
                found[place].append(taken)
    cells = []
    for phase in range(len(PHASES)):
        rates = [load.count / median(each[phase] for each in taken) for taken in found.values()]
        cells.append(f"{rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f}")
    return f"| {load.client} | {load.size} B | {' | '.join(cells)} |"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""What encryption at rest costs: throughput with it and without, in turns, on two clusters.

Run as ``python -m benchmarks.encryption [rounds]``. One client publishes messages and drains them,
and then the files of their ledgers are read; a ratio is that of the medians. Both clusters run all
the time, each in a process of its own. Processor time depends less on other work on the machine
than throughput: it is that of the cluster's process for publishing and draining a message, and that
of the reader for a message in files.

``python -m benchmarks.encryption journal`` measures a journal alone, in memory: the processor time
of an entry that is appended, read, and passed in a recovery. Each figure is the least of five.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import velaray
from benchmarks.tls import CLIENTS, LOADS, Load
from velaray.events.ids import EARLIEST
from velaray.journal.encryption.key_files import DirectoryKeys
from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.journal import Journal
from velaray.journal.memory import MemoryStore
from velaray.pipelines import ledgers
from velaray.pipelines.spark_positions import Start
from velaray.wire.frames import seal_entry

FIGURES = ("Publish, msg/s", "Drain, msg/s", "Cluster, µs/msg", "Reader of files, µs/msg")


class Place(NamedTuple):
    """A cluster: its URL, its data and its keys ("": none), and the connection to its process."""

    url: str
    data: str
    keys: str
    process: Connection

    def processor_s(self) -> float:
        """The processor time of the cluster so far."""
        self.process.send("processor time")
        return float(self.process.recv())


def _serve(data: str, keys: str, ready: Connection) -> None:
    options: Any = {"encryption_keys": keys}
    with velaray.LocalCluster.start(data, **options) as cluster:
        ready.send(cluster.service_url)
        while ready.recv() is not None:
            ready.send(time.process_time())


@contextmanager
def cluster(data: Path, keys: str) -> Iterator[Place]:
    """A cluster in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(str(data), keys, there))
    process.start()
    try:
        yield Place(here.recv(), str(data), keys, here)
    finally:
        here.send(None)
        process.join()


def _measured(place: Place, topic: str, load: Load) -> tuple[float, ...]:
    """The figures of a load."""
    before = place.processor_s()
    published, drained = CLIENTS[load.client](place.url, "", topic, load)
    served, began = place.processor_s() - before, time.process_time()
    bounds = Start.parse("earliest"), Start.parse("latest")
    parts = ledgers.plan(place.data, [topic], *bounds, encryption_keys=place.keys)
    rows = sum(batch.num_rows for part in parts for batch in part.read(["value"]))
    assert rows == load.count
    read = time.process_time() - began
    rates = load.count / published, load.count / drained
    return *rates, served / load.count * 1e6, read / load.count * 1e6


def main(rounds: int = 5) -> None:
    """Measure all loads in turns, and print a row of a table for each."""
    print("| Client | Size | " + " | ".join(f"{each} | with keys | ratio" for each in FIGURES), "|")
    print("|---|---:|" + "---:|" * 3 * len(FIGURES))
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
    found: dict[Place, list[tuple[float, ...]]] = {plain: [], encrypted: []}
    for number in range(-1, rounds):
        for place in (plain, encrypted) if number % 2 else (encrypted, plain):
            topic = f"t-{load.client.split(',')[0]}-{load.size}-{number}"
            taken = _measured(place, topic, load)
            if number >= 0:  # the first round warms up
                found[place].append(taken)
    cells = []
    for number in range(len(FIGURES)):
        without, with_keys = (median(each[number] for each in taken) for taken in found.values())
        digits = 0 if number < 2 else 2
        figures = f"{without:,.{digits}f} | {with_keys:,.{digits}f}"
        cells.append(f"{figures} | {with_keys / without:.2f}")
    return f"| {load.client} | {load.size} B | {' | '.join(cells)} |"


class Entries(NamedTuple):
    """Entries of a journal: bytes of each, entries of a frame, and how many."""

    size: int
    frame: int
    number: int


ENTRIES = (Entries(200, 1, 4_000), Entries(1024, 1, 4_000), Entries(1024, 100, 10_000))
LARGE = Entries(65_536, 10, 600)
LEAST_OF = 5


async def _of_entries(load: Entries, keys: LedgerKeys | None) -> tuple[float, ...]:
    """Microseconds of processor time per entry: appended, read, recovered."""
    store = MemoryStore(keys=keys)
    journal = await Journal.open(store, "benchmark", clock_ms=lambda: 1)
    await journal.start({}, b"digest")
    records = [(os.urandom(60), seal_entry(os.urandom(load.size)))] * load.frame
    times = [time.process_time()]
    for _ in range(load.number // load.frame):
        journal.stage_all(records)
        await journal.commit()
    times.append(time.process_time())
    position, read = EARLIEST, 0
    while found := await journal.read(position, 1000, 4 << 20):
        read += len(found)
        position = found[-1].position._replace(entry_id=found[-1].position.entry_id + 1)
    times.append(time.process_time())
    assert read == load.number
    again = await Journal.open(MemoryStore(store.disk, keys=keys), "benchmark", clock_ms=lambda: 1)
    times.append(time.process_time())
    assert len(again.recovered.records) == load.number
    return tuple((after - before) / load.number * 1e6 for before, after in pairwise(times))


def journals() -> None:
    """Print a row of a table for each load of a journal."""
    figures = ("Append, µs", "Read, µs", "Recover, µs")
    print("| Entry | In a frame | " + " | ".join(f"{each} | with keys" for each in figures), "|")
    print("|---:|---:|" + "---:|" * 2 * len(figures))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "001").write_bytes(b64encode(os.urandom(32)))
        for load in (*ENTRIES, LARGE):
            taken: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
            for _ in range(LEAST_OF):
                for rows, given in zip(taken, (None, DirectoryKeys(Path(folder))), strict=True):
                    keys = None if given is None else LedgerKeys(given)
                    rows.append(asyncio.run(_of_entries(load, keys)))
            cells = [
                f"{min(row[at] for row in rows):.1f}"
                for at in range(len(figures))
                for rows in taken
            ]
            print(f"| {load.size} B | {load.frame} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["journal"]:
        journals()
    else:
        main(*map(int, sys.argv[1:]))

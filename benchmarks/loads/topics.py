"""Many producers, each on a topic of its own, at once."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from benchmarks.contract import Peer
from benchmarks.loads.measure import Values, chunk, spending
from benchmarks.loads.threads import Crew, Ready

WITHIN_S = 90.0
_prepared: set[str] = set()


def run(peer: Peer, way: str, size: int, seconds: float, topics: int) -> Values:
    """Every producer has a thread; ends when the last of all receipts arrived.

    The topics are made once per process: making them isn't what is measured.
    """
    names = [f"many-{number}" for number in range(topics)]
    payload, at_once = os.urandom(size), chunk(size, way)
    for name in names:
        if name not in _prepared:
            peer.prepare(name, ["one"])
            _prepared.add(name)
    counts = dict.fromkeys(names, 0)
    begin, over = threading.Event(), threading.Event()

    def publish(name: str, ready: Ready) -> None:
        with peer.sender(name, way) as sender:
            ready()
            begin.wait(WITHIN_S)
            while not over.is_set():
                sender.send_many(payload, at_once)
                counts[name] += at_once
            sender.wait()

    crew = Crew([partial(publish, name) for name in names])
    crew.wait_ready()
    with spending(peer) as spent:
        begin.set()
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            over.wait(left)
            crew.check()
        over.set()
        crew.join(WITHIN_S)
    sent = sum(counts.values())
    return {
        "publish": ("msg/s", sent / spent.seconds),
        "server CPU": ("s/M", spent.server.cpu_s / sent * 1e6),
        "client CPU": ("s/M", spent.client.cpu_s / sent * 1e6),
        "slowest topic's share of the mean": ("", min(counts.values()) * topics / sent),
    }

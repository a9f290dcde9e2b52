"""One producer, several subscriptions that keep up with it."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from benchmarks.contract import Peer
from benchmarks.loads.measure import Values, chunk, spending
from benchmarks.loads.threads import Crew, Ready

AHEAD = 10_000
WITHIN_S = 60.0
_LOOK_EVERY_S = 0.001


def run(peer: Peer, topic: str, way: str, size: int, seconds: float, subscriptions: int) -> Values:
    """As fast as goes while the producer is at most 10,000 messages ahead of any subscription."""
    names = [f"s{number}" for number in range(subscriptions)]
    peer.prepare(topic, names)
    payload, at_once, sent = os.urandom(size), min(chunk(size, way), AHEAD // 2), 0
    taken = dict.fromkeys(names, 0)
    over = threading.Event()

    def receive(name: str, ready: Ready) -> None:
        with peer.taker(topic, name, way) as taker:
            taker.take(1)
            ready()
            while not (over.is_set() and taken[name] >= sent):
                taken[name] += taker.take(1_000)
            taker.finish()

    crew = Crew([partial(receive, name) for name in names])
    pause = threading.Event()
    with peer.sender(topic, way) as sender:
        crew.wait_ready()
        with spending(peer) as spent:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                if sent - min(taken.values()) > AHEAD:
                    pause.wait(_LOOK_EVERY_S)
                    crew.check()
                    continue
                sender.send_many(payload, at_once)
                sent += at_once
            sender.wait()
            over.set()
            crew.join(WITHIN_S)
    peer.remove(topic)
    deliveries = sent * subscriptions
    return {
        "deliveries": ("msg/s", deliveries / spent.seconds),
        "deliveries per server CPU second": ("msg/s", deliveries / max(spent.server.cpu_s, 0.01)),
        "deliveries per CPU second": (
            "msg/s",
            deliveries / (spent.server.cpu_s + spent.client.cpu_s),
        ),
        "read from files per byte published": ("B/B", spent.server.read / (sent * size)),
    }

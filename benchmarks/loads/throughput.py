"""Publish until every receipt arrived, then drain it all with an acknowledgement each."""

from __future__ import annotations

import os
import time

from benchmarks.contract import Peer
from benchmarks.loads.measure import Values, chunk, spending

SUBSCRIPTION = "one"
DRAINED_WITHIN_S = 120.0
MOST_BYTES = 1 << 30


def run(peer: Peer, topic: str, way: str, size: int, seconds: float) -> Values:
    """A topic of its own; see `measure`."""
    peer.prepare(topic, [SUBSCRIPTION])
    found = measure(peer, topic, way, size, seconds)
    peer.remove(topic)
    return found


def measure(peer: Peer, topic: str, way: str, size: int, seconds: float) -> Values:
    """One producer for ``seconds``, or until 1 GiB is sent; then one consumer.

    One call before makes the topic and the values; its messages are drained with the others.
    """
    payload, at_once, sent = os.urandom(size), chunk(size, way), 0
    with peer.sender(topic, way) as sender:
        sender.send_many(payload, at_once)
        sender.wait()
        with spending(peer) as publish:
            over = time.perf_counter() + seconds
            while time.perf_counter() < over and sent * size < MOST_BYTES:
                sender.send_many(payload, at_once)
                sent += at_once
            sender.wait()
    taken, total = 0, sent + at_once
    with peer.taker(topic, SUBSCRIPTION, way) as taker, spending(peer) as drain:
        late = time.perf_counter() + DRAINED_WITHIN_S
        while taken < total:
            taken += taker.take(min(total - taken, at_once))
            if time.perf_counter() > late:
                raise TimeoutError(f"{taken} of {total} messages came")
        taker.finish()
    million = sent / 1e6
    return {
        "publish": ("msg/s", sent / publish.seconds),
        "publish, server CPU": ("s/M", publish.server.cpu_s / million),
        "publish, client CPU": ("s/M", publish.client.cpu_s / million),
        "publish, disk per byte": ("B/B", publish.server.written / (sent * size)),
        "drain": ("msg/s", taken / drain.seconds),
        "drain, server CPU": ("s/M", drain.server.cpu_s / taken * 1e6),
        "drain, client CPU": ("s/M", drain.client.cpu_s / taken * 1e6),
        "drain, disk per message": ("B", drain.server.written / taken),
    }

"""Consume, process, produce: a transaction for each so many messages; then count what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from benchmarks.contract import RESULTS, Peer, TransactionalPeer
from benchmarks.loads.clock import percentile
from benchmarks.loads.measure import Values, chunk, spending

SIZE = 100
WARM_UP_S = 0.2
COUNTED_WITHIN_S = 60.0


def run(
    peer: Peer, topic: str, way: str, each: int, at_once: int, seconds: float, most: int
) -> Values:
    """Transactions one after the other for half of ``seconds``, then ``at_once`` for all of it.

    ``most`` messages are there beforehand. Raises `RuntimeError` if what comes out in the end
    isn't what was committed, or if nothing was committed in the time.
    """
    assert isinstance(peer, TransactionalPeer)
    target = f"{topic}-results"
    with peer.transactor(topic, target, way, at_once) as transactor:
        _fill(peer, topic, most)
        warm_up = transactor.run(each, at_once, WARM_UP_S)
        alone = transactor.run(each, 1, seconds / 2)
        with spending(peer) as spent:
            many = transactor.run(each, at_once, seconds)
    if not (alone.messages and many.messages):
        raise RuntimeError(f"no transaction was committed in {seconds / 2:g} seconds")
    _count(peer, target, sum(found.messages for found in (warm_up, alone, many)))
    for name in (topic, target):
        peer.remove(name)
    together = f"{at_once} in flight"
    return {
        f"messages, {together}": ("msg/s", many.messages / many.seconds),
        f"transactions, {together}": ("/s", many.messages / each / many.seconds),
        f"server CPU, {together}": ("s/M", spent.server.cpu_s / many.messages * 1e6),
        "transactions, one at a time": ("/s", alone.messages / each / alone.seconds),
        "commit p50, one at a time": ("µs", _percentile(alone.commits_s, 50)),
        "commit p99, one at a time": ("µs", _percentile(alone.commits_s, 99)),
        f"commit p50, {together}": ("µs", _percentile(many.commits_s, 50)),
        f"commit p99, {together}": ("µs", _percentile(many.commits_s, 99)),
    }


def _percentile(commits_s: Sequence[float], share: float) -> float:
    return percentile(sorted(commits_s), share) * 1e6


def _fill(peer: Peer, topic: str, count: int) -> None:
    payload, at_once = os.urandom(SIZE), chunk(SIZE, "")
    with peer.sender(topic, "") as sender:
        for _ in range(0, count, at_once):
            sender.send_many(payload, at_once)
        sender.wait()


def _count(peer: Peer, topic: str, committed: int) -> None:
    counted = 0
    late = time.perf_counter() + COUNTED_WITHIN_S
    with peer.taker(topic, RESULTS, "") as taker:
        while counted < committed and time.perf_counter() < late:
            counted += taker.take(min(committed - counted, chunk(SIZE, "")))
        counted += taker.take(1)
        taker.finish()
    if counted != committed:
        raise RuntimeError(f"{committed} messages were committed, {counted} came out")

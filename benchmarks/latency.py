"""End to end latency of single messages at a fixed rate, and the time to their receipt."""

from __future__ import annotations

import statistics
import threading
import time

from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.peers import Peer
from benchmarks.workloads import in_turn, running_peers

RATE = 500
SIZE = 100
WARM_UP = RATE // 2
ARRIVED_WITHIN_S = 30.0
BASELINE = "redis"


def run(options: Options) -> Result:
    """Unbatched; the peers take turns, one round each."""
    samples = Samples()
    result = Result(
        name="latency",
        settings={
            "rate": f"{RATE} messages/s of {SIZE} B, each sent by itself, for "
            f"{options.seconds:g} s after {WARM_UP} that don't count",
            "end to end": "from before send to the hand-over to the consumer's Python code, "
            "producer and consumer in one process",
            "receipt": "from before send to the call that says it is durable",
        },
        baseline=BASELINE,
    )
    with running_peers(options, result) as found:
        for number in range(options.rounds):
            for peer in in_turn(found, number):
                _measure(peer, options.seconds, samples)
    result.rows = samples.rows()
    return result


def _measure(peer: Peer, seconds: float, samples: Samples) -> None:
    count = WARM_UP + int(RATE * seconds)
    ways = {"end to end": Clock(count), "receipt": Clock(count)}

    def on_message(payload: bytes) -> None:
        ways["end to end"].stop(int.from_bytes(payload[:8]))

    with peer.latency(on_message) as connected:
        pause = threading.Event()
        first = time.perf_counter_ns()
        for number in range(count):
            due = first + number * 1_000_000_000 // RATE
            pause.wait(max(0.0, (due - time.perf_counter_ns()) / 1e9))
            began = time.perf_counter_ns()
            payload = began.to_bytes(8).ljust(SIZE, b"x")
            connected.send(payload, lambda began=began: ways["receipt"].stop(began))
        for clock in ways.values():
            clock.wait()
    for way, clock in ways.items():
        p50, p99 = clock.percentiles(WARM_UP)
        samples.add(f"{RATE} msg/s", peer.name, f"{way} p50", "µs", p50)
        samples.add(f"{RATE} msg/s", peer.name, f"{way} p99", "µs", p99)


class Clock:
    """Collects how long each of ``count`` messages took."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._took: list[int] = []
        self._all = threading.Event()

    def stop(self, began: int) -> None:
        """A message that was sent at ``began`` (`time.perf_counter_ns`) has arrived."""
        self._took.append(time.perf_counter_ns() - began)
        if len(self._took) == self._count:
            self._all.set()

    def wait(self) -> None:
        """Until all have arrived. Raises `TimeoutError` after half a minute."""
        if not self._all.wait(ARRIVED_WITHIN_S):
            raise TimeoutError(f"{len(self._took)} of {self._count} messages arrived")

    def percentiles(self, skipped: int) -> tuple[float, float]:
        """p50 and p99 in microseconds, without the first ``skipped``."""
        cuts = statistics.quantiles(self._took[skipped:], n=100)
        return cuts[49] / 1e3, cuts[98] / 1e3

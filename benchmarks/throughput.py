"""Publish until every receipt arrived, then drain it all with an acknowledgement each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.model import Result, Samples
from benchmarks.options import Options
from benchmarks.peers import Peer
from benchmarks.processes import Usage, usage
from benchmarks.workloads import in_turn, running_peers

SIZES = (100, 1024)
BASELINE = "redis"
T = TypeVar("T")


def run(options: Options) -> Result:
    """All cases in every round; the peers take turns within a case."""
    samples = Samples()
    result = Result(
        name="throughput",
        settings={
            "publish": f"for {options.seconds:g} s, until every receipt arrived",
            "drain": "all that was published, by one consumer, an acknowledgement per message",
            "CPU": "seconds per million messages; servers: the processes that serve the topic",
            "disk": "write_bytes of /proc/PID/io of the servers over bytes of payload",
        },
        baseline=BASELINE,
    )
    with running_peers(options, result) as found:
        for peer in found:
            _measure(peer, "warm-up", SIZES[0], True, 0.5, Samples())
        for number in range(options.rounds):
            for size in SIZES:
                for batched in (True, False):
                    case = f"{size} B, {'batched' if batched else 'unbatched'}"
                    for peer in in_turn(found, number):
                        _measure(peer, case, size, batched, options.seconds, samples)
    result.rows = samples.rows()
    return result


def _measure(
    peer: Peer, case: str, size: int, batched: bool, seconds: float, samples: Samples
) -> None:
    def note(measure: str, unit: str, value: float) -> None:
        samples.add(case, peer.name, measure, unit, value)

    payload = os.urandom(size)
    count, took, server, client = _timed(peer, lambda: peer.publish(payload, seconds, batched))
    note("publish", "msg/s", count / took)
    note("publish, server CPU", "s/M", server.cpu_s / count * 1e6)
    note("publish, client CPU", "s/M", client.cpu_s / count * 1e6)
    note("publish, disk per byte", "B/B", server.written / (count * size))
    _, took, server, client = _timed(peer, lambda: peer.drain(count))
    note("drain", "msg/s", count / took)
    note("drain, server CPU", "s/M", server.cpu_s / count * 1e6)
    note("drain, client CPU", "s/M", client.cpu_s / count * 1e6)
    note("drain, disk per message", "B", server.written / count)


def _timed(peer: Peer, work: Callable[[], T]) -> tuple[T, float, Usage, Usage]:
    """What ``work`` returned, its seconds, what it cost the servers and this process."""
    servers = list(peer.servers())
    server, client, began = usage(servers), usage([os.getpid()]), time.perf_counter()
    found = work()
    took = time.perf_counter() - began
    return found, took, usage(servers) - server, usage([os.getpid()]) - client

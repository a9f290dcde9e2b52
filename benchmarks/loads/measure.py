"""What a piece of work took and cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.contract import Peer
from benchmarks.processes import Usage, usage

Values = dict[str, tuple[str, float]]
"""What one run of a workload found: unit and value by measure."""
CHUNK = 1_000


@dataclass(slots=True)
class Spent:
    """Seconds and resources between the begin and the end of a context."""

    seconds: float = 0.0
    server: Usage = field(default_factory=lambda: Usage(0.0, 0))
    client: Usage = field(default_factory=lambda: Usage(0.0, 0))


@contextmanager
def spending(peer: Peer) -> Iterator[Spent]:
    """Measure what happens within the context; this process is the client."""
    spent = Spent()
    servers = list(peer.servers())
    server, client, began = usage(servers), usage([os.getpid()]), time.perf_counter()
    yield spent
    spent.seconds = time.perf_counter() - began
    spent.client = usage([os.getpid()]) - client
    spent.server = usage(servers) - server


def chunk(size: int, way: str) -> int:
    """How many messages a call hands over; velaray's batch calls take as many as are usual."""
    if way in ("lists", "arrow"):
        return max(64, min(20_000, (4 << 20) // size))
    return max(16, min(CHUNK, (4 << 20) // size))

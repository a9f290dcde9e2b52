"""What transactions that are open cost those who have none."""

from __future__ import annotations

from contextlib import nullcontext

from benchmarks.contract import BEHIND, MANY, HoldingPeer, Peer
from benchmarks.loads import latency, throughput
from benchmarks.loads.measure import Values

RATE = 500
_LATENCIES = ("end to end p50", "end to end p99", "receipt p50", "receipt p99")
_RATES = ("publish", "drain")


def run(peer: Peer, topic: str, way: str, size: int, seconds: float, held: str) -> Values:
    """Latency at 500 messages a second while transactions are open, and throughput.

    Not the throughput where some of what is read would be what transactions hold.
    """
    assert isinstance(peer, HoldingPeer)
    one = latency.SUBSCRIPTION
    peer.prepare(topic, [one])
    with peer.holding(topic, one, held) if held else nullcontext():
        measured = latency.measure(peer, topic, way, size, seconds, RATE)
        found = {name: measured[name] for name in _LATENCIES}
        if held not in (MANY, BEHIND):
            measured = throughput.measure(peer, topic, way, size, seconds)
            found |= {name: measured[name] for name in _RATES}
    peer.remove(topic)
    return found

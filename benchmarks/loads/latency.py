"""From sending to the consumer's Python code, and to the receipt, at a fixed rate."""

from __future__ import annotations

import threading

from benchmarks.contract import Peer
from benchmarks.loads.clock import Clock, pace
from benchmarks.loads.measure import Values, spending
from benchmarks.loads.threads import Crew, Ready

SUBSCRIPTION = "one"
WITHIN_S = 30.0
SHARES = (50.0, 99.0, 99.9)


def run(peer: Peer, topic: str, way: str, size: int, seconds: float, rate: int) -> Values:
    """A topic of its own; see `measure`."""
    peer.prepare(topic, [SUBSCRIPTION])
    found = measure(peer, topic, way, size, seconds, rate)
    peer.remove(topic)
    return found


def measure(peer: Peer, topic: str, way: str, size: int, seconds: float, rate: int) -> Values:
    """Producer and consumer connected at once, in this process; half a second to warm up."""
    skipped = rate // 2
    count = skipped + int(rate * seconds)
    arrived, receipts = Clock(count), Clock(count)
    over = threading.Event()

    def receive(ready: Ready) -> None:
        with peer.taker(topic, SUBSCRIPTION, way) as taker:
            taker.take_payloads()
            ready()
            while not over.is_set():
                for payload in taker.take_payloads():
                    arrived.stop(payload)

    receiver = Crew([receive])
    receiver.wait_ready()
    with peer.single_sender(topic, way) as sender, spending(peer) as spent:
        pace(rate, count, size, lambda payloads: sender.send_each(payloads, receipts.stop))
        receipts.wait()
        arrived.wait()
    over.set()
    receiver.join(WITHIN_S)
    found: Values = {}
    for name, clock in (("end to end", arrived), ("receipt", receipts)):
        for share, value in zip(SHARES, clock.percentiles(skipped, SHARES), strict=True):
            found[f"{name} p{share:g}"] = ("µs", value)
    found["server CPU"] = ("s/M", spent.server.cpu_s / count * 1e6)
    found["client CPU"] = ("s/M", spent.client.cpu_s / count * 1e6)
    return found

"""A worker of flights_under_fire.py: consumes flights and writes down what it counted.

Run as ``python flights_worker.py SERVICE_URL TOPIC SUBSCRIPTION LOG``. A line is in the log,
out of this process, before the message is acknowledged: a worker that is killed loses nothing.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path

from flights import Flight

import velaray


def consume(service_url: str, topic: str, subscription: str, log: Path) -> None:
    """Count flights until SIGTERM."""
    stopping = False

    def stop(signum: int, frame: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    with (
        log.open("a", buffering=1 << 16) as out,
        velaray.Client(service_url) as client,
        client.subscribe(
            topic,
            subscription,
            consumer_type=velaray.ConsumerType.Failover,
            initial_position=velaray.InitialPosition.Earliest,
        ) as consumer,
    ):
        while not stopping:
            try:
                message = consumer.receive(timeout_millis=500)
            except velaray.Timeout:
                continue
            flight = Flight.from_bytes(message.data())
            number, tail, carrier, delay = flight
            at = time.monotonic_ns()
            out.write(f"{message.message_id()}\t{number}\t{tail}\t{carrier}\t{delay}\t{at}\n")
            out.flush()
            consumer.acknowledge(message)


if __name__ == "__main__":
    logging.getLogger("velaray").setLevel(logging.ERROR)  # the demo kills what clients wait for
    consume(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))

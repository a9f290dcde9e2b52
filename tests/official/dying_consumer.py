"""A process with the official client whose consumer is killed by every message ``poison``.

``URL TOPIC KIND THREADS POLICY``: an official type of subscription, how many threads process
messages, and what is the client's maximum of redeliveries (none: the service moves dead letters).
Ends with 0 when nothing has come for a while.
"""

from __future__ import annotations

import os
import sys
import threading

import pulsar

QUIET_MS = 2_000
KILLED = 9


def main(url: str, topic: str, kind: str, threads: int, most: str) -> None:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    policy = None if most == "none" else pulsar.ConsumerDeadLetterPolicy(int(most), f"{topic}-dead")
    consumer = client.subscribe(
        topic, "s", getattr(pulsar.ConsumerType, kind), dead_letter_policy=policy
    )

    def process() -> None:
        while True:
            try:
                message = consumer.receive(QUIET_MS)
            except pulsar.Timeout:
                return
            if message.data() == b"poison":
                os._exit(KILLED)
            consumer.acknowledge(message)

    workers = [threading.Thread(target=process) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5])

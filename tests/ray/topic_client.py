"""A client of some topics in a process of its own: it publishes, and checks what it gets.

Arguments: the service URL, a token, how many numbers from 0 on each topic has already, and the
topics. It publishes further numbers to all topics in turn and writes each that all have, until its
input ends. Then it receives every number from the beginning on, and writes how many there are. It
acknowledges nothing, because messages that all subscriptions have acknowledged are deleted.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import velaray

_RECEIVED_WITHIN_S = 60.0


def main() -> None:
    url, token, published, *topics = sys.argv[1:]
    number = int(published)
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    with velaray.Client(
        url, authentication=velaray.AuthenticationToken(token), operation_timeout_seconds=60
    ) as client:
        name, earliest = f"reader-{os.getpid()}", velaray.InitialPosition.Earliest
        consumers = [client.subscribe(each, name, initial_position=earliest) for each in topics]
        producers = [client.create_producer(topic, send_timeout_millis=0) for topic in topics]
        while not stopping.is_set():
            for producer in producers:
                producer.send(str(number).encode())
            print(number, flush=True)
            number += 1
        for consumer in consumers:
            _check(consumer, number)
        print(f"received {number}")


def _check(consumer: velaray.Consumer, count: int) -> None:
    received: dict[str, int] = {}
    deadline = time.monotonic() + _RECEIVED_WITHIN_S
    while len(received) < count:
        left_ms = int((deadline - time.monotonic()) * 1000)
        message = consumer.receive(max(1, left_ms))
        received.setdefault(str(message.message_id()), int(message.data()))
    assert list(received.values()) == list(range(count)), f"{consumer.topic()}: {received}"


if __name__ == "__main__":
    main()

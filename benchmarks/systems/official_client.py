"""Senders and takers of the official Pulsar client, for velaray and for Apache Pulsar alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pulsar

from benchmarks.contract import UNBATCHED, Done

PENDING = 10_000
_WAIT_MS = 200
SETTINGS = (
    f"pulsar-client; {PENDING} pending messages, flush() at the end, no callback per message; "
    "batched: the client's defaults (1000 messages, 128 KiB, 10 ms); Exclusive subscription, "
    "receiver queue 1000, receive() and acknowledge() per message"
)


@contextmanager
def connected(service_url: str) -> Iterator[pulsar.Client]:
    """The official client, with its log at errors."""
    client = pulsar.Client(
        service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), io_threads=1
    )
    try:
        yield client
    finally:
        client.close()


@contextmanager
def sender(client: pulsar.Client, topic: str, way: str) -> Iterator[Sender]:
    """A producer, batching unless ``way`` is `UNBATCHED`."""
    producer = client.create_producer(
        topic,
        batching_enabled=way != UNBATCHED,
        block_if_queue_full=True,
        max_pending_messages=PENDING,
        send_timeout_millis=120_000,
    )
    try:
        yield Sender(producer)
    finally:
        producer.close()


@contextmanager
def taker(client: pulsar.Client, topic: str, subscription: str) -> Iterator[Taker]:
    """A consumer, Exclusive."""
    taker = Taker(client.subscribe(topic, subscription))
    try:
        yield taker
    finally:
        taker.finish()


class Sender:
    """See `benchmarks.contract.Sender`."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer = producer

    def send_many(self, payload: bytes, count: int) -> None:
        """Without callbacks: the way back into Python costs several times the message itself."""
        send = self._producer.send_async
        for _ in range(count):
            send(payload, None)

    def wait(self) -> None:
        """``flush`` returns when every receipt is there; that each is, the drain shows."""
        self._producer.flush()

    def send_each(self, payloads: Sequence[bytes], done: Done) -> None:
        """See `benchmarks.contract.SingleSender`."""
        for payload in payloads:
            self._producer.send_async(payload, lambda *_, payload=payload: done(payload))


class Taker:
    """See `benchmarks.contract.Taker`."""

    def __init__(self, consumer: pulsar.Consumer) -> None:
        self._consumer = consumer
        self._closed = False

    def take(self, most: int) -> int:
        """See `benchmarks.contract.Taker`."""
        receive, acknowledge = self._consumer.receive, self._consumer.acknowledge
        taken = 0
        try:
            for _ in range(most):
                acknowledge(receive(_WAIT_MS))
                taken += 1
        except pulsar.Timeout:
            return taken
        return taken

    def take_payloads(self) -> list[bytes]:
        """See `benchmarks.contract.PayloadTaker`."""
        try:
            message = self._consumer.receive(_WAIT_MS)
        except pulsar.Timeout:
            return []
        self._consumer.acknowledge(message)
        return [message.data()]

    def finish(self) -> None:
        """Closing sends what acknowledgements are left; the second time nothing is done."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

"""velaray, through the official Pulsar client."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import ClassVar, Self
from urllib.error import HTTPError

import pulsar

from benchmarks.rig import official_client, running_cluster

TOPIC = "bench"
SUBSCRIPTION = "bench"
PENDING = 10_000
DRAINED_WITHIN_S = 60.0
_ASK_EVERY_S = 0.005
_RECEIVE_MS = 60_000


class VelarayPeer:
    """A cluster on this machine, one topic with one partition, one durable subscription."""

    name = "velaray"
    settings: ClassVar[dict[str, str]] = {
        "velaray": "one partition, journal synced before every receipt, defaults of Cluster.start",
        "velaray client": f"pulsar-client, {PENDING} pending messages, flush() at the end; "
        "batched: the client's defaults (1000 messages, 128 KiB, 10 ms); "
        "Exclusive subscription, receiver queue 1000, an acknowledge() per message",
        "velaray drained": "consumer closed and the server's backlog 0",
    }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._cluster = stack.enter_context(running_cluster())
            self._client = stack.enter_context(official_client(self._cluster.service_url))
            self._client.subscribe(TOPIC, SUBSCRIPTION).close()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def servers(self) -> Iterable[int]:
        """Partition, subscription, catalog and front door."""
        return [int(actor["pid"]) for actor in self._cluster.actors()]

    def _producer(self, batched: bool) -> pulsar.Producer:
        return self._client.create_producer(
            TOPIC,
            batching_enabled=batched,
            block_if_queue_full=True,
            max_pending_messages=PENDING,
        )

    def publish(self, payload: bytes, seconds: float, batched: bool) -> int:
        """See `benchmarks.peers.Peer`.

        ``flush`` returns when every receipt is there; that each message is, the drain shows.
        No callback per message: the package's way back into Python takes several times as
        long as the message itself.
        """
        producer = self._producer(batched)
        over = threading.Event()
        threading.Timer(seconds, over.set).start()
        sent = 0
        while not over.is_set():
            producer.send_async(payload, None)
            sent += 1
        producer.flush()
        producer.close()
        return sent

    def drain(self, count: int) -> None:
        """See `benchmarks.peers.Peer`."""
        consumer = self._client.subscribe(TOPIC, SUBSCRIPTION)
        for _ in range(count):
            consumer.acknowledge(consumer.receive(_RECEIVE_MS))
        consumer.close()
        waiting = threading.Event()
        for _ in range(int(DRAINED_WITHIN_S / _ASK_EVERY_S)):
            if (backlog := self._backlog()) == 0:
                return
            waiting.wait(_ASK_EVERY_S)
        raise RuntimeError(f"a backlog of {backlog} entries is left of {count} messages")

    def _backlog(self) -> int | None:
        """None while the server asks to try again: it's letting go of the last consumer."""
        url = f"{self._cluster.admin_url}/admin/v2/persistent/public/default/{TOPIC}/stats"
        try:
            with urllib.request.urlopen(url, timeout=DRAINED_WITHIN_S) as answer:
                return int(json.load(answer)["subscriptions"][SUBSCRIPTION]["msgBacklog"])
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise

    @contextmanager
    def latency(self, on_message: Callable[[bytes], None]) -> Iterator[_Latency]:
        """See `benchmarks.peers.Peer`."""

        def receive(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
            on_message(message.data())
            consumer.acknowledge(message)

        consumer = self._client.subscribe(TOPIC, SUBSCRIPTION, message_listener=receive)
        producer = self._producer(batched=False)
        yield _Latency(producer)
        producer.close()
        consumer.close()


class _Latency:
    def __init__(self, producer: pulsar.Producer) -> None:
        self._producer = producer

    def send(self, payload: bytes, on_receipt: Callable[[], None]) -> None:
        """See `benchmarks.peers.Latency`."""
        self._producer.send_async(payload, lambda result, message_id: on_receipt())

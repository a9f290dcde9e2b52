"""velaray, through the official Pulsar client, its own client, and its own batch calls."""

from __future__ import annotations

import json
import os
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Self
from urllib.error import HTTPError

import pyarrow

import velaray
from benchmarks.contract import (
    ARROW,
    LISTS,
    OWN,
    RESULTS,
    UNBATCHED,
    SingleSender,
    Taker,
    Transactor,
)
from benchmarks.servers import scratch
from benchmarks.systems import official_client, velaray_open, velaray_transactions
from velaray.cluster import Cluster

BATCH_BYTES = 4 << 20
MOST_AT_ONCE = 20_000
QUEUE = 50_000
PASSIVATE_AFTER_S = 3600.0
"""The 16 topics of one workload stay in memory from round to round."""
DRAINED_WITHIN_S = 60.0
_ASK_EVERY_S = 0.005
_WAIT_MS = 200
_NAMESPACE = "/admin/v2/persistent/public/default"


class VelarayCluster:
    """A cluster on a Ray of its own; topics have one partition, subscriptions are durable."""

    def __init__(self, sync: str) -> None:
        """``sync`` is ``partition_sync``: always, or interval (every second)."""
        self._sync = sync
        synced = "before every receipt" if sync == "always" else "every second"
        self.settings = {
            "server": f"velaray, one partition, journal synced {synced}, defaults of "
            f"Cluster.start but for passivate_after_s=3600, partition_sync={sync!r}",
            "client": official_client.SETTINGS,
            OWN: "velaray.Client; send_async() and receive(), acknowledge() per message",
            LISTS: f"send_many() of lists of up to {MOST_AT_ONCE} values or {BATCH_BYTES >> 20} "
            "MiB, one call outstanding; receive_many().values() and acknowledge_many()",
            ARROW: "the same with Arrow arrays: send_many(array), receive_many().as_arrow()",
            "transactions": "velaray.aio.Client: a Shared consumer, a task and a producer for each "
            "transaction in flight; receive() and send() per message, one acknowledge_many(); "
            "lists: receive_many(), send_many(), acknowledge_many()",
            "version": version("velaray"),
        }

    def __enter__(self) -> Self:
        # An installed package's byte code is cached: let the actors do so, too.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with ExitStack() as stack:
            directory = stack.enter_context(scratch("velaray"))
            self._cluster = stack.enter_context(self._start(directory))
            url = self._cluster.service_url
            self._official = stack.enter_context(official_client.connected(url))
            self._own = stack.enter_context(velaray.Client(url))
            self._stack = stack.pop_all()
        return self

    def _start(self, directory: Any) -> Cluster:
        return Cluster.start(
            directory,
            service_port=0,
            admin_port=0,
            passivate_after_s=PASSIVATE_AFTER_S,
            partition_sync=self._sync,
        )

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def servers(self) -> Iterable[int]:
        """The hosts, the placement directory and the proxy."""
        return {int(actor["pid"]) for actor in self._cluster.actors()}

    def prepare(self, topic: str, subscriptions: Sequence[str]) -> None:
        """See `benchmarks.contract.Peer`."""
        for name in subscriptions:
            self._official.subscribe(topic, name).close()

    def remove(self, topic: str) -> None:
        """See `benchmarks.contract.Peer`."""
        url = f"{self._cluster.admin_url}{_NAMESPACE}/{topic}?force=true"
        request = urllib.request.Request(url, method="DELETE")
        with urllib.request.urlopen(request, timeout=DRAINED_WITHIN_S):
            pass

    @contextmanager
    def sender(self, topic: str, way: str) -> Iterator[Any]:
        """See `benchmarks.contract.Peer`."""
        if way not in (OWN, LISTS, ARROW):
            with official_client.sender(self._official, topic, way) as sender:
                yield sender
            return
        with self._own.create_producer(
            topic,
            block_if_queue_full=True,
            max_pending_messages=official_client.PENDING,
            batching_enabled=True,
        ) as producer:
            yield OwnSender(producer) if way == OWN else BatchSender(producer, way)

    def single_sender(self, topic: str, way: str) -> AbstractContextManager[SingleSender]:
        """See `benchmarks.contract.Peer`."""
        return official_client.sender(self._official, topic, UNBATCHED)

    @contextmanager
    def taker(self, topic: str, subscription: str, way: str) -> Iterator[Taker]:
        """See `benchmarks.contract.Peer`."""
        if way not in (OWN, LISTS, ARROW):
            with official_client.taker(self._official, topic, subscription) as taker:
                yield _Drained(taker, self, topic, subscription)
            return
        size = 1_000 if way == OWN else QUEUE
        with self._own.subscribe(topic, subscription, receiver_queue_size=size) as consumer:
            taker = OwnTaker(consumer) if way == OWN else BatchTaker(consumer, way)
            yield _Drained(taker, self, topic, subscription)

    @contextmanager
    def transactor(
        self, source: str, target: str, way: str, most_at_once: int
    ) -> Iterator[Transactor]:
        """See `benchmarks.contract.TransactionalPeer`."""
        self.prepare(target, [RESULTS])
        with velaray_transactions.transactor(
            self._cluster.service_url, source, target, way, most_at_once
        ) as transactor:
            yield transactor

    def holding(self, topic: str, subscription: str, held: str) -> AbstractContextManager[None]:
        """See `benchmarks.contract.HoldingPeer`."""
        return velaray_open.holding(self._cluster.service_url, topic, subscription, held)

    def backlog(self, topic: str, subscription: str) -> int | None:
        """Entries left; None while the server asks to try again."""
        url = f"{self._cluster.admin_url}{_NAMESPACE}/{topic}/stats"
        try:
            with urllib.request.urlopen(url, timeout=DRAINED_WITHIN_S) as answer:
                return int(json.load(answer)["subscriptions"][subscription]["msgBacklog"])
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return None
            raise


class _Drained:
    """A taker that has finished when the server's backlog is 0: every ack is in its journal."""

    def __init__(self, taker: Any, peer: VelarayCluster, topic: str, subscription: str) -> None:
        self._taker, self._peer = taker, peer
        self._place = (topic, subscription)
        self.take = taker.take
        self.take_payloads = getattr(taker, "take_payloads", None)

    def finish(self) -> None:
        self._taker.finish()
        waiting = threading.Event()
        for _ in range(int(DRAINED_WITHIN_S / _ASK_EVERY_S)):
            if (backlog := self._peer.backlog(*self._place)) == 0:
                return
            waiting.wait(_ASK_EVERY_S)
        raise RuntimeError(f"a backlog of {backlog} entries is left")


class OwnSender:
    """velaray's own client, a call per message."""

    def __init__(self, producer: velaray.Producer) -> None:
        self._producer = producer

    def send_many(self, payload: bytes, count: int) -> None:
        """See `benchmarks.contract.Sender`."""
        send = self._producer.send_async
        for _ in range(count):
            send(payload, callback=None)

    def wait(self) -> None:
        """See `benchmarks.contract.Sender`."""
        self._producer.flush()


class BatchSender:
    """velaray's own client, a call for many messages. Values are made beforehand."""

    def __init__(self, producer: velaray.Producer, way: str) -> None:
        self._producer, self._way = producer, way
        self._values: dict[tuple[int, int], Any] = {}

    def send_many(self, payload: bytes, count: int) -> None:
        """See `benchmarks.contract.Sender`."""
        self._producer.send_many(self._made(payload, count))

    def _made(self, payload: bytes, count: int) -> Any:
        key = (len(payload), count)
        if key not in self._values:
            values = [bytes(payload) for _ in range(count)]
            self._values[key] = pyarrow.array(values) if self._way == ARROW else values
        return self._values[key]

    def wait(self) -> None:
        """Every call returned with its receipts."""


class OwnTaker:
    """velaray's own client, a call per message."""

    def __init__(self, consumer: velaray.Consumer) -> None:
        self._consumer = consumer

    def take(self, most: int) -> int:
        """See `benchmarks.contract.Taker`."""
        receive, acknowledge = self._consumer.receive, self._consumer.acknowledge
        taken = 0
        try:
            for _ in range(most):
                acknowledge(receive(_WAIT_MS))
                taken += 1
        except velaray.Timeout:
            return taken
        return taken

    def finish(self) -> None:
        """See `benchmarks.contract.Taker`."""
        self._consumer.close()


class BatchTaker:
    """velaray's own client, a call for many messages."""

    def __init__(self, consumer: velaray.Consumer, way: str) -> None:
        self._consumer, self._way = consumer, way

    def take(self, most: int) -> int:
        """See `benchmarks.contract.Taker`."""
        try:
            batch = self._consumer.receive_many(most, _WAIT_MS)
        except velaray.Timeout:
            return 0
        found = batch.as_arrow() if self._way == ARROW else batch.values()
        self._consumer.acknowledge_many(batch)
        return len(found)

    def finish(self) -> None:
        """See `benchmarks.contract.Taker`."""
        self._consumer.close()

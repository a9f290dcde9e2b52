"""The clients of one partition: their producers, consumers and requests, over any connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from velaray.broker.partition.session.admission import follows_home
from velaray.broker.partition.session.consumers import ConnectedConsumer
from velaray.broker.partition.session.producer import ConnectedProducer
from velaray.broker.partition.session.protocols import Refuse
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.replication import REPLICATOR_PREFIX

_ENDED = "the partition has stopped: look it up again"


class ConnectedClients:
    """What a partition knows of its clients. A connection may serve other partitions as well."""

    def __init__(self) -> None:
        self._producers: dict[ConnectedProducer, None] = {}
        self._consumers: dict[ConnectedConsumer, None] = {}
        self._requests: dict[asyncio.Task[None], Refuse] = {}

    # -- what handlers note --------------------------------------------------------

    def add_producer(self, producer: ConnectedProducer) -> None:
        """Note a connected producer."""
        self._producers[producer] = None

    def remove_producer(self, producer: ConnectedProducer) -> None:
        """Forget a producer. Idempotent."""
        self._producers.pop(producer, None)

    def add_consumer(self, consumer: ConnectedConsumer) -> None:
        """Note a connected consumer."""
        self._consumers[consumer] = None

    def remove_consumer(self, consumer: ConnectedConsumer) -> None:
        """Forget a consumer. Idempotent."""
        self._consumers.pop(consumer, None)

    @contextmanager
    def request(self, refuse: Refuse) -> Iterator[None]:
        """A request that the current task carries out. The end of the partition ends the task and
        calls ``refuse``."""
        task = asyncio.current_task()
        assert task is not None
        self._requests[task] = refuse
        try:
            yield
        finally:
            self._requests.pop(task, None)

    # -- what partitions ask -------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there are neither producers nor requests, and no consumers but replicators of
        this cluster, which only read."""
        if self._producers or self._requests:
            return False
        return all(
            each.owner.client.info.is_system and each.channel.name.startswith(REPLICATOR_PREFIX)
            for each in self._consumers
        )

    @property
    def expects_some_schema(self) -> bool:
        """Whether a consumer doesn't accept messages of every schema."""
        return any(not each.consumer.auto_consume for each in self._consumers)

    def producers(self) -> list[ConnectedProducer]:
        """Return the connected producers."""
        return list(self._producers)

    def close_producers(self) -> None:
        """Close all producers. The answer to their next attempt says why."""
        for producer in self.producers():
            producer.owner.close(producer)

    def close_unencrypted(self) -> None:
        """Close the producers that must encrypt from now on and don't, after their last receipts.
        The answer to their next attempt says why."""
        # Waiting producers first: otherwise they would be promoted.
        for producer in sorted(self._producers, key=lambda each: each.ready):
            if not (producer.encrypts or producer.may_send_plain):
                producer.owner.send_home(producer)

    def send_home(self) -> None:
        """Close the producers and consumers of clients that the tenant's home cluster serves."""
        # Waiting producers first: otherwise they would be promoted.
        for producer in sorted(self._producers, key=lambda each: each.ready):
            if follows_home(producer.owner.client):
                producer.owner.send_home(producer)
        for consumer in list(self._consumers):
            if follows_home(consumer.owner.client):
                consumer.owner.send_home(consumer)

    # -- the end -------------------------------------------------------------------

    def end(self) -> None:
        """Close every producer, and answer every request with a retriable error: the clients look
        the partition up again. Its channels close the consumers."""
        for task, refuse in list(self._requests.items()):
            task.cancel()
            refuse(pb.ServiceNotReady, _ENDED)
        self._requests.clear()
        for producer in self.producers():
            producer.owner.abandon(producer)

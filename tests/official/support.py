"""What the tests with the official client share: two kinds of cluster, and strict receiving."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pulsar

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import looks
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.actor_kinds import make_actor

PATIENCE_MS = 30_000
"""How long something that must come may take: machines that run tests can be slow."""

QUIET_MS = 300
"""Silence after which a test concludes that nothing arrives."""

_numbers = itertools.count(1)
_POLL = threading.Event()


def topic_name(hint: str) -> str:
    """A topic that no other test uses."""
    return f"persistent://public/default/{hint}-{next(_numbers)}"


class Server(Protocol):
    """A running cluster, on Ray or in one process."""

    service_url: str

    def call(self, key: ActorKey, method: str, args: dict[str, Any] | None = None) -> Any:
        """Call an actor."""
        ...


class LocalServer:
    """All actors in this process."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.service_url = cluster.service_url

    def call(self, key: ActorKey, method: str, args: dict[str, Any] | None = None) -> Any:
        return self.cluster.run(
            call_by_name(self.cluster.actor_system, key, method, args), timeout=60.0
        )


class RayServer:
    """What ``velaray start`` starts."""

    def __init__(self, data_dir: Path, placement: str) -> None:
        from velaray.cluster import Cluster

        self.cluster = Cluster.start(
            data_dir, service_port=0, admin_port=0, passivate_after_s=10.0, placement=placement
        )
        self.service_url = self.cluster.service_url

    def call(self, key: ActorKey, method: str, args: dict[str, Any] | None = None) -> Any:
        from velaray.topology.ray_host import make_actor_system

        async def call() -> Any:
            actor_system = make_actor_system(self.cluster.config, make_actor)
            try:
                return await call_by_name(actor_system, key, method, args)
            finally:
                actor_system.drop_rpc()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, call()).result()


def partition_key(server: Server, topic: str) -> ActorKey:
    """The actor of a topic (created if need be) or of one partition, given by its full name."""
    name = TopicName.parse(topic)
    found = server.call(ActorKey.catalog(), "ensure_topic", {"topic": topic})
    return ActorKey.of_partition(name, found["incarnation"])


def ask(server: Server, topic: str, method: str, **args: Any) -> Any:
    """Call the partition of ``topic``."""
    return server.call(partition_key(server, topic), method, args)


def backlog(server: Server, topic: str, subscription: str) -> int:
    """Entries of the partition that the subscription has not acknowledged."""
    return ask(server, topic, "stats")["subscriptions"][subscription]["backlog"]


def create_partitioned(server: Server, topic: str, partitions: int) -> None:
    server.call(ActorKey.catalog(), "create_topic", {"topic": topic, "partitions": partitions})


def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_MS / 1000) -> Any:
    """What ``condition`` returns as soon as that is true; fails with its last value."""
    deadline = time.monotonic() + timeout_s
    for _ in looks():
        if value := condition():
            break
        assert time.monotonic() < deadline, f"still {value!r} after {timeout_s} s"
    return value


def settled(value: Callable[[], int], at_least: int = 1, quiet_s: float = 0.3) -> list[int]:
    """Samples of a value until it has reached ``at_least`` and moves no more for a while."""
    samples = [value()]
    moved = time.monotonic()
    deadline = moved + PATIENCE_MS / 1000
    while samples[-1] < at_least or time.monotonic() < moved + quiet_s:
        assert time.monotonic() < deadline, f"still {samples[-1]}, {at_least} was to be reached"
        _POLL.wait(0.02)
        samples.append(value())
        if samples[-1] != samples[-2]:
            moved = time.monotonic()
    return samples


def publish(producer: pulsar.Producer, payloads: list[bytes], **kwargs: Any) -> list:
    """Send all without waiting in between; the message ids, in order of sending."""
    results: list[tuple[pulsar.Result, Any] | None] = [None] * len(payloads)

    def callback(index: int) -> Callable[[pulsar.Result, Any], None]:
        def done(result: pulsar.Result, message_id: Any) -> None:
            results[index] = (result, message_id)

        return done

    for index, payload in enumerate(payloads):
        producer.send_async(payload, callback(index), **kwargs)
    producer.flush()
    eventually(lambda: all(found is not None for found in results))
    assert {found[0] for found in results if found} == {pulsar.Result.Ok}
    return [found[1] for found in results if found]


def receive(consumer: Any, count: int, *, ack: bool = False) -> list[pulsar.Message]:
    """Exactly ``count`` messages that must come (readers too)."""
    messages = []
    for _ in range(count):
        if isinstance(consumer, pulsar.Reader):
            messages.append(consumer.read_next(PATIENCE_MS))
        else:
            messages.append(consumer.receive(PATIENCE_MS))
            if ack:
                consumer.acknowledge(messages[-1])
    return messages


def nothing_comes(consumer: Any, quiet_ms: int = QUIET_MS) -> bool:
    """Whether nothing arrives for a while."""
    try:
        message = consumer.receive(quiet_ms)
    except pulsar.Timeout:
        return True
    raise AssertionError(f"{message.data()[:80]!r} came, {message.message_id()}")


def data(messages: list[pulsar.Message]) -> list[bytes]:
    return [message.data() for message in messages]


def position(message_id: Any) -> tuple[int, int, int]:
    """Ledger, entry and batch index: what messages of one partition are ordered by."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


def numbered(count: int, prefix: str = "m") -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]

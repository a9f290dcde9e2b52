"""Delayed messages over sockets and journals: on time, over restarts, and what that costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.partition.machine import Publish
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.wire.messages import build_entry, delivery_time
from velaray.wire.pulsar_pb2 import MessageMetadata

SHARED = velaray.ConsumerType.Shared
WAIT = 20_000
_numbers = itertools.count(1)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/delayed-{next(_numbers)}"


def partition_of(cluster: LocalCluster, topic: str) -> ActorKey:
    wanted = TopicName.parse(topic)
    (found,) = [key for key in cluster.keys(ActorKind.PARTITION) if key.topic_name == wanted]
    return found


def entry(number: int, deliver_at_ms: int) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    return build_entry(metadata, str(number).encode())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_delivery_time_is_read_from_the_entry() -> None:
    assert delivery_time(entry(1, 1234)) == 1234
    assert delivery_time(entry(1, 0)) == 0
    tag_by_chance = MessageMetadata(producer_name="\x18\x01", sequence_id=152 << 7, publish_time=1)
    tag_by_chance.schema_version = b"\x98\x01"
    assert delivery_time(build_entry(tag_by_chance, b"\x98\x01")) == 0
    tag_by_chance.deliver_at_time = -5
    assert delivery_time(build_entry(tag_by_chance, b"")) == 0
    assert delivery_time(b"short") == delivery_time(b"\x0e\x01" + b"\0" * 7 + b"\x09\x98\x01") == 0


@pytest.mark.parametrize("others", [0, 1])
def test_later_delayed_messages_do_not_block_others(
    client: velaray.Client, topic: str, others: int
) -> None:
    consumers = [client.subscribe(topic, "s", SHARED) for _ in range(1 + others)]
    reader = client.subscribe(topic, "in-order")
    producer = client.create_producer(topic)
    due = now_ms() + 600
    for number in range(6):
        producer.send(str(number).encode(), deliver_at=due if number % 2 else None)
    assert [reader.receive(WAIT).data() for _ in range(6)] == [b"%d" % at for at in range(6)]
    got: dict[bytes, int] = {}
    while len(got) < 6:
        for consumer in consumers:
            try:
                message = consumer.receive(50)
            except velaray.Timeout:
                continue
            consumer.acknowledge(message)
            got[message.data()] = now_ms()
    assert all(got[b"%d" % number] < due for number in (0, 2, 4))
    assert all(got[b"%d" % number] >= due for number in (1, 3, 5))
    assert max(got.values()) < due + 2000


def test_delays_survive_restarts_of_the_partition_and_the_subscription(
    cluster: LocalCluster, client: velaray.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic)
    due = now_ms() + 2000
    for number in range(20):
        producer.send(str(number).encode(), deliver_after=timedelta(seconds=2))
    for key in [partition_of(cluster, topic), *cluster.keys(ActorKind.SUBSCRIPTION)]:
        cluster.kill(key)
    got = []
    while len(got) < 20:
        message = consumer.receive(WAIT)
        assert now_ms() >= due
        consumer.acknowledge(message)
        got.append(message.data())
    assert sorted(got) == sorted(b"%d" % number for number in range(20))


def test_the_policy_limits_delays_and_turns_them_off(
    cluster: LocalCluster, client: velaray.Client, topic: str
) -> None:
    admin = Admin(cluster.admin_url)
    consumer = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic)
    limit = {"active": True, "tickTime": 10, "maxDeliveryDelayInMillis": 5000}
    set_policy(admin, cluster, topic, limit)
    with pytest.raises(velaray.VelarayError):
        producer.send(b"too late", deliver_after=timedelta(hours=1))
    producer = client.create_producer(topic)
    producer.send(b"soon", deliver_after=timedelta(seconds=4))
    with pytest.raises(velaray.Timeout):
        consumer.receive(200)
    set_policy(admin, cluster, topic, {"active": False, "tickTime": 10})
    assert consumer.receive(1500).data() == b"soon"
    producer.send(b"at once", deliver_after=timedelta(hours=1))
    assert consumer.receive(1500).data() == b"at once"


def set_policy(admin: Admin, cluster: LocalCluster, topic: str, value: dict[str, Any]) -> None:
    admin.set_policy_of(topic, "delayedDelivery", value)
    actor: Any = cluster.actor_system.actors[partition_of(cluster, topic)]
    wait_until(lambda: actor.policies.raw["delayedDelivery"] == value, 5)


def publish_delayed(cluster: LocalCluster, topic: str, count: int, due: int) -> int:
    """Store entries that are due then; returns how many bytes they have."""
    actor: Any = cluster.actor_system.actors[partition_of(cluster, topic)]
    entries = [entry(number, due) for number in range(count)]

    async def publish() -> None:
        for number, one in enumerate(entries[:-1]):
            command = Publish("p", number, 0, 1, one, True, deliver_at_ms=due)
            actor.runtime.submit(command, lambda *_: None)
        command = Publish("p", count - 1, 0, 1, entries[-1], True, deliver_at_ms=due)
        await actor.runtime.ask(command)

    cluster.run(publish(), timeout=120)
    return sum(map(len, entries))


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_restart_with_many_delayed_messages_reads_no_log(
    cluster: LocalCluster, client: velaray.Client, topic: str, count: int
) -> None:
    """None of them early, none lost; what is read is the checkpoint, not the entries."""
    client.subscribe(topic, "s", SHARED).close()
    due = now_ms() + 4000 + count // 6
    stored = publish_delayed(cluster, topic, count, due)
    key = partition_of(cluster, topic)
    counters = cluster.actor_system.store.counters
    for _ in range(2):  # the first one reads what came after the last checkpoint, and writes one
        cluster.kill(key)
        before = counters.bytes_read
        cluster.run(cluster.actor_system.address(key), timeout=120)
        recovered = counters.bytes_read - before
    assert recovered < stored
    actor: Any = cluster.actor_system.actors[key]
    assert len(actor.log.delayed) == count
    before = counters.bytes_read
    consumer = client.subscribe(topic, "s", SHARED, receiver_queue_size=1000)
    producer = client.create_producer(topic)
    producer.send(b"a newer one")
    assert consumer.receive(WAIT).data() == b"a newer one"
    assert now_ms() < due, "too slow to tell anything"
    assert counters.bytes_read - before < 100_000 + stored // 100
    got = set()
    while len(got) < count:
        message = consumer.receive(6 * WAIT)  # the first one is due in some time
        assert now_ms() >= due
        consumer.acknowledge(message)  # else there is a limit
        got.add(message.data())
    assert got == {b"%d" % number for number in range(count)}

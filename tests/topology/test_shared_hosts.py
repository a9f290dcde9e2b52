"""Many actors in one host: one connection for all, and failures that stay with one actor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import velaray
from tests.official.raw import RawClient
from tests.support.local_cluster import LocalCluster
from velaray.broker.catalog.messages import EnsureTopic
from velaray.broker.client_listener import ClientListener
from velaray.broker.partition.entries import TAIL_BUDGET, TailMemory
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.in_process import InProcessActorSystem
from velaray.wire import pulsar_pb2 as pb

TOPICS = 12


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, hosts=1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    client = velaray.Client(cluster.service_url)
    yield client
    client.close()


def listener(cluster: LocalCluster) -> ClientListener:
    return cluster.actor_system.shared_hosts[0].part(ClientListener)


def partition(cluster: LocalCluster, topic: str) -> ActorKey:
    (key,) = (
        key for key in cluster.keys(ActorKind.PARTITION) if str(key.topic_name).endswith(topic)
    )
    return key


def test_one_connection_carries_all_partitions_and_a_transaction(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    producers = [client.create_producer(f"one-{number}") for number in range(TOPICS)]
    consumers = [client.subscribe(f"one-{number}", "s") for number in range(TOPICS)]
    with client.transaction() as transaction:
        for producer in producers:
            producer.send(b"in a transaction", txn=transaction)
    for consumer in consumers:
        assert consumer.receive(30_000).data() == b"in a transaction"
    assert len(cluster.keys(ActorKind.PARTITION)) >= TOPICS
    assert len(listener(cluster).sessions) == 1


def test_the_failure_of_one_actor_leaves_the_connection_and_its_neighbours_alone(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    names = [f"failing-{number}" for number in range(TOPICS)]
    producers = [client.create_producer(name) for name in names]
    consumers = [client.subscribe(name, "s") for name in names]
    (session,) = listener(cluster).sessions
    for round_number in range(3):
        cluster.kill(partition(cluster, names[round_number]))
        for producer in producers:
            producer.send(f"{round_number}".encode())
        for consumer in consumers:
            message = consumer.receive(30_000)
            assert message.data() == f"{round_number}".encode()
            consumer.acknowledge(message)
    assert set(listener(cluster).sessions) == {session}
    assert not session.connection.closed


def test_a_subscription_that_fails_comes_back_on_the_same_connection(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    producer, consumer = client.create_producer("acked"), client.subscribe("acked", "s")
    (session,) = listener(cluster).sessions
    (key,) = (key for key in cluster.keys(ActorKind.SUBSCRIPTION) if key.topic == "acked")
    for number in range(3):
        producer.send(str(number).encode())
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        cluster.kill(key)
    producer.send(b"last")
    seen = []
    while not seen or seen[-1] != b"last":
        message = consumer.receive(30_000)
        seen.append(message.data())
        consumer.acknowledge(message)
    assert set(listener(cluster).sessions) == {session}


def test_a_coordinator_that_fails_is_looked_up_again(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    producer = client.create_producer("committed")
    consumer = client.subscribe("committed", "s")
    for number in range(3):
        with client.transaction() as transaction:
            producer.send(str(number).encode(), txn=transaction)
            cluster.kill(ActorKey.of_coordinator(0))
        assert consumer.receive(30_000).data() == str(number).encode()
    assert len(listener(cluster).sessions) == 1


def test_a_partition_that_is_passivated_closes_its_producers_only(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    moved, other = client.create_producer("moved"), client.create_producer("other")
    moved.send(b"before")
    (session,) = listener(cluster).sessions
    cluster.run(cluster.actor_system.dismiss(partition(cluster, "moved")))
    moved.send(b"after")
    other.send(b"beside")
    assert set(listener(cluster).sessions) == {session}


def test_the_loss_of_a_host_ends_all_its_actors_and_loses_nothing(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    names = [f"lost-{number}" for number in range(TOPICS)]
    producers = [client.create_producer(name) for name in names]
    consumers = [client.subscribe(name, "s") for name in names]
    for producer in producers:
        producer.send(b"before")

    async def kill() -> None:
        cluster.actor_system.kill_host(0)

    cluster.run(kill())
    for producer, consumer in zip(producers, consumers, strict=True):
        producer.send(b"after")
        assert [consumer.receive(30_000).data() for _ in range(2)] == [b"before", b"after"]


def test_a_topic_of_another_host_is_refused_on_the_connection(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        key = await create(cluster.actor_system, "here")
        address = await cluster.actor_system.reach(key)
        raw = await RawClient.connect(address.host, address.service_port)
        for topic, expected in (
            ("elsewhere", pb.CommandError),
            ("here", pb.CommandProducerSuccess),
        ):
            name = f"persistent://public/default/{topic}"
            raw.send(pb.CommandProducer(topic=name, producer_id=1, request_id=1))
            answer = await raw.next(expected)
            if expected is pb.CommandError:
                assert answer.error == pb.ServiceNotReady
                assert "elsewhere is not served here; look it up again" in answer.message
        raw.close()

    cluster.run(scenario())


async def create(actor_system: InProcessActorSystem, topic: str) -> ActorKey:
    """Create a topic and return the key of its only partition."""
    name = f"persistent://public/default/{topic}"
    found = await actor_system.request(ActorKey.catalog(), EnsureTopic(name))
    return ActorKey(
        ActorKind.PARTITION, "public", "default", topic, -1, topic_incarnation=found["incarnation"]
    )


def test_a_failed_partition_answers_its_requests_with_a_retriable_error(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        waiting = asyncio.Event()

        async def wait(*_: object) -> None:
            waiting.set()
            await asyncio.Event().wait()

        key = await create(cluster.actor_system, "silent")
        address = await cluster.actor_system.reach(key)
        raw = await RawClient.connect(address.host, address.service_port)
        topic = "persistent://public/default/silent"
        raw.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=1))
        await raw.next(pb.CommandProducerSuccess)
        monkeypatch.setattr(TopicSchemas, "of_producer", wait)
        raw.send(pb.CommandProducer(topic=topic, producer_id=2, request_id=2))
        await waiting.wait()
        cluster.actor_system.kill(key)
        refused = await raw.next(pb.CommandError)
        assert (refused.request_id, refused.error) == (2, pb.ServiceNotReady)
        assert (await raw.next(pb.CommandCloseProducer)).producer_id == 1
        raw.close()

    cluster.run(scenario())


def test_the_partitions_of_a_host_share_the_memory_for_new_entries(
    cluster: LocalCluster, client: velaray.Client
) -> None:
    memory = cluster.actor_system.shared_hosts[0].part(TailMemory)
    topics, payload = [f"cached-{number}" for number in range(4)], bytes(1 << 20)
    producers = [client.create_producer(topic) for topic in topics]
    for _ in range(TAIL_BUDGET // len(payload) // 2):
        for producer in producers:
            producer.send(payload)
    partitions = [cluster.actor_system.actors[partition(cluster, topic)] for topic in topics]
    assert all(isinstance(each, PartitionActor) for each in partitions)
    held = [each.log.cache.bytes_held for each in partitions]  # type: ignore[attr-defined]
    assert min(held) >= TAIL_BUDGET // 8
    assert sum(held) <= memory.used <= TAIL_BUDGET
    client.close()
    cluster.run(stopped(cluster, [partition(cluster, topic) for topic in topics]))
    assert memory.used == 0


async def stopped(cluster: LocalCluster, keys: list[ActorKey]) -> None:
    """Stop actors in good order."""
    for key in keys:
        await cluster.actor_system.dismiss(key)

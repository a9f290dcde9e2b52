"""One client with producers and consumers on very many partitions and topics."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from tests.official.support import (
    LocalServer,
    backlog,
    create_partitioned,
    data,
    eventually,
    nothing_comes,
    numbered,
    receive,
)
from tests.support.local_cluster import LocalCluster
from velaray.broker.client_session import ClientSession
from velaray.broker.subscription.subscription_actor import SubscriptionActor
from velaray.events.ids import ActorKind
from velaray.topology.actor_system import Address
from velaray.topology.hosted_actors import STARTS_AT_ONCE

FEW = 4
"""The most connections of one client to the cluster's only host, which needs one."""
ROUND_ROBIN = pulsar.PartitionsRoutingMode.RoundRobinDistribution
MANY = pytest.param(500, marks=pytest.mark.long)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with LocalCluster(tmp_path, hosts=1) as cluster:
        yield LocalServer(cluster)
        assert cluster.actor_system.failures == []


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [50, MANY])
def test_a_client_uses_all_partitions_at_once(
    server: LocalServer,
    client: pulsar.Client,
    topic: str,
    accepted: list[ClientSession],
    partitions: int,
) -> None:
    create_partitioned(server, topic, partitions)
    shared = client.subscribe(topic, "shared", pulsar.ConsumerType.Shared)
    failover = client.subscribe(topic, "failover", pulsar.ConsumerType.Failover)
    producer = client.create_producer(topic, message_routing_mode=ROUND_ROBIN)
    sent = numbered(3 * partitions)
    for payload in sent:
        producer.send_async(payload, None)
    producer.flush()
    for consumer in (shared, failover):
        received = receive(consumer, len(sent), ack=True)
        assert sorted(data(received)) == sorted(sent)
        assert {m.message_id().partition() for m in received} == set(range(partitions))
        assert nothing_comes(consumer)
    for number in range(partitions):
        for name in ("shared", "failover"):
            partition = f"{topic}-partition-{number}"
            eventually(lambda p=partition, s=name: backlog(server, p, s) == 0)
    assert len(accepted) <= FEW


@pytest.mark.slow
@pytest.mark.parametrize("producers", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_many_producers_of_a_client_share_its_connections(
    client: pulsar.Client, topic: str, accepted: list[ClientSession], producers: int
) -> None:
    opened = [client.create_producer(f"{topic}-{number}") for number in range(producers)]
    for producer in opened:
        producer.send(b"first")
    assert len(accepted) <= FEW


def test_starts_that_wait_are_dropped_when_their_client_leaves(
    server: LocalServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = 3 * STARTS_AT_ONCE
    create_partitioned(server, topic, partitions)
    gate = threading.Event()
    begun: list[SubscriptionActor] = []
    start = SubscriptionActor.start

    async def held(actor: SubscriptionActor) -> Address:
        begun.append(actor)
        await asyncio.to_thread(gate.wait)
        return await start(actor)

    def waiting() -> int:
        return len(server.cluster.keys(ActorKind.SUBSCRIPTION))

    monkeypatch.setattr(SubscriptionActor, "start", held)
    client = pulsar.Client(server.service_url)
    with ThreadPoolExecutor(1) as pool:
        try:
            subscribing = pool.submit(client.subscribe, topic, "s")
            eventually(lambda: waiting() == partitions)
            client.close()
            eventually(lambda: waiting() == STARTS_AT_ONCE)
            assert len(begun) == STARTS_AT_ONCE
            assert isinstance(subscribing.exception(), pulsar.PulsarException)
        finally:
            gate.set()
    with contextlib.closing(pulsar.Client(server.service_url)) as another:
        another.subscribe(topic, "s")
    assert len(begun) == partitions

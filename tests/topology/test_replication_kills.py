"""Replication while replicators, partitions and the other cluster are killed: nothing is lost, and
nothing comes twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from random import Random

import pulsar
import pytest

from tests.topology.replicating import Cluster, clusters, soon
from velaray.broker.proxy.proxy import Proxy
from velaray.events.ids import ActorKind
from velaray.wire.messages import open_entry

TOPIC = "kills"
PRODUCERS = 4
KILLS = 25


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Cluster]]:
    with clusters(tmp_path_factory.mktemp("pair"), "a", "b") as found:
        yield found


def payloads(cluster: Cluster, topic: str) -> list[bytes]:
    """Of all entries of the log, in order."""
    key = cluster.partition(topic)

    async def read() -> list[bytes]:
        await cluster.local.actor_system.address(key)
        partition = cluster.local.actor_system.actors[key]
        found = []
        for offset in range(partition.log.end_offset):
            data = bytes((await partition.log.entry(offset)).data)
            found.append(data[open_entry(data)[1] :])
        return found

    return list(cluster.local.run(read()))


def publish(cluster: Cluster, name: str, random: Random, enough: threading.Event) -> None:
    """Sequence ids rise in random steps; the producer reconnects now and then, under its name."""
    sequence = 0
    while not enough.is_set():
        producer = cluster.client.create_producer(TOPIC, name, batching_enabled=False)
        for _ in range(random.randint(10, 60)):
            sequence += random.choice((1, 1, 7, 1000))
            payload = f"{name}-{sequence}".encode()
            producer.send_async(payload, lambda result, at: None, sequence_id=sequence)
        producer.flush()
        enough.wait(0.02)
        with contextlib.suppress(pulsar.AlreadyClosed, pulsar.NotConnected):  # it was just killed
            producer.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_target_has_exactly_the_messages_of_the_source(pair: list[Cluster], seed: int) -> None:
    a, b = pair
    random = Random(seed)
    a.replicate(TOPIC, {"b": b.describe()})
    a.partition(TOPIC)
    enough, pause = threading.Event(), threading.Event()
    threads = []
    for number in range(PRODUCERS):
        arguments = (a, f"p{number}", Random(f"{seed}/{number}"), enough)
        threads.append(threading.Thread(target=publish, args=arguments))
        threads[-1].start()
    for _ in range(KILLS):
        pause.wait(0.15)
        kill_something(pair, random)
    enough.set()
    for thread in threads:
        thread.join()
    soon(lambda: sorted(payloads(a, TOPIC)) == sorted(payloads(b, TOPIC)))
    here, there = payloads(a, TOPIC), payloads(b, TOPIC)
    assert here == there
    assert max(Counter(there).values()) == 1
    assert len(there) > PRODUCERS


def kill_something(pair: list[Cluster], random: Random) -> None:
    a, b = pair
    kinds = (ActorKind.SUBSCRIPTION, ActorKind.PARTITION)
    running = [(a, key) for kind in kinds for key in a.local.keys(kind)]
    running += [(b, key) for key in b.local.keys(ActorKind.PARTITION)]
    if running:
        cluster, key = random.choice(running)
        cluster.local.kill(key)


def test_an_unreachable_cluster_gets_everything_after_it_returns(pair: list[Cluster]) -> None:
    a, b = pair
    a.replicate(TOPIC, {"b": b.describe()})
    a.publish(TOPIC, [b"%d" % number for number in range(50)])
    soon(lambda: len(payloads(b, TOPIC)) == 50)
    port = b.local.proxy.port
    b.local.run(b.local.proxy.stop())
    for key in b.local.keys(ActorKind.PARTITION):
        b.local.kill(key)
    a.publish(TOPIC, [b"%d" % number for number in range(50, 2_000)])
    assert soon(lambda: a.status(TOPIC, "b").get("state") == "waiting")
    b.local.run(reopen(b, port))
    soon(lambda: len(payloads(b, TOPIC)) >= 2_000)
    assert payloads(b, TOPIC) == [b"%d" % number for number in range(2_000)]


async def reopen(cluster: Cluster, port: int) -> None:
    while True:
        cluster.local.proxy = Proxy(cluster.local.actor_system)
        try:
            await cluster.local.proxy.start(port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            return

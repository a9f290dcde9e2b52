"""SIGKILL of each kind of actor in the middle of publishing, acknowledging and seeking."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
import ray

import velaray
from tests.ray.support import (
    Publisher,
    RayNodes,
    Receiver,
    actors,
    kill,
    quiet_client,
    wait_until,
)
from velaray.broker.history import PointInTime, state_at, subscriptions_of
from velaray.client.admin import Admin
from velaray.cluster import Cluster
from velaray.events.ids import TopicName
from velaray.journal.files import FileStore

LONG_SUBSCRIPTION = pytest.param("subscription", marks=pytest.mark.long)
KINDS = ("partition", "subscription", "catalog", "front-door")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cluster's journals are."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(nodes: RayNodes, data: Path) -> Iterator[Cluster]:
    """A velaray cluster on those nodes."""
    with Cluster.start(data, service_port=0, admin_port=0, placement="dedicated") as cluster:
        yield cluster


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_or_reordered_when_an_actor_dies(cluster: Cluster, kind: str) -> None:
    topic = f"killed-{kind}"
    client = quiet_client(cluster.service_url)
    receiver = Receiver(client.subscribe(topic, "reader"))
    publisher = Publisher(cluster.service_url, topic)
    publisher.start()
    receiver.receive_until(lambda: len(receiver.first_seen) >= 50)
    for _ in range(2):
        killed = kill(cluster, kind, topic)
        before = len(publisher.acknowledged)
        receiver.receive_until(
            lambda before=before: len(publisher.acknowledged) >= before + 50  # type: ignore[misc]
        )
        wait_until(
            lambda killed=killed: any(  # type: ignore[misc]
                each["key"] == killed["key"] and each["pid"] != killed["pid"]
                for each in cluster.actors()
            ),
            f"{killed['key']} answers from a new process",
        )
    acknowledged = publisher.stop()
    receiver.receive_until(lambda: len(receiver.first_seen) >= len(acknowledged))
    assert receiver.numbers == acknowledged
    client.close()


def test_producers_with_defaults_lose_nothing_when_killed_before_their_first_receipt(
    cluster: Cluster,
) -> None:
    topic = "no-receipt-yet"
    client, pause = quiet_client(cluster.service_url), threading.Event()
    receiver = Receiver(client.subscribe(topic, "reader"))
    sent: list[int] = []
    answers: list[pulsar.Result] = []

    def send(producers: list[pulsar.Producer], count: int) -> None:
        for producer in producers * count:
            sent.append(len(sent))
            producer.send_async(str(sent[-1]).encode(), lambda result, _: answers.append(result))

    for delay_s in (0.0, 0.01, 0.015, 0.02):  # a batch waits 0.01 s, then it is stored
        producers = [client.create_producer(topic) for _ in range(4)]
        (victim,) = (each for each in actors(cluster, "partition") if f"/{topic}/" in each["key"])
        answered = len(answers)
        send(producers, 25)
        pause.wait(delay_s)
        os.kill(victim["pid"], signal.SIGKILL)
        while len(answers) < answered + 100:  # some of these are numbered after the reconnect
            send(producers, 1)
            pause.wait(0.02)
        send(producers, 25)
        for producer in producers:
            producer.flush()
            producer.close()
    wait_until(lambda: len(answers) == len(sent), "every message is answered")
    assert set(answers) == {pulsar.Result.Ok}
    receiver.receive_until(lambda: len(receiver.first_seen) >= len(sent))
    assert sorted(receiver.numbers) == sent
    client.close()


@pytest.mark.long
def test_cumulative_acks_survive_kills(cluster: Cluster) -> None:
    client = quiet_client(cluster.service_url)
    consumer = client.subscribe("cumulative", "reader")
    producer = client.create_producer("cumulative", batching_enabled=False)
    for number in range(100):
        producer.send(str(number).encode())
    messages = [consumer.receive(timeout_millis=20_000) for _ in range(100)]
    consumer.acknowledge_cumulative(messages[59])
    consumer.close()  # closing flushes what acknowledgements wait in the client
    again = client.subscribe("cumulative", "reader")
    first = again.receive(timeout_millis=20_000)
    assert first.data() == b"60"
    kill(cluster, "subscription", "cumulative")
    receiver = Receiver(again)
    receiver.receive_until(lambda: len(receiver.first_seen) >= 40)
    # What the client had fetched before comes first; nothing below 60 is redelivered.
    assert sorted(receiver.numbers) == list(range(60, 100))
    client.close()


@pytest.mark.parametrize("kind", ["partition", LONG_SUBSCRIPTION])
def test_acks_with_a_receipt_are_never_redelivered(cluster: Cluster, kind: str) -> None:
    topic = f"receipts-{kind}"
    with velaray.Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "reader", consumer_type=velaray.ConsumerType.Shared)
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(60):
            producer.send(str(number).encode())
        confirmed = set()
        for number in range(60):
            message = consumer.receive(timeout_millis=20_000)
            if number % 2:
                consumer.acknowledge(message, receipt=True)
                confirmed.add(message.data())
        kill(cluster, kind, topic)
        seen = set()
        while len(seen) < 30:
            message = consumer.receive(timeout_millis=20_000)
            assert message.data() not in confirmed
            seen.add(message.data())
            consumer.acknowledge(message, receipt=True)
        with pytest.raises(velaray.Timeout):
            consumer.receive(timeout_millis=500)


@pytest.mark.parametrize("kind", ["partition", LONG_SUBSCRIPTION])
def test_a_seek_survives_kills_of_its_servers(cluster: Cluster, kind: str) -> None:
    topic = f"seek-{kind}"
    client = quiet_client(cluster.service_url)
    consumer = client.subscribe(topic, "reader")
    producer = client.create_producer(topic, batching_enabled=False)
    ids = [producer.send(str(number).encode()) for number in range(50)]
    receiver = Receiver(consumer)
    receiver.receive_until(lambda: len(receiver.first_seen) >= 50)
    consumer.seek(ids[20])
    kill(cluster, kind, topic)
    again = Receiver(consumer)
    again.receive_until(lambda: 49 in again.first_seen.values())
    # A consumer that asks for an inclusive start gets the named message, others the next.
    assert again.numbers == list(range(21, 50))
    client.close()


def test_a_ray_worker_discovers_the_cluster(cluster: Cluster) -> None:
    @ray.remote
    def publish_from_a_task() -> int:
        with velaray.connect() as client:
            producer = client.create_producer("from-a-task")
            producer.send(b"hello")
            return 1

    client = quiet_client(cluster.service_url)
    consumer = client.subscribe("from-a-task", "reader")
    assert ray.get(publish_from_a_task.remote()) == 1
    assert consumer.receive(timeout_millis=20_000).data() == b"hello"
    (stats,) = ray.get(velaray.handle("from-a-task").stats.remote()).values()
    assert stats["end_offset"] == 1
    assert list(stats["subscriptions"]) == ["reader"]
    client.close()


def begun_deliveries(data: Path, topic: str) -> int:
    """Of the topic's first entry to the subscription ``s``, as its journal has it."""

    async def read() -> int:
        store = FileStore(str(data))
        (key,) = await subscriptions_of(store, TopicName.parse(topic), "s")
        return (await state_at(store, key, PointInTime())).state.deliveries.get(0)

    return asyncio.run(read())


def test_a_poison_message_becomes_one_dead_letter(cluster: Cluster, data: Path) -> None:
    """Its consumers die of it, and so do, once each, the actors that count and move it."""
    topic = "persistent://public/default/poison"
    most = {"maxRedeliverCount": 3, "initialSubscriptionName": "judge"}
    Admin(cluster.admin_url).set_policy_of("public/default", "deadLetter", most)
    with velaray.Client(cluster.service_url) as client:
        client.subscribe(topic, "s", velaray.ConsumerType.Shared).close()
        client.create_producer(topic).send(b"poison")
    counts = []
    for kind in ("none", "subscription", "partition", "none"):
        source = f"import velaray, sys\nc = velaray.Client({cluster.service_url!r})\n"
        source += f"m = c.subscribe({topic!r}, 's', velaray.ConsumerType.Shared).receive(60_000)\n"
        source += "print(m.redelivery_count(), flush=True)\nsys.stdin.read()\n"
        run = [sys.executable, "-c", source]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(run, text=True, **pipes) as dying:
            assert dying.stdout is not None
            counts.append(int(dying.stdout.readline()))
            # A first delivery is counted some time after it went out, not before it.
            wait_until(lambda: begun_deliveries(data, topic) == len(counts), "it is counted")
            if kind != "none":
                kill(cluster, kind, "poison")
            dying.kill()
    assert counts == [0, 1, 2, 3]
    with velaray.Client(cluster.service_url) as client:
        judge = client.subscribe(f"{topic}-s-DLQ", "judge", velaray.ConsumerType.Shared)
        again = client.subscribe(topic, "s", velaray.ConsumerType.Shared)
        assert judge.receive(60_000).data() == b"poison"
        for consumer in (judge, again):
            with pytest.raises(velaray.Timeout):
                consumer.receive(1000)

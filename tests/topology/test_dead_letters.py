"""The service moves dead letters: exactly once, in exactly one place, over any crash."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.schema_wire import ONE, TWO, World
from tests.topology.schema_wire import run as run_world
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, ActorKind, TopicName

SHARED = velaray.ConsumerType.Shared
EARLIEST = velaray.InitialPosition.Earliest
WAIT = 20_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        assert running.actor_system.failures == []


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic(cluster: LocalCluster, client: velaray.Client) -> str:
    name = f"persistent://public/default/letters-{next(_numbers)}"
    client.create_producer(name).close()
    Admin(cluster.admin_url).set_policy_of(name, "deadLetter", {"maxRedeliverCount": 2})
    (key,) = [key for key in cluster.keys(ActorKind.PARTITION) if str(key.topic_name) == name]
    actor: Any = cluster.actor_system.actors[key]
    wait_until(lambda: actor.policies.raw["deadLetter"], 5)
    return name


def keys_of(cluster: LocalCluster, topic: str, *kinds: ActorKind) -> list[ActorKey]:
    return [
        key for kind in kinds for key in cluster.keys(kind) if str(key.topic_name).startswith(topic)
    ]


def letters(client: velaray.Client, topic: str, count: int) -> list[velaray.Message]:
    """The dead letters; fails if there are others than that many."""
    consumer = client.subscribe(f"{topic}-s-DLQ", "judge", initial_position=EARLIEST)
    found = [consumer.receive(WAIT) for _ in range(count)]
    with pytest.raises(velaray.Timeout):
        consumer.receive(300)
    return found


def nack_until_dead(consumer: velaray.Consumer, *poison: bytes) -> list[int]:
    """Acknowledge all but the poison; the counts that came with it."""
    counts = []
    with contextlib.suppress(velaray.Timeout):
        while True:
            message = consumer.receive(1000)
            if message.data() in poison:
                counts.append(message.redelivery_count())
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
    return counts


def subscribe(client: velaray.Client, topic: str, **options: Any) -> velaray.Consumer:
    return client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        negative_ack_redelivery_delay_ms=20,
        **options,
    )


def test_a_dead_letter_has_the_properties_of_pulsars_clients(
    client: velaray.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    origin = producer.send(
        b"poison", {"mine": "yes"}, partition_key="k", ordering_key="o", event_timestamp=77
    )
    producer.send(b"fine")
    consumer = subscribe(client, topic)
    assert nack_until_dead(consumer, b"poison") == [0, 1, 2]
    (letter,) = letters(client, topic, 1)
    place = f"{origin.ledger_id()}:{origin.entry_id()}:-1"
    assert letter.data() == b"poison"
    assert (letter.partition_key(), letter.ordering_key()) == ("k", "o")
    assert letter.event_timestamp() == 77
    properties = letter.properties()
    assert properties["mine"] == "yes"
    assert properties["REAL_TOPIC"] == topic
    assert properties["REAL_SUBSCRIPTION"] == "s"
    assert properties["ORIGIN_MESSAGE_ID"].startswith(place)
    consumer.close()
    with pytest.raises(velaray.Timeout):
        subscribe(client, topic).receive(300)  # it is in one place


def test_only_unacknowledged_messages_of_a_batch_become_dead_letters(
    client: velaray.Client, topic: str
) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for name in (b"a", b"poison", b"b", b"poison too"):
        producer.send_async(name, lambda *_: None)
    producer.flush()
    consumer = subscribe(client, topic, batch_index_ack_enabled=True, ack_group_time_ms=0)
    nack_until_dead(consumer, b"poison", b"poison too")
    assert sorted(each.data() for each in letters(client, topic, 2)) == [b"poison", b"poison too"]


@pytest.mark.parametrize("seed", range(3))
def test_a_poison_message_becomes_a_dead_letter_after_any_crash(
    cluster: LocalCluster, client: velaray.Client, topic: str, seed: int
) -> None:
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"poison" if number == 4 else b"%d" % number)
    over = threading.Event()

    def crash() -> None:
        kinds = itertools.cycle([ActorKind.SUBSCRIPTION, ActorKind.PARTITION])
        for at in range(12):
            kind = next(kinds)
            found = keys_of(cluster, topic, kind)
            if found:
                cluster.kill(found[(at + seed) % len(found)])
            if over.wait(0.15 + 0.05 * seed):
                return

    crasher = threading.Thread(target=crash)
    crasher.start()
    tried, done = set(), set()
    deadline = time.monotonic() + 60
    while not tried or stats(cluster, topic)["subscriptions"]["s"]["backlog"]:
        assert time.monotonic() < deadline
        with velaray.Client(cluster.service_url, operation_timeout_seconds=10) as mine:
            consumer = subscribe(mine, topic, receiver_queue_size=1)
            with contextlib.suppress(velaray.VelarayError):
                while True:
                    message = consumer.receive(700)
                    if message.data() == b"poison":
                        break  # it dies of it
                    tried.add(message.data())
                    consumer.acknowledge(message, receipt=True)
                    done.add(message.data())
            cut(cluster, topic)
    over.set()
    crasher.join()
    found = letters(client, topic, stats(cluster, f"{topic}-s-DLQ")["entries"])
    contents = {letter.data() for letter in found}
    assert len(contents) == len(found) and b"poison" in contents
    assert not contents & done  # others may have been under way at each crash, but unacknowledged
    assert contents | tried == {b"poison"} | {b"%d" % number for number in range(10) if number != 4}


def stats(cluster: LocalCluster, topic: str) -> Any:
    """As the partition tells them."""

    async def ask() -> Any:
        args = {"topic": topic}
        found = await call_by_name(cluster.actor_system, ActorKey.catalog(), "ensure_topic", args)
        key = ActorKey.of_partition(TopicName.parse(topic), found["incarnation"])
        return await call_by_name(cluster.actor_system, key, "stats")

    return cluster.run(ask())


def cut(cluster: LocalCluster, topic: str) -> None:
    """End the clients' connections, as the end of their processes would."""

    async def abort() -> None:
        for key in list(cluster.actor_system.actors):
            if key.kind is ActorKind.PARTITION and str(key.topic_name) == topic:
                for session in list(cluster.actor_system.actors[key].listener.sessions):  # type: ignore[attr-defined]
                    session.connection.abort()

    cluster.run(abort())


def test_a_dead_letter_has_the_schema_version_of_its_topic(
    cluster: LocalCluster, client: velaray.Client, topic: str
) -> None:
    """Its number of the topic it comes from would mean another schema, or none."""
    admin = Admin(cluster.admin_url)
    dead_letter_topics = f"{topic}-s-DLQ"
    admin.create_topic(dead_letter_topics)
    admin.upload_schema(dead_letter_topics, "STRING")

    async def publish(world: World) -> None:
        peer = await world.connect()
        await peer.produce(ONE, b"poison 1")
        await peer.produce(TWO, b"poison 2", b"poison 3")
        await peer.produce(None, b"poison 4")

    run_world(cluster, topic, publish)
    consumer = subscribe(client, topic)
    nack_until_dead(consumer, *(b"poison %d" % number for number in range(1, 5)))
    found = letters(client, topic, 4)
    schemas = {}
    for letter in found:
        raw = letter.schema_version()
        version = int.from_bytes(raw, "big") if raw else None
        schemas[letter.data()] = (
            None if version is None else admin.schema(dead_letter_topics, version)["data"]
        )
    one, two = ONE.data.decode(), TWO.data.decode()
    assert schemas == {b"poison 1": one, b"poison 2": two, b"poison 3": two, b"poison 4": None}
    assert [each["type"] for each in admin.schemas(dead_letter_topics)] == [
        "STRING",
        "AVRO",
        "AVRO",
    ]

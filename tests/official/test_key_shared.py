"""Key_Shared with the official client: one consumer per key, in order, through joins and leaves."""

from __future__ import annotations

import collections

import pulsar
import pytest

from tests.official.support import backlog, data, eventually, nothing_comes, partition_key, receive
from velaray.events.ids import ActorKey

KEY_SHARED = pulsar.ConsumerType.KeyShared
STICKY = pulsar.KeySharedMode.Sticky
KEYS = [f"key-{number}" for number in range(20)]


def sticky(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
    return pulsar.ConsumerKeySharedPolicy(STICKY, sticky_ranges=list(ranges))


def publish(producer: pulsar.Producer, first: int, end: int, **how: str) -> None:
    """Numbered messages whose keys take turns."""
    for number in range(first, end):
        key = KEYS[number % len(KEYS)]
        named = {"ordering_key": key} if how else {"partition_key": key}
        producer.send_async(f"{key}:{number}".encode(), lambda *_: None, **named)
    producer.flush()


def drain(consumers: list[pulsar.Consumer], count: int) -> list[list[str]]:
    """What each consumer got of ``count`` messages, all of which are acknowledged."""
    got: list[list[str]] = [[] for _ in consumers]
    while sum(map(len, got)) < count:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(20)
            except pulsar.Timeout:
                continue
            got[index].append(message.data().decode())
            consumer.acknowledge(message)
    return got


def homes(got: list[list[str]]) -> dict[str, set[int]]:
    """Which consumers each key came to."""
    found: dict[str, set[int]] = collections.defaultdict(set)
    for index, contents in enumerate(got):
        for content in contents:
            found[content.split(":")[0]].add(index)
    return found


def in_order(contents: list[str]) -> bool:
    last: dict[str, int] = {}
    for content in contents:
        key, _, number = content.partition(":")
        if int(number) <= last.get(key, -1):
            return False
        last[key] = int(number)
    return True


@pytest.mark.parametrize("how", [{}, {"ordering": "key"}], ids=["partition key", "ordering key"])
@pytest.mark.parametrize("batching", [None, pulsar.BatchingType.KeyBased], ids=["single", "batch"])
def test_each_key_is_delivered_to_one_consumer_in_order(client, server, topic, how, batching):
    consumers = [
        client.subscribe(topic, "s", KEY_SHARED, consumer_name=f"c{number}") for number in range(3)
    ]
    settings = {"batching_enabled": True, "batching_type": batching} if batching else {}
    publish(client.create_producer(topic, **settings), 0, 400, **how)
    got = drain(consumers, 400)
    assert all(in_order(part) for part in got) and all(got)
    found = homes(got)
    assert len(found) == len(KEYS) and all(len(where) == 1 for where in found.values())
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_a_key_moves_to_a_new_consumer_after_all_its_messages_are_acknowledged(
    client, server, topic
):
    first = client.subscribe(topic, "s", KEY_SHARED, consumer_name="a")
    producer = client.create_producer(topic)
    publish(producer, 0, 20)
    held = receive(first, 20)
    second = client.subscribe(topic, "s", KEY_SHARED, consumer_name="b")
    publish(producer, 20, 40)
    stays = data(receive_all(first))
    assert 0 < len(stays) < 20 and nothing_comes(second)
    for message in held:
        first.acknowledge(message)
    moved = [message.data().decode() for message in receive(second, 20 - len(stays), ack=True)]
    assert in_order(moved) and not {text.split(":")[0] for text in moved} & {
        text.decode().split(":")[0] for text in stays
    }
    assert nothing_comes(second)


def receive_all(consumer: pulsar.Consumer) -> list[pulsar.Message]:
    found = []
    while True:
        try:
            found.append(consumer.receive(500))
        except pulsar.Timeout:
            return found


def test_messages_of_a_vanished_client_are_delivered_to_others_in_order(connect, server, topic):
    vanishing, staying = connect(server.service_url), connect(server.service_url)
    first = vanishing.subscribe(topic, "s", KEY_SHARED, consumer_name="a")
    publish(staying.create_producer(topic), 0, 60)
    receive(first, 60)
    vanishing.shutdown()
    second = staying.subscribe(topic, "s", KEY_SHARED, consumer_name="b")
    (got,) = drain([second], 60)
    assert in_order(got)


def test_sticky_ranges_get_their_keys_and_must_not_overlap(client, topic):
    low = client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=sticky((0, 32767)))
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=sticky((32767, 40000)))
    publish(client.create_producer(topic), 0, 200)
    mine = data(receive_all(low))
    assert 0 < len(mine) < 200  # the rest has no consumer
    high = client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=sticky((32768, 65535)))
    (got,) = drain([high], 200 - len(mine))
    assert in_order(got)
    assert not {text.split(":")[0] for text in got} & {t.decode().split(":")[0] for t in mine}


@pytest.mark.parametrize(
    "other",
    [sticky((0, 65535)), pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)],
    ids=["mode", "order"],
)
def test_a_mode_that_differs_from_that_of_live_consumers_is_refused(client, topic, other):
    consumer = client.subscribe(topic, "s", KEY_SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=other)
    consumer.close()
    client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=other)


def test_messages_without_a_key_spread_over_consumers(client, topic):
    consumers = [
        client.subscribe(topic, "s", KEY_SHARED, consumer_name=f"c{number}") for number in range(3)
    ]
    producer = client.create_producer(topic)
    for number in range(300):
        producer.send_async(str(number).encode(), lambda *_: None)
    producer.flush()
    got = drain(consumers, 300)
    assert all(len(part) > 30 for part in got)


def test_cumulative_acknowledgement_is_refused_by_the_client(client, topic):
    consumer = client.subscribe(topic, "s", KEY_SHARED)
    producer = client.create_producer(topic)
    producer.send(b"x", partition_key="k")
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(5000))


def test_a_consumer_with_too_many_unacked_messages_is_blocked_until_it_acknowledges(
    client, server, topic
):
    partition_key(server, topic)
    policy = {"topic": topic, "name": "maxUnackedMessagesPerConsumer", "value": b"10"}
    server.call(ActorKey.catalog(), "set_policy", policy)
    consumer = client.subscribe(topic, "s", KEY_SHARED)
    producer = client.create_producer(topic)
    publish(producer, 0, 40)
    held = receive_all(consumer)
    assert len(held) == 10
    for message in held[:5]:
        consumer.acknowledge(message)
    assert nothing_comes(consumer)  # half of the limit is too much still
    consumer.acknowledge(held[5])
    assert len(receive_all(consumer)) == 6

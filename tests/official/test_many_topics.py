"""Partitioned topics, lists and patterns of topics, table views."""

from __future__ import annotations

import collections
import re

import pulsar
import pytest

from tests.official.support import (
    ask,
    backlog,
    create_partitioned,
    data,
    eventually,
    nothing_comes,
    numbered,
    partition_key,
    publish,
    receive,
    topic_name,
)
from velaray.wire.hashing import partition_of

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_keys_decide_the_partition_and_keep_their_order(client, server, topic, batching):
    create_partitioned(server, topic, 4)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(4)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=batching, batching_type=pulsar.BatchingType.KeyBased
    )
    keys = [f"tail-{n}" for n in range(25)]
    for round_number in range(8):
        for key in keys:
            producer.send_async(b"%d" % round_number, None, partition_key=key)
    producer.flush()
    rounds: dict[str, list[int]] = collections.defaultdict(list)
    for message in receive(consumer, 200, ack=True):
        key = message.partition_key()
        expected = partition_of(key, 4)
        assert message.topic_name() == f"{topic}-partition-{expected}"
        assert message.message_id().partition() == expected
        rounds[key].append(int(message.data()))
    assert rounds == {key: list(range(8)) for key in keys}
    assert nothing_comes(consumer)
    for n in range(4):
        eventually(lambda n=n: backlog(server, f"{topic}-partition-{n}", "s") == 0)


def test_messages_without_keys_use_partitions_in_turn(client, server, topic):
    create_partitioned(server, topic, 3)
    consumer = client.subscribe(topic, "s", SHARED)
    publish(client.create_producer(topic), numbered(30))
    received = receive(consumer, 30, ack=True)
    assert sorted(data(received)) == sorted(numbered(30))
    assert collections.Counter(m.message_id().partition() for m in received) == {
        0: 10,
        1: 10,
        2: 10,
    }


def test_failover_spreads_partitions_over_consumers(client, server, topic):
    create_partitioned(server, topic, 4)
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=f"c{n}")
        for n in range(2)
    ]
    producer = client.create_producer(topic)
    publish(producer, numbered(40))
    got = [{m.message_id().partition() for m in receive(c, 20, ack=True)} for c in consumers]
    assert got == [{0, 2}, {1, 3}]
    consumers[0].close()
    publish(producer, numbered(8, "later"))
    assert sorted(data(receive(consumers[1], 8, ack=True))) == numbered(8, "later")


def test_a_reader_of_a_partitioned_topic(client, server, topic):
    create_partitioned(server, topic, 3)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert not reader.has_message_available()
    publish(client.create_producer(topic), numbered(30))
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    assert sorted(found) == sorted(numbered(30))


def test_seek_on_a_partitioned_topic(client, server, topic):
    create_partitioned(server, topic, 2)
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), numbered(20))
    receive(consumer, 20, ack=True)
    consumer.seek(pulsar.MessageId.earliest)
    assert sorted(data(receive(consumer, 20, ack=True))) == sorted(numbered(20))
    consumer.seek(0)
    assert sorted(data(receive(consumer, 20, ack=True))) == sorted(numbered(20))


def test_a_list_of_topics(client, server, topic):
    topics = [f"{topic}-{n}" for n in range(3)]
    create_partitioned(server, topics[2], 2)
    consumer = client.subscribe(topics, "s", SHARED)
    for n, name in enumerate(topics):
        publish(client.create_producer(name), numbered(10, f"t{n}"))
    received = receive(consumer, 30, ack=True)
    assert sorted(data(received)) == sorted(
        f"t{n}-{m}".encode() for n in range(3) for m in range(10)
    )
    for message in received:
        number = message.data()[1:2].decode()
        assert re.sub(r"-partition-\d$", "", message.topic_name()) == f"{topic}-{number}"
    for name in [*topics[:2], f"{topics[2]}-partition-0", f"{topics[2]}-partition-1"]:
        eventually(lambda name=name: backlog(server, name, "s") == 0)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("server", ["local"], indirect=True)
def test_a_pattern_finds_topics_created_later(client, server, topic):
    """Takes a minute: this client ignores its own ``pattern_auto_discovery_period``."""
    early = client.create_producer(f"{topic}-early")
    client.create_producer(topic_name("unrelated"))
    pattern = re.compile(f"{topic}-.*")
    consumer = client.subscribe(pattern, "s", SHARED, initial_position=EARLIEST)
    publish(early, numbered(5, "early"))
    assert sorted(data(receive(consumer, 5, ack=True))) == numbered(5, "early")
    create_partitioned(server, f"{topic}-late", 2)
    publish(client.create_producer(f"{topic}-late"), numbered(6, "late"))
    received = [consumer.receive(90_000), *receive(consumer, 5)]
    assert sorted(data(received)) == numbered(6, "late")
    assert nothing_comes(consumer)


def test_a_table_view(client, server, topic):
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(3):
        for key in ("a", "b", "c"):
            producer.send_async(f"{key}{number}".encode(), None, partition_key=key)
    producer.flush()
    view = client.create_table_view(topic)
    assert len(view) == 3
    seen = {}
    view.for_each(lambda key, value: seen.__setitem__(key, bytes(value)))
    assert seen == {"a": b"a2", "b": b"b2", "c": b"c2"}
    producer.send(b"new", partition_key="a")
    producer.send(b"other", partition_key="d")
    eventually(lambda: len(view) == 4)
    assert {key: bytes(view.get(key)) for key in "abcd"} == {
        "a": b"new",
        "b": b"b2",
        "c": b"c2",
        "d": b"other",
    }
    view.close()
    eventually(lambda: ask(server, topic, "stats")["subscriptions"] == {})


def test_a_topic_in_a_namespace_that_is_missing(client):
    for make in (client.create_producer, lambda name: client.subscribe(name, "s")):
        with pytest.raises(pulsar.PulsarException):
            make("persistent://nobody/nowhere/topic")


def test_bad_topic_names_are_refused(client):
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("persistent://only/two")


def test_many_topics_at_once(client, server, topic):
    producers = [client.create_producer(f"{topic}-{n}") for n in range(5)]
    consumers = [client.subscribe(f"{topic}-{n}", "s", initial_position=EARLIEST) for n in range(5)]
    for n, producer in enumerate(producers):
        publish(producer, numbered(20, f"topic{n}"))
    for n, consumer in enumerate(consumers):
        assert data(receive(consumer, 20, ack=True)) == numbered(20, f"topic{n}")
        assert nothing_comes(consumer, 50)
    assert len({partition_key(server, f"{topic}-{n}") for n in range(5)}) == 5

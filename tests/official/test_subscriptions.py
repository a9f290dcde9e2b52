"""Exclusive, Failover and Shared: deliveries, refusals, redeliveries."""

from __future__ import annotations

import collections
import itertools

import pulsar
import pytest

from tests.official.support import (
    ask,
    backlog,
    data,
    eventually,
    nothing_comes,
    numbered,
    publish,
    receive,
)

EXCLUSIVE = pulsar.ConsumerType.Exclusive
SHARED = pulsar.ConsumerType.Shared
FAILOVER = pulsar.ConsumerType.Failover
EARLIEST = pulsar.InitialPosition.Earliest


def test_a_second_exclusive_consumer_is_refused(client, connect, server, topic):
    first = client.subscribe(topic, "s")
    for other in (client, connect(server.service_url)):
        with pytest.raises(pulsar.ConsumerBusy):
            other.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"still served")
    assert data(receive(first, 1, ack=True)) == [b"still served"]
    first.close()
    second = client.subscribe(topic, "s")
    producer.send(b"next")
    assert data(receive(second, 1)) == [b"next"]


@pytest.mark.parametrize(
    "live, other", [(EXCLUSIVE, SHARED), (SHARED, FAILOVER), (FAILOVER, SHARED)]
)
def test_a_type_that_differs_from_that_of_live_consumers_is_refused(client, topic, live, other):
    consumer = client.subscribe(topic, "s", live)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s", other)
    consumer.close()
    client.subscribe(topic, "s", other)


def test_failover_has_one_active_consumer_and_takes_over(client, server, topic):
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a")
    second = client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    producer = client.create_producer(topic)
    publish(producer, numbered(10))
    assert data(receive(first, 10)) == numbered(10)
    assert nothing_comes(second)
    views = ask(server, topic, "stats")["subscriptions"]["s"]["consumers"]
    assert [(view["name"], view["active"]) for view in views] == [("a", True), ("b", False)]
    first.close()
    takeover = receive(second, 10, ack=True)
    assert data(takeover) == numbered(10)
    publish(producer, numbered(5, "later"))
    assert data(receive(second, 5, ack=True)) == numbered(5, "later")
    assert nothing_comes(second)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_a_failover_successor_gets_unacknowledged_messages_first(client, topic):
    first = client.subscribe(topic, "s", FAILOVER, consumer_name="a")
    second = client.subscribe(topic, "s", FAILOVER, consumer_name="b")
    producer = client.create_producer(topic)
    publish(producer, numbered(20))
    received = receive(first, 20)
    for message in received[:7]:
        first.acknowledge(message)
    first.close()
    producer.send(b"new")
    assert data(receive(second, 14)) == [*numbered(20)[7:], b"new"]


def test_shared_consumers_get_every_message_once(client, server, topic):
    consumers = [
        client.subscribe(topic, "s", SHARED, receiver_queue_size=10, consumer_name=f"c{n}")
        for n in range(3)
    ]
    producer = client.create_producer(topic)
    publish(producer, numbered(300))
    got: dict[int, list[bytes]] = collections.defaultdict(list)
    while sum(map(len, got.values())) < 300:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            got[index].append(message.data())
            consumer.acknowledge(message)
    assert sorted(itertools.chain(*got.values())) == sorted(numbered(300))
    assert all(len(part) >= 50 for part in got.values())
    order = {payload: n for n, payload in enumerate(numbered(300))}
    for part in got.values():
        assert part == sorted(part, key=order.__getitem__)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_shared_redelivers_messages_of_a_closed_consumer(client, server, topic):
    first = client.subscribe(topic, "s", SHARED)
    producer = client.create_producer(topic)
    publish(producer, numbered(40))
    held = receive(first, 40)
    for message in held[::2]:
        first.acknowledge(message)
    second = client.subscribe(topic, "s", SHARED)
    assert nothing_comes(second)
    first.close()
    received = receive(second, 20, ack=True)
    assert data(received) == numbered(40)[1::2]
    assert nothing_comes(second)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_shared_redelivers_when_a_client_vanishes(connect, server, topic):
    vanishing = connect(server.service_url)
    staying = connect(server.service_url)
    first = vanishing.subscribe(topic, "s", SHARED)
    producer = staying.create_producer(topic)
    publish(producer, numbered(10))
    receive(first, 10)
    vanishing.shutdown()
    second = staying.subscribe(topic, "s", SHARED)
    assert data(receive(second, 10, ack=True)) == numbered(10)


def test_a_new_subscription_starts_at_its_initial_position(client, topic):
    producer = client.create_producer(topic)
    publish(producer, numbered(5, "old"))
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=EARLIEST)
    publish(producer, numbered(5, "new"))
    assert data(receive(latest, 5)) == numbered(5, "new")
    assert data(receive(earliest, 10)) == [*numbered(5, "old"), *numbered(5, "new")]
    assert nothing_comes(latest)


def test_initial_position_counts_only_for_a_new_subscription(client, topic):
    producer = client.create_producer(topic)
    publish(producer, numbered(5, "old"))
    client.subscribe(topic, "s").close()
    again = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(b"new")
    assert data(receive(again, 1)) == [b"new"]


def test_a_durable_subscription_continues_at_its_position(connect, server, topic):
    first = connect(server.service_url)
    consumer = first.subscribe(topic, "s")
    producer = connect(server.service_url).create_producer(topic)
    publish(producer, numbered(10))
    for message in receive(consumer, 10)[:4]:
        consumer.acknowledge(message)
    first.close()
    publish(producer, numbered(3, "meanwhile"))
    again = connect(server.service_url).subscribe(topic, "s")
    assert data(receive(again, 9)) == [*numbered(10)[4:], *numbered(3, "meanwhile")]
    assert nothing_comes(again)


def test_acknowledging_closing_and_resubscribing_at_once_loses_no_ack(client, topic):
    """Messages acknowledged before the close aren't redelivered after a fast reconnect."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for number in range(30):
        producer.send(b"%d" % number)
        assert data(receive(consumer, 1, ack=True)) == [b"%d" % number]
        consumer.close()
        consumer = client.subscribe(topic, "s")
    assert nothing_comes(consumer)


def test_unsubscribing_drops_the_cursor(client, server, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    publish(producer, numbered(5))
    receive(consumer, 5)
    consumer.unsubscribe()
    assert ask(server, topic, "subscriptions") == []
    anew = client.subscribe(topic, "s")
    producer.send(b"new")
    assert data(receive(anew, 1)) == [b"new"]
    assert nothing_comes(anew)
    from_the_start = client.subscribe(topic, "s2", initial_position=EARLIEST)
    assert len(receive(from_the_start, 6)) == 6


def test_unsubscribe_is_refused_while_others_are_connected(client, server, topic):
    first = client.subscribe(topic, "s", SHARED)
    second = client.subscribe(topic, "s", SHARED)
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()
    assert ask(server, topic, "subscriptions") == ["s"]
    client.create_producer(topic).send(b"to somebody")
    got = []
    while not got:
        for consumer in (first, second):
            try:
                got.append(consumer.receive(100).data())
            except pulsar.Timeout:
                continue
    assert got == [b"to somebody"]


def test_two_subscriptions_are_independent(client, server, topic):
    one, two = client.subscribe(topic, "one"), client.subscribe(topic, "two", SHARED)
    publish(client.create_producer(topic, batching_enabled=True), numbered(50))
    assert data(receive(one, 50, ack=True)) == numbered(50)
    eventually(lambda: backlog(server, topic, "one") == 0)
    assert backlog(server, topic, "two") > 0
    assert data(receive(two, 50, ack=True)) == numbered(50)
    eventually(lambda: backlog(server, topic, "two") == 0)


def test_a_queue_of_zero_takes_one_at_a_time(client, server, topic):
    publish(client.create_producer(topic), numbered(10))
    consumer = client.subscribe(
        topic, "s", SHARED, receiver_queue_size=0, initial_position=EARLIEST
    )
    other = client.subscribe(topic, "s", SHARED, receiver_queue_size=0)
    assert data([consumer.receive(), other.receive(), consumer.receive()]) == numbered(3)

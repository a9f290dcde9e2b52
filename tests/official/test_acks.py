"""Acknowledgements: what they keep from coming again, and what negative ones bring back."""

from __future__ import annotations

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
NACK_DELAY_MS = 100


def _reopen(client, consumer, topic, kind, **kwargs):
    consumer.close()
    return client.subscribe(topic, "s", kind, **kwargs)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER], ids=lambda kind: kind.name)
def test_individual_acks_leave_acked_ranges(client, server, topic, kind):
    consumer = client.subscribe(topic, "s", kind)
    publish(client.create_producer(topic), numbered(30))
    for message in receive(consumer, 30):
        if message.data() not in (b"m-3", b"m-4", b"m-17"):
            consumer.acknowledge(message)
    eventually(lambda: backlog(server, topic, "s") == 3)
    again = _reopen(client, consumer, topic, kind)
    assert data(receive(again, 3, ack=True)) == [b"m-3", b"m-4", b"m-17"]
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(_reopen(client, again, topic, kind))


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER], ids=lambda kind: kind.name)
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_cumulative_acks(client, server, topic, kind, batching):
    consumer = client.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    producer = client.create_producer(topic, batching_enabled=batching, batching_max_messages=10)
    publish(producer, numbered(40))
    consumer.acknowledge_cumulative(receive(consumer, 25)[-1])
    again = _reopen(client, consumer, topic, kind, batch_index_ack_enabled=True)
    assert data(receive(again, 15)) == numbered(40)[25:]
    again.acknowledge_cumulative(again.get_last_message_id())
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(_reopen(client, again, topic, kind))


def test_cumulative_acks_are_refused_on_shared(client, topic):
    consumer = client.subscribe(topic, "s", SHARED)
    client.create_producer(topic).send(b"x")
    (message,) = receive(consumer, 1)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(message)


@pytest.mark.parametrize("by_index", [False, True], ids=["whole batches", "batch indexes"])
def test_a_batch_acknowledged_in_part(client, server, topic, by_index):
    consumer = client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=by_index)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=10, batching_max_publish_delay_ms=1000
    )
    ids = publish(producer, numbered(10))
    assert len({i.entry_id() for i in ids}) == 1
    for message in receive(consumer, 10)[:7]:
        consumer.acknowledge(message)
    again = _reopen(client, consumer, topic, SHARED, batch_index_ack_enabled=by_index)
    expected = numbered(10)[7:] if by_index else numbered(10)
    assert data(receive(again, len(expected), ack=True)) == expected
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(again)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE], ids=lambda kind: kind.name)
def test_negative_acks_count_redeliveries(client, server, topic, kind):
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    publish(client.create_producer(topic), numbered(3))
    for expected_count in range(4):
        messages = receive(consumer, 3)
        assert data(messages) == numbered(3)
        assert [message.redelivery_count() for message in messages] == [expected_count] * 3
        for message in messages:
            if expected_count < 3:
                consumer.negative_acknowledge(message)
            else:
                consumer.acknowledge(message)
    assert nothing_comes(consumer, 3 * NACK_DELAY_MS)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_a_negative_ack_of_one_of_many(client, server, topic):
    consumer = client.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    publish(client.create_producer(topic), numbered(20))
    for message in receive(consumer, 20):
        if message.data() == b"m-5":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    (again,) = receive(consumer, 1, ack=True)
    assert (again.data(), again.redelivery_count()) == (b"m-5", 1)
    assert nothing_comes(consumer, 3 * NACK_DELAY_MS)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_negative_acks_of_a_batch_bring_the_entry_back(client, server, topic):
    consumer = client.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=NACK_DELAY_MS)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=1000
    )
    publish(producer, numbered(5))
    for message in receive(consumer, 5):
        consumer.negative_acknowledge(message)
    again = receive(consumer, 5, ack=True)
    assert data(again) == numbered(5)
    assert {message.redelivery_count() for message in again} == {1}
    eventually(lambda: backlog(server, topic, "s") == 0)


@pytest.mark.parametrize("kind", [SHARED, EXCLUSIVE, FAILOVER], ids=lambda kind: kind.name)
def test_redeliver_everything_unacknowledged(client, server, topic, kind):
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    publish(producer, numbered(10))
    for message in receive(consumer, 10)[:3]:
        consumer.acknowledge(message)
    eventually(lambda: backlog(server, topic, "s") == 7)
    consumer.redeliver_unacknowledged_messages()
    assert data(receive(consumer, 7)) == numbered(10)[3:]
    producer.send(b"later")
    assert data(receive(consumer, 1)) == [b"later"]


def test_permits_come_back_after_redelivery(client, server, topic):
    """A queue much smaller than the backlog: if redelivery lost permits, this would stall."""
    consumer = client.subscribe(
        topic, "s", SHARED, receiver_queue_size=4, negative_ack_redelivery_delay_ms=NACK_DELAY_MS
    )
    publish(client.create_producer(topic), numbered(60))
    seen: dict[bytes, int] = {}
    while sum(count >= 2 for count in seen.values()) < 60:
        (message,) = receive(consumer, 1)
        seen[message.data()] = seen.get(message.data(), 0) + 1
        assert message.redelivery_count() == seen[message.data()] - 1
        if message.redelivery_count() == 0:
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    assert sorted(seen) == sorted(numbered(60))
    assert set(seen.values()) == {2}
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_statistics_of_consumers(client, server, topic):
    consumer = client.subscribe(topic, "s", SHARED, consumer_name="watched", receiver_queue_size=50)
    publish(client.create_producer(topic), numbered(10))
    for message in receive(consumer, 10)[:4]:
        consumer.acknowledge(message)

    def view():
        stats = ask(server, topic, "stats")["subscriptions"]["s"]
        found = stats["consumers"][0]
        return (found["name"], found["unacked"], stats["backlog"], stats["type"])

    eventually(lambda: view() == ("watched", 6, 6, "SHARED"))

"""Seeking, reading, last message ids, and the end of a terminated topic."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.official.support import (
    ask,
    backlog,
    data,
    eventually,
    nothing_comes,
    numbered,
    position,
    publish,
    receive,
)

EARLIEST = pulsar.MessageId.earliest
LATEST = pulsar.MessageId.latest
KINDS = [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover]


def _read_all(reader) -> list[bytes]:
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(10_000).data())
    return found


def _in_batches(client, topic, payloads, size=10):
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=size,
        batching_max_publish_delay_ms=1000,
    )
    ids = publish(producer, payloads)
    assert len({i.entry_id() for i in ids}) == -(-len(payloads) // size)
    return ids


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("inclusive", [False, True], ids=["exclusive", "inclusive"])
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_seek_by_id(client, server, topic, kind, inclusive, batching):
    consumer = client.subscribe(topic, "s", kind, start_message_id_inclusive=inclusive)
    if batching:
        ids = _in_batches(client, topic, numbered(40))
    else:
        ids = publish(client.create_producer(topic), numbered(40))
    assert data(receive(consumer, 40, ack=True)) == numbered(40)
    for target in (15, 0, 33):
        consumer.seek(ids[target])
        start = target if inclusive else target + 1
        assert data(receive(consumer, 40 - start, ack=True)) == numbered(40)[start:]
        assert nothing_comes(consumer, 100)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_seek_to_the_ends(client, server, topic, kind):
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    publish(producer, numbered(20))
    receive(consumer, 5)
    consumer.seek(EARLIEST)
    assert data(receive(consumer, 20, ack=True)) == numbered(20)
    consumer.seek(EARLIEST)
    consumer.seek(LATEST)
    assert nothing_comes(consumer)
    producer.send(b"new")
    assert data(receive(consumer, 1, ack=True)) == [b"new"]
    eventually(lambda: backlog(server, topic, "s") == 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_seek_by_time(client, topic):
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, EARLIEST)
    producer = client.create_producer(topic)
    publish(producer, numbered(5, "early"))
    before = _now_ms()
    eventually(lambda: _now_ms() > before + 1)
    middle = _now_ms()
    publish(producer, numbered(5, "late"))
    everything = [*numbered(5, "early"), *numbered(5, "late")]
    assert data(receive(consumer, 10, ack=True)) == everything
    consumer.seek(middle)
    assert data(receive(consumer, 5, ack=True)) == numbered(5, "late")
    consumer.seek(0)
    assert data(receive(consumer, 10, ack=True)) == everything
    consumer.seek(_now_ms() + 60_000)
    assert nothing_comes(consumer)
    assert _read_all(reader) == everything
    reader.seek(middle)
    assert _read_all(reader) == numbered(5, "late")
    reader.seek(0)
    assert _read_all(reader) == everything


def test_seek_while_others_publish(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = publish(producer, numbered(50))
    for round_number in range(10):
        producer.send_async(b"during-%d" % round_number, None)
        consumer.seek(ids[10])
        expected = [*numbered(50)[11:], *numbered(round_number + 1, "during")]
        producer.flush()
        assert data(receive(consumer, len(expected), ack=True)) == expected


def test_seek_holds_after_reconnecting(connect, server, topic):
    first = connect(server.service_url)
    consumer = first.subscribe(topic, "s")
    ids = publish(first.create_producer(topic), numbered(10))
    receive(consumer, 10, ack=True)
    consumer.seek(ids[3])
    first.close()
    again = connect(server.service_url).subscribe(topic, "s")
    assert data(receive(again, 7)) == numbered(10)[3:]  # the named one comes: no client skips it


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_readers_start_at_the_requested_place(client, topic, batching):
    if batching:
        ids = _in_batches(client, topic, numbered(30))
    else:
        ids = publish(client.create_producer(topic), numbered(30))
    assert _read_all(client.create_reader(topic, EARLIEST)) == numbered(30)
    assert _read_all(client.create_reader(topic, LATEST)) == []
    for at in (0, 14, 29):
        after = client.create_reader(topic, ids[at])
        assert _read_all(after) == numbered(30)[at + 1 :]
        including = client.create_reader(topic, ids[at], start_message_id_inclusive=True)
        assert _read_all(including) == numbered(30)[at:]
    newest = client.create_reader(topic, LATEST, start_message_id_inclusive=True)
    assert _read_all(newest) == [b"m-29"]


def test_has_message_available_follows_a_growing_topic(client, topic):
    reader = client.create_reader(topic, EARLIEST)
    latest = client.create_reader(topic, LATEST)
    assert not reader.has_message_available()
    assert not latest.has_message_available()
    producer = client.create_producer(topic)
    for number in range(5):
        producer.send(b"%d" % number)
        assert reader.has_message_available()
        assert latest.has_message_available()
        assert reader.read_next(10_000).data() == b"%d" % number
        assert latest.read_next(10_000).data() == b"%d" % number
        assert not reader.has_message_available()
        assert not latest.has_message_available()


def test_has_message_available_is_right_after_a_seek(client, topic):
    reader = client.create_reader(topic, EARLIEST)
    ids = _in_batches(client, topic, numbered(20))
    assert _read_all(reader) == numbered(20)
    for target in (7, 19, 0):
        reader.seek(ids[target])
        assert _read_all(reader) == numbered(20)[target + 1 :]
    reader.seek(EARLIEST)
    assert _read_all(reader) == numbered(20)
    reader.seek(LATEST)
    assert not reader.has_message_available()


def test_readers_leave_no_subscription(client, server, topic):
    publish(client.create_producer(topic), numbered(5))
    reader = client.create_reader(topic, EARLIEST)
    assert _read_all(reader) == numbered(5)
    listed = ask(server, topic, "stats")["subscriptions"]
    assert [found["durable"] for found in listed.values()] == [False]
    reader.seek(EARLIEST)
    assert _read_all(reader) == numbered(5)
    reader.close()
    eventually(lambda: ask(server, topic, "stats")["subscriptions"] == {})
    assert ask(server, topic, "subscriptions") == []


def test_last_message_ids(client, topic):
    consumer = client.subscribe(topic, "s")
    empty = consumer.get_last_message_id()
    assert (empty.ledger_id(), empty.entry_id()) == (-1, -1)
    single = client.create_producer(topic).send(b"single")
    assert position(consumer.get_last_message_id()) == position(single)
    ids = _in_batches(client, topic, numbered(7), size=7)
    last = consumer.get_last_message_id()
    assert position(last) == position(ids[-1])
    assert last.batch_index() == 6
    assert last.partition() == -1


def test_message_ids_survive_serialising(client, topic):
    ids = _in_batches(client, topic, numbered(10), size=5)
    stored = [message_id.serialize() for message_id in ids]
    restored = [pulsar.MessageId.deserialize(raw) for raw in stored]
    assert [position(found) for found in restored] == [position(found) for found in ids]
    reader = client.create_reader(topic, restored[6])
    assert _read_all(reader) == numbered(10)[7:]


def test_a_terminated_topic_is_read_to_its_end(client, server, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, EARLIEST)
    last = publish(producer, numbered(300))[-1]
    ended = ask(server, topic, "terminate")
    assert ended == [last.ledger_id(), last.entry_id(), -1]
    assert ask(server, topic, "terminate") == ended
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"too late")
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(topic)
    assert _read_all(reader) == numbered(300)
    assert not reader.has_message_available()
    assert data(receive(consumer, 300, ack=True)) == numbered(300)
    late = client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
    assert data(receive(late, 300)) == numbered(300)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_the_end_of_the_topic_is_announced_only_after_all_deliveries(client, server, topic):
    """A consumer with a small queue on a terminated topic gets all of it."""
    producer = client.create_producer(topic)
    slow = client.subscribe(topic, "s", receiver_queue_size=10)
    publish(producer, numbered(1000))
    ask(server, topic, "terminate")
    assert data(receive(slow, 1000, ack=True)) == numbered(1000)
    assert nothing_comes(slow)

"""Producers: access modes, names, sequence ids and de-duplication."""

from __future__ import annotations

import threading

import pulsar
import pytest

from tests.official.support import (
    ask,
    data,
    eventually,
    nothing_comes,
    numbered,
    publish,
    receive,
)
from velaray.events.ids import ActorKey

MODES = pulsar.ProducerAccessMode
EARLIEST = pulsar.InitialPosition.Earliest


def test_names_are_unique(client, connect, server, topic):
    producer = client.create_producer(topic, "mine")
    assert producer.producer_name() == "mine"
    other = connect(server.service_url)
    with pytest.raises(pulsar.ProducerBusy):
        other.create_producer(topic, "mine")
    made_up = other.create_producer(topic)
    assert made_up.producer_name() not in ("", "mine")
    producer.close()
    other.create_producer(topic, "mine").send(b"x")


def test_an_exclusive_producer_is_alone(client, topic):
    exclusive = client.create_producer(topic, "first", access_mode=MODES.Exclusive)
    exclusive.send(b"1")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, "shared")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, "second", access_mode=MODES.Exclusive)
    exclusive.send(b"2")
    exclusive.close()
    client.create_producer(topic, "shared").send(b"3")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, "second", access_mode=MODES.Exclusive)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert data(receive(reader, 3)) == [b"1", b"2", b"3"]


def test_a_producer_waits_for_exclusive_access(client, topic):
    first = client.create_producer(topic, "first", access_mode=MODES.Exclusive)
    ready: list[pulsar.Producer] = []
    waiting = threading.Thread(
        target=lambda: ready.append(
            client.create_producer(topic, "second", access_mode=MODES.WaitForExclusive)
        )
    )
    waiting.start()
    for number in range(5):
        first.send(b"first-%d" % number)
    waiting.join(0.3)
    assert waiting.is_alive()
    assert ready == []
    first.close()
    waiting.join(30)
    assert len(ready) == 1
    ready[0].send(b"second")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, "third", access_mode=MODES.Exclusive)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert data(receive(reader, 6)) == [*numbered(5, "first"), b"second"]


def test_a_fencing_producer_evicts_the_others(client, topic):
    shared = client.create_producer(topic, "shared", send_timeout_millis=1000)
    shared.send(b"shared")
    first = client.create_producer(topic, "first", access_mode=MODES.ExclusiveWithFencing)
    first.send(b"first")
    with pytest.raises(pulsar.PulsarException):
        shared.send(b"fenced")
    second = client.create_producer(topic, "second", access_mode=MODES.ExclusiveWithFencing)
    second.send(b"second")
    with pytest.raises(pulsar.ProducerFenced):
        first.send(b"fenced")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert data(receive(reader, 3)) == [b"shared", b"first", b"second"]
    assert not reader.has_message_available()


def _deduplicate(server, topic):
    server.call(ActorKey.catalog(), "ensure_topic", {"topic": topic})
    server.call(
        ActorKey.catalog(),
        "set_policy",
        {"topic": topic, "name": "deduplication", "value": b"true"},
    )


def test_duplicates_are_dropped(client, server, topic):
    _deduplicate(server, topic)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "p")
    for number in range(10):
        producer.send(b"m-%d" % number, sequence_id=number + 1)  # it takes 0 for "none given"
    for number in (1, 5, 10):
        duplicate = producer.send(b"duplicate", sequence_id=number)
        assert (duplicate.ledger_id(), duplicate.entry_id()) == (-1, -1)
    producer.send(b"m-10", sequence_id=20)
    producer.send(b"duplicate", sequence_id=15)
    assert data(receive(consumer, 11, ack=True)) == numbered(11)
    assert nothing_comes(consumer)


def test_a_producer_that_returns_continues_after_its_last_sequence_id(connect, server, topic):
    _deduplicate(server, topic)
    first = connect(server.service_url)
    consumer = connect(server.service_url).subscribe(topic, "s")
    producer = first.create_producer(topic, "p")
    publish(producer, numbered(20))
    assert producer.last_sequence_id() == 19
    first.close()
    again = connect(server.service_url).create_producer(topic, "p")
    assert again.last_sequence_id() == 19
    for number in range(15, 25):
        again.send_async(b"m-%d" % number, None, sequence_id=number)
    again.flush()
    assert data(receive(consumer, 25, ack=True)) == numbered(25)
    assert nothing_comes(consumer)
    # The sequence ids of one name mean nothing to another.
    other = connect(server.service_url).create_producer(topic, "other")
    assert other.last_sequence_id() == -1
    other.send(b"m-0")
    assert data(receive(consumer, 1)) == [b"m-0"]


def test_a_batch_sent_again_is_dropped_as_a_whole(connect, server, topic):
    """The client tells only the first sequence id of a batch, so that is what counts."""
    _deduplicate(server, topic)
    consumer = connect(server.service_url).subscribe(topic, "s")
    options = {"batching_enabled": True, "batching_max_messages": 10}
    options["batching_max_publish_delay_ms"] = 1000
    for _ in range(2):
        client = connect(server.service_url)
        producer = client.create_producer(topic, "p", **options)
        for batch in range(3):
            for number in range(10):
                place = batch * 10 + number
                producer.send_async(b"m-%d" % place, None, sequence_id=place + 1)
            producer.flush()
        client.close()
    assert data(receive(consumer, 30, ack=True)) == numbered(30)
    assert nothing_comes(consumer)


def test_closing_a_producer_keeps_sent_messages(client, topic):
    consumer = client.subscribe(topic, "s")
    for round_number in range(20):
        producer = client.create_producer(topic)
        for number in range(10):
            producer.send_async(b"%d-%d" % (round_number, number), None)
        producer.close()
        # The client doesn't wait for receipts any more: their results may be AlreadyClosed.
        assert data(receive(consumer, 10, ack=True)) == numbered(10, str(round_number))
    assert nothing_comes(consumer)


def test_producers_are_counted(client, server, topic):
    producers = [client.create_producer(topic, f"p{n}") for n in range(3)]

    def names():
        return sorted(found["name"] for found in ask(server, topic, "stats")["producers"])

    assert names() == ["p0", "p1", "p2"]
    producers[1].close()
    eventually(lambda: names() == ["p0", "p2"])

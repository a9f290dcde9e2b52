"""Received messages equal published ones: contents, order, ids, metadata, however it is packed."""

from __future__ import annotations

import hashlib
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

COMPRESSIONS = ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_messages_keep_contents_order_and_ids(client, server, topic, batching, compression):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_max_messages=30,
        compression_type=getattr(pulsar.CompressionType, compression),
    )
    sent = [b"%d " % n + b"text that compresses " * (n % 40) for n in range(100)]
    ids = publish(producer, sent)
    received = receive(consumer, 100, ack=True)
    assert data(received) == sent
    assert [position(m.message_id()) for m in received] == [position(i) for i in ids]
    assert [position(i) for i in ids] == sorted(position(i) for i in ids)
    entries = ask(server, topic, "stats")["end_offset"]
    assert entries == (100 if not batching else len({position(i)[:2] for i in ids}))
    assert batching == (entries < 100)
    assert all((position(i)[2] >= 0) == batching for i in ids)
    assert nothing_comes(consumer)
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_messages_keep_keys_properties_and_times(client, topic):
    consumer = client.subscribe(topic, "s")
    for batching in (False, True):
        producer = client.create_producer(
            topic, f"p-{batching}", batching_enabled=batching, properties={"of": "producer"}
        )
        before = time.time_ns() // 1_000_000
        producer.send(
            b"\x00\xffbytes",
            properties={"a": "1", "ключ": "naïve", "empty": ""},
            partition_key="key/1",
            ordering_key="order-1",
            event_timestamp=1_700_000_000_123,
        )
        after = time.time_ns() // 1_000_000
        (message,) = receive(consumer, 1)
        assert message.data() == b"\x00\xffbytes"
        assert message.properties() == {"a": "1", "ключ": "naïve", "empty": ""}
        assert (message.partition_key(), message.ordering_key()) == ("key/1", "order-1")
        assert message.event_timestamp() == 1_700_000_000_123
        assert before <= message.publish_timestamp() <= after
        assert message.producer_name() == f"p-{batching}"
        assert message.topic_name() == topic
        assert message.redelivery_count() == 0


def test_empty_and_largest_messages_are_exchanged(client, topic):
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    largest = bytes(range(256)) * (4 * 5120 - 4)
    for payload in (b"", b"x", largest):
        producer.send(payload)
    assert data(receive(consumer, 3, ack=True)) == [b"", b"x", largest]
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 << 20))
    producer.send(b"the producer still works")
    assert data(receive(consumer, 1)) == [b"the producer still works"]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_chunked_messages(client, server, topic, kind):
    consumer = client.subscribe(topic, "s", getattr(pulsar.ConsumerType, kind))
    producer = client.create_producer(topic, chunking_enabled=True, send_timeout_millis=60_000)
    big = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range((20 << 20) // 32))
    producer.send(b"before")
    producer.send(big, partition_key="k", properties={"size": "20 MiB"})
    producer.send(b"after")
    received = receive(consumer, 3)
    assert data(received) == [b"before", big, b"after"]
    assert received[1].partition_key() == "k"
    assert received[1].properties() == {"size": "20 MiB"}
    assert ask(server, topic, "stats")["end_offset"] >= 2 + 4
    for message in received:
        consumer.acknowledge(message)
    eventually(lambda: backlog(server, topic, "s") == 0)
    consumer.close()
    again = client.subscribe(topic, "s", getattr(pulsar.ConsumerType, kind))
    assert nothing_comes(again)


def test_chunks_of_two_producers_between_two_shared_consumers(client, server, topic):
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=20)
        for _ in range(2)
    ]
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    bodies = [bytes([n]) * (12 << 20) for n in range(4)]
    for n, body in enumerate(bodies):
        producers[n % 2].send_async(body, None)
    for producer in producers:
        producer.flush()
    got: list[bytes] = []
    while len(got) < 4:
        for consumer in consumers:
            try:
                message = consumer.receive(200)
            except pulsar.Timeout:
                continue
            got.append(message.data())
            consumer.acknowledge(message)
    assert sorted(got) == bodies
    eventually(lambda: backlog(server, topic, "s") == 0)


def test_several_producers_keep_their_own_order(client, topic):
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, batching_enabled=n % 2 == 0) for n in range(4)]
    assert len({producer.producer_name() for producer in producers}) == 4
    for number in range(200):
        for index, producer in enumerate(producers):
            producer.send_async(b"%d:%d" % (index, number), None)
    for producer in producers:
        producer.flush()
    got: dict[int, list[int]] = {index: [] for index in range(4)}
    for message in receive(consumer, 800, ack=True):
        index, number = message.data().split(b":")
        got[int(index)].append(int(number))
    assert all(numbers == list(range(200)) for numbers in got.values())
    assert nothing_comes(consumer)


def test_listener_and_batch_receive(client, topic):
    got: list[bytes] = []

    def listener(consumer, message):
        got.append(message.data())
        consumer.acknowledge(message)

    client.subscribe(topic, "listening", message_listener=listener)
    policy = pulsar.ConsumerBatchReceivePolicy(10, 1 << 20, 2000)
    batches = client.subscribe(topic, "batches", batch_receive_policy=policy)
    publish(client.create_producer(topic, batching_enabled=True), numbered(50))
    eventually(lambda: len(got) >= 50)
    assert got == numbered(50)
    received: list[bytes] = []
    while len(received) < 50:
        received += [message.data() for message in batches.batch_receive()]
    assert received == numbered(50)

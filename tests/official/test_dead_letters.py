"""Dead letters, acknowledgement timeouts, batch indexes: what clients do by themselves."""

from __future__ import annotations

from collections import Counter

import pulsar
import pytest

import velaray
from tests.official.support import (
    PATIENCE_MS,
    backlog,
    create_partitioned,
    data,
    eventually,
    nothing_comes,
    numbered,
    publish,
    receive,
)

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest
NACK_DELAY_MS = 100


def _refuse(consumer, deliveries):
    """Acknowledge so many deliveries negatively; how often each content came."""
    seen = Counter()
    for _ in range(deliveries):
        message = consumer.receive(PATIENCE_MS)
        assert message.redelivery_count() == seen[message.data()]
        seen[message.data()] += 1
        consumer.negative_acknowledge(message)
    return seen


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_refused_message_is_moved_after_its_last_delivery(client, server, topic, batching):
    dead = f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead, "waiting")
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        initial_position=EARLIEST,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
        batch_index_ack_enabled=True,
    )
    producer = client.create_producer(topic, batching_enabled=batching)
    publish(producer, [b"poison"], properties={"own": "1"}, partition_key="k")
    assert _refuse(consumer, 3) == {b"poison": 3}
    letters = client.subscribe(dead, "waiting")  # made with the topic, or this would miss it
    (letter,) = receive(letters, 1, ack=True)
    assert letter.data() == b"poison" and letter.partition_key() == "k"
    properties = letter.properties()
    assert properties["own"] == "1" and properties["REAL_TOPIC"] == topic
    assert properties["ORIGIN_MESSAGE_ID"]
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(consumer) and nothing_comes(letters)


def test_the_dead_letter_topic_is_named_after_topic_and_subscription(client, server, topic):
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
    )
    publish(client.create_producer(topic), [b"good", b"poison"])
    good, poison = receive(consumer, 2)
    consumer.acknowledge(good)
    consumer.negative_acknowledge(poison)
    consumer.negative_acknowledge(consumer.receive(PATIENCE_MS))
    letters = client.subscribe(f"{topic}-s-DLQ", "look", initial_position=EARLIEST)
    assert data(receive(letters, 1)) == [b"poison"]
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(letters)


def test_dead_letters_of_several_partitions_share_a_topic(client, server, topic):
    create_partitioned(server, topic, 3)
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
        negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
    )
    publish(client.create_producer(topic), numbered(9))
    assert _refuse(consumer, 18) == dict.fromkeys(numbered(9), 2)
    letters = client.subscribe(f"{topic}-dead", "look", initial_position=EARLIEST)
    assert sorted(data(receive(letters, 9))) == numbered(9)
    assert nothing_comes(letters)


def test_velarays_client_moves_a_retry_message_of_the_official_client(client, server, topic):
    """Both count deliveries alike; the origin stays what it was."""
    official = client.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead", "s"),
        negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
    )
    publish(client.create_producer(topic), [b"poison"])
    assert _refuse(official, 2) == {b"poison": 2}
    with velaray.Client(server.service_url) as ours:
        consumer = ours.subscribe(
            f"{topic}-dead",
            "s",
            velaray.ConsumerType.Shared,
            initial_position=velaray.InitialPosition.Earliest,
            dead_letter_policy=velaray.ConsumerDeadLetterPolicy(1, f"{topic}-deader"),
            negative_ack_redelivery_delay_ms=NACK_DELAY_MS,
        )
        for _ in range(2):
            letter = consumer.receive(PATIENCE_MS)
            consumer.negative_acknowledge(letter)
        (last,) = receive(client.subscribe(f"{topic}-deader", "look", initial_position=EARLIEST), 1)
        assert last.data() == b"poison" and last.properties()["REAL_TOPIC"] == topic
        origin = letter.properties()["ORIGIN_MESSAGE_ID"]
        assert last.properties()["ORIGIN_MESSAGE_ID"] == origin


@pytest.mark.slow
def test_overdue_messages_are_redelivered_and_then_dead_lettered(client, server, topic):
    """10 s is the least that clients take for a timeout."""
    consumer = client.subscribe(
        topic,
        "s",
        SHARED,
        unacked_messages_timeout_ms=10_000,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
    )
    publish(client.create_producer(topic), numbered(4))
    first = receive(consumer, 4)
    for message in first[:3]:
        consumer.acknowledge(message)
    (again,) = receive(consumer, 1)
    assert again.data() == b"m-3" and again.redelivery_count() == 1
    letters = client.subscribe(f"{topic}-dead", "look", initial_position=EARLIEST)
    assert data(receive(letters, 1)) == [b"m-3"]
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(consumer)


def test_batch_indexes_of_dead_letters_survive_a_new_client(connect, server, topic):
    """Every third message of every batch stays; only these come to the next client."""
    first = connect(server.service_url)
    consumer = first.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    producer = first.create_producer(topic, batching_enabled=True, batching_max_messages=12)
    publish(producer, numbered(120))
    for number, message in enumerate(receive(consumer, 120)):
        if number % 3:
            consumer.acknowledge(message)
    first.close()
    second = connect(server.service_url)
    consumer = second.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    left = receive(consumer, 40, ack=True)
    assert sorted(data(left)) == sorted(numbered(120)[::3])
    eventually(lambda: backlog(server, topic, "s") == 0)
    assert nothing_comes(consumer)


def test_messages_that_velaray_reconsumes_later_are_delivered_to_official_consumers(
    client, server, topic
):
    """They have no call for it, but a retry topic and its properties are Pulsar's to them."""
    publish(client.create_producer(topic), [b"later"], properties={"own": "1"}, partition_key="k")
    with velaray.Client(server.service_url) as ours:
        consumer = ours.subscribe(
            topic,
            "s",
            velaray.ConsumerType.Shared,
            initial_position=velaray.InitialPosition.Earliest,
            dead_letter_policy=velaray.ConsumerDeadLetterPolicy(2),
            enable_retry=True,
        )
        message = consumer.receive(PATIENCE_MS)
        consumer.reconsume_later(message, 300)
        consumer.close()
    both = [topic, f"{topic}-s-RETRY"]
    official = client.subscribe(both, "s", SHARED, initial_position=EARLIEST)
    (again,) = receive(official, 1, ack=True)
    assert again.data() == b"later" and again.partition_key() == "k"
    assert again.topic_name() == f"{topic}-s-RETRY"
    properties = again.properties()
    assert properties["own"] == "1" and properties["REAL_TOPIC"] == topic
    assert (properties["RECONSUMETIMES"], properties["DELAY_TIME"]) == ("1", "300")
    assert properties["ORIGIN_MESSAGE_ID"]
    eventually(lambda: backlog(server, f"{topic}-s-RETRY", "s") == 0)
    assert backlog(server, topic, "s") == 0 and nothing_comes(official)

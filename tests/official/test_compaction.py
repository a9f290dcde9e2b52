"""Compacted topics as the official client reads them."""

from __future__ import annotations

import pulsar
import pytest

from tests.official.support import ask, backlog, eventually, position

EARLIEST = pulsar.MessageId.earliest


def _publish(client, topic, keys: str):
    """A message per letter, in batches of four; a capital letter is a small one's tombstone."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=1000
    )
    ids = []
    for at in range(0, len(keys), 4):
        for letter in keys[at : at + 4]:
            producer.send_async(
                b"" if letter.isupper() else letter.encode(),
                lambda result, message_id: ids.append(message_id),
                partition_key=letter.lower(),
            )
        producer.flush()
        assert eventually(lambda until=at + 4: len(ids) >= min(until, len(keys)))
    return ids


def _compact(local, topic):
    ask(local, topic, "compact")
    status = eventually(
        lambda: (found := ask(local, topic, "compaction_status")["status"]) != "RUNNING" and found
    )
    assert status == "SUCCESS"


@pytest.fixture
def client(local, connect):
    return connect(local.service_url)


def test_a_reader_gets_the_newest_values_with_their_ids(client, local, topic):
    ids = _publish(client, topic, "abcdaabbcCef")
    _compact(local, topic)
    reader = client.create_reader(topic, EARLIEST, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        message = reader.read_next(10_000)
        found.append((message.partition_key(), position(message.message_id())))
    assert found == [
        (key, position(ids[at])) for key, at in zip("dabef", (3, 5, 7, 10, 11), strict=True)
    ]


@pytest.mark.parametrize("cumulative", [False, True], ids=["one by one", "cumulative"])
def test_a_durable_subscription_has_no_backlog_of_compacted_messages(
    client, local, topic, cumulative
):
    _publish(client, topic, "abcdaabbcCef")
    _compact(local, topic)
    consumer = client.subscribe(
        topic,
        "s",
        is_read_compacted=True,
        initial_position=pulsar.InitialPosition.Earliest,
        batch_index_ack_enabled=True,
    )
    for _ in range(5):
        message = consumer.receive(10_000)
        (consumer.acknowledge_cumulative if cumulative else consumer.acknowledge)(message)
    assert eventually(lambda: backlog(local, topic, "s") == 0)


def test_a_table_view_of_a_compacted_topic(client, local, topic):
    _publish(client, topic, "abcdaabbcCef")
    _compact(local, topic)
    _publish(client, topic, "gD")
    view = client.create_table_view(topic)
    assert {key for key in "abcdefg" if view.get(key) is not None} == set("abefg")


def test_shared_consumers_are_refused(client, topic):
    with pytest.raises(pulsar.PulsarException):
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, is_read_compacted=True)

"""velaray's client at one end, the official pulsar-client at the other."""

import contextlib

import pulsar
import pytest

import velaray

WAIT = 10_000
PAYLOAD = bytes(n * n % 251 for n in range(50_000))


class Ours:
    """velaray's module and client."""

    module = velaray

    def __init__(self, client):
        self.client = client


class Theirs(Ours):
    """The official module and client."""

    module = pulsar


@pytest.fixture(params=["ours to theirs", "theirs to ours"])
def ends(request, client, official):
    """The producing end and the consuming end."""
    both = (Ours(client), Theirs(official))
    return both if request.param == "ours to theirs" else both[::-1]


def consumer_of(end, topic, name="s", **options):
    options.setdefault("initial_position", end.module.InitialPosition.Earliest)
    return end.client.subscribe(topic, name, **options)


def receive(consumer, count):
    return [consumer.receive(WAIT) for _ in range(count)]


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("batching", [True, False])
def test_messages_arrive_unchanged_across_libraries(ends, topic, batching, compression):
    sender, receiver = ends
    producer = sender.client.create_producer(
        topic,
        batching_enabled=batching,
        compression_type=getattr(sender.module.CompressionType, compression),
        block_if_queue_full=True,
    )
    outcomes = []
    for number in range(20):
        producer.send_async(
            PAYLOAD[: number * 1000],
            lambda result, message_id: outcomes.append(result),
            properties={"number": str(number), "ü": "€"},
            partition_key=f"key-{number}",
            ordering_key=f"order-{number}",
            event_timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    producer.close()
    assert [outcome.name for outcome in outcomes] == ["Ok"] * 20
    consumer = consumer_of(receiver, topic)
    for number, message in enumerate(receive(consumer, 20)):
        assert message.data() == PAYLOAD[: number * 1000]
        assert message.properties() == {"number": str(number), "ü": "€"}
        assert message.partition_key() == f"key-{number}"
        assert message.ordering_key() == f"order-{number}"
        assert message.event_timestamp() == 1_700_000_000_000 + number
        consumer.acknowledge(message)
    consumer.close()


def test_keys_go_to_the_same_partitions(client, official, catalog, topic):
    catalog.partitioned(topic, 5)
    ours = client.create_producer(topic)
    theirs = official.create_producer(topic)
    for number in range(60):
        key = f"N{number * 7919}{'ä' * (number % 3)}"
        mine = ours.send(b"", partition_key=key)
        assert mine.partition() == theirs.send(b"", partition_key=key).partition(), key


def test_tombstones_are_exchanged(ends, topic):
    sender, receiver = ends
    producer = sender.client.create_producer(topic)
    producer.send(None, partition_key="k")
    producer.close()
    (message,) = receive(consumer_of(receiver, topic), 1)
    assert message.has_null_value() and message.partition_key() == "k"


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_chunked_messages_are_exchanged(ends, topic, compression):
    sender, receiver = ends
    payload = PAYLOAD * 240
    producer = sender.client.create_producer(
        topic,
        chunking_enabled=True,
        batching_enabled=False,
        compression_type=getattr(sender.module.CompressionType, compression),
    )
    producer.send(payload, properties={"a": "b"})
    producer.send(b"after")
    producer.close()
    large, after = receive(consumer_of(receiver, topic), 2)
    assert large.data() == payload and large.properties() == {"a": "b"}
    assert after.data() == b"after"


def test_ids_are_understood_by_both(ends, topic):
    sender, receiver = ends
    producer = sender.client.create_producer(topic)
    ids = [producer.send(str(number).encode()) for number in range(5)]
    producer.close()
    raw = ids[2].serialize()
    consumer = consumer_of(receiver, topic)
    consumer.seek(receiver.module.MessageId.deserialize(raw))
    (message,) = receive(consumer, 1)
    assert message.data() == b"3"
    assert message.message_id().serialize() == ids[3].serialize()


def test_one_subscription_serves_both(client, official, topic):
    with client.create_producer(topic) as producer:
        for number in range(40):
            producer.send(str(number).encode())
    mine = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        initial_position=velaray.InitialPosition.Earliest,
        receiver_queue_size=4,
    )
    theirs = official.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=4)
    got = {mine: [], theirs: []}
    while sum(map(len, got.values())) < 40:
        for consumer in got:
            with contextlib.suppress(velaray.Timeout, pulsar.Timeout):
                message = consumer.receive(100)
                got[consumer].append(int(message.data()))
                consumer.acknowledge(message)
    assert sorted(got[mine] + got[theirs]) == list(range(40))
    assert got[mine] and got[theirs]


def test_the_other_library_finishes_a_partly_acked_batch(ends, topic):
    first, second = ends
    producer = first.client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=1000
    )
    for number in range(5):
        producer.send_async(str(number).encode(), lambda result, message_id: None)
    producer.flush()
    shared = {"consumer_type": first.module.ConsumerType.Shared, "batch_index_ack_enabled": True}
    consumer = consumer_of(first, topic, **shared)
    messages = receive(consumer, 5)
    assert len({m.message_id().entry_id() for m in messages}) == 1
    for message in (messages[0], messages[3]):
        consumer.acknowledge(message)
    consumer.close()
    shared["consumer_type"] = second.module.ConsumerType.Shared
    rest = receive(consumer_of(second, topic, **shared), 3)
    assert [message.data() for message in rest] == [b"1", b"2", b"4"]


def test_readers_and_table_views_read_topics_of_the_other_library(ends, topic):
    sender, receiver = ends
    producer = sender.client.create_producer(topic, batching_enabled=True)
    for number in range(10):
        producer.send_async(
            str(number).encode(), lambda result, message_id: None, partition_key=f"k{number % 3}"
        )
    producer.flush()
    reader = receiver.client.create_reader(topic, receiver.module.MessageId.earliest)
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(WAIT).data())
    assert got == [str(number).encode() for number in range(10)]
    view = receiver.client.create_table_view(topic)
    assert (len(view), view.get("k0"), view.get("k1")) == (3, b"9", b"7")
    view.close()
    reader.close()


def test_producer_modes_hold_across_libraries(ends, topic):
    first, second = ends
    exclusive = first.module.ProducerAccessMode.Exclusive
    producer = first.client.create_producer(topic, access_mode=exclusive)
    with pytest.raises((second.module.exceptions.ProducerFenced,
                        second.module.exceptions.ProducerBusy)):  # fmt: skip
        second.client.create_producer(topic, access_mode=second.module.ProducerAccessMode.Exclusive)
    producer.close()


def test_de_duplication_remembers_the_other_library(ends, catalog, topic):
    first, second = ends
    catalog.deduplicated(topic)
    producer = first.client.create_producer(topic, producer_name="same")
    for number in range(5):
        producer.send(str(number).encode())
    producer.close()
    producer = second.client.create_producer(topic, producer_name="same")
    assert producer.last_sequence_id() == 4
    producer.send(b"again", sequence_id=3)
    producer.send(b"new")
    producer.close()
    messages = receive(consumer_of(first, topic), 6)
    assert [message.data() for message in messages] == [b"0", b"1", b"2", b"3", b"4", b"new"]

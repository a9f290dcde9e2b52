"""Readers take many messages at once, and tell where they are."""

import velaray
from velaray.events.ids import ActorKind


def fill(client, topic, numbers):
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % number for number in numbers])


def test_a_reader_reads_many_and_continues_after_them(client, topic):
    fill(client, topic, range(100))
    fill(client, topic, range(100, 150))
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        found = list(reader.read_many(30, 10_000))
        found.append(reader.read_next(10_000).data())
        while reader.has_message_available():
            found += reader.read_many(timeout_millis=10_000)
    assert found == [b"%d" % number for number in range(150)]


def test_a_reader_that_reconnects_after_reading_many_skips_and_repeats_nothing(
    cluster, client, topic
):
    fill(client, topic, range(1000))
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        found = list(reader.read_many(300, 10_000))
        partitions = cluster.keys(ActorKind.PARTITION)
        (key,) = (key for key in partitions if str(key.topic_name) == topic)
        cluster.kill(key)
        while len(found) < 1000:
            found += reader.read_many(timeout_millis=30_000)
        assert not reader.has_message_available()
    assert found == [b"%d" % number for number in range(1000)]


def test_read_positions_name_the_end_and_the_mark(client, topic):
    with client.create_producer(topic) as producer:
        first, second = producer.send(b"1"), producer.send(b"2")
    with (
        client.subscribe(
            topic, "mark", initial_position=velaray.InitialPosition.Earliest
        ) as consumer,
        client.create_reader(topic, velaray.MessageId.earliest) as reader,
    ):
        last, mark = consumer.get_positions()[topic]
        assert last == second and mark < first
        consumer.acknowledge(consumer.receive(10_000), receipt=True)
        assert consumer.get_positions()[topic] == (second, first)
        reader.read_many(timeout_millis=10_000)
        assert reader.get_positions()[topic][0] == second


def test_aborted_transactions_of_a_commit_sequence_never_count(client, topic):
    commit_sequence = client.commit_sequence(topic)
    with client.create_producer(topic) as producer:
        ids = []
        for value in (b"committed", b"aborted"):
            txn = commit_sequence.begin()
            producer.send(value, txn=txn)
            ids.append(txn.prepare())
        assert commit_sequence.commit(0, ids[:1])
        commit_sequence.abort(ids)
        commit_sequence.abort(ids)
    with client.create_reader(topic, velaray.MessageId.earliest) as reader:
        assert [bytes(each) for each in reader.read_many(timeout_millis=10_000)] == [b"committed"]
        assert not reader.has_message_available()

"""Consumers of several topics, or of a pattern: positions, acknowledgements, new topics."""

import asyncio
import re
from collections import Counter

import pytest

import velaray
from velaray import ConsumerType, InitialPosition, MessageId, aio

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 10_000


@pytest.fixture
def topics(topic):
    return [f"{topic}-{letter}" for letter in "abc"]


def fill(client, topics, count=3):
    """Numbered messages in each topic; their ids."""
    return {
        name: [client.create_producer(name).send(b"%d" % number) for number in range(count)]
        for name in topics
    }


def drain(consumer):
    """Everything that comes, by topic."""
    found = {}
    try:
        while True:
            message = consumer.receive(300)
            found.setdefault(message.topic_name(), []).append(message.data())
    except velaray.Timeout:
        return found


def test_ids_of_several_topics_are_acknowledged_together(client, topics):
    consumer = client.subscribe(topics, "s", ConsumerType.Shared, **EARLIEST)
    fill(client, topics)
    messages = [consumer.receive(WAIT) for _ in range(9)]
    ids = [message.message_id() for message in messages if message.data() != b"1"]
    stored = [MessageId.deserialize(i.serialize(), i.topic_name()) for i in ids]
    consumer.acknowledge_many(stored, receipt=True)
    consumer.redeliver_unacknowledged_messages()
    assert drain(consumer) == {name: [b"1"] for name in topics}
    consumer.close()
    assert drain(client.subscribe(topics, "s", ConsumerType.Shared)) == {
        name: [b"1"] for name in topics
    }


def test_last_message_ids_and_seeks_work_on_several_topics(client, topics):
    consumer = client.subscribe(topics, "s", **EARLIEST)
    ids = fill(client, topics)
    last = consumer.get_last_message_ids()
    assert {m.topic_name(): m.position for m in last} == {
        name: ids[name][-1].position for name in topics
    }
    with pytest.raises(velaray.OperationNotSupported, match="get_last_message_ids"):
        consumer.get_last_message_id()
    assert len([consumer.receive(WAIT) for _ in range(9)]) == 9
    targets = dict(zip(topics, (ids[topics[0]][1], MessageId.earliest, 1), strict=True))
    consumer.seek(targets.__getitem__)
    assert drain(consumer) == {
        topics[0]: [b"2"],
        topics[1]: [b"0", b"1", b"2"],
        topics[2]: [b"0", b"1", b"2"],
    }
    with pytest.raises(velaray.InvalidMessage, match=topics[0]):
        consumer.seek(lambda _: None)


def test_unsubscribing_deletes_the_subscription_everywhere(client, topics):
    fill(client, topics)
    consumer = client.subscribe(topics, "s", **EARLIEST)
    assert len(drain(consumer)) == 3
    consumer.unsubscribe()
    again = client.subscribe(topics, "s", **EARLIEST)
    assert drain(again) == {name: [b"0", b"1", b"2"] for name in topics}


def test_a_pattern_gets_all_messages_of_a_topic_created_later(client, topic):
    pattern = re.compile(f"{topic}-.*")
    consumer = client.subscribe(
        pattern, "s", ConsumerType.Shared, pattern_auto_discovery_period=0.3
    )
    made = [f"{topic}-new{number}" for number in range(3)]
    fill(client, made)
    seen = Counter(consumer.receive(WAIT).topic_name() for _ in range(9))
    assert seen == dict.fromkeys(made, 3)
    assert sorted(message.topic_name() for message in consumer.get_last_message_ids()) == made
    consumer.unsubscribe()


def test_the_asyncio_client_consumes_several_topics(cluster, topics):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            for name in topics:
                await (await client.create_producer(name)).send(b"x")
            consumer = await client.subscribe(topics, "s", **EARLIEST)
            assert len(await consumer.get_last_message_ids()) == 3
            messages = [await consumer.receive(WAIT) for _ in range(3)]
            await consumer.seek(lambda _: MessageId.earliest)
            messages = [await consumer.receive(WAIT) for _ in range(3)]
            await consumer.acknowledge_many([m.message_id() for m in messages], receipt=True)
            consumer.pause()
            producer = await client.create_producer(topics[0])
            await producer.send(b"later")
            consumer.resume()
            assert (await consumer.receive(WAIT)).data() == b"later"

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_table_view_reports_changes_and_removals(client, topic):
    """A listener that fails harms nothing. b"" is a key that is gone, as in pulsar-client."""
    producer = client.create_producer(topic)
    producer.send(b"1", partition_key="a")
    view = client.create_table_view(topic)
    told = []

    def fails(key, value):
        if told:
            raise ValueError("harmless")

    view.for_each_and_listen(fails)
    view.for_each_and_listen(lambda key, value: told.append((key, value)))
    producer.send(b"2", partition_key="a")
    producer.send(b"no key")
    producer.send(None, partition_key="a")
    producer.send(b"3", partition_key="b")
    producer.send(b"", partition_key="b")
    consumer = client.subscribe(topic, "wait", **EARLIEST)
    while len(told) < 5:
        with pytest.raises(velaray.Timeout):
            for _ in range(10):
                consumer.receive(20)
    assert told == [("a", b"1"), ("a", b"2"), ("a", b""), ("b", b"3"), ("b", b"")]
    assert len(view) == 0

"""Retry and dead-letter topics: what is moved, when, how often, and what is written on it."""

import asyncio
import re
from collections import Counter

import pytest

import velaray
from velaray import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition, aio
from velaray.client.dead_letters import DeadLetterProducers

WAIT = 15_000
SHARED = {
    "consumer_type": ConsumerType.Shared,
    "initial_position": InitialPosition.Earliest,
    "negative_ack_redelivery_delay_ms": 30,
}


def drained(client, topic, count, **options):
    """The first messages of a topic, and that no more come."""
    consumer = client.subscribe(topic, "look", initial_position=InitialPosition.Earliest, **options)
    messages = [consumer.receive(WAIT) for _ in range(count)]
    with pytest.raises(velaray.Timeout):
        consumer.receive(300)
    consumer.close()
    return messages


def refuse(consumer, deliveries):
    """Acknowledge so many deliveries negatively; how often each content came."""
    seen = Counter()
    for _ in range(deliveries):
        message = consumer.receive(WAIT)
        seen[message.data()] += 1
        assert message.redelivery_count() == seen[message.data()] - 1
        consumer.negative_acknowledge(message)
    return seen


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive])
def test_a_message_is_delivered_once_more_than_redelivered_and_then_moved(client, topic, kind):
    policy = ConsumerDeadLetterPolicy(2)
    options = SHARED | {"consumer_type": kind}
    consumer = client.subscribe(topic, "s", dead_letter_policy=policy, **options)
    client.create_producer(topic).send(
        b"poison", {"a": "b"}, partition_key="k", ordering_key="o", event_timestamp=77
    )
    assert refuse(consumer, 3) == {b"poison": 3}
    (dead,) = drained(client, f"{topic}-s-DLQ", 1)
    assert dead.data() == b"poison" and dead.partition_key() == "k"
    assert dead.ordering_key() == "o" and dead.event_timestamp() == 77
    origin = dead.properties()["ORIGIN_MESSAGE_ID"]
    assert dead.properties() == {
        "a": "b",
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
    }
    with pytest.raises(velaray.Timeout):
        consumer.receive(300)
    consumer.close()
    again = client.subscribe(topic, "s", **options)  # it was acknowledged, durably
    with pytest.raises(velaray.Timeout):
        again.receive(300)


@pytest.mark.parametrize("by_index", [False, True])
def test_only_refused_messages_of_a_batch_are_moved(client, topic, by_index):
    policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead")
    consumer = client.subscribe(
        topic, "s", dead_letter_policy=policy, batch_index_ack_enabled=by_index, **SHARED
    )
    client.create_producer(topic).send_many([b"good", b"poison", b"late"])
    for _ in range(2):
        for message in [consumer.receive(WAIT) for _ in range(3 if _ == 0 else 2)]:
            if message.data() == b"good":
                consumer.acknowledge(message)
            elif message.data() == b"poison":
                consumer.negative_acknowledge(message)
    (dead,) = drained(client, f"{topic}-dead", 1)
    assert dead.data() == b"poison"
    consumer.close()
    again = client.subscribe(topic, "s", **SHARED)
    left = {again.receive(WAIT).data() for _ in range(1 if by_index else 2)}
    assert left == ({b"late"} if by_index else {b"good", b"late"})
    with pytest.raises(velaray.Timeout):
        again.receive(300)


def test_a_message_above_the_redelivery_limit_is_moved_without_being_handed_out(client, topic):
    """Its consumers died of it, perhaps, before they could say so."""
    first = client.subscribe(topic, "s", **SHARED)
    client.create_producer(topic).send(b"poison")
    refuse(first, 4)
    policy = ConsumerDeadLetterPolicy(2)
    consumer = client.subscribe(topic, "s", dead_letter_policy=policy, **SHARED)
    first.close()
    (dead,) = drained(client, f"{topic}-s-DLQ", 1)
    assert dead.data() == b"poison"
    with pytest.raises(velaray.Timeout):
        consumer.receive(300)


def test_reconsume_times_are_counted_and_the_origin_is_kept(client, topic):
    policy = ConsumerDeadLetterPolicy(3)
    consumer = client.subscribe(topic, "s", dead_letter_policy=policy, enable_retry=True, **SHARED)
    client.create_producer(topic).send(b"x", {"own": "1"}, partition_key="k")
    message = consumer.receive(WAIT)
    origin = message.message_id()
    consumer.reconsume_later(message, 20, {"why": "busy"})
    for times in (1, 2, 3):
        message = consumer.receive(WAIT)
        assert message.topic_name() == f"{topic}-s-RETRY"
        assert message.data() == b"x" and message.partition_key() == "k"
        properties = message.properties()
        assert properties.pop("ORIGIN_MESSAGE_IDY_TIME") == properties["ORIGIN_MESSAGE_ID"]
        assert properties == {
            "own": "1",
            "why": "busy",
            "RECONSUMETIMES": str(times),
            "DELAY_TIME": "20" if times == 1 else "0",
            "REAL_TOPIC": topic,
            "REAL_SUBSCRIPTION": "s",
            "ORIGIN_MESSAGE_ID": f"{origin.ledger_id()}:{origin.entry_id()}:-1",
        }
        consumer.reconsume_later(message)
    (dead,) = drained(client, f"{topic}-s-DLQ", 1)
    assert dead.properties()["RECONSUMETIMES"] == "4"
    assert dead.properties()["REAL_TOPIC"] == topic
    with pytest.raises(velaray.Timeout):
        consumer.receive(200)


def test_messages_of_several_topics_share_a_retry_topic_and_keep_their_origin(client, topic):
    topics = [f"{topic}-{letter}" for letter in "ab"]
    consumer = client.subscribe(
        topics, "s", dead_letter_policy=ConsumerDeadLetterPolicy(2), enable_retry=True, **SHARED
    )
    for name in topics:
        client.create_producer(name).send(name.encode())
    seen = Counter()
    for _ in range(6):
        message = consumer.receive(WAIT)
        origin = message.properties().get("REAL_TOPIC", message.topic_name())
        assert origin.encode() == message.data()
        seen[origin] += 1
        consumer.reconsume_later(message)
    assert seen == dict.fromkeys(topics, 3)
    dead = drained(client, f"{topics[0]}-s-DLQ", 2)
    assert {message.properties()["REAL_TOPIC"] for message in dead} == set(topics)


def test_without_retry_nothing_can_be_consumed_later(client, topic):
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"x")
    message = consumer.receive(WAIT)
    with pytest.raises(velaray.InvalidConfiguration, match="enable_retry"):
        consumer.reconsume_later(message)


def test_sixteen_redeliveries_are_the_default(client, topic):
    consumer = client.subscribe(topic, "s", enable_retry=True, **SHARED)
    client.create_producer(topic).send(b"x")
    for _ in range(17):
        consumer.reconsume_later(consumer.receive(WAIT))
    (dead,) = drained(client, f"{topic}-s-DLQ", 1)
    assert dead.properties()["RECONSUMETIMES"] == "17"


def test_a_subscription_waits_for_the_first_dead_letter(client, topic):
    policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="waiting")
    consumer = client.subscribe(topic, "s", dead_letter_policy=policy, **SHARED)
    producer = client.create_producer(topic)
    for content in (b"1", b"2"):
        producer.send(content)
        refuse(consumer, 2)
    waiting = client.subscribe(f"{topic}-s-DLQ", "waiting")  # from the latest on, if it's new
    assert sorted(waiting.receive(WAIT).data() for _ in range(2)) == [b"1", b"2"]


def test_tombstones_are_copied(client, topic):
    consumer = client.subscribe(
        topic, "s", dead_letter_policy=ConsumerDeadLetterPolicy(1), **SHARED
    )
    client.create_producer(topic).send(None, partition_key="gone")
    refuse(consumer, 2)
    (dead,) = drained(client, f"{topic}-s-DLQ", 1)
    assert dead.has_null_value() and dead.partition_key() == "gone"


def test_dead_letters_of_a_partitioned_topic_share_a_partitioned_topic(client, catalog, topic):
    catalog.partitioned(topic, 2)
    catalog.partitioned(f"{topic}-s-DLQ", 2)
    consumer = client.subscribe(
        topic, "s", dead_letter_policy=ConsumerDeadLetterPolicy(1), **SHARED
    )
    producer = client.create_producer(topic)
    for number in range(4):
        producer.send(b"%d" % number, partition_key=str(number))
    refuse(consumer, 8)
    dead = drained(client, f"{topic}-s-DLQ", 4)
    assert sorted(message.data() for message in dead) == [b"0", b"1", b"2", b"3"]
    assert {message.properties()["REAL_TOPIC"] for message in dead} == {topic}


def dies_before_acknowledging(monkeypatch):
    """Consumers publish copies and never get further; the event says that one was published."""
    published = asyncio.Event()

    async def settle(self, message):
        published.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("velaray.client.partition_consumer.PartitionConsumer.settle", settle)
    return published


async def copies(client, topic):
    """The messages of a retry or dead-letter topic."""
    reader = await client.create_reader(topic, velaray.MessageId.earliest)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(WAIT)).data())
    return found


def test_a_crash_before_the_acknowledgement_stores_no_second_dead_letter(
    cluster, topic, monkeypatch
):
    """The next consumer repeats the move; the service knows the copy."""

    async def work():
        options = SHARED | {"dead_letter_policy": ConsumerDeadLetterPolicy(1)}
        first = aio.Client(cluster.service_url)
        await (await first.create_producer(topic)).send(b"poison")
        with monkeypatch.context() as patch:
            published = dies_before_acknowledging(patch)
            consumer = await first.subscribe(topic, "s", **options)
            for _ in range(2):
                await consumer.negative_acknowledge(await consumer.receive(WAIT))
            await published.wait()
            await first.shutdown()
        async with aio.Client(cluster.service_url) as second:
            assert await copies(second, f"{topic}-s-DLQ") == [b"poison"]
            consumer = await second.subscribe(topic, "s", **options)
            with pytest.raises(velaray.Timeout):
                while True:
                    message = await consumer.receive(1000)
                    assert message.redelivery_count() < 2
                    await consumer.negative_acknowledge(message)
            assert await copies(second, f"{topic}-s-DLQ") == [b"poison"]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_crash_before_the_acknowledgement_stores_no_second_retry(cluster, topic, monkeypatch):
    async def work():
        first = aio.Client(cluster.service_url)
        await (await first.create_producer(topic)).send(b"busy")
        with monkeypatch.context() as patch:
            published = dies_before_acknowledging(patch)
            consumer = await first.subscribe(topic, "s", enable_retry=True, **SHARED)
            message = await consumer.receive(WAIT)
            moving = asyncio.create_task(consumer.reconsume_later(message))
            await published.wait()
            moving.cancel()
            await first.shutdown()
        async with aio.Client(cluster.service_url) as second:
            consumer = await second.subscribe(topic, "s", enable_retry=True, **SHARED)
            for _ in range(2):
                message = await consumer.receive(WAIT)
                if message.topic_name() == topic:
                    await consumer.reconsume_later(message)
            assert await copies(second, f"{topic}-s-RETRY") == [b"busy"]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_failed_move_is_retried(client, topic, monkeypatch):
    original, failures = DeadLetterProducers.move, []

    async def fail_twice(self, message, letter, settle):
        if len(failures) < 2:
            failures.append(message)
            raise velaray.Timeout("not now")
        await original(self, message, letter, settle)

    monkeypatch.setattr(DeadLetterProducers, "move", fail_twice)
    consumer = client.subscribe(
        topic, "s", dead_letter_policy=ConsumerDeadLetterPolicy(1), **SHARED
    )
    client.create_producer(topic).send(b"poison")
    refuse(consumer, 2)
    assert [message.data() for message in drained(client, f"{topic}-s-DLQ", 1)] == [b"poison"]
    assert len(failures) == 2


def test_invalid_policies_are_refused(client, topic):
    with pytest.raises(velaray.InvalidConfiguration, match="at least 1"):
        ConsumerDeadLetterPolicy(0)
    with pytest.raises(velaray.InvalidConfiguration, match="pattern"):
        client.subscribe(re.compile("persistent://public/default/x.*"), "s", enable_retry=True)

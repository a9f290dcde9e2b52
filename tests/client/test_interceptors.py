"""Interceptors of consumers and producers: what they see, change, and cannot harm."""

import asyncio
from collections import defaultdict

import pytest

import velaray
from velaray import ConsumerInterceptor, InitialPosition, OutgoingMessage, ProducerInterceptor, aio

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 10_000


class Notes(ConsumerInterceptor):
    """Notes every call."""

    def __init__(self):
        self.calls = defaultdict(list)

    def before_consume(self, consumer, message):
        self.calls["consume"].append((consumer, message.data()))
        return message

    def on_acknowledge(self, consumer, message_id, error):
        self.calls["acknowledge"].append((message_id, error))

    def on_acknowledge_cumulative(self, consumer, message_id, error):
        self.calls["cumulative"].append((message_id, error))

    def on_negative_acks_send(self, consumer, message_ids):
        self.calls["nack"].append({message_id.entry_id() for message_id in message_ids})

    def on_ack_timeout_send(self, consumer, message_ids):
        self.calls["timeout"].append({message_id.entry_id() for message_id in message_ids})

    def close(self):
        self.calls["close"].append(True)


class Broken(ConsumerInterceptor, ProducerInterceptor):
    """An interceptor whose methods all fail."""

    def _fail(self, *args):
        raise ZeroDivisionError

    before_consume = on_acknowledge = on_acknowledge_cumulative = close = _fail
    on_negative_acks_send = on_ack_timeout_send = _fail
    before_send = on_send_acknowledgement = _fail


class Upper(ProducerInterceptor):
    """Sends everything in upper case, and notes what became of it."""

    def __init__(self):
        self.stored = []

    def before_send(self, producer, message):
        return OutgoingMessage(message.data().upper(), message.properties() | {"seen": "1"})

    def on_send_acknowledgement(self, producer, message, message_id, error):
        self.stored.append((message.data(), message_id, error))


def test_interceptors_of_a_consumer_see_everything_and_failing_ones_do_no_harm(
    client, topic, caplog
):
    notes = Notes()
    consumer = client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        interceptors=[Broken(), notes],
        negative_ack_redelivery_delay_ms=30,
        **EARLIEST,
    )
    client.create_producer(topic).send_many([b"a", b"b", b"c"])
    first = consumer.receive(WAIT)
    consumer.acknowledge(first)
    second = consumer.receive(WAIT)
    consumer.acknowledge(second.message_id())
    consumer.negative_acknowledge(consumer.receive(WAIT))
    third = consumer.receive(WAIT)
    consumer.acknowledge(third, receipt=True)
    with pytest.raises(velaray.InvalidMessage):
        consumer.acknowledge(velaray.MessageId(-1, 1, 1, 5))
    consumer.close()
    assert notes.calls["consume"] == [(consumer, content) for content in (b"a", b"b", b"c", b"c")]
    acknowledged = notes.calls["acknowledge"]
    assert [m for m, e in acknowledged if e is None] == [
        message.message_id() for message in (first, second, third)
    ]
    assert [type(e) for _, e in acknowledged if e is not None] == [velaray.InvalidMessage]
    assert notes.calls["nack"] == [{third.message_id().entry_id()}]
    assert notes.calls["close"] == [True]
    assert "before_consume failed" in caplog.text and "ZeroDivisionError" in caplog.text


def test_cumulative_acknowledgements_batches_and_listeners_are_seen(client, topic):
    notes = Notes()
    consumer = client.subscribe(topic, "s", interceptors=[notes], **EARLIEST)
    client.create_producer(topic).send_many([b"a", b"b", b"c"])
    messages = consumer.batch_receive()
    consumer.acknowledge_cumulative(messages[1], receipt=True)
    consumer.acknowledge_many([messages[2]], receipt=True)
    assert notes.calls["cumulative"] == [(messages[1].message_id(), None)]
    assert notes.calls["acknowledge"] == [(messages[2].message_id(), None)]
    assert [content for _, content in notes.calls["consume"]] == [b"a", b"b", b"c"]
    with pytest.raises(velaray.OperationNotSupported, match="interceptors"):
        consumer.receive_many(timeout_millis=1)


def test_an_interceptor_can_replace_consumed_messages(client, topic):
    class Reverse(ConsumerInterceptor):
        def before_consume(self, consumer, message):
            return velaray.Message(message.info, message.data()[::-1], message.index)

    consumer = client.subscribe(topic, "s", interceptors=[Reverse()], **EARLIEST)
    client.create_producer(topic).send(b"abc")
    message = consumer.receive(WAIT)
    assert message.data() == b"cba"
    consumer.acknowledge(message, receipt=True)


@pytest.mark.parametrize("batching", [False, True])
def test_interceptors_of_a_producer_change_sent_messages(client, topic, batching):
    upper = Upper()
    consumer = client.subscribe(topic, "s", **EARLIEST)
    producer = client.create_producer(
        topic, batching_enabled=batching, interceptors=[upper, Broken()]
    )
    stored = producer.send(b"a", {"own": "1"})
    future = producer.send_async(b"b")
    assert future.result(10) > stored
    messages = [consumer.receive(WAIT) for _ in range(2)]
    assert [message.data() for message in messages] == [b"A", b"B"]
    assert messages[0].properties() == {"own": "1", "seen": "1"}
    assert upper.stored == [(b"A", stored, None), (b"B", future.result(), None)]
    with pytest.raises(velaray.OperationNotSupported, match="interceptors"):
        producer.send_many([b"x"])
    producer.close()


def test_the_asyncio_client_calls_interceptors(cluster, topic):
    async def work():
        notes, upper = Notes(), Upper()
        async with aio.Client(cluster.service_url) as client:
            heard = asyncio.Queue()
            consumer = await client.subscribe(
                topic,
                "s",
                interceptors=[notes],
                message_listener=lambda _, message: heard.put(message),
                **EARLIEST,
            )
            producer = await client.create_producer(topic, interceptors=[upper])
            stored = await producer.send(b"a")
            message = await asyncio.wait_for(heard.get(), 10)
            assert message.data() == b"A"
            await consumer.acknowledge(message, receipt=True)
        assert notes.calls["consume"] == [(consumer, b"A")]
        assert notes.calls["acknowledge"] == [(stored, None)]
        assert notes.calls["close"] == [True] and upper.stored == [(b"A", stored, None)]

    asyncio.run(asyncio.wait_for(work(), 30))


def test_only_interceptors_are_accepted():
    with pytest.raises(velaray.InvalidConfiguration, match="ConsumerInterceptor"):
        velaray.client.options.ConsumerOptions("t", "s", interceptors=[ProducerInterceptor()])
    with pytest.raises(velaray.InvalidConfiguration, match="ProducerInterceptor"):
        velaray.client.options.ProducerOptions("t", interceptors=[print])

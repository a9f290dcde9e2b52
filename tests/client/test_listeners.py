"""Message listeners, and pausing: listeners alone, or all that the service sends."""

import asyncio
import threading

import pytest

import velaray
from velaray import InitialPosition, MessageId, aio

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 10_000


class Heard:
    """Collects what a listener hears; waits for so many."""

    def __init__(self, acknowledges=True):
        self.contents = []
        self.threads = set()
        self._acknowledges = acknowledges
        self._changed = threading.Condition()

    def __call__(self, consumer, message):
        with self._changed:
            self.contents.append(message.data())
            self.threads.add(threading.current_thread().name)
            self._changed.notify_all()
        if self._acknowledges:
            consumer.acknowledge(message)

    def wait(self, count, seconds=10):
        with self._changed:
            return self._changed.wait_for(lambda: len(self.contents) >= count, seconds)


def send(client, topic, count, first=0):
    producer = client.create_producer(topic)
    contents = [b"%d" % number for number in range(first, first + count)]
    for content in contents:
        producer.send(content)
    return contents


@pytest.mark.parametrize("queue", [0, 1, 1000])
def test_a_listener_gets_every_message_in_order_on_a_thread_of_its_own(client, topic, queue):
    heard = Heard()
    consumer = client.subscribe(
        topic, "s", message_listener=heard, receiver_queue_size=queue, **EARLIEST
    )
    contents = send(client, topic, 20)
    assert heard.wait(20)
    assert heard.contents == contents and len(heard.threads) == 1
    with pytest.raises(velaray.InvalidConfiguration, match="message_listener"):
        consumer.receive(1)
    consumer.close()
    again = client.subscribe(topic, "s")
    with pytest.raises(velaray.Timeout):  # everything was acknowledged
        again.receive(200)


def test_an_exception_in_a_listener_is_harmless_and_its_message_redelivered(client, topic, caplog):
    failed = []

    def listener(consumer, message):
        if message.data() == b"0" and not failed:
            failed.append(message)
            consumer.negative_acknowledge(message)
            raise ValueError("no")
        heard(consumer, message)

    heard = Heard()
    client.subscribe(
        topic,
        "s",
        velaray.ConsumerType.Shared,
        message_listener=listener,
        negative_ack_redelivery_delay_ms=50,
        **EARLIEST,
    )
    send(client, topic, 2)
    assert heard.wait(2)
    assert heard.contents == [b"1", b"0"]
    assert "a message listener failed" in caplog.text


def test_listeners_share_the_clients_threads(cluster, topic):
    with velaray.Client(cluster.service_url, message_listener_threads=2) as client:
        held = threading.Event()
        blocked = Heard()

        def block(consumer, message):
            blocked(consumer, message)
            held.wait(10)

        free = Heard()
        client.subscribe(f"{topic}-a", "s", message_listener=block, **EARLIEST)
        client.subscribe(f"{topic}-b", "s", message_listener=free, **EARLIEST)
        send(client, f"{topic}-a", 2)
        assert blocked.wait(1)
        send(client, f"{topic}-b", 5)
        assert free.wait(5)
        assert blocked.contents == [b"0"]
        held.set()
        assert blocked.wait(2)


def test_a_paused_listener_is_not_called(client, topic):
    heard = Heard()
    consumer = client.subscribe(topic, "s", message_listener=heard, **EARLIEST)
    send(client, topic, 1)
    assert heard.wait(1)
    consumer.pause_message_listener()
    send(client, topic, 3, first=1)
    assert not heard.wait(2, seconds=0.3)
    consumer.resume_message_listener()
    assert heard.wait(4)


def test_a_listener_may_close_its_consumer(client, topic):
    closed = threading.Event()

    def listener(consumer, message):
        consumer.acknowledge(message)
        consumer.close()
        closed.set()

    client.subscribe(topic, "s", message_listener=listener, **EARLIEST)
    send(client, topic, 2)
    assert closed.wait(10)
    assert client.subscribe(topic, "s").receive(WAIT).data() == b"1"


def test_without_a_listener_there_is_nothing_to_pause(client, topic):
    consumer = client.subscribe(topic, "s")
    with pytest.raises(velaray.InvalidConfiguration):
        consumer.pause_message_listener()
    with pytest.raises(velaray.InvalidConfiguration, match="message_listener"):
        client.subscribe(topic, "s2", message_listener=5)


def test_a_reader_with_a_listener_keeps_reading(client, topic):
    contents = send(client, topic, 10)
    heard = Heard(acknowledges=False)
    reader = client.create_reader(topic, MessageId.earliest, reader_listener=heard)
    assert heard.wait(10)
    assert heard.contents == contents
    assert not reader.has_message_available()
    with pytest.raises(velaray.InvalidConfiguration, match="reader_listener"):
        reader.read_next(1)


def test_listeners_of_the_asyncio_client_are_functions_or_coroutines(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            heard = []
            full = asyncio.Event()

            async def listener(consumer, message):
                heard.append(message.data())
                if len(heard) == 1:
                    raise ValueError("harmless")
                await consumer.acknowledge(message, receipt=True)
                if len(heard) == 5:
                    await consumer.close()
                    full.set()

            await client.subscribe(topic, "s", message_listener=listener, **EARLIEST)
            read = []
            seen = asyncio.Event()

            def note(reader, message):
                read.append(message.data())
                seen.set()

            reader = await client.create_reader(topic, MessageId.latest, reader_listener=note)
            producer = await client.create_producer(topic)
            for number in range(5):
                await producer.send(b"%d" % number)
            await asyncio.wait_for(full.wait(), 10)
            await asyncio.wait_for(seen.wait(), 10)
            with pytest.raises(velaray.InvalidConfiguration):
                await reader.read_next(1)
            assert heard == [b"%d" % number for number in range(5)]
            consumer = await client.subscribe(topic, "s")
            assert (await consumer.receive(WAIT)).data() == b"0"

    asyncio.run(asyncio.wait_for(work(), 30))
    with pytest.raises(velaray.OperationNotSupported, match="event loop"):
        aio.Client(cluster.service_url, message_listener_threads=2)


@pytest.mark.parametrize("queue", [0, 1, 4])
def test_a_paused_consumer_gets_only_requested_messages(client, topic, queue):
    consumer = client.subscribe(topic, "s", receiver_queue_size=queue, **EARLIEST)
    consumer.pause()
    contents = send(client, topic, 12)
    got = []
    with pytest.raises(velaray.Timeout):
        while True:
            got.append(consumer.receive(300).data())
    assert got == contents[:queue]
    consumer.resume()
    got += [consumer.receive(WAIT).data() for _ in contents[queue:]]
    assert got == contents


def test_partitions_added_to_a_paused_consumer_are_paused(client, catalog, topic, monkeypatch):
    monkeypatch.setattr("velaray.client.core.PARTITIONS_UPDATE_SECONDS", 0.05)
    catalog.partitioned(topic, 1)
    consumer = client.subscribe(topic, "s", **EARLIEST)
    consumer.pause()
    catalog.grow(topic, 2)
    client.create_producer(f"{topic}-partition-1").send(b"x")
    with pytest.raises(velaray.Timeout):
        consumer.receive(400)
    consumer.resume()
    assert consumer.receive(WAIT).data() == b"x"

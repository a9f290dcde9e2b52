"""The client's ``pulsar.asyncio`` module."""

from __future__ import annotations

import asyncio
import contextlib

import pulsar
from pulsar.asyncio import Client

from tests.official.support import backlog, eventually, numbered

# The module's seek takes no bare ids, and the constants are bare.
EARLIEST = pulsar.MessageId.wrap(pulsar.MessageId.earliest)
LATEST = pulsar.MessageId.wrap(pulsar.MessageId.latest)


def _run(server, scenario):
    async def run():
        client = Client(server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            async with asyncio.timeout(60):
                await scenario(client)
        finally:
            await client.close()

    asyncio.run(run())


def test_produce_and_consume(server, topic):
    async def scenario(client):
        consumer = await client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        producer = await client.create_producer(topic, batching_enabled=False)
        ids = await asyncio.gather(*(producer.send(payload) for payload in numbered(50)))
        assert [i.entry_id() for i in ids] == list(range(50))
        messages = [await consumer.receive() for _ in range(50)]
        assert [message.data() for message in messages] == numbered(50)
        for message in messages:
            await consumer.acknowledge(message)
        last = await consumer.get_last_message_id()
        assert (last.ledger_id(), last.entry_id()) == (ids[-1].ledger_id(), ids[-1].entry_id())
        # Closing this client drops acknowledgements that it has not sent yet: wait first.
        await asyncio.to_thread(eventually, lambda: backlog(server, topic, "s") == 0)

    _run(server, scenario)


def test_seek_cumulative_negative_unsubscribe(server, topic):
    async def scenario(client):
        consumer = await client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=100)
        producer = await client.create_producer(topic, batching_enabled=True)
        ids = await asyncio.gather(*(producer.send(payload) for payload in numbered(20)))
        messages = [await consumer.receive() for _ in range(20)]
        await consumer.acknowledge_cumulative(messages[9])
        await consumer.seek(ids[4])
        assert [(await consumer.receive()).data() for _ in range(15)] == numbered(20)[5:]
        await consumer.seek(EARLIEST)
        message = await consumer.receive()
        assert message.data() == b"m-0"
        await consumer.negative_acknowledge(message)
        counts = []
        while not counts or counts[-1] == 0:
            counts.append((await consumer.receive()).redelivery_count())
        assert counts[-1] == 1
        await consumer.unsubscribe()
        with contextlib.suppress(pulsar.AlreadyClosed):
            await consumer.close()

    _run(server, scenario)


def test_a_reader_reads(server, topic):
    async def scenario(client):
        producer = await client.create_producer(topic)
        for payload in numbered(10):
            await producer.send(payload)
        reader = await client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while await reader.has_message_available():
            found.append((await reader.read_next()).data())
        assert found == numbered(10)
        await reader.seek(LATEST)
        assert not await reader.has_message_available()

    _run(server, scenario)

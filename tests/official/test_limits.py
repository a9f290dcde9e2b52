"""Large backlogs, and bounded memory for any behaviour of clients."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

from tests.official.raw import RawClient
from tests.official.support import (
    backlog,
    data,
    eventually,
    nothing_comes,
    partition_key,
    publish,
    receive,
    settled,
)
from velaray.broker.partition.publishing import PENDING_HIGH
from velaray.wire.connection import HIGH_WATER

MIB = 1 << 20


@pytest.mark.parametrize("queue", [1000, 10], ids=["a wide queue", "a narrow queue"])
@pytest.mark.slow
def test_a_large_backlog_drains_completely(local, connect, topic, queue):
    client = connect(local.service_url)
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=20_000, batching_enabled=False
    )
    total = 100_000 if queue > 10 else 20_000
    for number in range(total):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=queue)
    for number in range(total):
        message = consumer.receive(30_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    assert nothing_comes(consumer)
    eventually(lambda: backlog(local, topic, "s") == 0)


@pytest.mark.slow
def test_a_backlog_beyond_the_cache_is_read_from_disk(local, connect, topic):
    """More than the tail cache and the chunk cache hold together, read by three at once."""
    client = connect(local.service_url)
    producer = client.create_producer(topic)
    bodies = [b"%06d" % n + bytes(2 * MIB) for n in range(30)]
    publish(producer, bodies)
    consumers = [
        client.subscribe(
            topic,
            f"s{n}",
            receiver_queue_size=3,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for n in range(3)
    ]
    for body in bodies:
        for consumer in consumers:
            (message,) = receive(consumer, 1, ack=True)
            assert message.data() == body
    for n in range(3):
        eventually(lambda n=n: backlog(local, topic, f"s{n}") == 0)


def _partition(local, topic):
    return local.cluster.actor_system.actors[partition_key(local, topic)]


def test_a_consumer_that_does_not_read_holds_little_memory(local, connect, topic):
    producer = connect(local.service_url).create_producer(topic)
    total = 60
    publish(producer, [bytes([n]) * MIB for n in range(total)])
    body = _partition(local, topic)

    async def scenario() -> None:
        address = await asyncio.to_thread(
            lambda: local.cluster.run(local.cluster.actor_system.reach(partition_key(local, topic)))
        )
        client = await RawClient.connect(address.host, address.service_port)
        await client.subscribe(topic)
        client.pause_reading()
        client.flow(1000)

        def waiting() -> int:
            return max(
                session.connection._transport.get_write_buffer_size()
                for session in body.listener.sessions
            )

        # Nothing moves any more once the socket's buffers are full.
        sizes = [0]
        while sizes[-1] == 0 or sizes[-1] != sizes[-2]:
            await asyncio.sleep(0.2)
            sizes.append(waiting())
        assert max(sizes) <= HIGH_WATER + 64 * 1024 + 2 * MIB
        client.resume_reading()
        messages = await client.messages(total)
        assert [message.entry_id for message in messages] == list(range(total))
        client.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_flood_of_producers_gets_back_pressure(local, connect, topic, monkeypatch):
    """While the disk is slow, no more than the bound (and what was under way) is taken in."""
    clients = [connect(local.service_url) for _ in range(4)]
    producers = [
        client.create_producer(topic, max_pending_messages=100, send_timeout_millis=120_000)
        for client in clients
    ]
    body = _partition(local, topic)
    journal = body.runtime.journal
    commit = journal.commit
    gate: asyncio.Event = asyncio.Event()

    async def slow_commit():
        await gate.wait()
        return await commit()

    monkeypatch.setattr(type(journal), "commit", lambda self: slow_commit(), raising=True)
    per_producer = 20
    results = []
    for number in range(per_producer):
        for producer in producers:
            payload = b"%d" % number + bytes(2 * MIB)
            producer.send_async(payload, lambda result, _: results.append(result))
    seen = settled(lambda: body.publishing.pending_bytes, at_least=PENDING_HIGH)
    assert max(seen) <= PENDING_HIGH + len(producers) * 5 * MIB
    assert body.runtime.pending_bytes <= PENDING_HIGH + len(producers) * 5 * MIB
    assert results == []
    local.cluster.loop.call_soon_threadsafe(gate.set)
    eventually(lambda: len(results) == 4 * per_producer)
    assert set(results) == {pulsar.Result.Ok}
    eventually(lambda: body.publishing.pending_bytes == 0)
    reader = clients[0].create_reader(topic, pulsar.MessageId.earliest)
    numbers = [int(payload[:2].rstrip(b"\0")) for payload in data(receive(reader, 80))]
    assert sorted(numbers) == sorted(list(range(per_producer)) * 4)

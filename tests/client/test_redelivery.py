"""When messages are asked for again: delays per message, back-off, overdue acknowledgements."""

import asyncio

import pytest

import velaray
from tests.client.scripted import ScriptedServer
from tests.client.test_protocol import WAIT, client_of, entry_of, run, until
from velaray import ConsumerType, MultiplierRedeliveryBackoff
from velaray.client.redelivery import RedeliveryTimer
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import MessageHeaders


def test_back_off_doubles_from_ten_seconds_to_ten_minutes():
    backoff = MultiplierRedeliveryBackoff()
    delays = [backoff.next_ms(count) for count in range(8)]
    assert delays == [10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000]
    assert backoff.next_ms(10**9) == 600_000
    assert MultiplierRedeliveryBackoff(0, 100).next_ms(10**9) == 0


@pytest.mark.parametrize("wrong", [{"min_delay_ms": -1}, {"max_delay_ms": 1}, {"multiplier": 0.5}])
def test_invalid_back_off_is_refused(wrong):
    with pytest.raises(velaray.InvalidConfiguration):
        MultiplierRedeliveryBackoff(**wrong)


def test_redeliveries_become_due_once_and_in_order():
    timer = RedeliveryTimer()
    timer.add((1, 1), 0, 10)
    timer.add((1, 2), 5, 10)
    timer.add((1, 1), 6, 10)
    timer.add((1, 3), 7, 10)
    timer.remove((1, 3))
    assert timer.next_deadline() == 10
    assert timer.due(9.9) == []
    assert timer.due(10) == [(1, 1)]
    assert timer.due(100) == [(1, 2)]
    assert timer.next_deadline() is None


def test_each_entry_is_due_after_its_own_delay():
    timer = RedeliveryTimer()
    timer.add((1, 0), 0.0, 60.0)
    timer.add((1, 1), 1.0, 10.0)
    timer.add((1, 2), 2.0, 10.0)
    timer.add((1, 1), 3.0, 60.0)  # planned already
    assert timer.next_deadline() == 11.0
    assert timer.due(11.5) == [(1, 1)]
    timer.remove((1, 2))
    assert timer.next_deadline() == 60.0 and len(timer) == 1
    timer.remove_until((1, 0))
    assert timer.next_deadline() is None and timer.due(1e9) == []


def deliver(connection, entry_id, redelivery_count):
    entry = entry_of(b"x")
    headers = MessageHeaders(0, 1, redelivery_count=redelivery_count)
    connection.write(headers.header(entry_id, len(entry)))
    connection.write(entry)


def asked_again(server):
    """The entries that were asked for again, in order."""
    wanted = pb.CommandRedeliverUnacknowledgedMessages
    return [m.entryId for c in server.seen if isinstance(c, wanted) for m in c.message_ids]


def test_a_negative_ack_waits_for_the_back_off_of_its_message():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe(
                "t",
                "s",
                ConsumerType.Shared,
                negative_ack_redelivery_backoff=MultiplierRedeliveryBackoff(100, 100_000, 10),
            )
            for entry, count in ((0, 3), (1, 0), (2, 1)):
                deliver(server.connections[0], entry, count)
                await consumer.negative_acknowledge(await consumer.receive(WAIT))
            start = asyncio.get_running_loop().time()
            await until(lambda: asked_again(server) == [1])
            assert asyncio.get_running_loop().time() - start < 0.9
            await until(lambda: asked_again(server) == [1, 2])

    run(work())


def test_redelivery_of_messages_not_acknowledged_in_time_is_requested(monkeypatch):
    """With a back-off, redelivered messages have more time."""
    monkeypatch.setattr("velaray.client.options.MIN_ACK_TIMEOUT_MS", 50)

    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe(
                "t",
                "s",
                ConsumerType.Shared,
                unacked_messages_timeout_ms=50,
                ack_timeout_redelivery_backoff=MultiplierRedeliveryBackoff(1, 100_000, 100),
            )
            for entry, count in ((0, 2), (1, 0), (2, 0), (3, 1)):
                deliver(server.connections[0], entry, count)
                message = await consumer.receive(WAIT)
                if entry == 2:
                    await consumer.acknowledge(message)
            await until(lambda: asked_again(server) == [1, 3])

    run(work())


def test_redelivery_of_all_chunks_of_a_message_is_requested(client, topic):
    consumer = client.subscribe(
        topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=20
    )
    content = bytes(6 << 20)
    client.create_producer(topic, chunking_enabled=True).send(content)
    consumer.negative_acknowledge(consumer.receive(WAIT))
    again = consumer.receive(WAIT)
    assert again.data() == content and again.redelivery_count() == 1

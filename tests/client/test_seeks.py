"""Acknowledgements that wait for their receipts while the subscription is moved by a seek."""

import asyncio

import pytest

import velaray
from tests.client.scripted import ScriptedServer
from tests.client.test_protocol import WAIT, client_of, deliver, entry_of, run, until
from velaray.wire import pulsar_pb2 as pb


def move(server, connection, command, entry):
    """Answer a seek as the service does: it closes the consumer first."""
    connection.send(pb.CommandCloseConsumer(consumer_id=command.consumer_id, request_id=0))
    return pb.CommandSuccess(request_id=command.request_id)


def confirm(server, connection, command, entry):
    """Answer an acknowledgement that asks for a receipt."""
    return pb.CommandAckResponse(consumer_id=command.consumer_id, request_id=command.request_id)


def acks(server):
    """The entries of every acknowledgement that came, in order."""
    commands = [command for command in server.seen if isinstance(command, pb.CommandAck)]
    return [[acked.entryId for acked in command.message_id] for command in commands]


async def acknowledge_and_seek(server, consumer):
    """A message is acknowledged; the service moves the subscription before it confirms that."""
    deliver(server.connections[0], 0, entry_of(b"x"))
    message = await consumer.receive(WAIT)
    acknowledged = asyncio.create_task(consumer.acknowledge(message))
    await until(lambda: acks(server) == [[0]])
    await consumer.seek(velaray.MessageId.earliest)
    server.answers[pb.CommandAck] = confirm
    return acknowledged


def test_an_unconfirmed_acknowledgement_is_not_sent_again_after_a_seek():
    async def work():
        async with ScriptedServer(Seek=move) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_receipt_enabled=True)
            acknowledged = await acknowledge_and_seek(server, consumer)
            server.connections[0].abort()
            await acknowledged
            assert acks(server) == [[0]]

    run(work())


def test_a_refused_acknowledgement_does_not_come_back_after_a_seek():
    async def work():
        async with ScriptedServer(Seek=move) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_receipt_enabled=True)
            acknowledged = await acknowledge_and_seek(server, consumer)
            command = next(known for known in server.seen if isinstance(known, pb.CommandAck))
            refusal = confirm(server, server.connections[0], command, None)
            refusal.error, refusal.message = pb.NotAllowedError, "moved"
            server.connections[0].send(refusal)
            with pytest.raises(velaray.NotAllowedError, match="moved"):
                await acknowledged
            deliver(server.connections[0], 1, entry_of(b"y"))
            await consumer.acknowledge(await consumer.receive(WAIT))
            assert acks(server) == [[0], [1]]

    run(work())

"""Acknowledgements that wait for their receipts while the subscription is moved by a seek."""

import asyncio

import pytest

import velaray
from tests.client.scripted import ScriptedServer
from tests.client.test_protocol import WAIT, client_of, deliver, entry_of, permits, run, until
from tests.client.test_switching import coordinators
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


@pytest.mark.parametrize("batch_index_ack", [False, True])
def test_a_seek_back_by_another_consumer_redelivers_even_partly_acked_batches(batch_index_ack):
    """The service closes every consumer when another one, or an administrator, seeks."""

    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe(
                "t", "s", batch_index_ack_enabled=batch_index_ack, ack_group_time_ms=0
            )
            deliver(server.connections[0], 0, entry_of(b"a", b"b", b"c"))
            await consumer.acknowledge(await consumer.receive(WAIT))
            subscribe = next(c for c in server.seen if isinstance(c, pb.CommandSubscribe))
            close = pb.CommandCloseConsumer(consumer_id=subscribe.consumer_id, request_id=0)
            server.connections[0].send(close)
            await until(lambda: permits(server).count(1000) == 2)
            deliver(server.connections[0], 0, entry_of(b"a", b"b", b"c"))
            again = [(await consumer.receive(WAIT)).data() for _ in range(3)]
            assert again == [b"a", b"b", b"c"]

    run(work())


def test_a_message_after_a_seek_is_not_skipped_when_others_seek_back_further():
    async def work():
        async with ScriptedServer(Seek=move) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_group_time_ms=0)
            await consumer.seek(velaray.MessageId(-1, 1, 0, 0, batch_size=2))
            deliver(server.connections[0], 0, entry_of(b"a", b"b"))
            message = await consumer.receive(WAIT)
            assert message.data() == b"b"
            await consumer.acknowledge(message)
            await until(lambda: acks(server) == [[0]])
            subscribe = [c for c in server.seen if isinstance(c, pb.CommandSubscribe)][-1]
            server.connections[0].send(
                pb.CommandCloseConsumer(consumer_id=subscribe.consumer_id, request_id=0)
            )
            await until(lambda: permits(server).count(1000) == 3)
            deliver(server.connections[0], 0, entry_of(b"a", b"b"))
            assert (await consumer.receive(WAIT)).data() == b"a"

    run(work())


def test_a_message_of_another_consumer_is_delivered_after_others_seek_back() -> None:
    async def work():
        async with ScriptedServer(Seek=move) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_group_time_ms=0)
            await consumer.seek(velaray.MessageId(-1, 1, 0, 0, batch_size=1))
            deliver(server.connections[0], 1, entry_of(b"b"))
            assert (await consumer.receive(WAIT)).data() == b"b"
            subscribe = [c for c in server.seen if isinstance(c, pb.CommandSubscribe)][-1]
            server.connections[0].send(
                pb.CommandCloseConsumer(consumer_id=subscribe.consumer_id, request_id=0)
            )
            await until(lambda: permits(server).count(1000) == 3)
            deliver(server.connections[0], 0, entry_of(b"a"))
            assert (await consumer.receive(WAIT)).data() == b"a"

    run(work())


def test_a_message_is_redelivered_after_a_seek_undid_its_acknowledgement_in_a_transaction() -> None:
    """The acknowledgement is of the delivery before the seek. It leaves the new one alone."""

    def joined(server, connection, command, entry):
        return pb.CommandAddSubscriptionToTxnResponse(request_id=command.request_id)

    async def work():
        async with (
            ScriptedServer(Seek=move, AddSubscriptionToTxn=joined, **coordinators()) as server,
            client_of(server) as client,
        ):
            consumer = await client.subscribe("t", "s", negative_ack_redelivery_delay_ms=1000)
            deliver(server.connections[0], 0, entry_of(b"a"))
            first = await consumer.receive(WAIT)
            txn = await client.new_transaction()
            acknowledged = asyncio.create_task(consumer.acknowledge(first, txn=txn))
            await until(lambda: acks(server) == [[0]])
            await consumer.seek(velaray.MessageId.earliest)
            deliver(server.connections[0], 0, entry_of(b"a"))
            again = await consumer.receive(WAIT)
            await consumer.negative_acknowledge(again)
            late = next(known for known in server.seen if isinstance(known, pb.CommandAck))
            answer = confirm(server, server.connections[0], late, None)
            answer.error, answer.message = pb.ConsumerNotFound, "closed by the seek"
            server.connections[0].send(answer)
            await acknowledged
            await until(lambda: server.count("RedeliverUnacknowledgedMessages") == 1)

    run(work())

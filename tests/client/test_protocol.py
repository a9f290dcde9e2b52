"""What the client does when a server answers late, wrong, or not at all."""

import asyncio

import pytest

import velaray
from tests.client.scripted import ScriptedServer, run, until
from velaray import aio
from velaray.client.batcher import EntryBuilder
from velaray.client.message import OutgoingMessage
from velaray.client.options import ProducerOptions
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import MessageHeaders
from velaray.wire.errors import ServerError
from velaray.wire.frames import seal_entry

WAIT = 5_000


def client_of(server, **options):
    options.setdefault("operation_timeout_seconds", 3)
    return aio.Client(server.url, **options)


def receipt(send, entry=0):
    return pb.CommandSendReceipt(
        producer_id=send.producer_id,
        sequence_id=send.sequence_id,
        message_id=pb.CommandSendReceipt().message_id.__class__(ledgerId=1, entryId=entry),
    )


def fail(code, times=None):
    """An answer that refuses, ``times`` times; then nothing is said."""
    left = [times]

    def answer(server, connection, command, entry):
        if left[0] is not None:
            if left[0] == 0:
                return server_success(command)
            left[0] -= 1
        return pb.CommandError(request_id=command.request_id, error=int(code), message="told so")

    def server_success(command):
        if isinstance(command, pb.CommandProducer):
            return pb.CommandProducerSuccess(request_id=command.request_id, producer_name="p")
        return pb.CommandSuccess(request_id=command.request_id)

    return answer


def test_redirects_are_followed_and_bounded():
    async def work():
        def redirect(server, connection, command, entry):
            return pb.CommandLookupTopicResponse(
                request_id=command.request_id,
                response=0,
                authoritative=True,
                brokerServiceUrl=server.url,
            )

        async with ScriptedServer(LookupTopic=redirect) as server, client_of(server) as client:
            with pytest.raises(velaray.LookupError, match="redirects"):
                await client.create_producer("t")
            assert server.count("LookupTopic") == 20
            lookups = [c for c in server.seen if isinstance(c, pb.CommandLookupTopic)]
            assert not lookups[0].authoritative and lookups[1].authoritative

    run(work())


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ServerError.ProducerBusy, velaray.ProducerBusy),
        (ServerError.ProducerFenced, velaray.ProducerFenced),
        (ServerError.TopicTerminatedError, velaray.TopicTerminated),
        (ServerError.AuthorizationError, velaray.AuthorizationError),
    ],
)
def test_a_final_refusal_is_raised_at_once(code, error):
    async def work():
        async with ScriptedServer(Producer=fail(code)) as server, client_of(server) as client:
            with pytest.raises(error, match="told so"):
                await client.create_producer("t")
            assert server.count("Producer") == 1

    run(work())


def test_a_transient_refusal_is_retried_with_a_new_lookup():
    async def work():
        refuse = fail(ServerError.ServiceNotReady, times=2)
        async with ScriptedServer(Producer=refuse) as server, client_of(server) as client:
            await client.create_producer("t")
            assert server.count("Producer") == 3 and server.count("LookupTopic") == 3

    run(work())


def test_a_request_without_an_answer_is_repeated_and_undone():
    async def work():
        async with (
            ScriptedServer(Subscribe=lambda *_: None) as server,
            client_of(server, operation_timeout_seconds=0.9) as client,
        ):
            with pytest.raises(velaray.Timeout, match="Subscribe"):
                await client.subscribe("t", "s")
            assert server.count("Subscribe") >= 2
            assert server.count("CloseConsumer") >= 2

    run(work())


def test_a_lost_connection_sends_everything_again_in_order():
    async def work():
        sends = []

        def lose_then_store(server, connection, send, entry):
            sends.append((len(server.connections), send.sequence_id))
            if len(server.connections) == 1:
                if send.sequence_id == 2:
                    connection.close()
                elif send.sequence_id == 0:
                    return receipt(send)
                return None
            return receipt(send, send.sequence_id)

        server = ScriptedServer()
        server.answers["Send"] = lose_then_store
        async with server, client_of(server) as client:
            producer = await client.create_producer("t", batching_enabled=False)
            ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(3)))
            assert [message_id.entry_id() for message_id in ids] == [0, 1, 2]
            assert sends == [(1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]
            epochs = [c.epoch for c in server.seen if isinstance(c, pb.CommandProducer)]
            assert epochs == [0, 1]

    run(work())


def test_a_refused_message_fails_alone():
    async def work():
        def answer(server, connection, send, entry):
            if send.sequence_id == 1:
                return pb.CommandSendError(
                    producer_id=send.producer_id,
                    sequence_id=1,
                    error=pb.PersistenceError,
                    message="disk full",
                )
            return receipt(send, send.sequence_id)

        server = ScriptedServer()
        server.answers["Send"] = answer
        async with server, client_of(server) as client:
            producer = await client.create_producer("t", batching_enabled=False)
            results = await asyncio.gather(
                *(producer.send(b"") for _ in range(3)), return_exceptions=True
            )
            assert isinstance(results[1], velaray.BrokerPersistenceError)
            assert [result.entry_id() for result in results[::2]] == [0, 2]
            assert len(server.connections) == 1

    run(work())


def test_flush_raises_the_error_of_a_failed_message():
    async def work():
        server = ScriptedServer()
        server.answers["Send"] = lambda s, c, send, e: pb.CommandSendError(
            producer_id=send.producer_id,
            sequence_id=send.sequence_id,
            error=pb.NotAllowedError,
            message="no",
        )
        async with server, client_of(server) as client:
            producer = await client.create_producer("t")
            sending = asyncio.create_task(producer.send(b""))
            await asyncio.sleep(0)
            with pytest.raises(velaray.NotAllowedError):
                await producer.flush()
            with pytest.raises(velaray.NotAllowedError):
                await sending
            await producer.flush()

    run(work())


def test_a_receipt_out_of_step_reconnects():
    async def work():
        def answer(server, connection, send, entry):
            wrong = len(server.connections) == 1
            return receipt(send._replace(sequence_id=send.sequence_id + 7) if wrong else send)

        server = ScriptedServer()
        server.answers["Send"] = answer
        async with server, client_of(server) as client:
            producer = await client.create_producer("t")
            await producer.send(b"")
            assert len(server.connections) == 2

    run(work())


def test_a_send_times_out_and_its_late_receipt_is_ignored():
    async def work():
        held = []

        def hold(server, connection, send, entry):
            if send.sequence_id == 0:
                held.append(send)
                return None
            connection.send(receipt(held[0], 0))
            return receipt(send, 1)

        server = ScriptedServer()
        server.answers["Send"] = hold
        async with server, client_of(server) as client:
            producer = await client.create_producer("t", send_timeout_millis=100)
            with pytest.raises(velaray.Timeout):
                await producer.send(b"0")
            assert (await producer.send(b"1")).entry_id() == 1

    run(work())


def test_a_fenced_producer_stays_closed():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            producer = await client.create_producer("t")
            server.answers[pb.CommandProducer] = fail(ServerError.ProducerFenced)
            server.connections[0].send(pb.CommandCloseProducer(producer_id=0, request_id=0))
            for _ in range(2):
                with pytest.raises(velaray.ProducerFenced):
                    await producer.send(b"")
            assert not producer.is_connected()

    run(work())


def test_waiting_for_exclusivity_has_no_timeout():
    async def work():
        def not_yet(server, connection, command, entry):
            success = pb.CommandProducerSuccess(
                request_id=command.request_id, producer_name="p", producer_ready=False
            )
            connection.send(success)
            success.producer_ready = True
            asyncio.get_running_loop().call_later(0.4, connection.send, success)

        async with (
            ScriptedServer(Producer=not_yet) as server,
            client_of(server, operation_timeout_seconds=0.2) as client,
        ):
            mode = velaray.ProducerAccessMode.WaitForExclusive
            producer = await client.create_producer("t", access_mode=mode)
            assert producer.is_connected()
            with pytest.raises(velaray.Timeout):
                await client.create_producer("t")

    run(work())


def entry_of(*contents):
    builder = EntryBuilder(ProducerOptions("t", batching_enabled=True), "p", 5 << 20)
    for number, content in enumerate(contents):
        builder.add(OutgoingMessage(content), number, lambda error, message_id: None)
    return builder.flush()[0].data


def deliver(connection, entry_id, entry, ack_set=(), consumer_epoch=None, consumer_id=0):
    headers = MessageHeaders(consumer_id, 1, ack_set=ack_set, consumer_epoch=consumer_epoch)
    connection.write(headers.header(entry_id, len(entry)))
    connection.write(entry)


def permits(server):
    return [c.messagePermits for c in server.seen if isinstance(c, pb.CommandFlow)]


def test_a_damaged_entry_is_redelivered_after_a_reconnect():
    async def work():
        def flow(server, connection, command, entry):
            data = entry_of(b"good")
            if len(server.connections) == 1:
                data = data[:-1] + b"x"
            deliver(connection, 0, data)

        async with ScriptedServer(Flow=flow) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s")
            assert (await consumer.receive(WAIT)).data() == b"good"
            assert len(server.connections) == 2

    run(work())


def test_garbage_from_the_server_is_survived():
    async def work():
        def flow(server, connection, command, entry):
            if len(server.connections) == 1:
                connection.write(b"\xff" * 100)
            else:
                deliver(connection, 0, entry_of(b"good"))

        async with ScriptedServer(Flow=flow) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s")
            assert (await consumer.receive(WAIT)).data() == b"good"

    run(work())


def test_permits_are_granted_for_received_messages_and_never_more():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", receiver_queue_size=10)
            await until(lambda: permits(server) == [10])
            deliver(server.connections[0], 0, entry_of(*[b"x"] * 10))
            for _ in range(9):
                await consumer.receive(WAIT)
            await until(lambda: permits(server) == [10, 5])
            await consumer.receive(WAIT)
            await until(lambda: permits(server) == [10, 5, 5])

    run(work())


def test_permits_of_messages_that_are_not_handed_out_are_returned():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe(
                "t", "s", velaray.ConsumerType.Shared, receiver_queue_size=10
            )
            connection = server.connections[0]
            deliver(connection, 0, entry_of(*[b"x"] * 4))
            got = [await consumer.receive(WAIT) for _ in range(4)]
            for message in got[:3]:
                await consumer.acknowledge(message)
            await until(lambda: permits(server) == [10])
            deliver(connection, 0, entry_of(*[b"x"] * 4))
            assert (await consumer.receive(WAIT)).index == 3
            await until(lambda: permits(server) == [10, 3, 5])  # 3 known here; 4 + 1 taken

    run(work())


def test_a_batch_is_acknowledged_on_arrival_if_its_open_messages_were_acked_here():
    """Another consumer acknowledged the rest: only this client knows that the batch is done."""

    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            shared = velaray.ConsumerType.Shared
            options = {"receiver_queue_size": 20, "negative_ack_redelivery_delay_ms": 500}
            consumer = await client.subscribe("t", "s", shared, **options)
            connection = server.connections[0]
            deliver(connection, 0, entry_of(*[b"x"] * 4))
            got = [await consumer.receive(WAIT) for _ in range(4)]
            for message in got[2:]:
                await consumer.acknowledge(message)
            await consumer.negative_acknowledge(got[0])
            deliver(connection, 0, entry_of(*[b"x"] * 4), ack_set=(0b1100,))
            await until(lambda: server.count("Ack") == 1)
            (ack,) = [c for c in server.seen if isinstance(c, pb.CommandAck)]
            told = [(acked.entryId, list(acked.ack_set)) for acked in ack.message_id]
            assert told == [(0, [0b0011])]
            assert permits(server) == [20, 2]  # two came, and none of them is for the user
            deliver(connection, 1, entry_of(b"y"))
            await consumer.negative_acknowledge(await consumer.receive(WAIT))
            await until(lambda: server.count("RedeliverUnacknowledgedMessages") == 1)
            redeliver = pb.CommandRedeliverUnacknowledgedMessages
            (asked,) = [c for c in server.seen if isinstance(c, redeliver)]
            assert [known.entryId for known in asked.message_ids] == [1]

    run(work())


def test_acks_are_grouped_and_wait_for_the_connection():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_group_time_ms=50)
            for number in range(20):
                deliver(server.connections[0], number, entry_of(b"x"))
            for _ in range(20):
                await consumer.acknowledge(await consumer.receive(WAIT))
            await until(lambda: server.count("Ack") == 1)
            (ack,) = [c for c in server.seen if isinstance(c, pb.CommandAck)]
            assert len(ack.message_id) == 20 and not ack.HasField("request_id")
            deliver(server.connections[0], 20, entry_of(b"x"))
            message = await consumer.receive(WAIT)
            server.connections[0].abort()
            await consumer.acknowledge(message)
            await until(lambda: server.count("Flow") >= 2 and server.count("Ack") == 2)
            kinds = [type(c) for c in server.seen]
            second = len(kinds) - 1 - kinds[::-1].index(pb.CommandAck)
            assert pb.CommandFlow in kinds[second:]  # first the acks, then more messages

    run(work())


def test_a_receipt_is_requested_again_after_a_lost_connection_and_refusals_are_raised():
    async def work():
        def ack(server, connection, command, entry):
            if len(server.connections) == 1:
                connection.abort()
                return None
            answer = pb.CommandAckResponse(
                consumer_id=command.consumer_id, request_id=command.request_id
            )
            if command.message_id[0].entryId == 1:
                answer.error = pb.NotAllowedError
                answer.message = "no"
            return answer

        async with ScriptedServer(Ack=ack) as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_receipt_enabled=True)
            deliver(server.connections[0], 0, entry_of(b"x"))
            await consumer.acknowledge(await consumer.receive(WAIT))
            assert len(server.connections) == 2
            deliver(server.connections[1], 1, entry_of(b"x"))
            message = await consumer.receive(WAIT)
            with pytest.raises(velaray.NotAllowedError, match="no"):
                await consumer.acknowledge(message)

    run(work())


def test_a_silent_server_is_disconnected():
    async def work():
        async with (
            ScriptedServer() as server,
            client_of(server, keep_alive_interval_seconds=0.1) as client,
        ):
            consumer = await client.subscribe("t", "s")
            server.connections[0].pause_reading()
            await until(lambda: len(server.connections) == 2)
            await until(consumer.is_connected)

    run(work())


def test_fresh_credentials_are_sent_on_demand():
    async def work():
        tokens = iter(["first", "second"])
        auth = velaray.AuthenticationToken(lambda: next(tokens))
        async with ScriptedServer() as server, client_of(server, authentication=auth) as client:
            await client.create_producer("t")
            server.connections[0].send(pb.CommandAuthChallenge(challenge=pb.AuthData()))
            await until(lambda: server.count("AuthResponse") == 1)
            said = [c for c in server.seen if isinstance(c, pb.CommandAuthResponse)]
            assert said[0].response.auth_data == b"second"
            first = next(c for c in server.seen if isinstance(c, pb.CommandConnect))
            assert (first.auth_method_name, first.auth_data) == ("token", b"first")

    run(work())


def test_a_token_function_that_fails_at_a_challenge_ends_the_connection():
    async def work():
        results = iter(["first", ValueError("a secret"), "third"])

        def token():
            if isinstance(found := next(results), Exception):
                raise found
            return found

        auth = velaray.AuthenticationToken(token)
        async with ScriptedServer() as server, client_of(server, authentication=auth) as client:
            producer = await client.create_producer("t")
            server.connections[0].send(pb.CommandAuthChallenge(challenge=pb.AuthData()))
            await until(lambda: server.count("Connect") == 2)
            await until(producer.is_connected)
            assert server.count("AuthResponse") == 0

    run(work())


def test_a_reader_resubscribes_behind_the_last_message_taken():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            reader = await client.create_reader("t", velaray.MessageId.earliest)
            for number in range(3):
                deliver(server.connections[0], number, entry_of(b"a", b"b"))
            for _ in range(3):
                await reader.read_next(WAIT)
            await until(lambda: server.count("Ack") == 1)
            server.connections[0].abort()
            await until(lambda: server.count("Flow") == 2)
            first, second = (
                c.start_message_id for c in server.seen if isinstance(c, pb.CommandSubscribe)
            )
            assert first.entryId == 2**64 - 1
            assert (second.ledgerId, second.entryId, second.batch_index) == (1, 1, 0)
            deliver(server.connections[1], 1, entry_of(b"a", b"b"))
            message = await reader.read_next(WAIT)
            assert (message.data(), message.message_id().entry_id()) == (b"b", 1)

    run(work())


def test_messages_in_flight_before_a_redelivery_are_dropped_and_their_permits_returned():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", receiver_queue_size=10)
            (subscribed,) = [c for c in server.seen if isinstance(c, pb.CommandSubscribe)]
            assert subscribed.HasField("consumer_epoch") and subscribed.consumer_epoch == 0
            connection = server.connections[0]
            deliver(connection, 0, entry_of(b"x"), consumer_epoch=0)
            await consumer.receive(WAIT)
            await consumer.redeliver_unacknowledged_messages()
            await until(lambda: server.count("RedeliverUnacknowledgedMessages") == 1)
            redeliver = pb.CommandRedeliverUnacknowledgedMessages
            (asked,) = [c for c in server.seen if isinstance(c, redeliver)]
            assert asked.consumer_epoch == 1
            deliver(connection, 1, entry_of(*[b"late"] * 3), consumer_epoch=0)
            deliver(connection, 2, seal_entry(b"\0\0\0\0x"), consumer_epoch=0)
            deliver(connection, 0, entry_of(b"again"), consumer_epoch=1)
            assert (await consumer.receive(WAIT)).data() == b"again"
            await until(lambda: sum(permits(server)) == 10 + 3 + 1)
            deliver(connection, 3, entry_of(b"unlabelled"))  # of a service that knows no epochs
            assert (await consumer.receive(WAIT)).data() == b"unlabelled"

    run(work())


def test_a_redelivered_cumulatively_acked_message_is_acknowledged_again():
    """With a full disk the service silently refuses acknowledgements without a receipt."""

    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", ack_group_time_ms=60_000)
            for epoch in (0, 1):
                for number in (0, 1):
                    entry = entry_of(b"x")
                    deliver(server.connections[0], number, entry, consumer_epoch=epoch)
                    await consumer.acknowledge_cumulative(await consumer.receive(WAIT))
                await consumer.redeliver_unacknowledged_messages()
            await until(lambda: server.count("RedeliverUnacknowledgedMessages") == 2)
            acked = [c.message_id[0].entryId for c in server.seen if isinstance(c, pb.CommandAck)]
            assert acked == [1, 1]

    run(work())


def test_shared_consumers_send_no_epoch():
    async def work():
        async with ScriptedServer() as server, client_of(server) as client:
            consumer = await client.subscribe("t", "s", velaray.ConsumerType.Shared)
            await consumer.redeliver_unacknowledged_messages()
            await until(lambda: server.count("RedeliverUnacknowledgedMessages") == 1)
            assert not any(
                command.HasField("consumer_epoch")
                for command in server.seen
                if "consumer_epoch" in command.DESCRIPTOR.fields_by_name
            )

    run(work())

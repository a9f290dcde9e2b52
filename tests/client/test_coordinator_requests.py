"""Requests to transaction coordinators that are answered late, wrongly or never."""

from __future__ import annotations

from typing import Any

import pytest

import velaray
import velaray.aio
from tests.client.scripted import ScriptedServer, run
from tests.client.test_switching import Keeping, coordinators
from velaray.client.lookup import ATTEMPTS_PER_OPERATION
from velaray.wire import pulsar_pb2 as pb


def asked_for_transactions(server: ScriptedServer) -> int:
    return sum(isinstance(command, pb.CommandNewTxn) for command in server.seen)


def test_a_request_without_an_answer_is_sent_again_and_times_out():
    """Each attempt has a third of the operation timeout, the operation as a whole all of it."""

    async def work():
        silent = coordinators() | {"NewTxn": lambda *_: None}
        async with (
            ScriptedServer(**silent) as server,
            velaray.aio.Client(server.url, operation_timeout_seconds=1) as client,
        ):
            with pytest.raises(velaray.Timeout, match=r"transaction coordinator 0.* in 1"):
                await client.new_transaction()
            assert 2 <= asked_for_transactions(server) <= ATTEMPTS_PER_OPERATION

    run(work())


def test_a_request_whose_first_answer_is_lost_is_sent_again_within_the_timeout():
    async def work():
        answers = coordinators()

        def second(server, connection, command, entry):
            if asked_for_transactions(server) > 1:
                return answers["NewTxn"](server, connection, command, entry)
            return None

        async with (
            ScriptedServer(**answers | {"NewTxn": second}) as server,
            velaray.aio.Client(server.url, operation_timeout_seconds=3) as client,
        ):
            await client.new_transaction()
            assert asked_for_transactions(server) == 2
            await client.shutdown()

    run(work())


def test_a_coordinator_that_moved_is_looked_up_again():
    async def work():
        def second(server, connection, command, entry):
            answer = pb.CommandTcClientConnectResponse(request_id=command.request_id)
            if server.count("TcClientConnectRequest") == 1:
                answer.error, answer.message = pb.TransactionCoordinatorNotFound, "not here"
            return answer

        async with (
            ScriptedServer(**coordinators() | {"TcClientConnectRequest": second}) as server,
            velaray.aio.Client(server.url, operation_timeout_seconds=10) as client,
        ):
            await client.new_transaction()
            assert server.count("TcClientConnectRequest") == server.count("LookupTopic") == 2
            await client.shutdown()

    run(work())


@pytest.mark.parametrize("joined", [True, None], ids=["velaray", "another service"])
def test_a_transaction_begins_with_the_participants_of_the_last_two(joined: bool | None) -> None:
    def begun(server: ScriptedServer, connection: Any, command: Any, entry: Any) -> Any:
        fields = {"txnid_most_bits": 0, "txnid_least_bits": asked_for_transactions(server)}
        return pb.CommandNewTxnResponse(request_id=command.request_id, joined=joined, **fields)

    def ended(server: ScriptedServer, connection: Any, command: Any, entry: Any) -> Any:
        return pb.CommandEndTxnResponse(request_id=command.request_id)

    async def work() -> None:
        answers = coordinators() | {"NewTxn": begun, "EndTxn": ended}
        async with (
            Keeping(True, **answers) as server,
            velaray.aio.Client(server.url) as client,
        ):
            usual, once = [await client.create_producer(name) for name in ("usual", "once")]
            for also in ([], [once], [], []):
                txn = await client.new_transaction()
                for producer in (usual, *also):
                    await producer.send(b"x", txn=txn)
                await txn.commit()
            topic = "persistent://public/default/usual"
            news = [each for each in server.seen if isinstance(each, pb.CommandNewTxn)]
            assert [list(each.partitions) for each in news] == [[], [], [topic], [topic]]
            assert server.count("AddPartitionToTxn") == (3 if joined else 5)

    run(work())

"""Transactions of the asyncio client, against a cluster in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.aio import Client, Transaction
from velaray.broker.coordinator.coordinators import ensure_coordinators
from velaray.broker.partition.session.acknowledgements import AcknowledgementHandlers
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import AckEntriesInTransaction
from velaray.client.connection import Connection
from velaray.client.enums import TransactionState
from velaray.client.transactions import OPEN_AT_ONCE
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.messages import Request
from velaray.topology.rpc import RpcConnectionClosed
from velaray.wire import pulsar_pb2 as pb

_numbers = itertools.count()
EARLIEST = velaray.InitialPosition.Earliest
SHARED = velaray.ConsumerType.Shared


def run(cluster: Any, scenario: Callable[[Client, str], Awaitable[None]]) -> None:
    async def main() -> None:
        client = Client(cluster.service_url)
        try:
            await scenario(client, f"txn-{next(_numbers)}")
        finally:
            await client.close()

    asyncio.run(main())


async def nothing_comes(consumer: Any) -> bool:
    try:
        message = await consumer.receive(timeout_millis=300)
    except velaray.Timeout:
        return True
    raise AssertionError(f"{message.data()!r} came")


async def contents(consumer: Any, count: int) -> list[bytes]:
    return [(await consumer.receive(timeout_millis=20_000)).data() for _ in range(count)]


@pytest.mark.parametrize("batching", [False, True])
def test_messages_of_a_committed_transaction_become_visible_together(cluster, batching) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_enabled=batching)
        async with await client.new_transaction() as txn:
            sends = [producer.send(b"%d" % number, txn=txn) for number in range(10)]
            ids = await asyncio.gather(*sends)
            assert (ids[0].batch_index() >= 0) == batching
            assert await nothing_comes(consumer)
            assert txn.state == TransactionState.OPEN
        assert txn.state == TransactionState.COMMITTED
        assert await contents(consumer, 10) == [b"%d" % number for number in range(10)]

    run(cluster, scenario)


def test_an_exception_aborts_and_plain_messages_share_no_batch_with_a_transaction(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_enabled=True)
        with pytest.raises(ZeroDivisionError):
            async with await client.new_transaction() as txn:
                await asyncio.gather(producer.send(b"plain"), producer.send(b"never", txn=txn))
                raise ZeroDivisionError
        assert txn.state == TransactionState.ABORTED
        await producer.send(b"after")
        assert await contents(consumer, 2) == [b"plain", b"after"]
        assert await nothing_comes(consumer)

    run(cluster, scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_acks_and_messages_of_a_transaction_commit_together(cluster, commit) -> None:
    async def scenario(client: Client, topic: str) -> None:
        source = await client.create_producer(topic, batching_enabled=True)
        await asyncio.gather(*(source.send(b"%d" % number) for number in range(4)))
        sink = await client.create_producer(f"{topic}-out")
        reader = await client.subscribe(f"{topic}-out", "s", initial_position=EARLIEST)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        txn = await client.new_transaction()
        for _ in range(4):
            message = await consumer.receive(timeout_millis=20_000)
            await sink.send(message.data() * 2, txn=txn)
            await consumer.acknowledge(message, txn=txn)
        assert await nothing_comes(consumer)
        await (txn.commit() if commit else txn.abort())
        if commit:
            assert await contents(reader, 4) == [b"%d" % number * 2 for number in range(4)]
            await consumer.redeliver_unacknowledged_messages()
            assert await nothing_comes(consumer)
        else:
            again = [await consumer.receive(timeout_millis=20_000) for _ in range(4)]
            assert sorted(message.data() for message in again) == [b"0", b"1", b"2", b"3"]
            assert {message.redelivery_count() for message in again} == {1}
            assert await nothing_comes(reader)

    run(cluster, scenario)


def test_a_failed_operation_turns_a_commit_into_an_abort(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=20_000)
        first, second = await client.new_transaction(), await client.new_transaction()
        await consumer.acknowledge(message, txn=first)
        with pytest.raises(velaray.TransactionConflict):
            await consumer.acknowledge(message, txn=second)
        await producer.send(b"never", txn=second)
        with pytest.raises(velaray.TransactionHasOperationFailed):
            await second.commit()
        assert second.state == TransactionState.ABORTED
        await first.commit()
        await first.commit()  # says so again
        await second.abort()
        for end in (first.abort, second.commit):
            await refused(end)
        with pytest.raises(velaray.InvalidTxnStatusError):
            await producer.send(b"late", txn=first)
        assert await nothing_comes(consumer)

    async def refused(end: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(velaray.InvalidTxnStatusError):
            await end()

    run(cluster, scenario)


def test_no_message_of_a_redelivered_batch_counts_twice(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, batching_enabled=True)
        one = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
        batch = [await one.receive(timeout_millis=20_000) for _ in range(3)]
        other = await client.subscribe(topic, "s", SHARED)
        async with await client.new_transaction() as first:  # as if it had got it, too
            await other.acknowledge(batch[1].message_id(), txn=first)
        second = await client.new_transaction()
        with pytest.raises(velaray.TransactionConflict):
            await one.acknowledge_many(batch, txn=second)
        await second.abort()
        async with await client.new_transaction() as third:
            await one.acknowledge_many([batch[0], batch[2]], txn=third)
        await one.redeliver_unacknowledged_messages()
        assert await nothing_comes(one)

    run(cluster, scenario)


@pytest.mark.parametrize("consumers", ["one", "two"])
@pytest.mark.parametrize("batching", [False, True])
def test_a_transaction_acknowledges_a_message_once(cluster, batching, consumers) -> None:
    """Both copies of a message that is delivered twice can't have results in one transaction."""

    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, batching_enabled=batching)
        one = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
        messages = [await one.receive(timeout_millis=20_000) for _ in range(3)]
        second = one if consumers == "one" else await client.subscribe(topic, "s", SHARED)
        txn = await client.new_transaction()
        await one.acknowledge(messages[1], txn=txn)
        with pytest.raises(velaray.TransactionConflict):
            await second.acknowledge(messages[1].message_id(), txn=txn)
        with pytest.raises(velaray.TransactionHasOperationFailed):
            await txn.commit()
        async with await client.new_transaction() as another:
            await one.acknowledge_many(messages, txn=another)
        await one.redeliver_unacknowledged_messages()
        assert await nothing_comes(one)

    run(cluster, scenario)


class Doubling(velaray.ProducerInterceptor):
    def before_send(self, producer: Any, message: Any) -> Any:
        return velaray.OutgoingMessage(message.data() * 2)


def test_the_result_of_an_interceptor_is_in_the_transaction(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, interceptors=[Doubling()])
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        txn = await client.new_transaction()
        await producer.send(b"ab", txn=txn)
        assert await nothing_comes(consumer)
        await txn.commit()
        assert await contents(consumer, 1) == [b"abab"]

    run(cluster, scenario)


def test_a_transaction_above_its_timeout_is_aborted(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        txn = await client.new_transaction(timeout_seconds=0.5)
        await producer.send(b"never", txn=txn)
        await producer.send(b"plain")
        assert await contents(consumer, 1) == [b"plain"]  # as soon as the service has aborted it
        async with asyncio.timeout(20):
            while txn.state == TransactionState.OPEN:  # the service's clock may be ahead of ours
                await asyncio.sleep(0.01)
        assert txn.state == TransactionState.TIME_OUT
        with pytest.raises(velaray.InvalidTxnStatusError):
            await txn.commit()
        with pytest.raises(velaray.InvalidConfiguration):
            await client.new_transaction(timeout_seconds=0)

    run(cluster, scenario)


def kill_all(cluster: Any, kind: ActorKind) -> list[ActorKey]:
    keys = cluster.keys(kind)
    for key in keys:
        cluster.kill(key)
    return list(keys)


@pytest.mark.parametrize(
    "kind", [ActorKind.COORDINATOR, ActorKind.PARTITION, ActorKind.SUBSCRIPTION]
)
def test_a_transaction_survives_its_servers(cluster, kind) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        await producer.send(b"in")
        out = await client.create_producer(f"{topic}-out")
        reader = await client.subscribe(f"{topic}-out", "s", initial_position=EARLIEST)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        txn: Transaction = await client.new_transaction()
        message = await consumer.receive(timeout_millis=20_000)
        await out.send(b"1", txn=txn)
        await consumer.acknowledge(message, txn=txn)
        assert await asyncio.to_thread(kill_all, cluster, kind)
        await out.send(b"2", txn=txn)
        await txn.commit()
        assert await contents(reader, 2) == [b"1", b"2"]
        assert await nothing_comes(consumer)

    run(cluster, scenario)


def test_the_synchronous_client_has_transactions(cluster, client, topic) -> None:
    out = client.create_producer(f"{topic}-out")
    reader = client.subscribe(f"{topic}-out", "s", initial_position=EARLIEST)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    with client.transaction(timeout=30) as txn:
        for _ in range(2):
            message = consumer.receive(20_000)
            out.send(message.data() * 2, txn=txn)
        consumer.acknowledge_cumulative(message, txn=txn)
        consumer.acknowledge(consumer.receive(20_000), txn=txn)
        with pytest.raises(velaray.Timeout):
            reader.receive(300)
    assert txn.state == velaray.TransactionState.COMMITTED
    assert [reader.receive(20_000).data() for _ in range(2)] == [b"00", b"11"]
    with pytest.raises(ZeroDivisionError), client.transaction() as aborted:
        out.send(b"never", txn=aborted)
        raise ZeroDivisionError
    assert aborted.state == velaray.TransactionState.ABORTED
    with pytest.raises(velaray.Timeout):
        reader.receive(300)
    consumer.redeliver_unacknowledged_messages()
    with pytest.raises(velaray.Timeout):
        consumer.receive(300)


def test_a_client_uses_one_coordinator_until_many_transactions_are_open(tmp_path) -> None:
    async def scenario(client: Client, topic: str) -> None:
        ended = set()
        for _ in range(5):
            async with await client.new_transaction() as txn:
                ended.add(txn.txn_id.coordinator)
        assert len(ended) == 1
        txns = [await client.new_transaction() for _ in range(OPEN_AT_ONCE + 1)]
        coordinators = [txn.txn_id.coordinator for txn in txns]
        assert set(coordinators[:OPEN_AT_ONCE]) == ended != {coordinators[-1]}
        await asyncio.gather(*(txn.abort() for txn in txns))

    with LocalCluster(tmp_path) as cluster:
        cluster.run(ensure_coordinators(cluster.actor_system, 2))
        run(cluster, scenario)


def test_acks_of_one_event_loop_iteration_share_a_request(cluster, monkeypatch) -> None:
    asked = []

    async def counting(connection: Connection, command: Any, timeout: float) -> Any:
        asked.append(type(command))
        return await request(connection, command, timeout)

    request = Connection.request
    monkeypatch.setattr(Connection, "request", counting)

    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, batching_enabled=True)
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(10)))
        await producer.send(b"single")
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        messages = [await consumer.receive(timeout_millis=20_000) for _ in range(11)]
        async with await client.new_transaction() as txn:
            await asyncio.gather(*(consumer.acknowledge(each, txn=txn) for each in messages))
        assert asked.count(pb.CommandAck) == 1
        await consumer.redeliver_unacknowledged_messages()
        assert await nothing_comes(consumer)

    run(cluster, scenario)


def test_only_the_conflicting_ack_of_a_shared_request_is_refused(cluster) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        for number in range(3):
            await producer.send(b"%d" % number)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        messages = [await consumer.receive(timeout_millis=20_000) for _ in range(3)]
        first, second = await client.new_transaction(), await client.new_transaction()
        await consumer.acknowledge(messages[1], txn=first)
        work = (consumer.acknowledge(each, txn=second) for each in messages)
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        assert [type(each) for each in outcomes] == [
            type(None),
            velaray.TransactionConflict,
            type(None),
        ]
        with pytest.raises(velaray.TransactionHasOperationFailed):
            await second.commit()
        await first.commit()
        assert sorted(await contents(consumer, 2)) == [b"0", b"2"]

    run(cluster, scenario)


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("killed", ["subscription", "partition"])
def test_an_acknowledgement_right_after_a_restart_succeeds(cluster, killed, cumulative) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=20_000)
        kind = ActorKind.SUBSCRIPTION if killed == "subscription" else ActorKind.PARTITION
        (key,) = (key for key in cluster.keys(kind) if str(key.topic_name).endswith(f"/{topic}"))
        async with await client.new_transaction() as txn:
            cluster.kill(key)
            await acknowledge(consumer, message, txn)
        await consumer.close()
        assert await nothing_comes(await client.subscribe(topic, "s"))

    async def acknowledge(consumer: Any, message: Any, txn: Transaction) -> None:
        if cumulative:
            await consumer.acknowledge_cumulative(message, txn=txn)
        else:
            await consumer.acknowledge(message, txn=txn)

    run(cluster, scenario)


@pytest.mark.parametrize("code", [pb.ConsumerNotFound, pb.ServiceNotReady])
def test_an_acknowledgement_before_the_consumer_is_back_is_repeated(
    cluster, monkeypatch, code
) -> None:
    refused = []
    on_ack = AcknowledgementHandlers.on_ack

    def once(self: AcknowledgementHandlers, command: Any) -> None:
        if command.HasField("txnid_least_bits") and not refused:
            refused.append(command)
            self._refuse(command, code, "the subscription is restarting")
        else:
            on_ack(self, command)

    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=20_000)
        async with await client.new_transaction() as txn:
            await consumer.acknowledge(message, txn=txn)
        assert refused
        await consumer.redeliver_unacknowledged_messages()
        assert await nothing_comes(consumer)

    monkeypatch.setattr(AcknowledgementHandlers, "on_ack", once)
    run(cluster, scenario)


def test_an_acknowledgement_whose_answer_is_lost_is_repeated(cluster, monkeypatch) -> None:
    lost = []
    ask = SubscriptionChannel.ask

    async def once(self: SubscriptionChannel, request: Request[Any]) -> Any:
        found = await ask(self, request)
        if isinstance(request, AckEntriesInTransaction) and not lost:
            lost.append(request)
            raise RpcConnectionClosed("the subscription is restarting")
        return found

    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", SHARED, initial_position=EARLIEST)
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=20_000)
        async with await client.new_transaction() as txn:
            monkeypatch.setattr(SubscriptionChannel, "ask", once)
            await consumer.acknowledge(message, txn=txn)
        assert lost
        await consumer.redeliver_unacknowledged_messages()
        assert await nothing_comes(consumer)

    run(cluster, scenario)

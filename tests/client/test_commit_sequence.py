"""Series of commits: what many workers published counts together, once per number."""

import asyncio

import pytest

from velaray import Client as SyncClient
from velaray import InvalidConfiguration, InvalidTxnStatusError, MessageId, TransactionNotFound
from velaray.aio import Client
from velaray.events.ids import ActorKey, TransactionId

WAIT = 20_000


def run(cluster, work):
    async def with_client():
        async with Client(cluster.service_url) as client:
            await work(client)

    asyncio.run(with_client())


async def publish(client, commit_sequence, topic, *values, number=None):
    """What a worker does; the id of its transaction."""
    txn = await commit_sequence.begin(number=number)
    producer = await client.create_producer(topic)
    for value in values:
        await producer.send(value, txn=txn)
    return await txn.prepare()


async def contents(client, topic):
    reader = await client.create_reader(topic, MessageId.earliest)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(WAIT)).data())
    await reader.close()
    return sorted(found)


def test_a_batch_of_many_workers_counts_once_in_any_number_of_attempts(cluster, topic):
    async def work(client):
        commit_sequence = await client.commit_sequence("query-1")
        assert commit_sequence.last == -1
        workers = [publish(client, commit_sequence, topic, b"%d" % number) for number in range(3)]
        batch = await asyncio.gather(*workers)
        assert await contents(client, topic) == []
        assert await commit_sequence.commit(0, batch)
        assert await contents(client, topic) == [b"0", b"1", b"2"]
        assert not await commit_sequence.commit(0, batch)  # its answer was lost, say
        again = await publish(client, commit_sequence, topic, b"0")
        assert not await commit_sequence.commit(0, [again])
        assert await commit_sequence.commit(
            1, [await publish(client, commit_sequence, topic, b"3")]
        )
        assert await contents(client, topic) == [b"0", b"1", b"2", b"3"]
        assert (await client.commit_sequence("query-1")).last == 1

    run(cluster, work)


def test_a_prepared_transaction_survives_its_client(cluster, topic):
    async def work(client):
        async with Client(cluster.service_url) as worker:
            commit_sequence = await worker.commit_sequence("query-2")
            prepared = await publish(worker, commit_sequence, topic, b"x")
        commit_sequence = await client.commit_sequence("query-2")
        assert await commit_sequence.commit(5, [prepared])
        assert await contents(client, topic) == [b"x"]

    run(cluster, work)


def test_a_batch_with_a_finished_transaction_changes_nothing(cluster, topic):
    async def work(client):
        commit_sequence = await client.commit_sequence("query-3")
        good = await publish(client, commit_sequence, topic, b"good")
        bad = await commit_sequence.begin()
        await bad.abort()
        with pytest.raises(InvalidTxnStatusError, match="can't be committed"):
            await commit_sequence.commit(0, [good, bad.txn_id])
        with pytest.raises(TransactionNotFound):
            await commit_sequence.commit(
                0, [good, TransactionId(commit_sequence.coordinator, 1 << 40)]
            )
        with pytest.raises(InvalidConfiguration, match="coordinator"):
            await commit_sequence.commit(0, [TransactionId(commit_sequence.coordinator + 1, 1)])
        assert await contents(client, topic) == []
        assert await commit_sequence.commit(0, [good])
        assert await contents(client, topic) == [b"good"]

    run(cluster, work)


def test_a_commit_counts_once_whenever_its_coordinator_dies(cluster, topic):
    async def kill(steps):
        for _ in range(steps):
            await asyncio.sleep(0)
        cluster.actor_system.kill(ActorKey.of_coordinator(0))

    async def work(client):
        commit_sequence = await client.commit_sequence("query-7")
        for number in range(12):
            value = b"%02d" % number
            txns = [await publish(client, commit_sequence, topic, value) for _ in range(2)]
            killing = asyncio.run_coroutine_threadsafe(kill(4 * number), cluster.loop)
            await commit_sequence.commit(number, txns)
            await asyncio.wrap_future(killing)
            assert not await commit_sequence.commit(number, txns)
        assert await contents(client, topic) == sorted([b"%02d" % n for n in range(12)] * 2)

    run(cluster, work)


def test_lost_attempts_do_not_block_readers(cluster, topic):
    async def work(client):
        commit_sequence = await client.commit_sequence("query-6")
        await publish(client, commit_sequence, topic, b"lost")  # its id gets nowhere
        ahead = await publish(client, commit_sequence, topic, b"next", number=1)
        assert await commit_sequence.commit(
            0, [await publish(client, commit_sequence, topic, b"done")]
        )
        assert await commit_sequence.commit(1, [ahead])
        assert await contents(client, topic) == [b"done", b"next"]
        with pytest.raises(
            InvalidTxnStatusError, match="number 1 of commit sequence 'query-6' is over"
        ):
            await commit_sequence.begin(number=1)
        with pytest.raises(InvalidConfiguration, match="number=-1"):
            await commit_sequence.begin(number=-1)
        await publish(client, commit_sequence, topic, b"never")
        await commit_sequence.forget()
        await (await client.create_producer(topic)).send(b"later")
        assert await contents(client, topic) == [b"done", b"later", b"next"]

    run(cluster, work)


def test_a_dropped_commit_sequence_starts_again(cluster, topic):
    async def work(client):
        commit_sequence = await client.commit_sequence("query-4")
        assert await commit_sequence.commit(3, [])
        await commit_sequence.forget()
        assert (await client.commit_sequence("query-4")).last == -1
        with pytest.raises(InvalidConfiguration, match="needs a name"):
            await client.commit_sequence("")

    run(cluster, work)


def test_the_synchronous_client_has_commit_sequences(cluster, topic):
    with SyncClient(cluster.service_url) as client:
        commit_sequence = client.commit_sequence("query-5")
        txn = commit_sequence.begin(30.0)
        client.create_producer(topic).send(b"x", txn=txn)
        assert commit_sequence.commit(0, [txn.prepare()]) and commit_sequence.last == 0
        assert not commit_sequence.commit(0, [])
        with client.create_reader(topic, MessageId.earliest) as reader:
            assert reader.read_next(WAIT).data() == b"x"
        assert (commit_sequence.name, commit_sequence.coordinator) == ("query-5", 0)
        commit_sequence.forget()
        assert commit_sequence.last == -1

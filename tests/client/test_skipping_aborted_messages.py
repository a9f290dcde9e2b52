"""Readers get past what was aborted, however much of it there is and wherever it lies."""

import asyncio
import random

import pytest

from velaray import MessageId
from velaray.aio import Client

WAIT = 20_000


@pytest.mark.parametrize("seed", range(3))
def test_every_committed_message_between_aborted_ones_is_received(cluster, topic, seed):
    """Aborted messages lie between the others in runs of all lengths."""
    chance = random.Random(seed)
    committed = set()

    async def transact(client, producer, number):
        txn = await client.new_transaction()
        values = [b"%d-%d" % (number, n) for n in range(chance.choice([1, 5, 30]))]
        for value in values:
            await producer.send_many([value] * chance.choice([1, 30]), txn=txn)
        if chance.random() < 0.3:
            committed.update(values)
            await txn.commit()
        else:
            await txn.abort()

    async def publish_and_read():
        async with Client(cluster.service_url) as client:
            producer = await client.create_producer(topic)
            for first in range(0, 60, 6):
                work = [transact(client, producer, first + n) for n in range(6)]
                await asyncio.gather(*work)
            reader = await client.create_reader(topic, MessageId.earliest)
            found = set()
            while await reader.has_message_available():
                found.add((await reader.read_next(WAIT)).data())
            assert found == committed

    asyncio.run(publish_and_read())

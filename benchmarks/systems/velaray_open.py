"""velaray's transactions, held open while something else is measured."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from benchmarks.contract import BEHIND, BEHIND_S, MANY
from velaray.aio import Client, Transaction
from velaray.client.enums import ConsumerType

HELD = 1_000
AT_ONCE = 50
TIMEOUT_S = 600.0
WITHIN_S = 60.0


@contextmanager
def holding(service_url: str, topic: str, subscription: str, held: str) -> Iterator[None]:
    """Hold them in a thread of its own; see `benchmarks.contract.HoldingPeer`."""
    loop, ready, over = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def hold() -> None:
        client = Client(service_url, operation_timeout_seconds=WITHIN_S)
        try:
            if held == BEHIND:
                await _one_after_the_other(client, topic, ready.set, over)
            else:
                count = HELD if held == MANY else 1
                await _many(client, topic, subscription, count, ready.set, over)
        finally:
            await client.close()

    with closing(loop), ThreadPoolExecutor(1) as thread:
        work = thread.submit(loop.run_until_complete, hold())
        work.add_done_callback(lambda _: ready.set())
        ready.wait()
        try:
            if not work.done():
                yield
        finally:
            loop.call_soon_threadsafe(over.set)
            work.result()


async def _one_after_the_other(
    client: Client, topic: str, ready: Callable[[], None], over: asyncio.Event
) -> None:
    producer = await client.create_producer(topic)
    while not over.is_set():
        txn = await client.new_transaction()
        await producer.send(b"never", txn=txn)
        ready()
        await asyncio.sleep(BEHIND_S)
        await txn.abort()


async def _many(
    client: Client,
    topic: str,
    subscription: str,
    count: int,
    ready: Callable[[], None],
    over: asyncio.Event,
) -> None:
    """Each with a message in another topic; a thousand also with an acknowledgement in this."""
    elsewhere = await client.create_producer(f"{topic}-elsewhere")
    txns: list[Transaction] = []
    acknowledge = None
    if count > 1:
        await (await client.create_producer(topic)).send_many([b"held"] * count)
        consumer = await client.subscribe(topic, subscription, ConsumerType.Exclusive)

        async def acknowledge(txn: Transaction) -> None:
            await consumer.acknowledge(await consumer.receive(), txn=txn)

    async def begin() -> None:
        txn = await client.new_transaction(TIMEOUT_S)
        txns.append(txn)
        await elsewhere.send(b"held", txn=txn)
        if acknowledge is not None:
            await acknowledge(txn)

    await _some_at_once([begin] * count)
    if count > 1:
        await consumer.close()
    ready()
    await over.wait()
    await _some_at_once([txn.abort for txn in txns])


async def _some_at_once(work: list[Callable[[], Awaitable[None]]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: Callable[[], Awaitable[None]]) -> None:
        async with room:
            await each()

    await asyncio.gather(*map(one, work))

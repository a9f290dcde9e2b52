"""The asyncio client: what differs from the synchronous one, and that it leaves nothing behind."""

import asyncio
import re

import pulsar
import pulsar.asyncio
import pytest

import velaray
from velaray import ConsumerType, InitialPosition, MessageId, aio

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 10_000


def run(work):
    """Run ``work``; afterwards no task may be left."""

    async def checked():
        try:
            return await work
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

    return asyncio.run(checked())


def test_every_operation_works_with_coroutines(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            async with await client.create_producer(topic) as producer:
                ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(100)))
                assert sorted(ids) == ids
                assert len({message_id.position for message_id in ids}) == 1  # one batch
            consumer = await client.subscribe(topic, "s", **EARLIEST)
            got = []
            async for message in consumer:
                got.append(int(message.data()))
                await consumer.acknowledge(message, receipt=len(got) == 100)
                if len(got) == 100:
                    await consumer.close()
            assert got == list(range(100))
            reader = await client.create_reader(topic, ids[97])
            assert (await reader.read_next(WAIT)).data() == b"98"
            assert await reader.has_message_available()
            await reader.seek(ids[10])
            assert (await reader.read_next(WAIT)).data() == b"11"
            view = await client.create_table_view(topic)
            assert len(view) == 0
            assert await client.get_topic_partitions(topic) == [topic]

    run(work())


def test_receiving_times_out_and_can_be_cancelled_without_loss(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            producer = await client.create_producer(topic)
            consumer = await client.subscribe(topic, "s")
            with pytest.raises(velaray.Timeout):
                await consumer.receive(50)
            waiting = [asyncio.create_task(consumer.receive()) for _ in range(5)]
            await asyncio.sleep(0)
            for task in waiting[:4]:
                task.cancel()
            await producer.send(b"1")
            assert (await waiting[4]).data() == b"1"
            racing = [asyncio.create_task(consumer.receive()) for _ in range(2)]
            await asyncio.gather(producer.send(b"2"), producer.send(b"3"))
            racing[0].cancel()
            got = await asyncio.gather(*racing, return_exceptions=True)
            got = [message.data() for message in got if isinstance(message, velaray.Message)]
            while len(got) < 2:
                got.append((await consumer.receive(WAIT)).data())
            assert sorted(got) == [b"2", b"3"]

    run(work())


def test_a_blocking_producer_waits_for_space_and_a_non_blocking_one_refuses(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            few = {"max_pending_messages": 3}
            producer = await client.create_producer(topic, **few, block_if_queue_full=True)
            assert len(await asyncio.gather(*(producer.send(b"") for _ in range(50)))) == 50
            producer = await client.create_producer(topic, **few)
            results = await asyncio.gather(
                *(producer.send(b"") for _ in range(5)), return_exceptions=True
            )
            refused = [r for r in results if isinstance(r, velaray.ProducerQueueIsFull)]
            assert len(refused) == 2

    run(work())


def test_patterns_may_be_strings_and_batches_are_received(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            for letter in "ab":
                producer = await client.create_producer(f"{topic}-{letter}")
                await producer.send(letter.encode())
            policy = velaray.ConsumerBatchReceivePolicy(2, 0, 5000)
            for pattern, options in (
                (f"{topic}-.*", {"is_pattern_topic": True}),
                (re.compile(f"{topic}-.*"), {}),
            ):
                async with await client.subscribe(
                    pattern, f"s{len(options)}", batch_receive_policy=policy, **EARLIEST, **options
                ) as consumer:
                    batch = await consumer.batch_receive()
                    assert sorted(message.data() for message in batch) == [b"a", b"b"]

    run(work())


def test_shutdown_and_cancellation_leave_nothing_behind(cluster, topic):
    async def work():
        client = aio.Client(cluster.service_url)
        producer = await client.create_producer(topic, batching_max_publish_delay_ms=60_000)
        consumer = await client.subscribe(topic, "s")
        sending = asyncio.create_task(producer.send(b"1"))
        receiving = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await client.shutdown()
        for task in (sending, receiving):
            with pytest.raises(velaray.AlreadyClosed):
                await task
        creating = aio.Client(cluster.service_url)
        task = asyncio.create_task(creating.create_producer(topic))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await creating.close()
        with pytest.raises(velaray.AlreadyClosed):
            await creating.subscribe(topic, "s")
        await aio.Client(cluster.service_url).close()

    run(work())


def test_the_official_asyncio_module_reads_what_ours_wrote(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            producer = await client.create_producer(topic)
            await asyncio.gather(*(producer.send(b"%d" % n) for n in range(10)))
            official = pulsar.asyncio.Client(cluster.service_url)
            consumer = await official.subscribe(
                topic, "s", initial_position=pulsar.InitialPosition.Earliest
            )
            got = [await consumer.receive() for _ in range(10)]
            assert [message.data() for message in got] == [b"%d" % n for n in range(10)]
            await consumer.close()
            await official.close()

    asyncio.run(work())


def test_a_shared_consumer_cannot_acknowledge_cumulatively(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
            with pytest.raises(velaray.CumulativeAcknowledgementNotAllowedError):
                await consumer.acknowledge_cumulative(MessageId.earliest)
            with pytest.raises(velaray.InvalidMessage):
                await consumer.acknowledge("not a message")

    run(work())

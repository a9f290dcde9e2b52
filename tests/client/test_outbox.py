"""One call per message: what is collected between the caller's thread and the client's."""

import asyncio
import queue
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait

import pytest

import velaray
from tests.client.scripted import ScriptedServer
from tests.client.test_recovery import Killer
from velaray import ConsumerType, InitialPosition
from velaray.client.blocks import Block, BlockQueue
from velaray.client.message import EntryInfo
from velaray.wire.batches import BatchLayout, pack
from velaray.wire.hashing import partition_of
from velaray.wire.pulsar_pb2 import MessageMetadata

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 15_000
BATCHED = {"batching_enabled": True, "block_if_queue_full": True}


def receive(consumer, count):
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT)
        found.append(message)
        consumer.acknowledge(message)
    return found


def test_plain_messages_and_others_keep_their_order(client, topic):
    with (
        client.subscribe(topic, "s") as consumer,
        client.create_producer(topic, batching_max_messages=7, **BATCHED) as producer,
    ):
        futures = []
        for number in range(300):
            extra = {"partition_key": "k"} if number % 10 == 3 else {}
            if number % 10 == 7:
                extra = {"partition_key": "ü", "properties": {"a": "b"}}
            futures.append(producer.send_async(b"%d" % number, **extra))
            if number % 100 == 50:
                futures.append(producer.send_async(b"x" * 200_000))
        producer.flush()
        found = receive(consumer, 303)
        assert [int(m.data()) for m in found if len(m) < 10] == list(range(300))
        assert [m.message_id() for m in found] == [future.result(0) for future in futures]
        assert [m.partition_key() for m in found].count("k") == 30
        assert [m.partition_key() for m in found].count("ü") == 30


def test_messages_with_and_without_keys_share_batches(client, topic, official):
    keys = [None, "", "a", "ü" * 50, None, "key\n", "b"] * 20
    consumer = official.subscribe(topic, "s")
    with client.create_producer(topic, **BATCHED) as producer:
        futures = [producer.send_async(b"%d" % n, partition_key=key) for n, key in enumerate(keys)]
        producer.flush()
        assert producer.send(b"last", partition_key="z").batch_size() == 1
    for number, key in enumerate(keys):
        message = consumer.receive(WAIT)
        assert (message.data(), message.partition_key()) == (b"%d" % number, key or "")
    assert len({future.result().entry_id() for future in futures}) < 100
    consumer.close()


def test_keys_find_their_partitions(client, catalog, topic):
    catalog.partitioned(topic, 3)
    with client.create_producer(topic, **BATCHED) as producer:
        futures = [producer.send_async(b"x", partition_key=f"{n}") for n in range(30)]
        producer.flush()
    assert [f.result().partition() for f in futures] == [partition_of(f"{n}", 3) for n in range(30)]


def test_a_batch_is_sent_when_it_is_full_or_due(client, topic):
    options = {"batching_max_messages": 10, "batching_max_publish_delay_ms": 50, **BATCHED}
    with client.create_producer(topic, **options) as producer:
        ids = [producer.send_async(b"x") for _ in range(24)]
        found = [future.result(10) for future in ids]
    assert [i.batch_index() for i in found] == [*range(10), *range(10), *range(4)]
    assert [i.batch_size() for i in found] == [10] * 20 + [4] * 4


def test_a_batch_is_not_larger_than_allowed(client, topic):
    options = {"batching_max_allowed_size_in_bytes": 1000, **BATCHED}
    with client.create_producer(topic, **options) as producer:
        futures = [producer.send_async(b"x" * 300) for _ in range(9)]
        producer.flush()
        assert [future.result(0).batch_size() for future in futures] == [3] * 9
        with pytest.raises(velaray.MessageTooBig):
            producer.send(b"x" * (6 << 20))
        assert producer.send(b"x" * 2000).batch_size() == 1


def test_receipts_are_futures(client, topic):
    with client.create_producer(topic, batching_max_publish_delay_ms=30, **BATCHED) as producer:
        futures = [producer.send_async(b"%d" % n) for n in range(50)]
        called = threading.Event()
        futures[3].add_done_callback(lambda future: called.set())
        assert wait(futures[:5], 10, FIRST_COMPLETED).done
        assert len(list(as_completed(futures, 10))) == 50
        assert called.wait(10)
        assert [future.result().batch_index() for future in futures] == list(range(50))
        assert all(future.done() and future.exception() is None for future in futures)
        late = futures[7]
        assert not late.cancel() and not late.cancelled() and not late.running()

        async def awaited():
            return await asyncio.wrap_future(producer.send_async(b"x"))

        assert asyncio.run(awaited()).entry_id() > futures[0].result().entry_id()
        with pytest.raises(AttributeError):
            _ = late.nonsense


def test_a_cancelled_receipt_does_not_affect_others(client, topic):
    with (
        client.subscribe(topic, "s") as consumer,
        client.create_producer(topic, batching_max_publish_delay_ms=200, **BATCHED) as producer,
    ):
        futures = [producer.send_async(b"%d" % n) for n in range(3)]
        assert futures[1].cancel() and futures[1].done()
        assert futures[2].result(10).batch_index() == 2
        assert [m.data() for m in receive(consumer, 3)] == [b"0", b"1", b"2"]


def test_callbacks_are_called_in_order_and_a_failing_one_stops_no_other(client, topic):
    seen = []

    def callback(result, message_id):
        seen.append(message_id.batch_index())
        assert len(seen) != 5, "on purpose"

    with client.create_producer(topic, batching_max_messages=20, **BATCHED) as producer:
        for _ in range(60):
            producer.send_async(b"x", callback)
        producer.flush()
    assert seen == [*range(20)] * 3


@pytest.mark.parametrize("block", [True, False])
def test_pending_messages_are_bounded(topic, block):
    serving, stop = queue.Queue(), threading.Event()

    async def serve():
        async with ScriptedServer(Send=lambda *_: None) as server:
            serving.put(server.url)
            await asyncio.to_thread(stop.wait)

    with ThreadPoolExecutor() as pool:
        served = pool.submit(asyncio.run, serve())
        client = velaray.Client(serving.get(timeout=10), operation_timeout_seconds=3)
        producer = client.create_producer(
            topic, batching_enabled=True, block_if_queue_full=block, max_pending_messages=5
        )
        futures = [producer.send_async(b"x") for _ in range(5)]
        if block:
            sixth = pool.submit(producer.send_async, b"x")
            assert not wait([sixth], 0.1).done
        else:
            with pytest.raises(velaray.ProducerQueueIsFull):
                producer.send_async(b"x")
            outcome = []
            producer.send_async(b"x", lambda result, _: outcome.append(result))
        client.shutdown()
        assert all(isinstance(f.exception(10), velaray.AlreadyClosed) for f in futures)
        if block:
            assert isinstance(sixth.exception(10), velaray.AlreadyClosed) or isinstance(
                sixth.result().exception(10), velaray.AlreadyClosed
            )
        else:
            assert outcome == [velaray.Result.ProducerQueueIsFull]
        stop.set()
        served.result(10)


def test_shutdown_fails_collected_messages(client, topic):
    producer = client.create_producer(topic, batching_max_publish_delay_ms=60_000, **BATCHED)
    future = producer.send_async(b"x")
    client.shutdown()
    assert isinstance(future.exception(10), velaray.AlreadyClosed)
    with pytest.raises(velaray.AlreadyClosed):
        producer.send_async(b"y")
    with pytest.raises(velaray.AlreadyClosed):
        producer.send(b"y", partition_key="k")


def test_many_threads_send_and_receive_every_message_once(client, topic):
    total, threads = 4000, 4
    producer = client.create_producer(topic, max_pending_messages=300, **BATCHED)
    consumer = client.subscribe(topic, "s", receiver_queue_size=50, **EARLIEST)

    def send(thread):
        for number in range(total):
            producer.send_async(b"%d %d" % (thread, number))

    def take(_):
        found = []
        while True:
            try:
                message = consumer.receive(1500)
            except velaray.Timeout:
                return found
            found.append(tuple(map(int, message.data().split())))
            consumer.acknowledge(message)

    with ThreadPoolExecutor(2 * threads) as pool:
        senders = [pool.submit(send, thread) for thread in range(threads)]
        takers = [pool.submit(take, None) for _ in range(threads)]
        for sender in senders:
            sender.result()
        producer.flush()
        taken = [taker.result() for taker in takers]
    for found in taken:
        for thread in range(threads):
            numbers = [number for sender, number in found if sender == thread]
            assert numbers == sorted(numbers)
    every = sorted(pair for found in taken for pair in found)
    assert every == [(thread, number) for thread in range(threads) for number in range(total)]
    consumer.close()
    with client.subscribe(topic, "s") as again, pytest.raises(velaray.Timeout):
        again.receive(300)


def test_no_collected_message_is_lost_or_duplicated_while_actors_die(
    client, cluster, catalog, topic
):
    catalog.deduplicated(topic)
    producer = client.create_producer(
        topic, producer_name="steady", send_timeout_millis=0, batching_max_messages=50, **BATCHED
    )
    futures = []
    with Killer(cluster, 0.5) as killer:
        while killer.kills < 8:
            futures.append(producer.send_async(b"%d" % len(futures)))
    producer.flush()
    assert all(future.done() for future in futures)
    with client.subscribe(topic, "s", ConsumerType.Exclusive, **EARLIEST) as consumer:
        found = [int(m.data()) for m in receive(consumer, len(futures))]
    assert found == list(range(len(futures)))


class Part:
    """As much of a partition's consumer as a queue looks at."""

    def __init__(self, refill_at):
        self.permits = self
        self.refill_at = refill_at
        self.uncredited = 0


def queue_of(credits):
    def taken(part, count):
        part.uncredited += count
        if part.uncredited >= part.refill_at:
            credits.append((part, part.uncredited))
            part.uncredited = 0

    return BlockQueue(taken)


def block_of(part, first, count):
    info = EntryInfo("t", -1, 1, first, MessageMetadata(), batch_size=count)
    values = [b"%d" % n for n in range(first, first + count)]
    return Block(part, info, BatchLayout(pack(values, None), 0, count), range(count))


def test_a_queue_counts_messages_taken_in_any_way():
    credits, part = [], Part(4)
    blocks = queue_of(credits)
    blocks.put(block_of(part, 0, 10))
    blocks.put(block_of(part, 10, 3))
    assert len(blocks) == 13 and blocks.refill()
    assert [m.data() for m in blocks.current] == [b"0", b"1", b"2", b"3"]
    blocks.current.popleft()
    (rest,) = blocks.take(2)
    assert rest.values() == [b"1", b"2"] and credits == []
    assert blocks.current.popleft().data() == b"3"
    blocks.settle()
    assert credits == [(part, 4)] and len(blocks) == 9
    assert [s.values() for s in blocks.take(100)] == [
        [b"%d" % n for n in range(4, 10)],
        [b"10", b"11", b"12"],
    ]
    assert credits == [(part, 4), (part, 6)] and part.uncredited == 3
    assert not blocks.refill() and blocks.take(5) == [] and len(blocks) == 0


def test_a_queue_drops_the_messages_of_one_partition():
    credits, part, other = [], Part(4), Part(4)
    blocks = queue_of(credits)
    for number, owner in enumerate((part, other, part)):
        blocks.put(block_of(owner, number * 10, 10))
    blocks.refill()
    blocks.current.popleft()
    assert blocks.drop(part) == 19 and part.uncredited == 1
    assert len(blocks) == 10 and blocks.refill()
    assert blocks.current[0].data() == b"10"
    assert blocks.drop(part) == 0 and len(blocks) == 10
    blocks.clear()
    assert len(blocks) == 0 and not blocks.refill()


def test_only_acknowledged_messages_are_acknowledged_at_the_service(client, topic):
    options = {"batch_index_ack_enabled": True, **EARLIEST}
    with client.create_producer(topic, **BATCHED) as producer:
        for number in range(60):
            producer.send_async(b"%d" % number)
    done = [*range(5, 21), *range(58, 30, -3)]
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        messages = [consumer.receive(WAIT) for _ in range(60)]
        for number in done:
            consumer.acknowledge(messages[number])
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        left = [int(consumer.receive(WAIT).data()) for _ in range(60 - len(done))]
        assert left == [number for number in range(60) if number not in done]

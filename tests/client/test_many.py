"""`send_many` and `receive_many`: what they promise, and that other clients understand them."""

import asyncio
from itertools import chain

import pyarrow as pa
import pytest

import velaray
from tests.client.test_recovery import Killer
from velaray import BatchingType, CompressionType, ConsumerType, InitialPosition, aio
from velaray.wire.hashing import partition_of

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 15_000


def gather(consumer, count):
    """Batches until ``count`` messages came."""
    batches = []
    while sum(map(len, batches)) < count:
        batches.append(consumer.receive_many(timeout_millis=WAIT))
    return batches


def keys_of(batches):
    """The keys of all messages."""
    return list(chain.from_iterable(batch.keys() for batch in batches))


def received(consumer, count):
    """Key and value of ``count`` messages."""
    return [
        pair
        for batch in gather(consumer, count)
        for pair in zip(batch.keys(), batch.values(), strict=True)
    ]


VALUES = [
    pytest.param([b"%03d" % n for n in range(300)], id="equal sizes"),
    pytest.param([b"x" * (n % 150) for n in range(300)], id="many sizes"),
    pytest.param([b"", b"a", None, b"b" * 70_000], id="tombstone"),
]


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.ZSTD])
def test_messages_of_send_many_are_received_in_order(client, topic, values, keyed, compression):
    keys = [f"k{n % 3}" if n % 5 else "" for n in range(len(values))] if keyed else None
    with (
        client.subscribe(topic, "s") as consumer,
        client.create_producer(topic, compression_type=compression) as producer,
    ):
        sent = producer.send_many(values, keys)
        assert len(sent) == len(values)
        batches = gather(consumer, len(values))
        assert [value for batch in batches for value in batch] == values
        assert keys_of(batches) == (keys or [""] * len(values))
        assert [i for batch in batches for i in batch.message_ids()] == sent.message_ids()
        messages = [m for batch in batches for m in batch.messages()]
        assert [None if m.has_null_value() else m.data() for m in messages] == values
        assert sum(batch.nbytes for batch in batches) == sum(len(v or b"") for v in values)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("keyed", [False, True])
def test_the_official_client_reads_what_send_many_wrote(client, official, topic, values, keyed):
    keys = [f"k{n % 3}" for n in range(len(values))] if keyed else None
    consumer = official.subscribe(topic, "s")
    with client.create_producer(topic) as producer:
        sent = producer.send_many(values, keys)
    for number, message_id in enumerate(sent.message_ids()):
        message = consumer.receive(WAIT)
        assert message.data() == (values[number] or b"")
        assert message.partition_key() == (keys[number] if keys else "")
        assert message.message_id().serialize()[:8] == message_id.serialize()[:8]
        assert message.message_id().batch_index() == message_id.batch_index()
        consumer.acknowledge(message)
    consumer.close()


def test_receive_many_reads_what_the_official_client_wrote(client, official, topic):
    producer = official.create_producer(topic, batching_enabled=True, batching_max_messages=70)
    with client.subscribe(topic, "s") as consumer:
        for number in range(200):
            body = b"x" * number
            if number % 3:
                producer.send_async(body, None, {"n": str(number)}, f"key{number % 2}")
            else:
                producer.send_async(body, None)
        producer.flush()
        batches = gather(consumer, 200)
        assert [len(value) for batch in batches for value in batch] == list(range(200))
        assert keys_of(batches) == [f"key{n % 2}" if n % 3 else "" for n in range(200)]
        messages = [m for batch in batches for m in batch.messages()]
        assert messages[100].properties() == {"n": "100"}
        for batch in batches:
            consumer.acknowledge_many(batch, receipt=True)
    producer.close()


def test_a_batch_can_be_taken_in_parts_and_mixed_with_receive(client, topic):
    values = [b"%d" % n for n in range(5000)]
    with client.subscribe(topic, "s") as consumer, client.create_producer(topic) as producer:
        producer.send_many(values)
        found = []
        while len(found) < len(values):
            batch = consumer.receive_many(37, WAIT)
            assert 1 <= len(batch) <= 37
            found += batch
            if len(found) < len(values):
                found.append(consumer.receive(WAIT).data())
        assert found == values


def test_partly_acknowledged_batches_are_redelivered_in_part(client, topic):
    values = [b"%d" % n for n in range(100)]
    options = {"batch_index_ack_enabled": True, **EARLIEST}
    with client.create_producer(topic) as producer:
        producer.send_many(values)
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        consumer.acknowledge_many(consumer.receive_many(30, WAIT), receipt=True)
        left = consumer.receive_many(None, WAIT)
        consumer.acknowledge_many(left.message_ids()[10:20], receipt=True)
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        again = consumer.receive_many(None, WAIT)
        assert list(again) == values[30:40] + values[50:]
        assert again.as_arrow().to_pylist() == list(again)
        consumer.acknowledge_many(again, receipt=True)
    with (
        client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer,
        pytest.raises(velaray.Timeout),
    ):
        consumer.receive_many(timeout_millis=300)


def test_a_batch_is_acknowledged_as_a_whole_for_good(client, topic):
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % n for n in range(3000)])
        with client.subscribe(topic, "s", **EARLIEST) as consumer:
            for batch in gather(consumer, 3000):
                consumer.acknowledge_many(batch)
        producer.send(b"last")
    with client.subscribe(topic, "s") as consumer:
        assert consumer.receive(WAIT).data() == b"last"


def test_messages_of_other_topics_are_not_acknowledged(client, topic):
    with client.create_producer(topic) as producer:
        producer.send_many([b"a"])
    with client.subscribe(topic, "s", **EARLIEST) as first:
        batch = first.receive_many(timeout_millis=WAIT)
    with (
        client.subscribe(topic, "s") as second,
        pytest.raises(velaray.InvalidMessage, match="by another consumer"),
    ):
        second.acknowledge_many(batch)
    with pytest.raises(velaray.AlreadyClosed):
        first.acknowledge_many(batch)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.binary(3)])
@pytest.mark.parametrize("keyed", [False, True])
def test_arrow_arrays_are_sent_and_received(client, topic, kind, keyed):
    values = [b"%03d" % n for n in range(1000)]
    source = pa.array(values, pa.binary()).cast(kind)
    source = pa.chunked_array([source[:10], source[10:]])[1:]
    keys = pa.array([f"key{n % 7}" for n in range(999)]).dictionary_encode() if keyed else None
    with client.subscribe(topic, "s") as consumer, client.create_producer(topic) as producer:
        producer.send_many(source, keys)
        arrays, found = [], []
        while sum(map(len, arrays)) < 999:
            batch = consumer.receive_many(timeout_millis=WAIT)
            arrays.append(batch.as_arrow())
            found += batch.keys()
        whole = pa.concat_arrays(arrays)
        whole.validate(full=True)
        assert whole.to_pylist() == values[1:]
        assert found == (keys.to_pylist() if keyed else [""] * 999)


@pytest.mark.parametrize("sizes", [(0,), (5, 5, 5), (0, 1, 127, 128, 300, 20_000)])
def test_arrow_arrays_may_have_any_size(client, topic, sizes):
    values = [bytes([n % 256]) * size for n, size in enumerate(sizes * 50)]
    source = pa.array([b"cut", *values], pa.binary())[1:]
    keys = pa.array([f"{n}" * (n % 50 + 1) for n in range(len(values))])
    with client.subscribe(topic, "s") as consumer, client.create_producer(topic) as producer:
        producer.send_many(source)
        producer.send_many(source, keys)
        found = received(consumer, 2 * len(values))
    assert [value for _, value in found] == 2 * values
    assert [key for key, _ in found] == [""] * len(values) + keys.to_pylist()


def test_arrow_nulls_are_tombstones(client, topic):
    with client.subscribe(topic, "s") as consumer, client.create_producer(topic) as producer:
        producer.send_many(pa.array([b"a", None, b""], pa.binary()), pa.array(["x", "y", None]))
        batch = consumer.receive_many(timeout_millis=WAIT)
        assert batch.as_arrow().to_pylist() == list(batch) == [b"a", None, b""]
        assert batch.keys() == ["x", "y", ""]


@pytest.mark.parametrize("arrow", [False, True])
def test_values_of_a_key_go_to_its_partition_in_order(client, catalog, topic, arrow):
    catalog.partitioned(topic, 3)
    keys = [f"key{n % 20}" for n in range(2000)]
    values = [b"%d" % n for n in range(2000)]
    with client.subscribe(topic, "s") as consumer, client.create_producer(topic) as producer:
        if arrow:
            sent = producer.send_many(pa.array(values, pa.binary()), pa.array(keys))
        else:
            sent = producer.send_many(values, keys)
        assert [i.partition() for i in sent.message_ids()] == [partition_of(key, 3) for key in keys]
        found = dict.fromkeys(keys, ())
        for key, value in received(consumer, 2000):
            found[key] += (int(value),)
        assert found == {f"key{n}": tuple(range(n, 2000, 20)) for n in range(20)}


def test_batches_without_keys_use_all_partitions_in_turn(client, catalog, topic):
    catalog.partitioned(topic, 3)
    values = [b"x" * 100_000] * 30
    with client.create_producer(topic, lazy_start_partitioned_producers=True) as producer:
        sent = producer.send_many(values)
    assert len({i.partition() for i in sent.message_ids()}) == 3


def test_the_users_router_decides(client, catalog, topic):
    catalog.partitioned(topic, 3)
    with client.create_producer(
        topic, message_router=lambda message, count: int(message.data()) % count
    ) as producer:
        sent = producer.send_many([b"%d" % n for n in range(9)])
    assert [i.partition() for i in sent.message_ids()] == [0, 1, 2] * 3


def test_keys_do_not_share_entries_if_batching_is_by_key(client, topic):
    with client.create_producer(topic, batching_type=BatchingType.KeyBased) as producer:
        sent = producer.send_many([b"x"] * 12, [f"{n % 4}" for n in range(12)])
    assert [list(entry.rows) for entry in sent.entries] == [[n, n + 4, n + 8] for n in range(4)]


def test_invalid_input_sends_nothing(client, topic):
    with client.subscribe(topic, "s") as consumer:
        with client.create_producer(topic) as producer:
            assert len(producer.send_many([])) == 0
            assert len(producer.send_many(pa.array([], pa.binary()))) == 0
            for values, keys, error, text in (
                ([b"a", b"x" * (6 << 20)], None, velaray.MessageTooBig, "value 1 of 2"),
                (pa.array([b"x" * (6 << 20)]), None, velaray.MessageTooBig, "value 0 of 1"),
                ([b"a", "b"], None, velaray.InvalidMessage, "must be bytes"),
                (b"ab", None, velaray.InvalidMessage, "sequence of bytes"),
                ([b"a"], ["a", "b"], velaray.InvalidMessage, "1 values and 2 keys"),
                ([b"a"], ["\ud800"], velaray.InvalidMessage, "can't be encoded"),
                ([b"a"], [1], velaray.InvalidMessage, "keys must be str"),
                (pa.array([1]), None, velaray.InvalidMessage, "array of bytes, not of int64"),
                (pa.array([b"a"]), pa.array([1]), velaray.InvalidMessage, "array of text"),
            ):
                with pytest.raises(error, match=text):
                    producer.send_many(values, keys)
            producer.send(b"only this")
        with pytest.raises(velaray.AlreadyClosed):
            producer.send_many([b"a"])
        assert consumer.receive(WAIT).data() == b"only this"
        with pytest.raises(velaray.InvalidConfiguration):
            consumer.receive_many(0)
        with pytest.raises(velaray.Timeout):
            consumer.receive_many(timeout_millis=10)


def test_messages_sent_before_send_many_precede_its_messages(client, topic):
    with (
        client.subscribe(topic, "s") as consumer,
        client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
        ) as producer,
    ):
        producer.send_async(b"0")
        producer.send_many([b"1", b"2"])
        producer.send_async(b"3")
        producer.flush()
        assert [value for _, value in received(consumer, 4)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("pending", [1, 1000])
def test_every_value_is_stored_exactly_once_while_actors_die(
    client, cluster, catalog, topic, pending
):
    catalog.deduplicated(topic)
    options = {"producer_name": "steady", "max_pending_messages": pending, "send_timeout_millis": 0}
    total = 0
    with client.create_producer(topic, **options) as producer, Killer(cluster, 0.5) as killer:
        while killer.kills < 8:
            values = [b"%d" % n + b" " * 4000 for n in range(total, total + 1000)]
            sent = producer.send_many(values)
            assert len(sent.entries) > 5
            total += len(values)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        assert [int(value) for _, value in received(consumer, total)] == list(range(total))


@pytest.mark.parametrize(("pending", "expected"), [(1, 1), (3, 3), (1000, 9)])
def test_the_number_of_messages_in_flight_is_bounded(client, topic, pending, expected):
    with client.create_producer(topic, max_pending_messages=pending) as producer:
        inner = producer._inner._parts[0]
        send_batch, on_its_way, most = inner.send_batch, [], []

        def counted(batch, done, transaction):
            def less(*outcome):
                on_its_way.remove(batch)
                done(*outcome)

            on_its_way.append(batch)
            most.append(len(on_its_way))
            send_batch(batch, less, transaction)

        inner.send_batch = counted
        sent = producer.send_many([b"x" * 65_000] * 200)
        assert len(sent.entries) == 25 and max(most) <= expected


def test_an_error_names_the_stored_messages(client, catalog, topic):
    values = [b"%d" % n + b" " * 4000 for n in range(2000)]
    with client.create_producer(topic, max_pending_messages=1) as producer:
        inner = producer._inner._parts[0]
        send_batch, calls = inner.send_batch, []

        def terminated_meanwhile(batch, done, transaction):
            calls.append(batch)
            if len(calls) == 3:
                done(velaray.TopicTerminated("the topic is terminated"), None)
            else:
                send_batch(batch, done, transaction)

        inner.send_batch = terminated_meanwhile
        with pytest.raises(velaray.NotAllStored, match="are stored") as failure:
            producer.send_many(values)
        error = failure.value
        assert isinstance(error.__cause__, velaray.TopicTerminated)
        assert error.error() == velaray.Result.TopicTerminated
        assert error.durable == len(error.stored) == sum(batch.messages for batch in calls[:2])
        assert len(calls) == 3
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        found = received(consumer, error.durable)
        assert [value for _, value in found] == values[: error.durable]


def test_the_asyncio_client_sends_and_receives_many(cluster, topic):
    async def work():
        async with aio.Client(cluster.service_url) as client:
            consumer = await client.subscribe(topic, "s")
            producer = await client.create_producer(topic)
            parts = [[b"%d" % n] * 3000 for n in range(5)]
            sent = await asyncio.gather(*(producer.send_many(values) for values in parts))
            assert [len(one) for one in sent] == [3000] * 5
            found = []
            while len(found) < 15_000:
                batch = await consumer.receive_many(timeout_millis=WAIT)
                found += batch
                await consumer.acknowledge_many(batch)
            assert found == [value for values in parts for value in values]
            with pytest.raises(velaray.Timeout):
                await consumer.receive_many(timeout_millis=10)
            waiting = asyncio.create_task(consumer.receive_many())
            await asyncio.sleep(0)
            waiting.cancel()
            await producer.send_many([b"more"])
            assert list(await consumer.receive_many(timeout_millis=WAIT)) == [b"more"]
            await producer.close()
            with pytest.raises(velaray.AlreadyClosed):
                await producer.send_many([b"a"])

    asyncio.run(work())


def test_a_consumer_without_queue_receives_many(client, topic):
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % n for n in range(10)])
        with client.subscribe(topic, "s", receiver_queue_size=0, **EARLIEST) as consumer:
            assert len(consumer.receive_many(4, WAIT)) == 4
            assert len(consumer.receive_many(None, WAIT)) == 6
            producer.send_many([b"a", b"b"])
            assert list(consumer.receive_many(None, WAIT)) == [b"a", b"b"]


def test_overdue_batches_are_redelivered(client, topic, monkeypatch):
    monkeypatch.setattr(velaray.client.options, "MIN_ACK_TIMEOUT_MS", 100)
    with client.create_producer(topic) as producer:
        producer.send_many([b"a", b"b"])
    with client.subscribe(
        topic, "s", ConsumerType.Shared, unacked_messages_timeout_ms=300, **EARLIEST
    ) as consumer:
        assert len(consumer.receive_many(timeout_millis=WAIT)) == 2
        again = consumer.receive_many(timeout_millis=WAIT)
        assert [m.redelivery_count() for m in again.messages()] == [1, 1]
        consumer.acknowledge_many(again)
        with pytest.raises(velaray.Timeout):
            consumer.receive_many(timeout_millis=600)

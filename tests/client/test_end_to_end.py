"""velaray's client on both ends, against a real cluster."""

import contextlib
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import velaray
from velaray import ConsumerType, InitialPosition, MessageId
from velaray.broker.partition.session.acknowledgements import AcknowledgementHandlers

EARLIEST = {"initial_position": InitialPosition.Earliest}
WAIT = 10_000
NOTHING = 300


def drain(consumer, count, ack=True):
    messages = [consumer.receive(WAIT) for _ in range(count)]
    if ack:
        for message in messages:
            consumer.acknowledge(message)
    return messages


def values(messages):
    return [message.data() for message in messages]


def numbered(count, start=0):
    return [str(number).encode() for number in range(start, start + count)]


def publish(client, topic, contents, **options):
    with client.create_producer(topic, **options) as producer:
        return [producer.send(content) for content in contents]


def nothing_comes(consumer):
    with pytest.raises(velaray.Timeout):
        consumer.receive(NOTHING)
    return True


@pytest.mark.parametrize("batching", [True, False])
def test_messages_arrive_in_order_with_all_their_fields(client, topic, batching):
    with client.create_producer(topic, batching_enabled=batching) as producer:
        for number, content in enumerate(numbered(50)):
            producer.send_async(
                content, None, {"n": str(number)}, "key", "order", event_timestamp=number + 1
            )
        producer.send(None, partition_key="gone")
        assert producer.last_sequence_id() == 50
        assert producer.is_connected() and producer.topic() == topic
        name = producer.producer_name()
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        *messages, tombstone = drain(consumer, 51)
    assert values(messages) == numbered(50)
    for number, message in enumerate(messages):
        assert message.properties() == {"n": str(number)}
        assert (message.partition_key(), message.ordering_key()) == ("key", "order")
        assert message.event_timestamp() == number + 1
        assert message.producer_name() == name and message.topic_name() == topic
        assert abs(message.publish_timestamp() - time.time() * 1000) < 60_000
    assert tombstone.has_null_value() and tombstone.data() == b""


def test_receipts_carry_the_id_that_the_consumer_sees(client, topic):
    ids = publish(client, topic, numbered(3)) + publish(
        client, topic, numbered(3), batching_enabled=True
    )
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        assert [message.message_id() for message in drain(consumer, 6)] == ids


def test_callbacks_and_futures_report_the_outcome(client, topic):
    outcomes = []
    with client.create_producer(topic, batching_enabled=True) as producer:
        producer.send_async(b"1", lambda result, message_id: outcomes.append((result, message_id)))
        future = producer.send_async(b"2")
        producer.flush()
        assert future.result(0) > outcomes[0][1]
        assert outcomes[0][0] == velaray.Result.Ok


def test_a_callback_that_raises_or_blocks_harms_no_other_call(client, topic):
    refused = []
    with client.create_producer(topic) as producer:

        def wait_inside(result, message_id):
            try:
                producer.send(b"never")
            except velaray.OperationNotSupported as error:
                refused.append(error)

        producer.send_async(b"1", lambda result, message_id: 1 / 0)
        producer.send_async(b"2", wait_inside)
        producer.send(b"3")
        producer.flush()
        assert len(refused) == 1


def test_many_threads_share_a_producer_and_a_consumer(client, topic):
    with client.create_producer(topic, batching_enabled=True) as producer:
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(producer.send, numbered(200)))
        assert len(set(ids)) == 200
    with (
        client.subscribe(topic, "s", ConsumerType.Shared, **EARLIEST) as consumer,
        ThreadPoolExecutor(8) as pool,
    ):
        got = list(pool.map(lambda _: consumer.receive(WAIT), range(200)))
        assert sorted(values(got)) == sorted(numbered(200))


def test_closing_a_producer_stores_what_was_sent(client, topic):
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    futures = [producer.send_async(content) for content in numbered(10)]
    producer.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(velaray.AlreadyClosed):
        producer.send(b"late")


def test_the_queue_of_a_producer_is_bounded(client, topic):
    options = {
        "max_pending_messages": 5,
        "batching_enabled": True,
        "batching_max_publish_delay_ms": 60_000,
    }
    codes = []
    with client.create_producer(topic, **options) as producer:
        for content in numbered(5):
            producer.send_async(content)
        with pytest.raises(velaray.ProducerQueueIsFull):
            producer.send_async(b"6")
        producer.send_async(b"6", lambda result, message_id: codes.append(result))
        producer.flush()
        assert codes == [velaray.Result.ProducerQueueIsFull]
    options.update(block_if_queue_full=True, batching_max_publish_delay_ms=5)
    with client.create_producer(topic, **options) as producer:
        futures = [producer.send_async(content) for content in numbered(50)]
        producer.flush()
        assert all(future.done() for future in futures)


def test_partitions_keep_keys_together_and_spread_the_rest(client, catalog, topic):
    catalog.partitioned(topic, 4)
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{n}" for n in range(4)]
    with client.create_producer(topic) as producer:
        keyed = {}
        for number in range(40):
            key = f"k{number % 10}"
            message_id = producer.send(str(number).encode(), partition_key=key)
            assert keyed.setdefault(key, message_id.partition()) == message_id.partition()
        assert {producer.send(b"").partition() for _ in range(4)} == {0, 1, 2, 3}
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = drain(consumer, 44)
        assert consumer.topic() == topic
    by_key = {}
    for message in messages:
        if message.partition_key():
            by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_lazy_producers_start_with_their_first_message(client, catalog, topic):
    catalog.partitioned(topic, 3)
    with client.create_producer(topic, lazy_start_partitioned_producers=True) as producer:
        assert {producer.send(b"").partition() for _ in range(3)} == {0, 1, 2}


def test_consumers_subscribe_to_several_topics_and_patterns(client, topic):
    names = [f"{topic}-{letter}" for letter in "abc"]
    for name in names:
        publish(client, name, [name.encode()])
    with client.subscribe(names[:2], "list", **EARLIEST) as consumer:
        got = drain(consumer, 2)
        assert sorted(values(got)) == [name.encode() for name in names[:2]]
        assert nothing_comes(consumer)
    pattern = re.compile(f"{topic}-.*")
    with client.subscribe(pattern, "re", pattern_auto_discovery_period=0.2, **EARLIEST) as consumer:
        assert sorted(values(drain(consumer, 3))) == [name.encode() for name in names]
        publish(client, f"{topic}-late", [b"late"])
        assert drain(consumer, 1)[0].data() == b"late"


def test_an_id_of_several_topics_needs_its_topic(client, topic):
    names = [f"{topic}-a", f"{topic}-b"]
    for name in names:
        publish(client, name, [b""])
    with client.subscribe(names, "s", **EARLIEST) as consumer:
        (first, _) = drain(consumer, 2, ack=False)
        raw = first.message_id().serialize()
        with pytest.raises(velaray.InvalidMessage, match="deserialize"):
            consumer.acknowledge(MessageId.deserialize(raw))
        consumer.acknowledge(MessageId.deserialize(raw, topic=first.topic_name()), receipt=True)


def test_an_ack_with_receipt_is_final(client, cluster, topic):
    publish(client, topic, numbered(6))
    with client.subscribe(topic, "s", ConsumerType.Shared, **EARLIEST) as consumer:
        messages = drain(consumer, 6, ack=False)
        consumer.acknowledge(messages[1], receipt=True)
        consumer.acknowledge(messages[4].message_id(), receipt=True)
        for key in list(cluster.actor_system.actors):
            cluster.kill(key)
        again = drain(consumer, 4)
        assert sorted(values(again)) == [b"0", b"2", b"3", b"5"]


def test_a_receipt_comes_though_the_consumer_was_closed_before_its_ack_arrived(
    client, topic, monkeypatch
):
    """As it is when the subscription's actor dies, or its tenant moves, between the two."""
    on_ack, closed = AcknowledgementHandlers.on_ack, []

    def late(self, command):
        if not closed:
            found = self._consumers.find(command.consumer_id)
            consumer = found.consumer
            closed.append(consumer)
            found.channel.remove(consumer)
            consumer.session.consumer_closed(consumer)
        on_ack(self, command)

    monkeypatch.setattr(AcknowledgementHandlers, "on_ack", late)
    publish(client, topic, numbered(2))
    with client.subscribe(topic, "s", ConsumerType.Shared, **EARLIEST) as consumer:
        first, _ = drain(consumer, 2, ack=False)
        consumer.acknowledge(first, receipt=True)
        assert closed
    with client.subscribe(topic, "s", ConsumerType.Shared, **EARLIEST) as consumer:
        assert values(drain(consumer, 1)) == [b"1"]


def test_receipts_are_requested_by_default_and_in_bulk(client, topic):
    publish(client, topic, numbered(20))
    options = {"ack_receipt_enabled": True, **EARLIEST}
    with (
        client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer,
        ThreadPoolExecutor(10) as pool,
    ):
        list(pool.map(consumer.acknowledge, drain(consumer, 20, ack=False)))
    with client.subscribe(topic, "s", ConsumerType.Shared) as consumer:
        assert nothing_comes(consumer)


def test_closing_a_consumer_makes_its_acks_durable(client, topic):
    publish(client, topic, numbered(10), batching_enabled=True)
    with client.subscribe(topic, "s", ack_group_time_ms=60_000, **EARLIEST) as consumer:
        drain(consumer, 7)
    with client.subscribe(topic, "s") as consumer:
        assert values(drain(consumer, 3)) == numbered(3, 7)


def test_cumulative_acks(client, topic):
    publish(client, topic, numbered(10))
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = drain(consumer, 10, ack=False)
        consumer.acknowledge_cumulative(messages[6], receipt=True)
    with client.subscribe(topic, "s") as consumer:
        assert values(drain(consumer, 3)) == numbered(3, 7)
    with (
        client.subscribe(topic, "shared", ConsumerType.Shared, **EARLIEST) as consumer,
        pytest.raises(velaray.CumulativeAcknowledgementNotAllowedError),
    ):
        consumer.acknowledge_cumulative(consumer.receive(WAIT))


def batch_of(client, topic, count):
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    ) as producer:
        for content in numbered(count):
            producer.send_async(content)


@pytest.mark.parametrize(("by_index", "left"), [(True, 2), (False, 5)])
def test_part_of_a_batch_is_acknowledged(client, topic, by_index, left):
    batch_of(client, topic, 5)
    options = {"batch_index_ack_enabled": by_index, **EARLIEST}
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        messages = drain(consumer, 5, ack=False)
        assert len({message.where for message in messages}) == 1
        for message in messages[1:4]:
            consumer.acknowledge(message, receipt=True)
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        assert len(drain(consumer, left)) == left
        assert nothing_comes(consumer)


def test_negatively_acked_messages_are_redelivered_and_counted(client, topic):
    publish(client, topic, numbered(3))
    with client.subscribe(
        topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50, **EARLIEST
    ) as consumer:
        first = drain(consumer, 3, ack=False)
        consumer.acknowledge(first[0])
        consumer.negative_acknowledge(first[1])
        consumer.acknowledge(first[2])
        again = consumer.receive(WAIT)
        assert (again.data(), again.redelivery_count()) == (b"1", 1)
        consumer.negative_acknowledge(again)
        assert consumer.receive(WAIT).redelivery_count() == 2


def test_a_negative_ack_of_an_exclusive_consumer_rewinds(client, topic):
    publish(client, topic, numbered(4))
    with client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=50, **EARLIEST) as consumer:
        messages = drain(consumer, 4, ack=False)
        consumer.acknowledge_cumulative(messages[1], receipt=True)
        consumer.negative_acknowledge(messages[3])
        assert values(drain(consumer, 2)) == numbered(2, 2)


def test_all_unacknowledged_messages_are_redelivered_on_request(client, topic):
    publish(client, topic, numbered(30), batching_enabled=True)
    with client.subscribe(
        topic, "s", ConsumerType.Shared, receiver_queue_size=10, **EARLIEST
    ) as consumer:
        messages = drain(consumer, 5, ack=False)
        for message in messages[:2]:
            consumer.acknowledge(message, receipt=True)
        consumer.redeliver_unacknowledged_messages()
        got = set()
        while len(got) < 28:
            message = consumer.receive(WAIT)
            consumer.acknowledge(message)
            got.add(message.data())
        assert got == set(numbered(28, 2))


@pytest.mark.slow
def test_an_overdue_message_is_redelivered(client, topic):
    publish(client, topic, numbered(2))
    options = {"unacked_messages_timeout_ms": 10_000, **EARLIEST}
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        first, second = drain(consumer, 2, ack=False)
        consumer.acknowledge(first)
        assert consumer.receive(15_000).data() == second.data()


def test_seeks_move_to_ids_and_times(client, topic):
    ids = publish(client, topic, numbered(5))
    batch_of(client, topic, 5)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = drain(consumer, 10, ack=False)
        consumer.seek(ids[2])
        assert consumer.receive(WAIT).data() == b"3"
        consumer.seek(messages[7].message_id())
        assert values(drain(consumer, 2)) == [b"3", b"4"]
        consumer.seek(MessageId.latest)
        assert nothing_comes(consumer)
        consumer.seek(MessageId.earliest)
        assert values(drain(consumer, 10)) == numbered(5) * 2
        consumer.seek(messages[3].publish_timestamp())
        assert consumer.receive(WAIT).publish_timestamp() >= messages[3].publish_timestamp()
    with client.subscribe(topic, "in", start_message_id_inclusive=True) as consumer:
        consumer.seek(messages[6].message_id())
        assert consumer.receive(WAIT).message_id() == messages[6].message_id()


def test_messages_of_a_batch_skipped_by_a_seek_leave_the_backlog(client, topic):
    batch_of(client, topic, 5)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = drain(consumer, 5, ack=False)
        consumer.seek(messages[2].message_id())
        drain(consumer, 2)
    with client.subscribe(topic, "s") as consumer:
        assert nothing_comes(consumer)


def test_seek_moves_all_partitions(client, catalog, topic):
    catalog.partitioned(topic, 3)
    publish(client, topic, numbered(9))
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        messages = drain(consumer, 9)
        consumer.seek(MessageId.earliest)
        assert sorted(values(drain(consumer, 9))) == numbered(9)
        consumer.seek(min(message.publish_timestamp() for message in messages))
        assert sorted(values(drain(consumer, 9))) == numbered(9)


def test_the_last_message_id_is_returned(client, topic):
    with client.subscribe(topic, "s") as consumer:
        assert consumer.get_last_message_id().entry_id() == -1
        (last,) = publish(client, topic, [b"x"])
        assert consumer.get_last_message_id() == last


def test_readers_start_at_the_requested_position(client, topic):
    ids = publish(client, topic, numbered(5))
    with client.create_reader(topic, MessageId.earliest) as reader:
        got = []
        while reader.has_message_available():
            got.append(reader.read_next(WAIT).data())
        assert got == numbered(5)
    with client.create_reader(topic, ids[2]) as reader:
        assert reader.read_next(WAIT).data() == b"3"
    with client.create_reader(topic, ids[2], start_message_id_inclusive=True) as reader:
        assert reader.has_message_available()
        assert reader.read_next(WAIT).data() == b"2"
        reader.seek(ids[0])
        assert reader.read_next(WAIT).data() == b"0"
        reader.seek(0)
        assert reader.read_next(WAIT).data() == b"0"
    with client.create_reader(topic, MessageId.latest, start_message_id_inclusive=True) as reader:
        assert reader.read_next(WAIT).data() == b"4"
    with client.create_reader(topic, MessageId.latest) as reader:
        assert not reader.has_message_available()
        publish(client, topic, [b"new"])
        assert reader.has_message_available()
        assert reader.read_next(WAIT).data() == b"new"
        assert not reader.has_message_available()


def test_a_reader_reads_nothing_twice_over_reconnects(client, cluster, catalog, topic):
    catalog.partitioned(topic, 2)
    publish(client, topic, numbered(200), batching_enabled=True)
    with client.create_reader(topic, MessageId.earliest, receiver_queue_size=20) as reader:
        got = []
        for number in range(200):
            got.append(reader.read_next(WAIT).data())
            if number in (50, 120):
                for key in list(cluster.actor_system.actors):
                    cluster.kill(key)
        assert sorted(got) == sorted(numbered(200))


def test_a_table_view_holds_the_newest_values(client, topic):
    with client.create_producer(topic) as producer:
        for number in range(10):
            producer.send(str(number).encode(), partition_key=f"k{number % 3}")
        with client.create_table_view(topic) as view:
            assert (len(view), view.get("k0"), view.get("none")) == (3, b"9", None)
            seen, changed = {}, threading.Event()

            def listen(key, value):
                seen[key] = value
                if value == b"new":
                    changed.set()

            view.for_each_and_listen(listen)
            assert seen == {"k0": b"9", "k1": b"7", "k2": b"8"}
            producer.send(None, partition_key="k1")
            producer.send(b"new", partition_key="k2")
            assert changed.wait(10)
            assert (view.get("k2"), "k1" in view) == (b"new", False)


def test_a_consumer_without_queue_takes_one_at_a_time(client, topic):
    publish(client, topic, numbered(6))
    options = {"receiver_queue_size": 0, **EARLIEST}
    with (
        client.subscribe(topic, "s", ConsumerType.Shared, **options) as one,
        client.subscribe(topic, "s", ConsumerType.Shared, **options) as two,
    ):
        assert values([one.receive(WAIT), two.receive(WAIT), one.receive(WAIT)]) == numbered(3)
        assert values(drain(two, 3)) == numbered(3, 3)
        assert nothing_comes(two)
    batch_of(client, topic, 4)
    with client.subscribe(topic, "s", ConsumerType.Shared, **options) as consumer:
        assert sorted(values(drain(consumer, 7))) == sorted([b"0", b"1", b"2", *numbered(4)])


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        ((-1, 10, -1), [[4, 4], [4], [10], [30], [1, 1]]),
        ((2, 10, 300), [[4, 4], [4], [10], [30], [1, 1]]),
        ((3, -1, -1), [[4, 4, 4], [10, 30, 1]]),
        ((-1, -1, 300), [[4, 4, 4, 10, 30, 1, 1], []]),
    ],
)
def test_a_received_batch_has_no_more_bytes_than_the_policy_allows(client, topic, policy, sizes):
    """One message that is larger comes alone. A batch that isn't full waits for its time."""
    producer = client.create_producer(topic)
    for size in (4, 4, 4, 10, 30, 1, 1):
        producer.send(b"x" * size)
    consumer = client.subscribe(
        topic, "s", batch_receive_policy=velaray.ConsumerBatchReceivePolicy(*policy), **EARLIEST
    )
    while len(consumer._inbox) < 7:
        threading.Event().wait(0.01)
    if policy == (-1, 10, -1):
        sizes, last = sizes[:-1], sizes[-1]
    found = [[len(message) for message in consumer.batch_receive()] for _ in sizes]
    assert found == sizes
    if policy == (-1, 10, -1):
        producer.send(b"x" * 9)  # 1 + 1 + 9 are too many: now the two are a batch
        assert [len(message) for message in consumer.batch_receive()] == last


def test_batch_receive(client, topic):
    publish(client, topic, numbered(25))
    policy = velaray.ConsumerBatchReceivePolicy(10, -1, 300)
    with client.subscribe(topic, "s", batch_receive_policy=policy, **EARLIEST) as consumer:
        assert [len(consumer.batch_receive()) for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.parametrize("compression", list(velaray.CompressionType))
def test_large_messages_travel_in_chunks(client, topic, compression):
    payload = bytes(range(256)) * 4096 * 20
    with client.create_producer(
        topic, chunking_enabled=True, compression_type=compression
    ) as producer:
        with pytest.raises(velaray.MessageTooBig), client.create_producer(topic) as plain:
            plain.send(payload)
        sent = producer.send(payload)
        producer.send(b"after")
    with client.subscribe(topic, "s", ConsumerType.Shared, **EARLIEST) as consumer:
        large, after = drain(consumer, 2, ack=False)
        assert large.data() == payload and after.data() == b"after"
        assert large.message_id() == sent
        consumer.acknowledge(large)
        consumer.acknowledge(after, receipt=True)
    with client.subscribe(topic, "s", ConsumerType.Shared) as consumer:
        assert nothing_comes(consumer)


def test_exclusive_producers(client, topic):
    modes = velaray.ProducerAccessMode
    with client.create_producer(topic, access_mode=modes.Exclusive) as first:
        with pytest.raises((velaray.ProducerBusy, velaray.ProducerFenced)):
            client.create_producer(topic, access_mode=modes.Exclusive)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.create_producer, topic, access_mode=modes.WaitForExclusive)
            first.send(b"1")
            assert not waiting.done()
            first.close()
            second = waiting.result(10)
        second.send(b"2")
        with client.create_producer(topic, access_mode=modes.ExclusiveWithFencing) as third:
            third.send(b"3")
            with pytest.raises(velaray.ProducerFenced):
                second.send(b"4")
        second.close()


def test_subscription_types_exclude_each_other(client, topic):
    with client.subscribe(topic, "s"):
        for kind in (ConsumerType.Exclusive, ConsumerType.Shared):
            with pytest.raises(velaray.ConsumerBusy):
                client.subscribe(topic, "s", kind)


def test_failover_moves_to_the_next_consumer(client, topic):
    with client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="b") as second:
        first = client.subscribe(topic, "s", ConsumerType.Failover, consumer_name="a")
        publish(client, topic, numbered(3))
        drain(first, 3)
        first.close()
        publish(client, topic, numbered(3, 3))
        assert values(drain(second, 3)) == numbered(3, 3)


def test_unsubscribing_drops_the_position(client, topic):
    publish(client, topic, numbered(3))
    consumer = client.subscribe(topic, "s", **EARLIEST)
    drain(consumer, 3)
    consumer.unsubscribe()
    with pytest.raises(velaray.AlreadyClosed):
        consumer.receive(WAIT)
    with client.subscribe(topic, "s", **EARLIEST) as consumer:
        assert values(drain(consumer, 3)) == numbered(3)


def test_iteration_ends_when_the_consumer_is_closed(client, topic):
    publish(client, topic, numbered(3))
    consumer = client.subscribe(topic, "s", **EARLIEST)
    got = []
    for message in consumer:
        got.append(message.data())
        if len(got) == 3:
            threading.Timer(0.05, consumer.close).start()
    assert got == numbered(3)


def test_closing_the_client_closes_everything_and_leaves_no_thread(cluster, topic):
    before = set(threading.enumerate())
    client = velaray.Client(cluster.service_url)
    producer = client.create_producer(topic, batching_enabled=True)
    future = producer.send_async(b"1")
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, MessageId.earliest)
    view = client.create_table_view(topic)
    client.close()
    client.close()
    assert future.result(0)
    for thing in (producer, consumer, reader, view):
        thing.close()
    for call in (
        lambda: producer.send(b""),
        lambda: producer.send_async(b""),
        consumer.receive,
        lambda: client.create_producer(topic),
    ):
        with pytest.raises(velaray.AlreadyClosed):
            call()
    assert set(threading.enumerate()) <= before


def test_shutdown_fails_messages_that_are_not_stored(cluster, topic):
    client = velaray.Client(cluster.service_url)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    future = producer.send_async(b"1")
    client.shutdown()
    assert isinstance(future.exception(5), velaray.AlreadyClosed)


def test_a_client_without_a_service_reports_that(topic):
    with velaray.Client("pulsar://127.0.0.1:1", operation_timeout_seconds=0.5) as client:
        started = time.monotonic()
        with pytest.raises(velaray.Timeout, match="ConnectError"):
            client.create_producer(topic)
        assert time.monotonic() - started < 5


def test_the_second_address_is_tried(cluster, topic):
    port = cluster.service_url.rpartition(":")[2]
    with velaray.Client(f"pulsar://127.0.0.1:1,127.0.0.1:{port}") as client:
        publish(client, topic, [b"x"])


def test_wrong_names_are_refused(client):
    for name in ("persistent://a/b", "ftp://a/b/c", "a b/c/d"):
        with pytest.raises(velaray.InvalidTopicName):
            client.create_producer(name)
    with pytest.raises(velaray.VelarayError):
        client.create_producer("persistent://no-such/tenant/topic")


def test_unsent_messages_time_out(client, cluster, topic):
    with client.create_producer(topic, send_timeout_millis=300) as producer:
        producer.send(b"1")
        cluster.run(cluster.proxy.stop())
        try:
            for key in list(cluster.actor_system.actors):
                cluster.kill(key)
            with pytest.raises(velaray.Timeout, match="may or may not"):
                producer.send(b"2")
        finally:
            cluster.run(cluster.proxy.start(cluster.proxy.port))
        with contextlib.suppress(velaray.Timeout):
            producer.send(b"3")

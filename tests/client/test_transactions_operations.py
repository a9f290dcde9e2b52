"""Every way to send and to acknowledge takes a transaction: what it waits for, what it refuses."""

import asyncio
import re
from collections import Counter

import pytest

import velaray
from tests.support.waiting import wait_until
from velaray import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition, aio

WAIT = 20_000
EARLIEST = InitialPosition.Earliest
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST}


def nothing_comes(consumer):
    with pytest.raises(velaray.Timeout):
        message = consumer.receive(300)
        raise AssertionError(f"{message.data()!r} came")


def contents(consumer, count):
    return [consumer.receive(WAIT).data() for _ in range(count)]


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("kind", [velaray.BatchingType.Default, velaray.BatchingType.KeyBased])
def test_asynchronous_sends_keep_their_order_and_commit_waits_for_all(
    client, topic, batching, kind
):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(
        topic,
        batching_enabled=batching,
        batching_type=kind,
        batching_max_publish_delay_ms=60_000,  # what is batched goes when it's needed
    )
    txn = client.transaction()
    heard = []
    futures = [producer.send_async(b"%d" % n, txn=txn) for n in range(50)]
    producer.send_async(b"50", lambda result, message_id: heard.append(result), txn=txn)
    assert not isinstance(producer.send(b"51", txn=txn), Exception)
    futures += [producer.send_async(b"%d" % n, txn=txn) for n in range(52, 100)]
    txn.commit()
    assert all(future.done() for future in futures) and heard == [velaray.Result.Ok]
    assert contents(consumer, 100) == [b"%d" % n for n in range(100)]


def test_a_send_that_fails_turns_a_commit_into_an_abort(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    txn = client.transaction()
    sent = producer.send_async(b"never", txn=txn)
    too_big = producer.send_async(b"x" * 6_000_000, txn=txn)
    with pytest.raises(velaray.TransactionHasOperationFailed) as caught:
        txn.commit()
    assert isinstance(caught.value.__cause__, velaray.MessageTooBig)
    assert sent.result() and isinstance(too_big.exception(), velaray.MessageTooBig)
    assert txn.state == velaray.TransactionState.ABORTED
    with pytest.raises(velaray.InvalidTxnStatusError):
        producer.send_async(b"late", txn=txn).result()
    heard = []
    producer.send_async(b"late", lambda *answer: heard.append(answer), txn=txn)
    producer.send(b"plain")
    assert contents(consumer, 1) == [b"plain"]
    assert heard == [(velaray.Result.InvalidTxnStatusError, None)]


def test_a_send_refused_by_a_full_queue_does_not_fail_the_transaction(client, topic):
    producer = client.create_producer(topic, max_pending_messages=1)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    txn = client.transaction()
    taken, refused = [], 0
    for number in range(100):
        try:
            taken.append((number, producer.send_async(b"%d" % number, txn=txn)))
        except velaray.ProducerQueueIsFull:
            refused += 1
    assert refused
    txn.commit()
    assert contents(consumer, len(taken)) == [b"%d" % number for number, _ in taken]
    nothing_comes(consumer)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_moves_many_messages_over_partitions(client, topic, catalog, commit):
    catalog.partitioned(topic, 3)
    catalog.partitioned(f"{topic}-out", 2)
    source, sink = client.create_producer(topic), client.create_producer(f"{topic}-out")
    source.send_many([b"%d" % n for n in range(60)], [f"k{n % 7}" for n in range(60)])
    consumer = client.subscribe(topic, "s", **SHARED)
    reader = client.subscribe(f"{topic}-out", "s", **SHARED)
    txn, seen = client.transaction(), 0
    while seen < 60:
        batch = consumer.receive_many(25, WAIT)
        seen += len(batch)
        sent = sink.send_many([value + b"!" for value in batch], txn=txn)
        assert len(sent) == len(batch)
        consumer.acknowledge_many(batch, txn=txn)
    nothing_comes(reader)
    if commit:
        txn.commit()
        assert sorted(contents(reader, 60)) == sorted(b"%d!" % n for n in range(60))
        consumer.redeliver_unacknowledged_messages()
        nothing_comes(consumer)
    else:
        txn.abort()
        assert Counter(contents(consumer, 60)) == {b"%d" % n: 1 for n in range(60)}
        nothing_comes(reader)


@pytest.mark.parametrize("by_index", [False, True])
def test_messages_of_one_batch_may_be_acked_inside_and_outside_a_transaction(
    client, topic, by_index
):
    """Without acknowledgements by index, the service gets that of the entry when it is complete."""
    consumer = client.subscribe(
        topic, "s", batch_index_ack_enabled=by_index, ack_group_time_ms=0, **SHARED
    )
    client.create_producer(topic).send_many([b"a", b"b", b"c"])
    a, b, c = (consumer.receive(WAIT) for _ in range(3))
    txn = client.transaction()
    consumer.acknowledge(a)
    consumer.acknowledge_many([b, c], txn=txn)
    txn.commit()
    consumer.close()
    again = client.subscribe(topic, "s", **SHARED)
    nothing_comes(again)


def test_a_nacked_message_is_redelivered_while_others_of_its_batch_are_pending(client, topic):
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=30, **SHARED)
    client.create_producer(topic).send_many([b"a", b"b"])
    a, b = (consumer.receive(WAIT) for _ in range(2))
    with client.transaction() as txn:
        consumer.negative_acknowledge(a)
        consumer.acknowledge(b, txn=txn)
        again = consumer.receive(WAIT)
        assert again.data() == b"a"
        consumer.acknowledge(again, txn=txn)
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


def test_messages_of_a_pattern_are_acknowledged_in_one_transaction(client, topic):
    for name in ("a", "b"):
        client.create_producer(f"{topic}-{name}").send(name.encode())
    pattern = re.compile(rf"{re.escape(topic)}-.*")
    consumer = client.subscribe(pattern, "s", **SHARED)
    messages = [consumer.receive(WAIT) for _ in range(2)]
    with client.transaction() as txn:
        consumer.acknowledge_many(messages, txn=txn)
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


def test_one_transaction_acknowledges_in_two_subscriptions_of_a_topic(client, topic):
    first, second = (client.subscribe(topic, name, **SHARED) for name in ("a", "b"))
    client.create_producer(topic).send(b"x")
    with client.transaction() as txn:
        for consumer in (first, second):
            consumer.acknowledge(consumer.receive(WAIT), txn=txn)
    for consumer in (first, second):
        consumer.redeliver_unacknowledged_messages()
        nothing_comes(consumer)


class Watching(velaray.ConsumerInterceptor):
    def __init__(self):
        self.seen = []

    def before_consume(self, consumer, message):
        return message

    def on_acknowledge(self, consumer, message_id, error):
        self.seen.append((message_id.batch_index(), error and type(error)))

    def on_acknowledge_cumulative(self, consumer, message_id, error):
        self.seen.append(("until", message_id.batch_index()))


def test_interceptors_are_called_for_acks_in_transactions(client, topic):
    watching = Watching()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, interceptors=[watching])
    client.create_producer(topic).send_many([b"a", b"b", b"c"])
    a, b, c = (consumer.receive(WAIT) for _ in range(3))
    first, second = client.transaction(), client.transaction()
    consumer.acknowledge_many([a, b], txn=first)
    with pytest.raises(velaray.TransactionConflict):
        consumer.acknowledge(a, txn=second)
    second.abort()
    first.commit()
    with client.transaction() as third:
        consumer.acknowledge_cumulative(c, txn=third)
    conflict = velaray.TransactionConflict
    assert watching.seen == [(0, None), (1, None), (0, conflict), ("until", 2)]


def test_a_transaction_of_another_client_is_refused(cluster, client, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer.send(b"x")
    message = consumer.receive(WAIT)
    with velaray.Client(cluster.service_url) as other:
        foreign = other.transaction()
        for txn in (foreign, foreign.inner, "txn"):
            for attempt in (
                lambda txn: producer.send(b"never", txn=txn),
                lambda txn: producer.send_async(b"never", txn=txn).result(),
                lambda txn: producer.send_many([b"never"], txn=txn),
                lambda txn: consumer.acknowledge(message, txn=txn),
                lambda txn: consumer.acknowledge_many([message], txn=txn),
            ):
                with pytest.raises(velaray.InvalidConfiguration):
                    attempt(txn)
        foreign.commit()  # nothing of that failed in it
    consumer.acknowledge(message, receipt=True)
    nothing_comes(consumer)


def test_closing_aborts_open_transactions_and_shutdown_leaves_them_to_their_timeout(cluster, topic):
    for close in ("close", "shutdown"):
        name = f"{topic}-{close}"
        with velaray.Client(cluster.service_url) as watcher:
            consumer = watcher.subscribe(name, "s", initial_position=EARLIEST)
            client = velaray.Client(cluster.service_url)
            timeout = 600 if close == "close" else 3
            producer, txn = client.create_producer(name), client.transaction(timeout)
            producer.send(b"never", txn=txn)
            watcher.create_producer(name).send(b"plain")
            nothing_comes(consumer)
            getattr(client, close)()
            assert consumer.receive(WAIT).data() == b"plain"
            if close == "close":
                assert txn.state == velaray.TransactionState.ABORTED


def test_a_block_that_ends_after_its_timeout_reports_that_nothing_was_committed(client, topic):
    producer = client.create_producer(topic)
    with pytest.raises(velaray.InvalidTxnStatusError), client.transaction(timeout=0.2) as txn:
        producer.send(b"never", txn=txn)
        wait_until(lambda: txn.state == velaray.TransactionState.TIME_OUT)


@pytest.mark.parametrize("chunked", [False, True])
def test_aborted_messages_are_sent_again_with_the_same_sequence_ids(client, topic, chunked):
    """De-duplication must not count messages as stored that are never delivered."""
    consumer = client.subscribe(topic, "s", **SHARED)
    producer = client.create_producer(
        topic, producer_name="p", chunking_enabled=chunked, batching_enabled=False
    )
    values = [(b"x" * 6_000_000 if chunked else b"") + b"%d" % number for number in range(2)]
    for attempt in range(3):
        txn = client.transaction()
        for number, value in enumerate(values):
            producer.send(value, sequence_id=number, txn=txn)
        txn.abort() if attempt < 2 else txn.commit()
    for number, value in enumerate(values):  # by who doesn't know that it was committed
        producer.send(value, sequence_id=number)
    assert contents(consumer, 2) == values
    nothing_comes(consumer)


# -- retry and dead letters ----------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_reconsume_later_in_a_transaction_makes_one_copy_or_keeps_the_message(
    client, topic, batched
):
    consumer = client.subscribe(topic, "s", enable_retry=True, **SHARED)
    producer = client.create_producer(topic)
    producer.send_many([b"x", b"y"] if batched else [b"x"])
    for attempt in range(3):
        message = consumer.receive(WAIT)
        while message.data() == b"y":
            consumer.acknowledge(message, receipt=True)
            message = consumer.receive(WAIT)
        assert message.redelivery_count() == attempt
        txn = client.transaction()
        consumer.reconsume_later(message, 0, {"try": str(attempt)}, txn=txn)
        if attempt < 2:
            txn.abort()
    if batched:
        while True:
            try:
                consumer.acknowledge(consumer.receive(300))
            except velaray.Timeout:
                break
    else:
        nothing_comes(consumer)
    txn.commit()
    copy = consumer.receive(WAIT)
    properties = copy.properties()
    assert copy.data() == b"x" and properties["RECONSUMETIMES"] == "1"
    assert properties["try"] == "2" and properties["REAL_TOPIC"] == topic
    consumer.redeliver_unacknowledged_messages()
    assert consumer.receive(WAIT).message_id() == copy.message_id()
    nothing_comes(consumer)


def test_messages_are_reconsumed_up_to_the_limit_and_then_dead_lettered(cluster, client, topic):
    policy = ConsumerDeadLetterPolicy(2, f"{topic}-dead")
    consumer = client.subscribe(topic, "s", enable_retry=True, dead_letter_policy=policy, **SHARED)
    client.create_producer(topic).send(b"x", partition_key="k")
    for times in range(3):
        with client.transaction() as txn:
            message = consumer.receive(WAIT)
            assert int(message.properties().get("RECONSUMETIMES", 0)) == times
            consumer.reconsume_later(message, txn=txn)
    dead = client.subscribe(f"{topic}-dead", "look", **SHARED).receive(WAIT)
    assert (dead.data(), dead.partition_key()) == (b"x", "k")
    nothing_comes(consumer)
    admin = velaray.Admin(cluster.admin_url)
    places = (f"{topic}-s-RETRY", f"{topic}-dead")
    assert all(admin.stats(place)["publishers"] for place in places)
    consumer.close()
    assert not any(admin.stats(place)["publishers"] for place in places)


@pytest.mark.parametrize("how", ["commit", "abort", "plain"])
def test_a_message_can_be_dead_lettered_at_once(client, topic, how):
    policy = ConsumerDeadLetterPolicy(5, initial_subscription_name="look")
    consumer = client.subscribe(topic, "s", dead_letter_policy=policy, **SHARED)
    client.create_producer(topic).send(b"poison", {"a": "b"})
    message = consumer.receive(WAIT)
    if how == "plain":
        consumer.dead_letter(message, {"why": "broken"})
    else:
        txn = client.transaction()
        consumer.dead_letter(message, {"why": "broken"}, txn=txn)
        txn.commit() if how == "commit" else txn.abort()
    letters = client.subscribe(f"{topic}-s-DLQ", "look", **SHARED)
    if how == "abort":
        nothing_comes(letters)
        assert consumer.receive(WAIT).data() == b"poison"
    else:
        dead = letters.receive(WAIT)
        assert dead.properties().items() >= {"a": "b", "why": "broken"}.items()
        consumer.redeliver_unacknowledged_messages()
        nothing_comes(consumer)
    plain = client.subscribe(topic, "t", **SHARED)
    with pytest.raises(velaray.InvalidConfiguration):
        plain.dead_letter(message)


def test_the_asyncio_client_has_the_same_operations(cluster, topic):
    async def scenario():
        async with aio.Client(cluster.service_url) as client:
            producer = await client.create_producer(topic)
            consumer = await client.subscribe(topic, "s", enable_retry=True, **SHARED)
            await producer.send_many([b"a", b"b", b"c"])
            batch = await consumer.receive_many(1, WAIT)
            b, c = [await consumer.receive(WAIT) for _ in range(2)]
            async with await client.new_transaction() as txn:
                await producer.send_many([b"d"], txn=txn)
                await consumer.acknowledge_many(batch, txn=txn)
                await consumer.reconsume_later(b, txn=txn)
                await consumer.dead_letter(c, txn=txn)
            left = {(await consumer.receive(WAIT)).data() for _ in range(2)}
            assert left == {b"b", b"d"}
            letters = await client.subscribe(f"{topic}-s-DLQ", "look", **SHARED)
            assert (await letters.receive(WAIT)).data() == b"c"
        async with aio.Client(cluster.service_url) as client, aio.Client(cluster.service_url) as b:
            producer = await client.create_producer(topic)
            with pytest.raises(velaray.InvalidConfiguration):
                await producer.send(b"never", txn=await b.new_transaction())

    asyncio.run(scenario())

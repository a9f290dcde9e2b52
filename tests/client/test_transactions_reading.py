"""What readers and consumers get of transactions: of large, delayed and compacted messages, and
whether a reader knows that there is something."""

import asyncio
import itertools
import time

import pulsar
import pytest

import velaray
from tests.support.waiting import wait_until
from velaray import ConsumerType, InitialPosition, MessageId, aio

WAIT = 20_000
EARLIEST = InitialPosition.Earliest
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST}


def nothing_comes(consumer, for_ms=300):
    with pytest.raises(velaray.Timeout):
        message = consumer.receive(for_ms)
        raise AssertionError(f"{message.data()[:20]!r} came")


def contents(consumer, count):
    return [consumer.receive(WAIT).data() for _ in range(count)]


# -- chunks --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_a_large_message_is_visible_completely_or_not_at_all(client, topic, kind):
    options = SHARED | {"consumer_type": kind}
    consumer = client.subscribe(topic, "s", **options)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = b"0123456789" * 1_200_000
    aborted, txn = client.transaction(), client.transaction()
    producer.send(b"-" + large, txn=aborted)
    producer.send(b"+" + large, txn=txn)
    producer.send(b"plain")
    aborted.abort()
    nothing_comes(consumer)
    txn.commit()
    first, second = consumer.receive(WAIT), consumer.receive(WAIT)
    assert first.data() == b"+" + large and second.data() == b"plain"
    again = client.transaction()
    consumer.acknowledge(first, txn=again)
    consumer.acknowledge(second, receipt=True)
    again.abort()
    back = consumer.receive(WAIT)
    assert back.data() == first.data() and back.redelivery_count() == 1
    with client.transaction() as last:
        consumer.acknowledge(back, txn=last)
    consumer.close()
    nothing_comes(client.subscribe(topic, "s", **options))


# -- delays --------------------------------------------------------------------------


def now_ms():
    return int(time.time() * 1000)


def test_a_delayed_message_is_delivered_when_due_and_committed(client, topic):
    consumer = client.subscribe(topic, "s", **SHARED)
    producer = client.create_producer(topic)
    due = now_ms() + 1000
    early, late, aborted = (client.transaction() for _ in range(3))
    producer.send(b"early", deliver_at=due, txn=early)
    producer.send(b"late", deliver_at=due, txn=late)
    producer.send(b"never", deliver_at=due, txn=aborted)
    early.commit()
    aborted.abort()
    assert consumer.receive(WAIT).data() == b"early" and now_ms() >= due
    nothing_comes(consumer)
    late.commit()
    assert consumer.receive(WAIT).data() == b"late"
    nothing_comes(consumer)


@pytest.mark.parametrize("restart", [False, True])
def test_an_aborted_delayed_message_is_never_delivered_and_leaves_the_backlog(
    cluster, client, topic, restart
):
    consumer = client.subscribe(topic, "s", **SHARED)
    producer = client.create_producer(topic)
    due = now_ms() + 700
    txn = client.transaction()
    producer.send(b"never", deliver_at=due, txn=txn)
    producer.send(b"plain", deliver_at=due)
    txn.abort()
    if restart:
        velaray.Admin(cluster.admin_url).unload(topic)
    message = consumer.receive(WAIT)
    assert message.data() == b"plain"
    consumer.acknowledge(message, receipt=True)
    nothing_comes(consumer)
    assert backlog(cluster, topic) == 0


def backlog(cluster, topic):
    stats = velaray.Admin(cluster.admin_url).stats(topic)
    return stats["subscriptions"]["s"]["msgBacklog"]


# -- compaction ----------------------------------------------------------------------


def compact(cluster, topic):
    admin = velaray.Admin(cluster.admin_url)
    admin.compact(topic)
    wait_until(lambda: admin.compaction_status(topic)["status"] == "SUCCESS")


def compacted(client, topic):
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=True)
    found = {}
    while reader.has_message_available():
        message = reader.read_next(WAIT)
        found[message.partition_key()] = message.data()
    reader.close()
    return found


@pytest.mark.parametrize("batching", [False, True])
def test_a_compacted_view_shows_only_committed_values(cluster, client, topic, batching):
    producer = client.create_producer(topic, batching_enabled=batching)
    values = {"a": b"a1", "b": b"b1"}
    for key, value in values.items():
        producer.send(value, partition_key=key)
    aborted = client.transaction()
    producer.send(b"a2", partition_key="a", txn=aborted)
    producer.send(None, partition_key="b", txn=aborted)
    assert compacted(client, topic) == values
    aborted.abort()
    compact(cluster, topic)
    assert compacted(client, topic) == values
    txn = client.transaction()
    producer.send(b"a3", partition_key="a", txn=txn)
    producer.send(b"c1", partition_key="c", txn=txn)
    producer.send(b"b2", partition_key="b")
    compact(cluster, topic)
    assert compacted(client, topic) == values
    txn.commit()
    values = {"a": b"a3", "b": b"b2", "c": b"c1"}
    assert compacted(client, topic) == values
    compact(cluster, topic)
    assert compacted(client, topic) == values


@pytest.mark.parametrize("by", ["one by one", "cumulative", "nobody there"])
def test_compacted_readers_can_acknowledge_in_transactions(cluster, client, topic, by):
    producer = client.create_producer(topic)
    producer.send_many([b"%d" % n for n in range(8)], [f"k{n % 4}" for n in range(8)])
    compact(cluster, topic)
    options = {"initial_position": EARLIEST, "is_read_compacted": True}
    consumer = client.subscribe(topic, "s", **options)
    expected = [b"4", b"5", b"6", b"7"]

    def acknowledge(messages, txn):
        if by == "cumulative":
            consumer.acknowledge_cumulative(messages[-1], txn=txn)
        else:
            consumer.acknowledge_many(messages, txn=txn)

    messages = [consumer.receive(WAIT) for _ in range(4)]
    assert [message.data() for message in messages] == expected
    txn = client.transaction()
    acknowledge(messages, txn)
    txn.abort()
    if by == "cumulative":
        nothing_comes(consumer)
        consumer.redeliver_unacknowledged_messages()
    messages = [consumer.receive(WAIT) for _ in range(4)]
    assert [message.data() for message in messages] == expected
    txn = client.transaction()
    acknowledge(messages, txn)
    if by == "nobody there":
        consumer.close()
        producer.send_many([b"8"], ["k0"])
        compact(cluster, topic)  # a view without one of those that are pending
    txn.commit()
    if by == "nobody there":
        consumer = client.subscribe(topic, "s", **options)
        assert contents(consumer, 1) == [b"8"]
    consumer.redeliver_unacknowledged_messages()
    if by == "nobody there":
        assert contents(consumer, 1) == [b"8"]
    nothing_comes(consumer)


def test_a_reader_cannot_acknowledge_in_a_transaction(client, topic):
    client.create_producer(topic).send(b"x")
    reader = client.create_reader(topic, MessageId.earliest)
    message = reader.read_next(WAIT)
    consumer = client.subscribe(topic, "s", **SHARED)
    txn = client.transaction()
    part = next(iter(reader._base.topics.parts.values()))
    where = (message.message_id().ledger_id(), message.message_id().entry_id())

    async def acknowledge() -> None:
        await part.acks.acknowledge_in(txn.inner, {where: (0, 0)})

    with pytest.raises(velaray.NotAllowedError):
        client._thread.run(acknowledge())
    with pytest.raises(velaray.TransactionHasOperationFailed):
        txn.commit()
    assert consumer.receive(WAIT).data() == b"x"


# -- clients that know no transactions ---------------------------------------------


@pytest.mark.parametrize("batching", [False, True])
def test_the_official_client_gets_committed_messages(client, official, topic, batching):
    producer = client.create_producer(topic, batching_enabled=batching)
    consumer = official.subscribe(
        topic,
        "s",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=30,
    )
    reader = official.create_reader(topic, pulsar.MessageId.earliest)

    def read():
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(WAIT).data())
        return found

    aborted, txn = client.transaction(), client.transaction()
    for number in range(6):
        part = (None, aborted, txn)[number % 3]
        producer.send(b"%d" % number, **({"txn": part} if part else {}))
    assert read() == [b"0"]
    aborted.abort()
    assert read() == []
    txn.commit()
    assert read() == [b"2", b"3", b"5"]
    messages = [consumer.receive(WAIT) for _ in range(4)]
    assert [message.data() for message in messages] == [b"0", b"2", b"3", b"5"]
    for message in messages:
        consumer.negative_acknowledge(message)
    again = sorted(consumer.receive(WAIT).data() for _ in range(4))
    assert again == [b"0", b"2", b"3", b"5"]
    with client.transaction() as last:
        producer.send(b"never", txn=last)
        last.abort()
    assert read() == []


# -- knowing that there is something --------------------------------------------------


async def read_all(reader):
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(WAIT)).data())
    return b"".join(found)


async def log_of(client, topic, kinds):
    """A topic with such entries; the transactions that are open."""
    producer = await client.create_producer(topic)
    still_open = []
    for number, kind in enumerate(kinds):
        if kind == "d":
            await producer.send(b"%d" % number)
            continue
        txn = await client.new_transaction()
        await producer.send(b"%d" % number, txn=txn)
        if kind == "o":
            still_open.append(txn)
        else:
            await (txn.abort() if kind == "a" else txn.commit())
    return producer, still_open


async def check_log(client, topic, kinds):
    producer, still_open = await log_of(client, topic, kinds)
    decided = kinds[: kinds.index("o")] if "o" in kinds else kinds
    readable = b"".join(b"%d" % n for n, kind in enumerate(decided) if kind in "dc")
    reader = await client.create_reader(topic, MessageId.earliest)
    newest = await client.create_reader(topic, MessageId.latest)
    assert await read_all(reader) == readable, kinds
    assert await read_all(newest) == b"", kinds
    with pytest.raises(velaray.Timeout):
        await reader.read_next(30)
    for txn in still_open:
        await txn.abort()
    rest = b"".join(b"%d" % n for n, kind in enumerate(kinds) if kind in "dc")[len(readable) :]
    assert await read_all(reader) == rest, kinds
    await producer.send(b"!")
    assert await read_all(reader) == await read_all(newest) == b"!", kinds
    for each in (reader, newest, producer):
        await each.close()


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_has_message_available_is_true_exactly_if_a_message_follows(cluster, topic, length):
    """The log may end with any entries: data, aborted, open, committed (T13)."""

    async def scenario():
        async with aio.Client(cluster.service_url) as client:
            room = asyncio.Semaphore(20)

            async def one(kinds):
                async with room:
                    await check_log(client, f"{topic}-{''.join(kinds)}", kinds)

            letters = "dao" if length > 2 else "daoc"
            logs = itertools.product(letters, repeat=length)
            await asyncio.gather(*(one("".join(kinds)) for kinds in logs))

    asyncio.run(scenario())

"""Histories of transactions that Pulsar's own tests tell, and some that its users complain of.

`docs/testing.md` has the table that says where each is shown.
"""

import asyncio
import itertools
from collections import Counter
from random import Random

import pytest

import velaray
from tests.support.waiting import wait_until
from velaray import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition, aio
from velaray.events.ids import ActorKind

WAIT = 20_000
EARLIEST = InitialPosition.Earliest
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": EARLIEST}


@pytest.fixture
def admin(cluster):
    return velaray.Admin(cluster.admin_url)


def nothing_comes(consumer):
    with pytest.raises(velaray.Timeout):
        message = consumer.receive(300)
        raise AssertionError(f"{message.data()!r} came")


def contents(consumer, count):
    return [consumer.receive(WAIT).data() for _ in range(count)]


def subscription(admin, topic, name="s"):
    return admin.stats(topic)["subscriptions"][name]


def unacked(admin, topic):
    return sum(each["unackedMessages"] for each in subscription(admin, topic)["consumers"])


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_has_a_thousand_messages_over_partitions(
    client, topic, catalog, admin, batching, commit
):
    catalog.partitioned(topic, 3)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer = client.create_producer(topic, batching_enabled=batching, block_if_queue_full=True)
    txn = client.transaction()
    for number in range(1200):
        producer.send_async(b"%d" % number, partition_key=f"k{number % 10}", txn=txn)
    producer.flush()
    nothing_comes(consumer)
    txn.commit() if commit else txn.abort()
    producer.send(b"plain", partition_key="k1")
    seen = {}
    messages = [consumer.receive(WAIT) for _ in range(1201 if commit else 1)]
    for message in messages:
        seen.setdefault(message.topic_name(), []).append(message.data())
        consumer.acknowledge(message)
    assert sum(map(len, seen.values())) == len(messages)
    numbers = [[int(each) for each in part if each != b"plain"] for part in seen.values()]
    assert all(part == sorted(part) for part in numbers)
    if commit:
        assert sorted(itertools.chain(*numbers)) == list(range(1200))
    nothing_comes(consumer)
    parts = [f"{topic}-partition-{number}" for number in range(3)]
    wait_until(lambda: all(subscription(admin, part)["msgBacklog"] == 0 for part in parts))


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Failover])
@pytest.mark.parametrize("batch", [False, True])
def test_aborted_acks_are_redelivered_and_committed_ones_conflict(
    client, topic, admin, kind, batch
):
    consumer = client.subscribe(topic, "s", **SHARED | {"consumer_type": kind})
    producer = client.create_producer(topic)
    values = [b"%d" % number for number in range(6)]
    if batch:
        producer.send_many(values)
    else:
        for value in values:
            producer.send(value)
    for attempt in range(2):
        messages = [consumer.receive(WAIT) for _ in range(6)]
        assert [message.data() for message in messages] == values
        txn = client.transaction()
        for message in messages:
            consumer.acknowledge(message, txn=txn)
        if kind == ConsumerType.Shared:
            assert unacked(admin, topic) == 0
        assert subscription(admin, topic)["msgBacklog"] == (1 if batch else 6)
        txn.abort() if attempt == 0 else txn.commit()
    assert subscription(admin, topic)["msgBacklog"] == 0
    with client.transaction() as third:
        with pytest.raises(velaray.TransactionConflict):
            consumer.acknowledge(messages[2], txn=third)
        third.abort()
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


@pytest.mark.parametrize("batch", [False, True])
def test_cumulative_acks_move_only_forward_and_an_abort_keeps_the_order(
    client, topic, admin, batch
):
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    values = [b"%d" % number for number in range(8)]
    for first in range(0, 8, 4):
        if batch:
            producer.send_many(values[first : first + 4])
        else:
            for value in values[first : first + 4]:
                producer.send(value)
    messages = [consumer.receive(WAIT) for _ in range(8)]
    first, second = client.transaction(), client.transaction()
    consumer.acknowledge_cumulative(messages[4], txn=first)
    consumer.acknowledge_cumulative(messages[4], txn=first)  # a repetition changes nothing
    for txn, message in ((first, 2), (second, 6), (second, 4), (second, 1)):
        with pytest.raises(velaray.TransactionConflict):
            consumer.acknowledge_cumulative(messages[message], txn=txn)
    first.abort()
    second.abort()
    nothing_comes(consumer)  # the client holds them: it says when it wants them again
    consumer.redeliver_unacknowledged_messages()
    messages = [consumer.receive(WAIT) for _ in range(8)]
    assert [message.data() for message in messages] == values
    third = client.transaction()
    consumer.acknowledge_cumulative(messages[2], txn=third)
    consumer.acknowledge_cumulative(messages[5], txn=third)
    third.commit()
    consumer.redeliver_unacknowledged_messages()
    assert contents(consumer, 2) == [b"6", b"7"]
    assert subscription(admin, topic)["msgBacklog"] == (1 if batch else 2)


@pytest.mark.parametrize("batch", [False, True])
def test_the_count_of_unacknowledged_messages_equals_the_held_ones(client, topic, admin, batch):
    """The backlog is derived, so no mixture of acknowledgements makes it negative (T9)."""
    consumer = client.subscribe(topic, "s", batch_index_ack_enabled=True, **SHARED)
    producer = client.create_producer(topic)
    values = [b"%d" % number for number in range(6)]
    if batch:
        producer.send_many(values)
    else:
        for value in values:
            producer.send(value)
    messages = [consumer.receive(WAIT) for _ in range(6)]
    wait_until(lambda: unacked(admin, topic) == 6)
    one, two = client.transaction(), client.transaction()
    consumer.acknowledge_many(messages[:2], txn=one)
    assert unacked(admin, topic) == 4
    consumer.acknowledge(messages[2], txn=two)
    consumer.acknowledge(messages[3], receipt=True)
    assert unacked(admin, topic) == 2
    one.abort()  # of a batch the consumer gets the rest of the entry anew as well
    back = 4 if batch else 2
    again = [consumer.receive(WAIT) for _ in range(back)]
    expected = [b"0", b"1", b"4", b"5"] if batch else [b"0", b"1"]
    assert sorted(message.data() for message in again) == expected
    wait_until(lambda: unacked(admin, topic) == 4)
    two.commit()
    assert unacked(admin, topic) == 4
    with client.transaction() as three:
        consumer.acknowledge_many(again, txn=three)
        if not batch:
            consumer.acknowledge_many(messages[4:], txn=three)
    assert unacked(admin, topic) == 0
    assert subscription(admin, topic)["msgBacklog"] == 0
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


def test_a_client_that_dies_in_a_transaction_leaves_its_messages_to_others(cluster, topic):
    """After the timeout another consumer gets them, exactly once (T4)."""
    with velaray.Client(cluster.service_url) as client:
        client.create_producer(topic).send_many([b"1", b"2", b"3"])
        victim = velaray.Client(cluster.service_url)
        consumer = victim.subscribe(topic, "s", **SHARED)
        txn = victim.transaction(timeout=1.5)
        for message in [consumer.receive(WAIT) for _ in range(3)]:
            consumer.acknowledge(message, txn=txn)
        victim.shutdown()
        other = client.subscribe(topic, "s", **SHARED)
        nothing_comes(other)  # it is pending, and stays that while the transaction may commit
        messages = [other.receive(WAIT) for _ in range(3)]
        assert sorted(message.data() for message in messages) == [b"1", b"2", b"3"]
        with client.transaction() as mine:
            other.acknowledge_many(messages, txn=mine)
        other.redeliver_unacknowledged_messages()
        nothing_comes(other)


def test_a_transaction_refuses_operations_after_its_timeout_at_the_client(client, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer.send(b"x")
    message = consumer.receive(WAIT)
    txn = client.transaction(timeout=0.2)
    wait_until(lambda: txn.state == velaray.TransactionState.TIME_OUT)
    for work in (
        lambda: producer.send(b"late", txn=txn),
        lambda: consumer.acknowledge(message, txn=txn),
        lambda: consumer.dead_letter(message, txn=txn),
        txn.commit,
        txn.abort,
    ):
        with pytest.raises((velaray.InvalidTxnStatusError, velaray.InvalidConfiguration)):
            work()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("service", [False, True])
def test_aborts_count_as_failed_deliveries(cluster, client, topic, admin, batch, service):
    """Whether the client or the service moves dead letters."""
    dead = f"{topic}-dead"
    options = {}
    if service:
        client.create_producer(topic).close()
        dead = f"{topic}-s-DLQ"
        admin.set_policy_of(topic, "deadLetter", {"maxRedeliverCount": 2})
        key = next(key for key in cluster.keys(ActorKind.PARTITION) if str(key.topic_name) == topic)
        wait_until(lambda: cluster.actor_system.actors[key].policies.raw["deadLetter"])
    else:
        options["dead_letter_policy"] = ConsumerDeadLetterPolicy(2, dead)
    consumer = client.subscribe(topic, "s", **SHARED, **options)
    producer = client.create_producer(topic)
    values = [b"1", b"2"] if batch else [b"1"]
    producer.send_many(values)
    for attempt in range(3):
        messages = [consumer.receive(WAIT) for _ in values]
        assert {message.redelivery_count() for message in messages} == {attempt}
        txn = client.transaction()
        consumer.acknowledge_many(messages, txn=txn)
        txn.abort()
    letters = client.subscribe(dead, "look", **SHARED)
    assert sorted(contents(letters, len(values))) == values
    nothing_comes(consumer)
    wait_until(lambda: subscription(admin, topic)["msgBacklog"] == 0)


@pytest.mark.parametrize("how", ["one by one", "cumulative"])
def test_pending_acks_are_accepted_and_refused_equally_after_an_unload(client, topic, admin, how):
    kind = ConsumerType.Shared if how == "one by one" else ConsumerType.Exclusive
    consumer = client.subscribe(topic, "s", **SHARED | {"consumer_type": kind})
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number)
    messages = [consumer.receive(WAIT) for _ in range(6)]

    def acknowledge(number, txn):
        if how == "cumulative":
            consumer.acknowledge_cumulative(messages[number], txn=txn)
        else:
            consumer.acknowledge(messages[number], txn=txn)

    committed, aborted, still_open = (client.transaction() for _ in range(3))
    acknowledge(0, committed)
    committed.commit()
    acknowledge(1, aborted)
    aborted.abort()
    acknowledge(2, still_open)
    verdicts = []
    for _ in range(2):
        other = client.transaction()
        found = []
        for number in (0, 2, 1):
            try:
                acknowledge(number, other)
                found.append("taken")
            except velaray.TransactionConflict:
                found.append("conflict")
        verdicts.append(found)
        other.abort()
        admin.unload(topic)
    assert verdicts[0] == verdicts[1]
    assert verdicts[0][:2] == ["conflict", "conflict"]
    assert verdicts[0][2] == ("taken" if how == "one by one" else "conflict")
    still_open.commit()
    consumer.close()
    again = client.subscribe(topic, "s", **SHARED)
    left = [b"1", b"3", b"4", b"5"] if how == "one by one" else [b"3", b"4", b"5"]
    assert sorted(contents(again, len(left))) == left
    nothing_comes(again)


def test_names_that_look_alike_when_joined_share_nothing(client, topic, admin):
    """Topic ``a-b`` with subscription ``c``, and ``a`` with ``b-c`` (CD-3)."""
    places = [(f"{topic}-b", "c"), (topic, "b-c")]
    consumers, txns = [], []
    for place, name in places:
        client.create_producer(place).send_many([b"1", b"2"])
        consumer = client.subscribe(place, name, **SHARED)
        txn = client.transaction()
        consumer.acknowledge(consumer.receive(WAIT), txn=txn)
        consumers.append(consumer)
        txns.append(txn)
    for place, _ in places:
        admin.unload(place)
    txns[0].commit()
    txns[1].abort()
    for consumer in consumers:
        consumer.close()
    assert contents(client.subscribe(*places[0], **SHARED), 1) == [b"2"]
    other = client.subscribe(*places[1], **SHARED)
    assert sorted(contents(other, 2)) == [b"1", b"2"]
    nothing_comes(other)


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_aborted_messages_are_never_delivered_over_many_redeliveries(client, topic, kind):
    """Random transactions, and consumers that come, go, and ask for everything again (T5)."""
    random = Random(5)
    options = SHARED | {"consumer_type": kind}
    producer = client.create_producer(topic)
    consumers = [client.subscribe(topic, "s", **options)]
    expected, still_open = set(), []
    for number in range(120):
        if random.random() < 0.4 or not still_open:
            still_open.append((client.transaction(), []))
        txn, sent = random.choice(still_open)
        producer.send(b"%d" % number, partition_key=f"{number % 5}", txn=txn)
        sent.append(b"%d" % number)
        if random.random() < 0.4:
            ended = still_open.pop(random.randrange(len(still_open)))
            if random.random() < 0.5:
                ended[0].abort()
            else:
                ended[0].commit()
                expected.update(ended[1])
        match random.randrange(8):
            case 0:
                consumers.append(client.subscribe(topic, "s", **options))
            case 1 if len(consumers) > 1:
                consumers.pop(0).close()
            case 2:
                random.choice(consumers).redeliver_unacknowledged_messages()
    for txn, _ in still_open:
        txn.abort()
    for consumer in consumers[1:]:
        consumer.close()
    found = set()
    while found != expected:
        message = consumers[0].receive(WAIT)
        assert message.data() in expected
        consumers[0].acknowledge(message)
        found.add(message.data())


@pytest.mark.parametrize("kind", [ActorKind.COORDINATOR, ActorKind.PARTITION])
def test_servers_killed_during_any_operation_lose_nothing(cluster, topic, kind):
    """Every operation ends; what was committed comes once, what wasn't never does."""
    rounds = 12

    async def one(client, producer, number):
        txn = await client.new_transaction()
        for part in range(3):
            await producer.send(b"%d.%d" % (number, part), txn=txn)
        if number % 3 == 2:
            await txn.abort()
            return []
        await txn.commit()
        return [b"%d.%d" % (number, part) for part in range(3)]

    async def keys():
        return cluster.keys(kind)

    async def kill(done):
        while not done.is_set():
            for key in await asyncio.to_thread(cluster.run, keys()):
                await asyncio.to_thread(cluster.kill, key)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.15):
                        await done.wait()
                        raise TimeoutError

    async def scenario():
        async with aio.Client(cluster.service_url, operation_timeout_seconds=60) as client:
            producer = await client.create_producer(topic)
            consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
            done = asyncio.Event()
            killing = asyncio.create_task(kill(done))
            works = (one(client, producer, number) for number in range(rounds))
            expected = Counter(itertools.chain(*await asyncio.gather(*works)))
            done.set()
            await killing
            found = Counter()
            for _ in range(expected.total()):
                message = await consumer.receive(WAIT)
                await consumer.acknowledge(message, receipt=True)
                found[message.data()] += 1
            assert found == expected
            with pytest.raises(velaray.Timeout):
                await consumer.receive(300)

    asyncio.run(scenario())

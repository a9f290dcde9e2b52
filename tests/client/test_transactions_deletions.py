"""Participants that are unloaded, deleted, or created anew while a transaction is open: they do
not block its completion."""

import pytest

import velaray
from velaray import ConsumerType, InitialPosition
from velaray.events.ids import ActorKind

WAIT = 20_000
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": InitialPosition.Earliest}


@pytest.fixture
def admin(cluster):
    return velaray.Admin(cluster.admin_url)


def nothing_comes(consumer):
    with pytest.raises(velaray.Timeout):
        message = consumer.receive(300)
        raise AssertionError(f"{message.data()!r} came")


def contents(consumer, count):
    return sorted(consumer.receive(WAIT).data() for _ in range(count))


def unfinished(cluster):
    actors = [cluster.actor_system.actors[key] for key in cluster.keys(ActorKind.COORDINATOR)]
    return [each for actor in actors for each in actor.runtime.state.unfinished.values()]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_transaction_survives_the_deletion_of_a_topic(
    cluster, client, topic, admin, catalog, partitions, commit
):
    gone, out = f"{topic}-gone", f"{topic}-out"
    if partitions:
        catalog.partitioned(gone, partitions)
    producer = client.create_producer(gone)
    producer.send_many([b"1", b"2"])
    consumer = client.subscribe(gone, "s", **SHARED)
    sink, reader = client.create_producer(out), client.subscribe(out, "s", **SHARED)
    txn = client.transaction()
    for _ in range(2):
        consumer.acknowledge(consumer.receive(WAIT), txn=txn)
    producer.send_many([b"3"] * 4, [f"{n}" for n in range(4)], txn=txn)
    sink.send(b"out", txn=txn)
    producer.close()
    consumer.close()
    admin.delete_topic(gone, force=True)
    if commit:
        txn.commit()
        assert contents(reader, 1) == [b"out"]
    else:
        txn.abort()
        nothing_comes(reader)
    assert not unfinished(cluster)
    again = client.subscribe(gone, "s", **SHARED)  # of a topic of the same name
    client.create_producer(gone).send(b"new")
    assert contents(again, 1) == [b"new"]
    nothing_comes(again)


def test_a_topic_recreated_during_a_transaction_is_not_part_of_it(cluster, client, topic, admin):
    producer = client.create_producer(topic)
    txn = client.transaction()
    producer.send(b"old", txn=txn)
    producer.close()
    admin.delete_topic(topic, force=True)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer = client.create_producer(topic)
    producer.send(b"new", txn=txn)
    producer.send(b"plain")
    nothing_comes(consumer)
    txn.commit()
    assert contents(consumer, 2) == [b"new", b"plain"]
    assert not unfinished(cluster)


def test_a_transaction_survives_the_deletion_of_a_namespace(cluster, client, admin):
    admin.create_namespace("public/temporary")
    topic = "persistent://public/temporary/t"
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer.send(b"1")
    txn = client.transaction()
    producer.send(b"2", txn=txn)
    consumer.acknowledge(consumer.receive(WAIT), txn=txn)
    producer.close()
    consumer.close()
    admin.delete_topic(topic, force=True)
    admin.delete_namespace("public/temporary")
    txn.commit()
    assert not unfinished(cluster)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_survives_the_deletion_of_a_subscription(
    cluster, client, topic, admin, commit
):
    """One made anew under its name is another one: nothing that was pending counts there."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer.send(b"1")
    txn = client.transaction()
    consumer.acknowledge(consumer.receive(WAIT), txn=txn)
    consumer.unsubscribe()
    again = client.subscribe(topic, "s", **SHARED)
    message = again.receive(WAIT)
    txn.commit() if commit else txn.abort()
    assert not unfinished(cluster)
    journals = cluster.run(cluster.actor_system.store.list_journals())
    name = topic.rpartition("/")[2]
    assert len([each for each in journals if each.startswith("subscription") and name in each]) == 1
    with client.transaction() as other:
        again.acknowledge(message, txn=other)
    again.redeliver_unacknowledged_messages()
    nothing_comes(again)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_continues_on_an_unloaded_topic(client, topic, admin, commit):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    producer.send(b"1")
    txn = client.transaction()
    message = consumer.receive(WAIT)
    producer.send(b"2", txn=txn)
    consumer.acknowledge(message, txn=txn)
    admin.unload(topic)
    producer.send(b"3", txn=txn)
    nothing_comes(consumer)
    admin.unload(topic)
    txn.commit() if commit else txn.abort()
    assert contents(consumer, 2 if commit else 1) == ([b"2", b"3"] if commit else [b"1"])
    nothing_comes(consumer)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_completes_on_a_terminated_topic(client, topic, catalog, commit):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", **SHARED)
    txn, failing = client.transaction(), client.transaction()
    producer.send(b"1")
    producer.send(b"2", txn=txn)
    catalog.terminate(topic)
    with pytest.raises(velaray.TopicTerminated):
        producer.send(b"3", txn=failing)
    with pytest.raises(velaray.TransactionHasOperationFailed):
        failing.commit()
    assert contents(consumer, 1) == [b"1"]
    txn.commit() if commit else txn.abort()
    if commit:
        assert contents(consumer, 1) == [b"2"]
    nothing_comes(consumer)


def test_producers_and_consumers_may_be_closed_before_the_commit(client, topic):
    """Producers and consumers may go; what they did in the transaction stays in it."""
    with client.transaction() as txn:
        with client.create_producer(topic) as producer:
            producer.send_async(b"1", txn=txn)
        with client.subscribe(topic, "s", **SHARED):
            pass
    assert contents(client.subscribe(topic, "s", **SHARED), 1) == [b"1"]

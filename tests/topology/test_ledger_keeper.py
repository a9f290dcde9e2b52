"""Trimmed ledgers are enqueued, then dropped from the manifest, for every crash; over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.runtime import Runtime
from velaray.broker import journaled_actor
from velaray.broker.catalog.messages import DeletedTopics
from velaray.broker.garbage_collection import deletion, ledger_keeper, topic_deletion
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.journal.garbage_collection import Fate, dispose
from velaray.journal.journal import JournalSettings
from velaray.journal.replay import load_manifest, verify
from velaray.topology.actor_system import Unreachable

SMALL = JournalSettings(roll_records=20)
WITHIN_S = 20.0


class Announcements:
    """Takes the place of the deletion topics; each may be refused."""

    def __init__(self) -> None:
        self.told: dict[str, list[int]] = {}
        self.refusing = False

    async def __call__(self, actor_system: Any, key: ActorKey, ledger_ids: Sequence[int]) -> None:
        if self.refusing:
            raise Unreachable("no deleter")
        self.told.setdefault(key.text(), []).extend(ledger_ids)


@pytest.fixture
def told(monkeypatch) -> Announcements:
    found = Announcements()
    monkeypatch.setattr(ledger_keeper, "enqueue_deletion", found)
    monkeypatch.setattr(deletion, "enqueue_deletion", found)
    return found


@pytest.fixture
def cluster(tmp_path, told):
    with LocalCluster(tmp_path, deleters=1) as running:
        running.actor_system.journal_settings = SMALL
        yield running


@pytest.fixture
def client(cluster):
    with velaray.Client(cluster.service_url) as made:
        yield made


def actor(cluster: Any, topic: str, kind: ActorKind = ActorKind.PARTITION) -> Any:
    name = TopicName.parse(topic)
    (key,) = [key for key in cluster.keys(kind) if key.topic_name == name]
    return cluster.actor_system.actors[key]


def send_and_acknowledge(client: Any, topic: str, count: int = 70, size: int = 10) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    for _ in range(count):
        producer.send(b"x" * size)
    for _ in range(count):
        consumer.acknowledge(consumer.receive(10_000), receipt=True)
    consumer.close()
    producer.close()


def trim(cluster: Any, topic: str) -> None:
    cluster.run(actor(cluster, topic).maintenance.once())


def keep(cluster: Any, topic: str, kind: ActorKind = ActorKind.PARTITION) -> None:
    cluster.run(actor(cluster, topic, kind).keeper.once())


def listed(cluster: Any, key: ActorKey) -> list[int]:
    manifest = cluster.run(load_manifest(cluster.actor_system.store, key.text()))
    return [info.ledger_id for info in manifest.ledgers]


def stored(cluster: Any, key: ActorKey) -> list[int]:
    return cluster.run(cluster.actor_system.store.list_ledgers(key.text()))


def at_rest(actor: Any) -> None:
    """Wait until no roll-over is due or under way."""
    runtime = actor.runtime
    wait_until(lambda: not (runtime._roll_asked or runtime.journal._busy), WITHIN_S)


def test_deletion_of_trimmed_ledgers_is_enqueued_and_the_manifest_drops_them(cluster, client, told):
    send_and_acknowledge(client, "t")
    trim(cluster, "t")
    partition = actor(cluster, "t")
    trimmed, before = set(partition.runtime.state.trimmed), listed(cluster, partition.key)
    assert len(trimmed) >= 2
    keep(cluster, "t")
    gone = told.told[partition.key.text()]
    assert gone and set(gone) <= trimmed
    assert listed(cluster, partition.key) == [each for each in before if each not in gone]
    assert set(partition.runtime.state.trimmed) == trimmed - set(gone)
    assert stored(cluster, partition.key) == before  # somebody else deletes
    for ledger_id in gone:
        fate = cluster.run(dispose(cluster.actor_system.store, partition.key.text(), ledger_id))
        assert fate is Fate.DELETED
    send_and_acknowledge(client, "t")
    cluster.kill(partition.key)
    send_and_acknowledge(client, "t", 5)
    reports = cluster.run(verify(cluster.actor_system.store, partition.key.text()))
    assert not any(report.problems for report in reports)


def test_a_deletion_is_enqueued_again_if_the_manifest_drops_its_ledgers_slowly(
    cluster, client, told, monkeypatch
):
    """The first event may have become a dead letter while the ledgers were still listed."""
    monkeypatch.setattr(ledger_keeper, "SLOW_S", 0.2)
    monkeypatch.setattr(deletion, "SLOW_S", 0.2)
    send_and_acknowledge(client, "t")
    trim(cluster, "t")
    partition, store = actor(cluster, "t"), cluster.actor_system.store
    write = store.write_manifest

    async def slow(*args: Any) -> Any:
        await asyncio.sleep(0.3)
        return await write(*args)

    monkeypatch.setattr(store, "write_manifest", slow)
    keep(cluster, "t")
    gone = told.told.pop(partition.key.text())
    assert gone and len(gone) == 2 * len(set(gone))
    cluster.kill(partition.key)
    cluster.run(deletion.purge_journal(cluster.actor_system, partition.key))
    assert sorted(told.told[partition.key.text()]) == sorted(2 * stored(cluster, partition.key))


def test_ledgers_whose_deletion_cannot_be_enqueued_stay_in_the_manifest(cluster, client, told):
    send_and_acknowledge(client, "t")
    trim(cluster, "t")
    partition, told.refusing = actor(cluster, "t"), True
    before = listed(cluster, partition.key)
    with pytest.raises(Unreachable):
        keep(cluster, "t")
    assert listed(cluster, partition.key) == before
    told.refusing = False
    keep(cluster, "t")
    assert len(listed(cluster, partition.key)) < len(before)


@pytest.mark.parametrize("step", ["enqueue", "drop", "forget"])
def test_trimming_recovers_from_a_crash_after_any_step(cluster, client, told, monkeypatch, step):
    send_and_acknowledge(client, "t")
    trim(cluster, "t")
    partition = actor(cluster, "t")
    key, trimmed = partition.key, set(partition.runtime.state.trimmed)

    async def crash(*_: Any) -> None:
        cluster.actor_system.kill(key)
        raise asyncio.CancelledError

    if step == "forget":
        keep(cluster, "t")
        cluster.kill(key)
    else:
        owner, name = {
            "enqueue": (Runtime, "drop_from_manifest"),
            "drop": (PartitionActor, "ledgers_dropped"),
        }[step]
        with monkeypatch.context() as patched, pytest.raises(CancelledError):
            patched.setattr(owner, name, crash)
            keep(cluster, "t")
    send_and_acknowledge(client, "t", 3)
    keep(cluster, "t")
    left = set(actor(cluster, "t").runtime.state.trimmed)
    assert left < trimmed
    assert set(told.told[key.text()]) == trimmed - left
    assert not set(listed(cluster, key)) & (trimmed - left)


def test_a_large_ledger_needed_by_recovery_is_rolled_and_trimmed(
    cluster, client, told, monkeypatch
):
    monkeypatch.setattr(ledger_keeper, "ROLL_BYTES", 10_000)
    send_and_acknowledge(client, "t", 25, size=2_000)
    cluster.kill(actor(cluster, "t").key)
    send_and_acknowledge(client, "t", 1)
    trim(cluster, "t")
    partition = actor(cluster, "t")
    big = {
        info.ledger_id for info in partition.log.ledgers if info.bytes > 20_000
    } & partition.runtime.state.trimmed.keys()
    assert big

    def done() -> bool:
        trim(cluster, "t")
        keep(cluster, "t")
        return big <= set(told.told.get(partition.key.text(), ()))

    wait_until(done, WITHIN_S)
    at_rest(partition)
    rolls = partition.runtime.stats.rolls
    keep(cluster, "t")
    at_rest(partition)
    assert partition.runtime.stats.rolls == rolls  # small ones aren't worth it


def test_a_large_checkpoint_alone_causes_no_roll_over(cluster, client, told, monkeypatch):
    """Each roll-over would write another one, which would be as big a reason as the first."""
    monkeypatch.setattr(ledger_keeper, "ROLL_BYTES", 2_000)
    for number in range(30):
        with client.create_producer("t", producer_name=f"{number:0>100}") as producer:
            producer.send(b"x")
    send_and_acknowledge(client, "t", 30, size=100)
    partition, rolls = actor(cluster, "t"), []
    for _ in range(100):
        trim(cluster, "t")
        keep(cluster, "t")
        at_rest(partition)
        rolls.append(partition.runtime.stats.rolls)
    sizes = [info.data_offset for info in partition.log.ledgers]
    assert sizes[-1] > 2_000 and told.told
    assert rolls[50] == rolls[-1]


def test_journals_of_cursors_keep_limited_history(cluster, client, told, monkeypatch):
    monkeypatch.setattr(journaled_actor, "HISTORY_BYTES", 3_000)
    send_and_acknowledge(client, "t", 200)
    client.subscribe("t", "s").close()
    subscription = actor(cluster, "t", ActorKind.SUBSCRIPTION)
    before = listed(cluster, subscription.key)
    keep(cluster, "t", ActorKind.SUBSCRIPTION)
    gone = told.told[subscription.key.text()]
    left = before[len(gone) :]
    # The consumer's leaving may have led to a newer one.
    assert gone and listed(cluster, subscription.key)[: len(left)] == left
    assert sum(info.bytes for info in subscription.runtime.journal.ledgers) >= 3_000
    cluster.kill(subscription.key)
    consumer = client.subscribe("t", "s")
    client.create_producer("t").send(b"new")
    assert consumer.receive(10_000).data() == b"new"


def test_deleted_subscriptions_are_purged(cluster, client, told):
    send_and_acknowledge(client, "t")
    consumer = client.subscribe("t", "s")
    key = actor(cluster, "t", ActorKind.SUBSCRIPTION).key
    consumer.unsubscribe()
    assert told.told[key.text()] == stored(cluster, key)
    assert cluster.run(load_manifest(cluster.actor_system.store, key.text())).dead
    assert not actor(cluster, "t").runtime.state.deleted


def test_a_subscription_whose_purge_fails_is_still_deleted(cluster, client, told):
    send_and_acknowledge(client, "t")
    consumer, told.refusing = client.subscribe("t", "s"), True
    key = actor(cluster, "t", ActorKind.SUBSCRIPTION).key
    consumer.unsubscribe()
    assert actor(cluster, "t").runtime.state.deleted
    told.refusing = False
    wait_until(lambda: not actor(cluster, "t").runtime.state.deleted, WITHIN_S)
    assert cluster.run(load_manifest(cluster.actor_system.store, key.text())).dead


def test_a_deleted_topic_is_purged_with_all_its_journals(cluster, client, told):
    send_and_acknowledge(client, "t")
    keys = [actor(cluster, "t").key, actor(cluster, "t", ActorKind.SUBSCRIPTION).key]
    velaray.Admin(cluster.admin_url).delete_topic("t", force=True)
    assert told.told == {key.text(): stored(cluster, key) for key in keys}
    assert deleted_topics(cluster) == []
    for key in keys:
        assert cluster.run(load_manifest(cluster.actor_system.store, key.text())).dead


def deleted_topics(cluster: Any) -> list[Any]:
    return cluster.run(cluster.actor_system.request(ActorKey.catalog(), DeletedTopics()))


@pytest.mark.parametrize("crashing", [False, True])
def test_a_forced_namespace_is_purged_with_all_its_topics(cluster, client, told, crashing):
    admin = velaray.Admin(cluster.admin_url)
    admin.create_namespace("public/big")
    admin.create_topic("persistent://public/big/many", partitions=2)
    for topic in ("persistent://public/big/one", "persistent://public/big/many-partition-1"):
        send_and_acknowledge(client, topic, 10)
    consumer = client.subscribe("persistent://public/big/one", "s")
    keys = [key for key in cluster.actor_system.actors if key.namespace == "big"]
    with pytest.raises(velaray.client.admin.Conflict, match="2 topics"):
        admin.delete_namespace("public/big")
    if crashing:
        told.refusing = True
        with pytest.raises(velaray.PulsarException):
            admin.delete_namespace("public/big", force=True)
        told.refusing = False
        cluster.kill(ActorKey.catalog())
    else:
        admin.delete_namespace("public/big", force=True)
    wait_until(lambda: not deleted_topics(cluster), WITHIN_S)
    assert "public/big" not in admin.namespaces("public")
    kinds = {key.kind for key in keys}
    assert kinds >= {ActorKind.PARTITION, ActorKind.SUBSCRIPTION}
    assert set(told.told) >= {key.text() for key in keys if stored(cluster, key)}
    for key in keys:
        if stored(cluster, key):
            assert cluster.run(load_manifest(cluster.actor_system.store, key.text())).dead
    with pytest.raises(velaray.PulsarException):
        consumer.receive(WITHIN_S * 1000)


def test_the_catalog_finishes_a_purge_that_failed(cluster, client, told):
    send_and_acknowledge(client, "t")
    told.refusing = True
    with pytest.raises(velaray.PulsarException):
        velaray.Admin(cluster.admin_url).delete_topic("t", force=True)
    assert [deleted_topic["due"] for deleted_topic in deleted_topics(cluster)] == [True]
    told.refusing = False
    cluster.kill(ActorKey.catalog())
    wait_until(lambda: not deleted_topics(cluster), WITHIN_S)
    assert len(told.told) == 2


def test_a_topic_is_undeleted_completely(cluster, client, told):
    config = cluster.actor_system.config
    cluster.actor_system.config = replace(config, undelete_s=3600)
    admin = velaray.Admin(cluster.admin_url)
    send_and_acknowledge(client, "t", 30)
    with client.create_producer("t", batching_enabled=False) as producer:
        producer.send(b"unread")
    admin.set_policy_of("persistent://public/default/t", "messageTTL", 3600)
    admin.delete_topic("t", force=True)
    with pytest.raises(velaray.client.admin.NotFound):
        admin.stats("t")
    cluster.run(topic_deletion.sweep_topic(cluster.actor_system, TopicName.parse("t")))
    assert told.told == {} and [
        deleted_topic["due"] for deleted_topic in deleted_topics(cluster)
    ] == [False]
    admin.undelete_topic("t")
    consumer = client.subscribe("t", "s")
    assert consumer.receive(10_000).data() == b"unread"
    assert admin.policies_of("persistent://public/default/t")["messageTTL"] == 3600
    with pytest.raises(velaray.client.admin.NotFound):
        admin.undelete_topic("t")


def test_a_topic_is_purged_after_its_undelete_window(cluster, client, told):
    cluster.actor_system.config = replace(cluster.actor_system.config, undelete_s=0.2)
    send_and_acknowledge(client, "t", 5)
    velaray.Admin(cluster.admin_url).delete_topic("t", force=True)
    sweep = topic_deletion.sweep_topic

    def purged() -> bool:
        cluster.run(sweep(cluster.actor_system, TopicName.parse("t")))
        return not deleted_topics(cluster)

    wait_until(purged, WITHIN_S)
    assert len(told.told) == 2
    with pytest.raises(velaray.client.admin.NotFound):
        velaray.Admin(cluster.admin_url).undelete_topic("t")


def test_ledgers_of_the_deletion_topics_are_deleted_without_an_event(cluster, client, told):
    """Each event would make for another ledger to delete."""
    topic = str(deletion.EVENTS)
    partition = ActorKey.of_partition(TopicName.parse(topic), 1)
    assert deletion.deletes_itself(cluster.actor_system, partition)
    assert deletion.deletes_itself(cluster.actor_system, partition.of_subscription("s", 1))
    assert deletion.deletes_itself(
        cluster.actor_system, ActorKey.of_partition(deletion.DEAD.of_partition(3), 9)
    )
    assert not deletion.deletes_itself(
        cluster.actor_system, ActorKey.of_partition(TopicName.parse("t"), 1)
    )

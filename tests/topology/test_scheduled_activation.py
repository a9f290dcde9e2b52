"""Unused partitions are activated when time lets them trim or expire something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.catalog.catalog_actor import _partitions
from velaray.broker.catalog.scheduled_activation import ScheduledActivation, due_times
from velaray.broker.topic_policies import MINUTE_MS, TopicPolicies
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.journal import JournalSettings
from velaray.journal.manifest import LedgerInfo

TOPIC = "persistent://public/default/t"
HOUR = {"retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}}
CLOSED = LedgerInfo(1, 1, 0, 100, 9, 9, 1000, sealed=True, sealed_ms=5_000)


def test_each_ledger_has_a_due_time_per_time_policy() -> None:
    policies = TopicPolicies.of({**HOUR, "messageTTL": 60})
    hour, minute = 60 * MINUTE_MS, MINUTE_MS
    assert set(due_times([CLOSED], None, policies)) == {5_000 + hour, 5_000 + minute}
    assert set(due_times([CLOSED], 8_000, TopicPolicies.of(HOUR))) == {5_000 + hour, 8_000 + hour}
    forever = {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    assert list(due_times([CLOSED], 8_000, TopicPolicies.of(forever))) == []


def test_ledgers_without_messages_activate_no_partition() -> None:
    empty = replace(CLOSED, entries=0, sealed_ms=9_000)
    assert list(due_times([CLOSED, empty], None, TopicPolicies.of(HOUR))) == [
        5_000 + 60 * MINUTE_MS
    ]


class Setting:
    """A cluster whose clock is set, and the rounds of a catalog."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.waker = ScheduledActivation(cluster.actor_system)
        clock_ms = cluster.actor_system.clock_ms
        self.ahead_ms = 0
        cluster.actor_system.clock_ms = lambda: clock_ms() + self.ahead_ms  # type: ignore[method-assign]
        velaray.Admin(cluster.admin_url).create_topic(TOPIC)
        self.catalog: Any = cluster.actor_system.actors[ActorKey.catalog()]
        (self.key,) = self.catalog.runtime.state.namespaces["public", "default"][TOPIC].actors()

    def partitions(self) -> Any:
        return self.cluster.run(self.catalog.runtime.read(_partitions))

    def fill(self) -> None:
        """Messages in several ledgers, of which a subscription keeps none; then sleep."""
        with velaray.Client(self.cluster.service_url) as client:
            consumer = client.subscribe(TOPIC, "s")
            producer = client.create_producer(TOPIC, batching_enabled=False)
            for _ in range(50):
                producer.send(b"x")
            for _ in range(50):
                consumer.acknowledge(consumer.receive(10_000), receipt=True)
        self.sleep()

    def sleep(self) -> None:
        for kind in (ActorKind.PARTITION, ActorKind.SUBSCRIPTION):
            for key in self.cluster.keys(kind):
                if key.topic == "t":
                    self.cluster.kill(key)

    def is_awake(self) -> bool:
        """After a round of the catalog."""
        self.cluster.run(self.waker.once(self.partitions()))
        return self.key in self.cluster.keys(ActorKind.PARTITION)

    def stored(self) -> list[int]:
        return self.cluster.run(self.cluster.actor_system.store.list_ledgers(self.key.text()))


@pytest.fixture
def setting(tmp_path):
    with LocalCluster(tmp_path) as cluster:
        cluster.actor_system.journal_settings = JournalSettings(roll_records=20)
        yield Setting(cluster)


def test_expired_ledgers_of_unused_topics_are_trimmed(setting) -> None:
    admin = velaray.Admin(setting.cluster.admin_url)
    admin.set_policy_of(TOPIC, "retention", HOUR["retention"])
    setting.fill()
    before = setting.stored()
    setting.ahead_ms = 59 * MINUTE_MS
    assert not setting.is_awake()
    setting.ahead_ms = 61 * MINUTE_MS
    assert setting.is_awake()
    actor: Any = setting.cluster.actor_system.actors[setting.key]
    setting.cluster.run(actor.maintenance.once())
    setting.cluster.run(actor.keeper.once())
    assert len(set(before) - set(setting.stored())) >= 2
    setting.sleep()
    assert not setting.is_awake()  # that moment is over


def test_without_retention_no_partition_is_activated(setting) -> None:
    setting.fill()
    setting.ahead_ms = 10_000 * MINUTE_MS
    assert not setting.is_awake()


def test_the_catalog_activates_due_partitions(tmp_path) -> None:
    with LocalCluster(tmp_path, wake_s=0.1) as cluster:
        setting = Setting(cluster)
        velaray.Admin(cluster.admin_url).set_policy_of(TOPIC, "retention", HOUR["retention"])
        setting.fill()

        def is_awake() -> bool:
            setting.ahead_ms += 61 * MINUTE_MS
            return setting.key in cluster.keys(ActorKind.PARTITION)

        wait_until(is_awake, 20.0)

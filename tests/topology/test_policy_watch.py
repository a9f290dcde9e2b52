"""The partitions of a host follow their policies over one connection to the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker import policy_watch
from velaray.broker.journaled_actor import CONFIRM_S
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.journal import Journal

TOPICS = [f"persistent://public/default/t{number}" for number in range(3)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path, hosts=1) as cluster:
        for topic in TOPICS:
            Admin(cluster.admin_url).topics.create(topic)
            Admin(cluster.admin_url).stats(topic)
        yield cluster


def partitions(cluster: LocalCluster) -> dict[str, Any]:
    actors = cluster.actor_system.actors
    keys = cluster.keys(ActorKind.PARTITION)
    return {str(key.topic_name): actors[key] for key in keys if str(key.topic_name) in TOPICS}


def watching(cluster: LocalCluster) -> list[set[str]]:
    """The topics that the catalog notifies, by connection."""
    catalog: Any = cluster.actor_system.actors[ActorKey.catalog()]
    found = [{str(topic) for topic in each} for each in catalog._watchers._topics.values()]
    return [each & set(TOPICS) for each in found]


def test_one_connection_carries_the_policies_of_all_partitions(cluster: LocalCluster) -> None:
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)
    admin = Admin(cluster.admin_url)
    admin.policies.set_on(TOPICS[1], "maxProducersPerTopic", 7)
    wait_until(lambda: partitions(cluster)[TOPICS[1]].policies.max_producers == 7, 20.0)
    assert partitions(cluster)[TOPICS[0]].policies.max_producers != 7
    admin.policies.set("public/default", "maxConsumersPerTopic", 5)
    for topic in TOPICS:
        wait_until(lambda topic=topic: partitions(cluster)[topic].policies.max_consumers == 5, 20.0)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_partition_that_ends_is_notified_no_more(cluster: LocalCluster, crashes: bool) -> None:
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)
    key = partitions(cluster)[TOPICS[0]].key
    if crashes:
        cluster.kill(key)
    else:
        cluster.run(cluster.actor_system.dismiss(key))
    wait_until(lambda: watching(cluster) == [set(TOPICS[1:])], 20.0)
    Admin(cluster.admin_url).stats(TOPICS[0])
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)


def test_the_partitions_watch_again_after_a_crash_of_the_catalog(cluster: LocalCluster) -> None:
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)
    cluster.kill(ActorKey.catalog())
    admin = Admin(cluster.admin_url)
    admin.policies.set("public/default", "maxConsumersPerTopic", 5)
    for topic in TOPICS:
        wait_until(lambda topic=topic: partitions(cluster)[topic].policies.max_consumers == 5, 20.0)
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)


def test_partitions_that_ask_again_share_the_looks_at_the_store(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at an object store is a GET, and each partition asks once a minute."""
    wait_until(lambda: watching(cluster) == [set(TOPICS)], 20.0)
    confirm, ages = Journal.confirm, list[float]()

    async def noted(journal: Journal, within_s: float = 0.0) -> bool:
        if journal.key == ActorKey.catalog().text():
            ages.append(within_s)
        return await confirm(journal, within_s)

    monkeypatch.setattr(Journal, "confirm", noted)
    monkeypatch.setattr(policy_watch, "ASK_AGAIN_S", 0.05)
    Admin(cluster.admin_url).policies.set("public/default", "maxConsumersPerTopic", 5)
    wait_until(lambda: ages.count(CONFIRM_S) > 2 * len(TOPICS), 20.0)

"""Retention marks of Spark's queries: recognised, described with their age, and released."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

import velaray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin, NotFound, PreconditionFailed
from velaray.client.retention_marks import RETENTION_MARK, SPARK
from velaray.events.ids import ActorKind

MARK = {RETENTION_MARK: SPARK}
UNNAMED = "spark-0123456789abcdef"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
        assert running.actor_system.failures == []


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"marked-{next(_numbers)}"
    admin.topics.create(name)
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def wait_until_left(admin: Admin, topic: str) -> None:
    wait_until(lambda: not any(mark["connected"] for mark in admin.pipelines.marks(topic)))


def test_a_mark_is_abandoned_once_no_driver_is_connected_for_long(
    client: velaray.Client, admin: Admin, topic: str
) -> None:
    began_ms = now_ms()
    driver = client.subscribe(topic, "query", subscription_properties=MARK)
    client.subscribe(topic, "plain")
    with client.create_producer(topic) as producer:
        producer.send(b"x")
    (mark,) = admin.pipelines.marks(topic, 0)
    assert (mark["subscription"], mark["connected"], mark["abandoned"]) == ("query", True, False)
    assert (mark["entries"], mark["lastActiveMs"], mark["idleSeconds"]) == (1, None, 0)
    driver.close()
    wait_until_left(admin, topic)
    (mark,) = admin.pipelines.marks(topic)
    assert not mark["abandoned"]
    assert mark["bytes"] > 0 and mark["oldestSeconds"] > 0
    assert began_ms <= mark["lastActiveMs"] <= now_ms()
    assert admin.pipelines.marks(topic, 0)[0]["abandoned"]


def test_a_mark_that_holds_nothing_is_not_abandoned(
    client: velaray.Client, admin: Admin, topic: str
) -> None:
    client.subscribe(topic, "query", subscription_properties=MARK).close()
    wait_until_left(admin, topic)
    (mark,) = admin.pipelines.marks(topic, 0)
    assert (mark["abandoned"], mark["entries"], mark["bytes"]) == (False, 0, 0)


def test_the_age_of_a_mark_outlives_its_actors(
    cluster: LocalCluster, client: velaray.Client, admin: Admin, topic: str
) -> None:
    driver = client.subscribe(topic, "query", subscription_properties=MARK)
    with client.create_producer(topic) as producer:
        first = producer.send(b"x")
        producer.send(b"y")
        driver.acknowledge_cumulative(driver.receive(10_000))
    assert first is not None
    driver.close()
    wait_until_left(admin, topic)
    (before,) = admin.pipelines.marks(topic)
    wait_until(lambda: events_of(admin, topic)[-1] == "ConsumerDetached")
    for _ in range(2):
        for kind in (ActorKind.PARTITION, ActorKind.SUBSCRIPTION):
            for key in cluster.keys(kind):
                if f"/{topic}/" in key.text():
                    cluster.kill(key)
        (after,) = admin.pipelines.marks(topic, 0)
        assert after["lastActiveMs"] == before["lastActiveMs"]
        assert after["abandoned"] and after["entries"] == 1


def events_of(admin: Admin, topic: str) -> list[str]:
    (key,) = [
        key for key in admin.actors() if key.startswith(f"subscription/public/default/{topic}/")
    ]
    return [event["name"] for event in admin.actors.events(key)]


def test_a_mark_without_a_known_driver_is_as_old_as_what_it_holds(
    client: velaray.Client, admin: Admin, topic: str
) -> None:
    admin.subscriptions.create(topic, UNNAMED)
    (mark,) = admin.pipelines.marks(topic, 0)
    assert (mark["lastActiveMs"], mark["idleSeconds"], mark["abandoned"]) == (None, 0, False)
    with client.create_producer(topic) as producer:
        producer.send(b"x")

    def age() -> bool:
        (mark,) = admin.pipelines.marks(topic, 0)
        return bool(mark["idleSeconds"] == mark["oldestSeconds"] > 0 and mark["abandoned"])

    wait_until(age)


def test_a_driver_marks_a_subscription_that_exists(
    client: velaray.Client, admin: Admin, topic: str
) -> None:
    admin.subscriptions.create(topic, "query", properties={"own": "kept"})
    assert admin.pipelines.marks(topic) == []
    client.subscribe(topic, "query", subscription_properties=MARK)
    assert [mark["subscription"] for mark in admin.pipelines.marks(topic)] == ["query"]
    found = admin.stats(topic)["subscriptions"]["query"]["subscriptionProperties"]
    assert found == {"own": "kept", **MARK}


def test_a_mark_is_released_on_all_partitions(client: velaray.Client, admin: Admin) -> None:
    topic = f"marked-{next(_numbers)}"
    admin.topics.create(topic, partitions=3)
    admin.subscriptions.create(topic, "query", properties=MARK)
    assert len(admin.pipelines.marks(topic)) == 3
    assert len(admin.pipelines.marks(f"{topic}-partition-1")) == 1
    admin.pipelines.release(topic, "query")
    assert admin.subscriptions(topic) == []
    with pytest.raises(NotFound):
        admin.pipelines.release(topic, "query")


def test_what_is_used_or_no_mark_is_not_released(
    client: velaray.Client, admin: Admin, topic: str
) -> None:
    admin.subscriptions.create(topic, "plain")
    with pytest.raises(PreconditionFailed, match="isn't a retention mark"):
        admin.pipelines.release(topic, "plain")
    client.subscribe(topic, "query", subscription_properties=MARK)
    with pytest.raises(PreconditionFailed, match="connected"):
        admin.pipelines.release(topic, "query")
    assert admin.subscriptions(topic) == ["plain", "query"]


def test_the_command_lists_the_marks_of_a_namespace(
    cluster: LocalCluster, client: velaray.Client, admin: Admin
) -> None:
    admin.namespaces.create("public/marks")
    for name in ("one", "two"):
        admin.topics.create(f"public/marks/{name}")
        admin.subscriptions.create(f"public/marks/{name}", UNNAMED)
    with client.create_producer("public/marks/two") as producer:
        producer.send(b"x")
    command = ["pipelines", "marks", "--namespace", "public/marks", "--idle", "0"]
    command += ["--admin-url", cluster.admin_url]
    table = CliRunner().invoke(main, command).output
    assert "WITHOUT A DRIVER SINCE" in table
    assert "not read" in table and "abandoned" in table
    found = CliRunner().invoke(main, [*command, "--abandoned", "-o", "json"]).output
    assert [mark["topic"] for mark in json.loads(found)] == ["persistent://public/marks/two"]

"""The list of deleted topics that can be undeleted: over HTTP, in the client, in the command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from tests.support.local_cluster import LocalCluster
from velaray.cli.app import main
from velaray.client.admin import Admin, NotFound
from velaray.events.ids import ActorKey

WINDOW_S = 3600


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), undelete_s=WINDOW_S) as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Admin:
    return Admin(cluster.admin_url)


def names(admin: Admin, namespace: str) -> list[str]:
    return [each["topic"].rpartition("/")[2] for each in admin.topics.deleted(namespace)]


def test_a_deleted_topic_is_listed_until_it_is_restored(admin: Admin) -> None:
    admin.create_namespace("public/one")
    assert admin.topics.deleted("public/one") == []
    for name, partitions in (("b", 0), ("a", 3)):
        admin.topics.create(f"public/one/{name}", partitions=partitions)
    before_ms = time.time() * 1000
    admin.topics.delete("public/one/b")
    admin.topics.delete("public/one/a")
    first, second = admin.topics.deleted("public/one")
    assert (first["topic"], first["partitions"]) == ("persistent://public/one/a", 3)
    assert (second["topic"], second["partitions"]) == ("persistent://public/one/b", 0)
    assert before_ms - 1 <= second["deletedMs"] <= first["deletedMs"] <= time.time() * 1000
    assert first["restorableUntilMs"] == first["deletedMs"] + WINDOW_S * 1000
    admin.topics.undelete("public/one/a")
    assert names(admin, "public/one") == ["b"]
    assert names(admin, "public/default") == []


def test_of_each_name_the_newest_topic_is_listed(admin: Admin) -> None:
    admin.create_namespace("public/twice")
    for partitions in (1, 2):
        admin.topics.create("public/twice/t", partitions=partitions)
        admin.topics.delete("public/twice/t")
    assert [each["partitions"] for each in admin.topics.deleted("public/twice")] == [2]
    admin.topics.undelete("public/twice/t")
    assert admin.topics.partitions("public/twice/t") == 2


def test_topics_of_a_deleted_namespace_are_listed_and_restored_once_it_exists(
    admin: Admin,
) -> None:
    admin.create_namespace("public/whole")
    admin.topics.create("public/whole/t")
    admin.delete_namespace("public/whole", force=True)
    assert names(admin, "public/whole") == ["t"]
    with pytest.raises(NotFound, match="no namespace"):
        admin.topics.undelete("public/whole/t")
    admin.create_namespace("public/whole")
    admin.topics.undelete("public/whole/t")
    assert names(admin, "public/whole") == []
    with pytest.raises(NotFound, match="no namespace 'public/never'"):
        admin.topics.deleted("public/never")


def test_a_restart_of_the_catalog_keeps_the_times(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_namespace("public/kept")
    admin.topics.create("public/kept/t")
    admin.topics.delete("public/kept/t")
    before = admin.topics.deleted("public/kept")
    cluster.kill(ActorKey.catalog())
    assert admin.topics.deleted("public/kept") == before


def test_the_command_lists_deleted_topics(cluster: LocalCluster, admin: Admin) -> None:
    admin.create_namespace("public/shell")
    admin.topics.create("public/shell/t", partitions=2)
    admin.topics.delete("public/shell/t")
    runner = CliRunner(env={"VELARAY_ADMIN_URL": cluster.admin_url})
    command = ("topics", "list", "--deleted", "public/shell")
    title, row = runner.invoke(main, command).stdout.splitlines()
    assert title.split() == ["TOPIC", "PARTITIONS", "DELETED", "RESTORABLE", "UNTIL"]
    assert row.split()[:2] == ["persistent://public/shell/t", "2"]
    assert row.count("+00:00") == 2
    found = json.loads(runner.invoke(main, (*command, "-o", "json")).stdout)
    assert found == admin.topics.deleted("public/shell")

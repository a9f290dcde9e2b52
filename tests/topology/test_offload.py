"""Ledgers of topics move to an archive: by thresholds and on request, and back to readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from click.testing import CliRunner, Result

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray import Client, InitialPosition, MessageId
from velaray.broker.garbage_collection import garbage_collector, ledger_keeper
from velaray.broker.garbage_collection.collectors import collectors_to_wake
from velaray.broker.partition import offloader
from velaray.cli.app import main
from velaray.client.admin import Admin, Conflict, Invalid
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import SyncFailed
from velaray.journal.journal import JournalSettings
from velaray.journal.offload.archive import LedgerArchive
from velaray.journal.offload.place import settle_place
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.replay import load_manifest
from velaray.offline.stored_topics import open_data
from velaray.pipelines import ledgers
from velaray.pipelines.spark_positions import Start
from velaray.topology.stores import open_store

TOPIC = "persistent://public/default/orders"
PER_LEDGER = 10
MESSAGES = 65
Run = Callable[..., Result]


class Setting:
    """A cluster with an archive in a directory, and one topic whose messages nobody consumes."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.admin = Admin(cluster.admin_url)
        self.sent: list[bytes] = []

    @property
    def store(self) -> TieredStore:
        found = self.cluster.actor_system.store
        assert isinstance(found, TieredStore)
        return found

    @property
    def key(self) -> ActorKey:
        (key,) = self.keys()
        return key

    def keys(self) -> list[ActorKey]:
        found = map(ActorKey.parse, self.cluster.run(self.store.list_journals("partition")))
        return [key for key in found if key.topic == "orders" and key.kind is ActorKind.PARTITION]

    def publish(self, count: int = MESSAGES) -> None:
        with Client(self.cluster.service_url) as client:
            client.subscribe(TOPIC, "s", initial_position=InitialPosition.Earliest).close()
            producer = client.create_producer(TOPIC)
            for _ in range(count):
                self.sent.append(b"message %d" % len(self.sent))
                producer.send(self.sent[-1])

    def read(self) -> list[bytes]:
        with Client(self.cluster.service_url) as client:
            reader = client.create_reader(TOPIC, MessageId.earliest)
            return [reader.read_next(timeout_millis=10_000).data() for _ in self.sent]

    def local(self) -> list[int]:
        return self.cluster.run(self.store.local.list_ledgers(self.key.text()))

    def offloaded(self) -> list[int]:
        return sorted(self.cluster.run(load_manifest(self.store, self.key.text())).offloaded)

    def listed(self) -> list[int]:
        manifest = self.cluster.run(load_manifest(self.store, self.key.text()))
        return [info.ledger_id for info in manifest.ledgers]

    def archived(self) -> set[int]:
        return self.cluster.run(self.store.archive.list()).get(self.key.text(), set())

    def set_policies(self, **values: int) -> None:
        for name, value in values.items():
            self.admin.set_policy("public/default", name, value)

    def move(self) -> None:
        """Offload what there is, and publish until recovery needs none of it."""
        self.offload()
        self.set_policies(offloadDeletionLagMs=0)
        moved = set(self.offloaded())

        def is_moved() -> bool:
            self.publish(PER_LEDGER)
            return moved.isdisjoint(self.local())

        wait_until(is_moved, 60)
        assert moved

    def offload(self) -> None:
        self.admin.topics.offload(TOPIC)
        wait_until(lambda: self.admin.topics.offload_status(TOPIC)["status"] == "SUCCESS")


def cluster_in(path: Path, **settings: Any) -> LocalCluster:
    return LocalCluster(path, maintenance_s=0.1, **settings)


@pytest.fixture(params=[0, 1], ids=["alone", "collected"])
def setting(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Setting]:
    asyncio.run(settle_place(tmp_path / "data", f"file://{tmp_path}/archive"))
    with cluster_in(tmp_path / "data", deleters=request.param, deletion_retry_s=0.1) as cluster:
        cluster.actor_system.journal_settings = JournalSettings(roll_records=PER_LEDGER)
        yield Setting(cluster)
        assert cluster.actor_system.failures == []


def test_a_topic_is_offloaded_on_request_and_read_from_the_archive(setting: Setting) -> None:
    setting.publish()
    assert setting.admin.topics.offload_status(TOPIC)["status"] == "NOT_RUN"
    setting.offload()
    assert len(setting.offloaded()) >= MESSAGES // PER_LEDGER - 1
    assert set(setting.offloaded()) < set(setting.local())  # the lag is four hours
    setting.move()
    gone = setting.archived().difference(setting.local())
    assert gone and setting.read() == setting.sent
    setting.admin.unload(TOPIC)
    assert setting.read() == setting.sent
    found = setting.admin.internal_stats(TOPIC)["ledgers"]
    assert {each["ledgerId"] for each in found if each["offloaded"]} == set(setting.offloaded())
    assert all(each["size"] > 0 for each in found)
    audit = setting.admin.ledger_audit()["totals"]
    assert audit["missing"]["ledgers"] == audit["orphan"]["ledgers"] == 0


def test_thresholds_of_the_namespace_offload_by_themselves(setting: Setting) -> None:
    setting.publish()
    setting.set_policies(offloadThreshold=0)
    wait_until(lambda: setting.offloaded() == setting.listed()[:-1])
    setting.move()
    wait_until(lambda: setting.offloaded() == setting.listed()[:-1])
    assert setting.read() == setting.sent


def test_a_ledger_is_offloaded_at_its_age(setting: Setting) -> None:
    setting.publish()
    setting.set_policies(offloadThresholdInSeconds=3_600)
    system = setting.cluster.actor_system
    now_ms = system.clock_ms
    assert setting.offloaded() == []
    system.clock_ms = lambda: now_ms() + 3_600_000  # type: ignore[method-assign]
    wait_until(lambda: setting.offloaded() == setting.listed()[:-1])


def test_trimmed_and_deleted_topics_leave_nothing_in_the_archive(setting: Setting) -> None:
    setting.publish()
    setting.move()
    with Client(setting.cluster.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        for _ in range(MESSAGES - 2 * PER_LEDGER):
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
        consumer.close()
        before = setting.archived()
        wait_until(lambda: len(setting.archived()) < len(before) - 2)
    setting.admin.delete_topic(TOPIC, force=True)
    wait_until(lambda: not setting.cluster.run(setting.store.archive.list()))
    wait_until(lambda: setting.keys() == [])


@pytest.mark.parametrize("setting", [0], indirect=True, ids=["alone"])
@pytest.mark.parametrize("deleted", [False, True])
def test_an_interrupted_deletion_leaves_nothing_in_the_archive(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    setting.publish()
    setting.move()
    monkeypatch.setattr(ledger_keeper, "dispose", hang)
    before = setting.listed()
    with Client(setting.cluster.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        for _ in range(MESSAGES - 2 * PER_LEDGER):
            consumer.acknowledge(consumer.receive(timeout_millis=10_000))
        consumer.close()
        wait_until(lambda: len(setting.listed()) < len(before) - 2)
    assert not setting.archived() <= set(setting.listed())
    monkeypatch.undo()
    if deleted:
        setting.admin.delete_topic(TOPIC, force=True)
        wait_until(lambda: not setting.cluster.run(setting.store.archive.list()))
    else:
        setting.cluster.kill(setting.key)
        setting.publish(1)
        wait_until(lambda: setting.archived() <= set(setting.listed()))


def test_readers_without_the_cluster_find_the_archive(setting: Setting, tmp_path: Path) -> None:
    setting.publish()
    setting.move()
    for store in (open_data(str(tmp_path / "data")), open_store(str(tmp_path / "data"))):
        assert isinstance(store, TieredStore)
        first, key = setting.offloaded()[0], setting.key.text()
        assert first not in setting.local()
        assert setting.cluster.run(store.size(key, first)) > 0
        setting.cluster.run(store.close())


def test_pipelines_read_ledgers_from_the_archive(setting: Setting, tmp_path: Path) -> None:
    setting.publish()
    setting.move()
    ends = Start.parse("earliest"), Start.parse("latest")
    parts = ledgers.plan(str(tmp_path / "data"), [TOPIC], *ends)
    batches = (batch for part in parts for batch in part.read(("value",)))
    assert [each for batch in batches for each in batch.column("value").to_pylist()] == setting.sent


def test_an_offload_that_fails_says_why_and_is_repeated(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.publish()

    async def fail(*args: Any) -> None:
        raise SyncFailed("archive", "down")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerArchive, "copy", fail)
        setting.admin.topics.offload(TOPIC)
        wait_until(lambda: setting.admin.topics.offload_status(TOPIC)["status"] == "ERROR")
        assert "archive: down" in setting.admin.topics.offload_status(TOPIC)["lastError"]
        assert setting.offloaded() == []
    setting.offload()
    assert setting.offloaded()


def test_a_copy_that_disappeared_is_made_again(setting: Setting, tmp_path: Path) -> None:
    setting.publish()
    setting.offload()
    for path in (tmp_path / "archive").rglob("*"):
        if path.is_file():
            path.unlink()
    assert setting.archived() == set()
    setting.move()
    assert setting.read() == setting.sent


def test_objects_of_unlisted_ledgers_are_found_and_deleted(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.publish()
    setting.move()
    (owner,) = (tmp_path / "archive").rglob("owner")
    kept = setting.archived()
    orphan = owner.parent / "ledgers/partition/public/default/gone/0/99/5/000001"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"late")
    found = setting.admin.ledger_audit()
    if not setting.cluster.config.deleters:
        assert [each["bytes"] for each in found["ledgers"]["orphan"]] == [0]
        assert setting.admin.repair_ledgers()["announced"] == 1
    else:
        monkeypatch.setattr(garbage_collector, "SWEEP_S", 0.05)
        (sweeper,) = setting.cluster.run(collectors_to_wake(setting.cluster.actor_system))
        setting.cluster.actor_system.kill(sweeper)
        setting.cluster.run(setting.cluster.actor_system.reach(sweeper))
    wait_until(lambda: not orphan.exists())
    assert setting.archived() == kept
    assert setting.read() == setting.sent


# -- the interfaces -----------------------------------------------------------------


def url(setting: Setting, topic: str = "orders") -> str:
    return f"{setting.cluster.admin_url}/admin/v2/persistent/public/default/{topic}/offload"


@pytest.mark.parametrize("setting", [0], indirect=True)
def test_the_routes_of_pulsar_admin(setting: Setting) -> None:
    setting.publish()
    assert requests.get(url(setting)).json() == {"status": "NOT_RUN", "lastError": ""}
    listed = [each["ledgerId"] for each in setting.admin.internal_stats(TOPIC)["ledgers"]]
    third = {"ledgerId": listed[2], "entryId": 0, "partitionIndex": -1}
    assert requests.put(url(setting), json=third).status_code == 204
    wait_until(lambda: requests.get(url(setting)).json()["status"] == "SUCCESS")
    assert requests.get(url(setting)).json()["firstUnoffloadedMessage"] == third
    assert set(listed[:2]) == set(setting.offloaded())
    assert requests.put(url(setting, "absent"), json=third).status_code == 404
    assert requests.put(url(setting), json={"ledgerId": "x"}).status_code == 400
    namespace = f"{setting.cluster.admin_url}/admin/v2/namespaces/public/default"
    for name, unset in (
        ("offloadThreshold", "-1"),
        ("offloadThresholdInSeconds", "-1"),
        ("offloadDeletionLagMs", ""),
    ):
        assert requests.get(f"{namespace}/{name}").text == unset
        assert requests.put(f"{namespace}/{name}", json=7).status_code == 204
        assert requests.get(f"{namespace}/{name}").json() == 7
        assert requests.delete(f"{namespace}/{name}").status_code == 204


@pytest.mark.parametrize("setting", [0], indirect=True)
def test_the_commands(setting: Setting) -> None:
    setting.publish()

    def run(*arguments: str, code: int = 0) -> Result:
        env = {"VELARAY_ADMIN_URL": setting.cluster.admin_url}
        result = CliRunner(env=env).invoke(main, ["ledgers", *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    run("offload", TOPIC, "--size-threshold", "1000000", "--wait")
    assert setting.offloaded() == []
    assert "SUCCESS" in run("offload", TOPIC, "--wait").output
    first = setting.offloaded()[0]
    assert "and here until its deletion" in run("describe", str(first)).output
    setting.set_policies(offloadDeletionLagMs=0)
    wait_until(lambda: first not in setting.local())
    text = run("describe", str(first)).output
    assert f"to {setting.store.archive.location(setting.key.text(), first)}" in text
    assert "until its deletion" not in text


@pytest.mark.parametrize("setting", [0], indirect=True)
def test_one_offload_of_a_topic_runs_at_a_time(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.publish()
    copies: list[int] = []

    async def wait(*args: Any) -> None:
        copies.append(1)
        await asyncio.Event().wait()

    monkeypatch.setattr(offloader, "offload_ledger", wait)
    setting.admin.topics.offload(TOPIC)
    wait_until(lambda: copies)
    with pytest.raises(Conflict, match="already in progress"):
        setting.admin.topics.offload(TOPIC)
    assert setting.admin.topics.offload_status(TOPIC)["status"] == "RUNNING"


def test_without_an_archive_an_offload_is_refused(tmp_path: Path) -> None:
    with cluster_in(tmp_path) as cluster:
        setting = Setting(cluster)
        setting.publish(3)
        with pytest.raises(Invalid, match="start it with --offload"):
            setting.admin.topics.offload(TOPIC)

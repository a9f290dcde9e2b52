"""``velaray backup`` and ``velaray store`` with clusters in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import velaray
from tests.support.on_s3 import on_s3
from tests.support.s3_server import S3Server
from velaray.backup.listing import read_listing
from velaray.backup.places import open_blobs
from velaray.cli.app import main
from velaray.journal.files import FileStore
from velaray.local import LocalCluster
from velaray.topology.ownership import RECORD, begin_copy, data_id_in, data_id_of
from velaray.topology.stores import open_store

TOPIC = "persistent://public/default/t"


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments: object) -> str:
    """The message of a command that fails."""
    return run(*arguments, code=1).output


def publish(cluster: LocalCluster, *messages: bytes) -> None:
    with velaray.Client(cluster.service_url) as client, client.create_producer(TOPIC) as producer:
        for message in messages:
            producer.send(message)


def receive(cluster: LocalCluster, count: int) -> list[bytes]:
    """Receive and acknowledge messages."""
    found = []
    with (
        velaray.Client(cluster.service_url) as client,
        client.subscribe(TOPIC, "s") as consumer,
    ):
        for _ in range(count):
            message = consumer.receive(30_000)
            consumer.acknowledge(message, receipt=True)
            found.append(message.data())
    return found


def fill(place: str | Path) -> None:
    """Leave a stopped cluster with two messages, of which one is acknowledged."""
    with LocalCluster.start(place) as cluster:
        receive(cluster, 0)
        publish(cluster, b"one", b"two")
        assert receive(cluster, 1) == [b"one"]


def id_of(place: str | Path) -> str:
    async def read() -> str:
        store = open_store(str(place))
        try:
            return await data_id_of(store)
        finally:
            await store.close()

    return asyncio.run(read())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a stopped cluster; tests only read it."""
    place = tmp_path_factory.mktemp("stopped") / "data"
    fill(place)
    return place


@pytest.fixture
def incomplete(tmp_path: Path) -> Iterator[Path]:
    """A directory into which a copy was interrupted."""

    async def begin() -> None:
        store = FileStore(tmp_path / "incomplete")
        await begin_copy(store, "a copy")
        await store.close()

    asyncio.run(begin())
    yield tmp_path / "incomplete"


@pytest.mark.slow
def test_a_running_cluster_is_backed_up_twice_and_restored(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    with LocalCluster.start(data) as cluster:
        receive(cluster, 0)
        publish(cluster, b"one", b"two")
        assert receive(cluster, 1) == [b"one"]
        first = json.loads(run("backup", "create", place, "--data", data, "-o", "json").output)
        publish(cluster, b"three")
        again = json.loads(run("backup", "create", place, "--data", data, "-o", "json").output)
    assert (first["number"], again["number"]) == (1, 2)
    assert again["bytesCopied"] == again["bytes"] - first["bytes"]
    shown = run("backup", "verify", place).output
    assert re.search(r"partition/public/default/t/\S+ +1 ", shown)
    assert json.loads(run("backup", "verify", place, "-o", "json").output)["problems"] == {}
    for number, left in ((1, [b"two"]), (2, [b"two", b"three"])):
        restored = tmp_path / f"restored-{number}"
        run("backup", "restore", place, restored, "--number", number)
        assert id_of(restored) not in ("", id_of(data))
        with LocalCluster.start(restored) as cluster:
            publish(cluster, b"later")
            assert receive(cluster, len(left) + 1) == [*left, b"later"]
    # The restored data is other data from now on.
    assert "has backups of other data" in refused("backup", "create", place, "--data", restored)


@pytest.mark.slow
def test_damage_in_a_backup_is_told(tmp_path: Path, data: Path) -> None:
    place = tmp_path / "place"
    run("backup", "create", place, "--data", data)
    damaged = next(iter((place / "parts").rglob("*-*")))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    said = refused("backup", "verify", place)
    assert "the bytes aren't those that the backup lists" in said
    assert "backup 1 isn't sound" in said
    target = tmp_path / "target"
    assert "aren't those" in refused("backup", "restore", place, target)
    with pytest.raises(velaray.ClusterError, match="the restore of backup 1 is under way or was"):
        LocalCluster.start(target)


def test_places_that_can_not_be_used_are_refused(
    tmp_path: Path, data: Path, incomplete: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    full, inside = tmp_path / "full", data / "inside"
    assert "isn't empty" in refused("store", "copy", data, full)
    assert "is in" in refused("store", "copy", data, inside)
    assert "is in" in refused("backup", "create", data, "--data", data)
    assert "no journals" in refused("store", "copy", empty, tmp_path / "new")
    assert "it has no backups" in refused("backup", "create", full, "--data", data)
    assert "there is no backup" in refused("backup", "verify", empty)
    assert "there is no backup" in refused("backup", "restore", empty, tmp_path / "new")
    assert "a copy is under way" in refused("store", "copy", incomplete, tmp_path / "new")
    assert "a copy is under way" in refused(
        "backup", "create", tmp_path / "place", "--data", incomplete
    )
    with pytest.raises(velaray.ClusterError, match="a copy is under way or was interrupted"):
        LocalCluster.start(incomplete)


@pytest.mark.slow
def test_a_directory_in_use_is_not_copied(tmp_path: Path) -> None:
    with LocalCluster.start(tmp_path / "data"):
        said = refused("store", "copy", tmp_path / "data", tmp_path / "copy")
    assert "another cluster is running" in said
    assert not (tmp_path / "copy").exists()


# -- with a real store -------------------------------------------------------------


@on_s3
def test_data_moves_to_a_store_and_back(tmp_path: Path, s3_url: str) -> None:
    data, back = tmp_path / "data", tmp_path / "back"
    fill(data)
    run("store", "copy", data, s3_url)
    assert id_of(s3_url) == id_of(data)
    assert "isn't empty" in refused("store", "copy", data, s3_url)
    with LocalCluster.start(s3_url) as cluster:
        assert receive(cluster, 1) == [b"two"]
        publish(cluster, b"three")
        assert "is in use" in refused("store", "copy", s3_url, tmp_path / "early")
    run("journal", "verify", "--data", s3_url)
    run("store", "copy", s3_url, back)
    with LocalCluster.start(back) as cluster:
        publish(cluster, b"four")
        assert receive(cluster, 2) == [b"three", b"four"]
    assert id_of(back) == id_of(data)


@on_s3
def test_a_store_is_backed_up_to_a_store(s3_server: S3Server, s3_url: str, tmp_path: Path) -> None:
    place, restored = s3_server.new_store(), s3_server.new_store()
    with LocalCluster.start(s3_url) as cluster:
        receive(cluster, 0)
        publish(cluster, b"one", b"two")
        assert receive(cluster, 1) == [b"one"]
        run("backup", "create", place, "--data", s3_url)
        publish(cluster, b"three")
        run("backup", "create", place, "--data", s3_url)
    run("backup", "verify", place)
    for target in (restored, tmp_path / "directory"):
        run("backup", "restore", place, target)
        with LocalCluster.start(target) as again:
            publish(again, b"later")
            assert receive(again, 3) == [b"two", b"three", b"later"]
    listing = asyncio.run(read_listing(open_blobs(place)))
    assert data_id_in(listing.records[RECORD]) == id_of(s3_url)

"""A cluster with keys: nothing that clients sent is readable in its files, objects and backups."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import velaray
from tests.support.on_s3 import on_s3
from tests.support.s3_server import content_of
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.exceptions import InvalidConfiguration
from velaray.journal.errors import CorruptJournal, MissingKey
from velaray.journal.journal import JournalSettings
from velaray.journal.objects.memory_objects import MemoryBucket, MemoryObjects
from velaray.local import LocalCluster
from velaray.pipelines import ledgers
from velaray.pipelines.ray_data_read import read_topic
from velaray.pipelines.spark_batch import BatchSource
from velaray.pipelines.spark_journal import JournalReader
from velaray.pipelines.spark_positions import Start
from velaray.starting import ClusterError
from velaray.topology import sent_config, stores
from velaray.topology.config import ClusterConfig
from velaray.topology.encryption_keys import VARIABLE
from velaray.topology.key_files import KeyFileError
from velaray.topology.sent_config import sent, store_secrets

TOPIC = "persistent://public/default/t"
PLAIN = (b"payload-marker", b"property-marker", b"key-marker", b"producer-marker", b"note-marker")
URL = "s3://bucket/prefix"


def write_key(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b64encode(os.urandom(32)))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_key(tmp_path / "keys", "001")
    return tmp_path / "keys"


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def use(cluster: LocalCluster, count: int = 20) -> None:
    """Publish, in a transaction too, and acknowledge a part."""
    with velaray.Client(cluster.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC, producer_name="producer-marker")
        for number in range(count):
            producer.send(
                b"payload-marker %d" % number,
                properties={"name": "property-marker"},
                partition_key="key-marker",
            )
        with client.transaction() as transaction:
            producer.send(b"payload-marker in a transaction", txn=transaction)
        for _ in range(5):
            consumer.acknowledge(consumer.receive(30_000), receipt=True)


def read(cluster: LocalCluster) -> list[bytes]:
    with (
        velaray.Client(cluster.service_url) as client,
        client.create_reader(TOPIC, velaray.MessageId.earliest) as reader,
    ):
        return [reader.read_next(30_000).data() for _ in range(21)]


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def readable(found: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """The names of the objects with plain text, and that text."""
    assert found
    return [(name, text) for name, raw in found.items() for text in PLAIN if text in raw]


def test_files_archives_and_backups_have_no_plain_text(tmp_path: Path, keys: Path) -> None:
    data, archive, backups = (tmp_path / name for name in ("data", "archive", "backups"))
    options: dict[str, Any] = {"encryption_keys": keys, "offload": archive.as_uri()}
    with LocalCluster.start(data, **options) as cluster:
        cluster.actor_system.journal_settings = JournalSettings(roll_records=5)
        use(cluster)
        with velaray.Admin(cluster.admin_url) as admin:
            admin.topics.offload(TOPIC)
            wait_until(lambda: admin.topics.offload_status(TOPIC)["status"] == "SUCCESS")
        run("backup", "create", backups, "--data", data, "--encryption-keys", keys)
        expected = read(cluster)
        assert any("ledgers" in name for name in files(archive))
        for place in (data, archive, backups):
            assert readable(files(place)) == []
    with LocalCluster.start(data, **options) as cluster:
        assert read(cluster) == expected
    run("backup", "verify", backups, "--encryption-keys", keys)
    assert "encrypted with key 001" in run("backup", "verify", backups, "-o", "json", code=1).output
    run("backup", "restore", backups, tmp_path / "restored")
    assert readable(files(tmp_path / "restored")) == []
    with LocalCluster.start(tmp_path / "restored", encryption_keys=keys) as cluster:
        assert read(cluster) == expected


Stored = Callable[[], dict[str, bytes]]


@pytest.fixture(params=["memory", pytest.param("s3", marks=on_s3)])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Stored]:
    """The URL of an object store, and what gives all its objects."""
    if request.param == "s3":
        url: str = request.getfixturevalue("s3_url")
        return url, lambda: asyncio.run(content_of(url))
    found = MemoryBucket()

    def objects(url: str) -> MemoryObjects:
        return MemoryObjects(found)

    monkeypatch.setattr(stores, "open_objects", objects)
    monkeypatch.setattr(sent_config, "open_objects", objects)
    return URL, lambda: {name: each.data for name, each in found.objects.items()}


def test_objects_and_the_log_of_a_host_have_no_plain_text(
    store: tuple[str, Stored], keys: Path
) -> None:
    url, stored = store
    with LocalCluster.start(url, encryption_keys=keys) as cluster:
        use(cluster)
        seen = stored()
        assert any(name.startswith("hosts/") for name in seen)
        expected = read(cluster)
    seen |= {f"{name} later": data for name, data in stored().items()}
    assert readable(seen) == []
    with LocalCluster.start(url, encryption_keys=keys) as cluster:
        assert read(cluster) == expected


def test_without_keys_the_same_search_finds_plain_text(tmp_path: Path) -> None:
    with LocalCluster.start(tmp_path / "data") as cluster:
        use(cluster)
    found = {text for _, text in readable(files(tmp_path / "data"))}
    assert found == set(PLAIN[:4])


def test_a_start_without_the_key_changes_nothing(tmp_path: Path, keys: Path) -> None:
    data = tmp_path / "data"
    with LocalCluster.start(data, encryption_keys=keys) as cluster:
        use(cluster)
    before = files(data)
    write_key(tmp_path / "others", "000")
    with pytest.raises(ClusterError, match=r"catalog.*encrypted with key 001; no keys are given"):
        LocalCluster.start(data)
    with pytest.raises(ClusterError, match=r"key 001; keys are looked for in .*others, which has"):
        LocalCluster.start(data, encryption_keys=tmp_path / "others")
    assert {name: raw for name, raw in files(data).items() if "owner.lock" not in name} == {
        name: raw for name, raw in before.items() if "owner.lock" not in name
    }


def test_keys_are_checked_at_the_start(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        LocalCluster.start(tmp_path / "data", encryption_keys=tmp_path / "none")
    with pytest.raises(KeyFileError, match="there is no such class"):
        LocalCluster.start(tmp_path / "data", encryption_keys="json:NoClass")
    with pytest.raises(ValueError, match="nothing in memory is encrypted"):
        LocalCluster.start(encryption_keys=keys)
    (keys / "002").write_text("no key")
    with pytest.raises(KeyFileError, match="002 holds no key"):
        LocalCluster.start(tmp_path / "data", encryption_keys=keys)
    assert not (tmp_path / "data").exists()


@pytest.fixture
def filled(tmp_path: Path, keys: Path) -> Path:
    """The data of a stopped cluster; half of it is encrypted with another key."""
    data = tmp_path / "data"
    with LocalCluster.start(data, encryption_keys=keys) as cluster:
        use(cluster)
    write_key(keys, "002")
    with LocalCluster.start(data, encryption_keys=keys) as cluster:
        assert len(read(cluster)) == 21
    return data


def _partition(data: Path) -> str:
    listed = json.loads(run("journal", "list", "--data", data, "-o", "json").stdout)
    (key,) = [row["key"] for row in listed if row["key"].startswith("partition/public/default/t/")]
    return str(key)


def test_commands_take_the_keys_or_refuse(
    filled: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = _partition(filled)
    reading: list[list[object]] = [
        ["journal", "show", key],
        ["journal", "replay", key],
        ["subscriptions", "state", TOPIC, "s"],
        ["backup", "create", tmp_path / "backups"],
    ]
    for command in reading:
        refused = run(*command, "--data", filled, code=1).output
        assert "encrypted with key" in refused and "--encryption-keys" in refused
        assert VARIABLE not in os.environ
        run(*command, "--data", filled, "--encryption-keys", keys)
        assert VARIABLE not in os.environ
    assert (
        "encrypted with key"
        in run("journal", "repair", "--data", filled, "-o", "json", code=3).output
    )
    run("journal", "repair", "--data", filled, "--encryption-keys", keys)
    refused = run("store", "copy", filled, tmp_path / "copy", code=1).output
    assert "encrypted with key" in refused
    monkeypatch.setenv(VARIABLE, str(keys))
    for command in reading:
        run(*command, "--data", filled)


def test_verifying_without_keys_checks_frames_and_says_so(filled: Path, keys: Path) -> None:
    without = run("journal", "verify", "--data", filled)
    assert "are encrypted, and no keys are given: their frames were checked" in without.output
    given = ("--data", filled, "--encryption-keys", keys)
    assert "encrypted" not in run("journal", "verify", *given).output
    rows = json.loads(run("journal", "verify", *given, "-o", "json").stdout)
    assert all(row["opened"] for row in rows)
    (keys / "001").unlink()
    refused = run("journal", "verify", *given, code=1).output
    assert "not sound" in refused


def test_keys_that_are_in_use_are_counted(filled: Path) -> None:
    rows = json.loads(run("journal", "keys", "--data", filled, "-o", "json").stdout)
    assert [row["key"] for row in rows] == ["001", "002"]
    assert all(row["ledgers"] and row["bytes"] for row in rows)


def test_a_forged_plain_journal_is_refused_if_encryption_is_required(
    tmp_path: Path, keys: Path
) -> None:
    with LocalCluster.start(tmp_path / "plain") as cluster:
        use(cluster)
    with LocalCluster.start(
        tmp_path / "data", encryption_keys=keys, encryption_required=True
    ) as cluster:
        use(cluster)
        expected = read(cluster)
    with LocalCluster.start(
        tmp_path / "data", encryption_keys=keys, encryption_required=True
    ) as cluster:
        assert read(cluster) == expected
    with pytest.raises(ClusterError, match="isn't encrypted, which --encryption-required refuses"):
        LocalCluster.start(tmp_path / "plain", encryption_keys=keys, encryption_required=True)
    with pytest.raises(KeyFileError, match="encryption_required needs keys"):
        LocalCluster.start(tmp_path / "plain", encryption_required=True)
    (catalog,) = (tmp_path / "data" / "journals").glob("catalog*")
    (forged,) = (tmp_path / "plain" / "journals").glob("catalog*")
    shutil.rmtree(catalog)
    shutil.copytree(forged, catalog)
    with pytest.raises(ClusterError, match=f"{catalog}.* isn't encrypted"):
        LocalCluster.start(tmp_path / "data", encryption_keys=keys, encryption_required=True)


def test_readers_of_files_take_the_keys_or_refuse(
    filled: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = Start.parse("earliest"), Start.parse("latest")
    with pytest.raises(MissingKey, match="--encryption-keys"):
        ledgers.plan(str(filled), [TOPIC], *bounds)
    parts = ledgers.plan(str(filled), [TOPIC], *bounds, encryption_keys=str(keys))

    def values(part: ledgers.LedgerPart) -> list[bytes]:
        return [row for batch in part.read(["value"]) for row in batch["value"].to_pylist()]

    found = [value for part in parts for value in values(part)]
    assert len(found) == 21 and found[0] == b"payload-marker 0"
    monkeypatch.setenv(VARIABLE, str(keys))
    parts = ledgers.plan(str(filled), [TOPIC], *bounds)
    assert [value for part in parts for value in values(part)] == found
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(MissingKey):
        values(parts[0])


def test_the_sources_of_spark_and_ray_have_the_option(filled: Path, keys: Path) -> None:
    place = {"data_dir": str(filled)}
    given = {**place, "encryption_keys": str(keys)}
    topic = {"topic": TOPIC, "columns": "value"}
    for kind, options in ((BatchSource, topic), (JournalReader, {"actor": "partition"})):
        source = kind({**given, **options})
        tables = [batch for part in source.partitions() for batch in source.read(part)]
        assert sum(batch.num_rows for batch in tables) >= 21
        with pytest.raises(MissingKey):
            without = kind({**place, **options})
            [list(without.read(part)) for part in without.partitions()]
    with pytest.raises(InvalidConfiguration, match="encryption_keys needs data_dir"):
        BatchSource({**topic, "service_url": "pulsar://a:1", "encryption_keys": str(keys)})
    with pytest.raises(InvalidConfiguration, match="encryption_keys needs data_dir"):
        read_topic(TOPIC, service_url="pulsar://a:1", encryption_keys=str(keys))
    with pytest.raises(MissingKey):
        read_topic(TOPIC, data_dir=str(filled))


def test_the_secrets_of_a_start_are_encrypted(tmp_path: Path, keys: Path) -> None:
    secret = b"a secret between actors"
    config = ClusterConfig(str(tmp_path / "data"), 1, secret, encryption_keys=str(keys))
    store_secrets(config)
    (path,) = (tmp_path / "data" / "secrets").iterdir()
    raw = path.read_bytes()
    assert secret not in raw
    assert sent(config).received() == config
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(CorruptJournal):
        sent(config).received()
    path.write_bytes(raw)
    (keys / "001").unlink()
    with pytest.raises(MissingKey, match="encrypted with key 001"):
        sent(config).received()


class Provider:
    """Master keys of a service; `velaray.journal.encryption.keys.KeyProvider`."""

    place = "a service"

    def newest_id(self) -> str:
        return "service/1"

    def wrap(self, key: bytes) -> tuple[str, bytes]:
        return self.newest_id(), key[::-1]

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        if key_id != self.newest_id():
            raise LookupError(key_id)
        return wrapped[::-1]


def test_a_class_provides_the_keys(tmp_path: Path) -> None:
    named = f"{__name__}:Provider"
    with LocalCluster.start(tmp_path / "data", encryption_keys=named) as cluster:
        use(cluster)
    assert readable(files(tmp_path / "data")) == []
    with LocalCluster.start(tmp_path / "data", encryption_keys=named) as cluster:
        assert len(read(cluster)) == 21
    run("journal", "verify", "--data", tmp_path / "data", "--encryption-keys", named)

"""Erasable namespaces: messages of a key or a subject are erased everywhere, and others stay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from click.testing import CliRunner

import velaray
from tests.support.otlp import Receiver
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin.errors import Conflict, PreconditionFailed
from velaray.client.exceptions import NotAllowedError
from velaray.journal.encryption import keyring as keyrings
from velaray.journal.encryption.keyring import head_of
from velaray.journal.errors import CorruptJournal
from velaray.journal.journal import JournalSettings
from velaray.journal.objects.memory_objects import MemoryBucket, MemoryObjects
from velaray.journal.replay import replay
from velaray.journal.store import LedgerStore
from velaray.local import LocalCluster
from velaray.pipelines import ledgers
from velaray.pipelines.spark_positions import Start
from velaray.topology import sent_config, stores
from velaray.topology.keyrings import keyring_of
from velaray.topology.stores import open_store
from velaray.wire.messages import split_entry
from velaray.wire.sealed import opened, parts_of

NAMESPACE = "public/people"
TOPIC = f"persistent://{NAMESPACE}/t"
PATIENCE_MS = 20_000


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "001").write_bytes(b64encode(os.urandom(32)))
    return folder


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyrings, "LEASE_S", 0.5)
    monkeypatch.setattr(keyrings, "SAFETY_S", 0.1)


@pytest.fixture
def cluster(tmp_path: Path, keys: Path) -> Iterator[LocalCluster]:
    with LocalCluster.start(tmp_path / "data", encryption_keys=keys) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[velaray.Admin]:
    with velaray.Admin(cluster.admin_url) as admin:
        yield admin


def erasable(admin: velaray.Admin, by: str = "key") -> None:
    admin.namespaces.create(NAMESPACE)
    admin.policies.set(NAMESPACE, "erasable", by)


def read(cluster: LocalCluster, topic: str = TOPIC) -> list[tuple[str, bytes]]:
    """All messages of a topic, by the official client."""
    client = pulsar.Client(cluster.service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        try:
            message = reader.read_next(2000)
        except pulsar.Timeout:  # the last ones are erased
            break
        found.append((message.partition_key(), message.data()))
    client.close()
    return found


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
@pytest.mark.parametrize("batching", [False, True])
def test_the_official_client_gets_all_but_the_erased_messages(
    cluster: LocalCluster, admin: velaray.Admin, kind: pulsar.ConsumerType, batching: bool
) -> None:
    erasable(admin)
    client = pulsar.Client(cluster.service_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=kind)
    client.subscribe(TOPIC, "late", consumer_type=kind)
    producer = client.create_producer(
        TOPIC,
        batching_enabled=batching,
        batching_max_publish_delay_ms=200,
        compression_type=pulsar.CompressionType.LZ4,
    )
    sent = [(f"k{number % 3}", b"value %d" % number) for number in range(60)]
    for key, value in sent:
        producer.send_async(value, lambda *_: None, partition_key=key, properties={"note": key})
    producer.flush()
    for key, value in sent:
        message = consumer.receive(PATIENCE_MS)
        assert (message.partition_key(), message.data()) == (key, value)
        assert message.properties() == {"note": key}
        consumer.acknowledge(message)
    client.close()
    assert admin.namespaces.erase(NAMESPACE, key="k1")["existed"]
    client = pulsar.Client(cluster.service_url)
    # Without this option the client never acknowledges a batch that lacks a message.
    late = client.subscribe(
        TOPIC, "late", kind, receiver_queue_size=3, batch_index_ack_enabled=batching
    )
    left = [(key, value) for key, value in sent if key != "k1"]
    got = []
    for _ in left:
        message = late.receive(PATIENCE_MS)
        late.acknowledge(message)
        got.append((message.partition_key(), message.data()))
    assert got == left
    wait_until(lambda: admin.topics.stats(TOPIC)["subscriptions"]["late"]["msgBacklog"] == 0)
    producer = client.create_producer(TOPIC)
    producer.send(b"new", partition_key="k1")
    message = late.receive(PATIENCE_MS)
    assert (message.partition_key(), message.data()) == ("k1", b"new")
    client.close()
    assert read(cluster) == [*left, ("k1", b"new")]


def test_erasure_by_subject(cluster: LocalCluster, admin: velaray.Admin) -> None:
    erasable(admin, "subject")
    with velaray.Client(cluster.service_url) as client:
        producer = client.create_producer(TOPIC)
        for number in range(6):
            properties = {"subject": f"person {number % 2}"}
            producer.send(b"%d" % number, properties=properties, partition_key="same")
    command = [
        "erase",
        "--yes",
        "--admin-url",
        cluster.admin_url,
        "--namespace",
        NAMESPACE,
        "-o",
        "json",
    ]
    result = CliRunner().invoke(main, [*command, "--subject", "person 1"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["existed"]
    assert [value for _, value in read(cluster)] == [b"0", b"2", b"4"]
    result = CliRunner().invoke(main, [*command, "--key", "same"])
    assert "are erased by subject, not by key" in result.output
    assert not admin.namespaces.erase(NAMESPACE, subject="nobody")["existed"]


async def stored_entries(store: LedgerStore) -> list[bytes]:
    """The entries of the topic as ledgers have them, decrypted with the keys of ledgers."""
    found = []
    for key in await store.list_journals():
        if key.startswith("partition/public/people/"):
            found += [bytes(each.blob) async for each in replay(store, key) if each.blob]
    return found


async def opened_by(store: LedgerStore, entries: list[bytes]) -> list[bytes | None]:
    """The values of stored entries, opened with the keyring beside a store."""
    keyring = keyring_of(store, random.Random(1))
    assert keyring is not None
    found: list[bytes | None] = []
    for entry in entries:
        _, parts = parts_of(entry)
        await keyring.prepare_to_open([head_of(part) for part in parts])
        plain = opened(entry, keyring.open).entry
        found.append(bytes(split_entry(plain)[1]) if plain else None)
    return found


def test_nothing_opens_an_erased_message(tmp_path: Path, keys: Path) -> None:
    """Files, archive and backup are searched with all master keys at hand."""
    data, archive, backups = (tmp_path / name for name in ("data", "archive", "backups"))
    options = {"encryption_keys": keys, "offload": archive.as_uri()}
    with LocalCluster.start(data, **options) as cluster:
        cluster.actor_system.journal_settings = JournalSettings(roll_records=5)
        with velaray.Admin(cluster.admin_url) as admin:
            erasable(admin)
            with velaray.Client(cluster.service_url) as client:
                producer = client.create_producer(TOPIC)
                for number in range(12):
                    key = f"person {number % 2}"
                    producer.send(b"secret of %d" % (number % 2), partition_key=key)
            admin.topics.offload(TOPIC)
            wait_until(lambda: admin.topics.offload_status(TOPIC)["status"] == "SUCCESS")
            backup = ["backup", "create", backups, "--data", data, "--encryption-keys", keys]
            result = CliRunner().invoke(main, [str(each) for each in backup])
            assert result.exit_code == 0, result.output
            assert admin.namespaces.erase(NAMESPACE, key="person 1")["existed"]
    copies = (*backups.rglob("*"), *archive.rglob("*"))
    assert not [path for path in copies if keyrings.FOLDER in path.parts]
    store = open_store(str(data), str(keys))
    entries = asyncio.run(stored_entries(store))
    assert len(entries) == 12
    assert not [entry for entry in entries if b"secret of" in entry or b"person" in entry]
    assert Counter(asyncio.run(opened_by(store, entries))) == {b"secret of 0": 6, None: 6}
    arguments = ["journal", "verify", "--data", str(data), "--encryption-keys", str(keys)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    restored = tmp_path / "restored"
    arguments = ["backup", "restore", str(backups), str(restored)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    (data / "keyring").rename(restored / "keyring")
    with LocalCluster.start(restored, encryption_keys=keys) as cluster:
        assert [value for _, value in read(cluster)] == [b"secret of 0"] * 6


def test_what_is_not_supported_is_refused(
    tmp_path: Path, cluster: LocalCluster, admin: velaray.Admin
) -> None:
    admin.topics.create("persistent://public/default/x")
    with pytest.raises(PreconditionFailed, match="has topics"):
        admin.policies.set("public/default", "erasable", "key")
    admin.namespaces.create(NAMESPACE)
    admin.policies.set(NAMESPACE, "compactionThreshold", 1000)
    with pytest.raises(PreconditionFailed, match="compactionThreshold"):
        admin.policies.set(NAMESPACE, "erasable", "key")
    admin.policies.remove(NAMESPACE, "compactionThreshold")
    admin.policies.set(NAMESPACE, "erasable", "key")
    for name, value in (
        ("compactionThreshold", 1000),
        ("deadLetter", {"maxRedeliverCount": 3}),
        ("replication", [cluster.config.name]),
    ):
        with pytest.raises(PreconditionFailed, match="is erasable"):
            admin.policies.set(NAMESPACE, name, value)
    with velaray.Client(cluster.service_url) as client:
        producer = client.create_producer(TOPIC)
        with pytest.raises(NotAllowedError, match="need a key"):
            producer.send(b"without a key")
        producer.send(b"with a key", partition_key="k")
        with pytest.raises(NotAllowedError, match="no compacted view"):
            client.subscribe(TOPIC, "c", is_read_compacted=True)
        consumer = client.subscribe(TOPIC, "s", initial_position=velaray.InitialPosition.Earliest)
        assert consumer.receive(PATIENCE_MS).data() == b"with a key"
    for call in (
        lambda: admin.topics.compact(TOPIC),
        lambda: admin.subscriptions.peek(TOPIC, "s"),
        lambda: admin.policies.remove(NAMESPACE, "erasable"),
        lambda: admin.policies.set(NAMESPACE, "erasable", "subject"),
    ):
        with pytest.raises(PreconditionFailed):
            call()
    with pytest.raises(Conflict, match="can't be erased"):
        admin.namespaces.erase("public/default", key="k")
    with (
        LocalCluster.start(tmp_path / "plain") as plain,
        velaray.Admin(plain.admin_url) as plain_admin,
    ):
        plain_admin.namespaces.create(NAMESPACE)
        with pytest.raises(PreconditionFailed, match="--encryption-keys"):
            plain_admin.policies.set(NAMESPACE, "erasable", "key")


def test_deliveries_of_sealed_entries_have_spans(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    receiver = Receiver()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        contextlib.closing(receiver),
        LocalCluster.start(
            tmp_path / "traced", encryption_keys=keys, otlp_endpoint=receiver.url
        ) as cluster,
        velaray.Admin(cluster.admin_url) as admin,
        velaray.Client(cluster.service_url) as client,
    ):
        erasable(admin)
        consumer = client.subscribe(TOPIC, "s")
        client.create_producer(TOPIC).send(
            b"x", partition_key="ann", properties={"traceparent": parent}
        )
        assert consumer.receive(PATIENCE_MS).data() == b"x"
        wait_until(lambda: any(span.name == f"deliver {TOPIC}" for span in receiver.spans))


def test_the_audit_log_has_the_hmac_alone(cluster: LocalCluster, admin: velaray.Admin) -> None:
    erasable(admin)
    with velaray.Client(cluster.service_url) as client:
        client.create_producer(TOPIC).send(b"x", partition_key="ann@example.org")
    digest = admin.namespaces.erase(NAMESPACE, key="ann@example.org")["digest"]
    records = admin.audit()["records"]
    record = next(each for each in records if each["operation"].endswith("/erasures"))
    assert record["parameters"] == {"body": "(hidden)", "digest": digest}
    assert (record["target"], record["outcome"]) == (NAMESPACE, "done")
    assert "ann@" not in json.dumps(records)


def test_transactions_and_key_shared(cluster: LocalCluster, admin: velaray.Admin) -> None:
    erasable(admin)
    with velaray.Client(cluster.service_url) as client:
        consumers = [
            client.subscribe(TOPIC, "s", consumer_type=velaray.ConsumerType.KeyShared)
            for _ in range(2)
        ]
        producer = client.create_producer(TOPIC)
        with client.transaction() as transaction:
            for number in range(20):
                producer.send(b"%d" % number, partition_key=f"k{number % 5}", txn=transaction)
        by_key: dict[str, set[int]] = {}
        values: dict[str, list[bytes]] = {}
        for _ in range(20):
            at, message = next(received(consumers))
            key = message.partition_key()
            by_key.setdefault(key, set()).add(at)
            values.setdefault(key, []).append(message.data())
            consumers[at].acknowledge(message)
        assert all(len(places) == 1 for places in by_key.values())
        assert values == {
            f"k{key}": [b"%d" % number for number in range(key, 20, 5)] for key in range(5)
        }


def received(consumers: list[velaray.Consumer]) -> Iterator[tuple[int, velaray.Message]]:
    while True:
        for at, consumer in enumerate(consumers):
            with contextlib.suppress(velaray.Timeout):
                yield at, consumer.receive(50)


@pytest.mark.parametrize("batching", [False, True])
def test_offline_readers_leave_erased_messages_out(
    tmp_path: Path, keys: Path, batching: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = str(tmp_path / "data")
    with (
        LocalCluster.start(data, encryption_keys=keys) as cluster,
        velaray.Admin(cluster.admin_url) as admin,
    ):
        erasable(admin)
        client = pulsar.Client(cluster.service_url)
        producer = client.create_producer(TOPIC, batching_enabled=batching)
        for number in range(12):
            key = f"k{number % 3}"
            producer.send_async(b"%d" % number, lambda *_: None, partition_key=key)
        producer.flush()
        client.close()
        admin.namespaces.erase(NAMESPACE, key="k1")
    bounds = Start.parse("earliest"), Start.parse("latest")
    with caplog.at_level("INFO", logger="velaray"):
        parts = ledgers.plan(data, [TOPIC], *bounds, encryption_keys=str(keys))
        rows = [
            value
            for part in parts
            for batch in part.read(["value"])
            for value in batch.column("value").to_pylist()
        ]
    assert rows == [b"%d" % number for number in range(12) if number % 3 != 1]
    assert "left out 4 erased messages" in caplog.text
    (tmp_path / "data" / "keyring").rename(tmp_path / "elsewhere")
    with pytest.raises(CorruptJournal, match="there is no keyring"):
        [*parts[0].read(["value"])]


def test_erasure_in_an_object_store(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    for module in (stores, sent_config):
        monkeypatch.setattr(module, "open_objects", lambda url: MemoryObjects(bucket))
    for _ in range(2):
        with (
            LocalCluster.start("s3://bucket/prefix", encryption_keys=keys) as cluster,
            velaray.Admin(cluster.admin_url) as admin,
        ):
            if NAMESPACE not in admin.namespaces("public"):
                erasable(admin)
                with velaray.Client(cluster.service_url) as client:
                    producer = client.create_producer(TOPIC)
                    for key in ("a", "b"):
                        producer.send(key.encode(), partition_key=key)
                assert read(cluster) == [("a", b"a"), ("b", b"b")]
                admin.namespaces.erase(NAMESPACE, key="a")
            assert read(cluster) == [("b", b"b")]
            assert admin.topics.stats(TOPIC)["erasedMessages"] == 1
    names = {name.split("/")[0] for name in bucket.objects}
    assert "keyring" in names


def test_a_keyring_that_cannot_be_read_stops_delivery_and_publishing(
    tmp_path: Path, cluster: LocalCluster, admin: velaray.Admin
) -> None:
    """Nothing is lost, reordered or taken for erased; both go on when it is back."""
    erasable(admin)
    folder, away = tmp_path / "data" / "keyring", tmp_path / "away"
    with velaray.Client(cluster.service_url) as client:
        producer = client.create_producer(TOPIC, producer_name="p")
        producer.send(b"0", partition_key="k0")
        folder.rename(away)
        cluster.actor_system.needed_keyring().drop()
        (folder).mkdir()
        (folder / "00").write_bytes(b"")
        sending = [producer.send_async(b"%d" % at, partition_key=f"k{at}") for at in range(1, 6)]
        consumer = client.subscribe(TOPIC, "s", initial_position=velaray.InitialPosition.Earliest)
        with pytest.raises(velaray.Timeout):
            consumer.receive(700)
        (folder / "00").unlink()
        folder.rmdir()
        away.rename(folder)
        for each in sending:
            each.result(30)
        found = [consumer.receive(PATIENCE_MS) for _ in range(6)]
        assert [message.data() for message in found] == [b"%d" % at for at in range(6)]

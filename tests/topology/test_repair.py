"""Damage in the newest ledger of a partition, and its repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.cli.app import main
from velaray.events.ids import ActorKind
from velaray.starting import lock_data

TOPIC = "persistent://public/default/damaged"
VALUES = [b"%04d" % number * 250 for number in range(12)]
BAD = 5


def publish(cluster: LocalCluster) -> None:
    with velaray.Client(cluster.service_url) as client:
        client.subscribe(TOPIC, "durable").close()
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for value in VALUES:
            producer.send(value)


def receive(cluster: LocalCluster, count: int, subscription: str = "durable") -> list[bytes]:
    """The next messages, which are acknowledged."""
    found = []
    with velaray.Client(cluster.service_url) as client:
        start = velaray.InitialPosition.Earliest
        consumer = client.subscribe(TOPIC, subscription, initial_position=start)
        for _ in range(count):
            message = consumer.receive(10_000)
            found.append(message.data())
            consumer.acknowledge(message)
    return found


def change(data: Path, at: Callable[[bytes], int]) -> Callable[[], None]:
    """Change one byte of the ledger with the message `BAD`; returns what restores it."""
    (file,) = (each for each in data.rglob("*.ledger") if VALUES[BAD] in each.read_bytes())
    whole = file.read_bytes()
    place = at(whole)
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    return lambda: file.write_bytes(whole) and None


def in_payload(whole: bytes) -> int:
    return whole.index(VALUES[BAD]) + 500


def velaray_journal(*args: str) -> tuple[int, Any]:
    done = CliRunner().invoke(main, ["journal", *args, "-o", "json"])
    return done.exit_code, json.loads(done.stdout) if done.stdout else done.output


def key_of(cluster: LocalCluster) -> str:
    (key,) = (key for key in cluster.keys(ActorKind.PARTITION) if "damaged" in key.text())
    return key.text()


def test_a_partition_starts_with_a_damaged_entry_in_its_newest_ledger(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        publish(cluster)
        key = key_of(cluster)
    restore = change(tmp_path, in_payload)
    with LocalCluster(tmp_path) as cluster:
        assert receive(cluster, BAD) == VALUES[:BAD]
    code, rows = velaray_journal("verify", key, "--data", str(tmp_path))
    assert (code, [row["damaged_entries"] for row in rows if row["problems"]]) == (1, [[BAD]])
    with lock_data(str(tmp_path)):  # as a cluster that runs
        assert velaray_journal("repair", "--data", str(tmp_path))[0] == 1
    code, (row,) = velaray_journal("repair", "--data", str(tmp_path))
    assert (code, row["key"], row["entries"]) == (0, key, 1)
    assert "are damaged" in row["why"] and str(tmp_path) not in row["why"]
    assert velaray_journal("repair", key, "--data", str(tmp_path)) == (0, [])  # once
    with LocalCluster(tmp_path) as cluster:
        assert receive(cluster, len(VALUES) - BAD - 1) == VALUES[BAD + 1 :]
    restore()
    code, (row,) = velaray_journal("repair", key, "--undo", "--data", str(tmp_path))
    assert (code, row["entries"]) == (0, 1)
    with LocalCluster(tmp_path) as cluster:
        assert receive(cluster, len(VALUES), "new") == VALUES


def test_verification_goes_on_past_a_damaged_manifest(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        publish(cluster)
        key = key_of(cluster)
    for each in (tmp_path / "journals" / key).glob("+manifest/*"):
        each.write_bytes(b"nothing")
    code, rows = velaray_journal("verify", "--data", str(tmp_path))
    assert code == 1
    assert [row["key"] for row in rows if row["problems"]] == [key]
    assert len({row["key"] for row in rows}) > 2
    code, (row,) = velaray_journal("repair", "--data", str(tmp_path))
    assert (code, row["key"], row["entries"]) == (3, key, 0)

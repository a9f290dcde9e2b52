"""The benchmark's clients that transact, against a cluster in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import velaray
from benchmarks.contract import BEHIND, LISTS, MANY, Absent, Transacted
from benchmarks.systems import velaray_open, velaray_transactions
from benchmarks.systems.pulsar_transactions import JavaClient
from tests.official import java_client
from tests.support.local_cluster import LocalCluster

EARLIEST = velaray.InitialPosition.Earliest


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.service_url


def publish(client: velaray.Client, topic: str, count: int) -> None:
    with client.create_producer(topic) as producer:
        producer.send_many([b"%d" % number for number in range(count)])


def received(client: velaray.Client, topic: str, name: str = "all") -> list[bytes]:
    """All that comes."""
    found: list[bytes] = []
    with client.subscribe(topic, name, initial_position=EARLIEST) as consumer:
        try:
            while True:
                found += consumer.receive_many(timeout_millis=500).values()
        except velaray.Timeout:
            return found


def check(found: Transacted, results: list[bytes]) -> None:
    """All that was committed came once; the last ones may have found nothing more to fill up."""
    assert len(found.commits_s) * 10 == found.messages == len(results) == len(set(results))
    assert 80 <= found.messages <= 100


@pytest.mark.parametrize("way", ["", LISTS])
def test_velaray_copies_everything_once(url: str, way: str) -> None:
    source, target = f"source-{way}", f"target-{way}"
    with (
        velaray.Client(url) as client,
        velaray_transactions.transactor(url, source, target, way, 3) as transactor,
    ):
        publish(client, source, 100)
        found = transactor.run(10, 3, 30.0)
        check(found, received(client, target))
        assert 0 < max(found.commits_s) < found.seconds


def test_the_java_client_copies_everything_once(url: str, tmp_path: Path) -> None:
    try:
        jars = java_client.class_path()
    except Absent as reason:
        pytest.skip(f"no Java client here: {reason}")
    java = JavaClient(url, jars, tmp_path / "log")
    with velaray.Client(url) as client:
        try:
            with java.transactor("java-source", "java-target", 3) as transactor:
                publish(client, "java-source", 100)
                found = transactor.run(10, 3, 30.0)
        finally:
            java.close()
        check(found, received(client, "java-target"))


def test_transactions_are_held_open(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(velaray_open, "HELD", 5)
    with velaray.Client(url) as client:
        client.subscribe("held", "one").close()
        with velaray_open.holding(url, "held", "one", MANY):
            publish(client, "held", 3)
            assert received(client, "held", "one") == [b"0", b"1", b"2"]
            assert received(client, "held-elsewhere") == []
        assert received(client, "held", "one").count(b"held") == 5
        with velaray_open.holding(url, "behind", "one", BEHIND):
            publish(client, "behind", 3)
            assert received(client, "behind") == [b"0", b"1", b"2"]


def test_transactions_that_cannot_be_held_open_are_an_error(url: str) -> None:
    with (
        pytest.raises(velaray.VelarayError),
        velaray_open.holding(url, "persistent://t", "one", BEHIND),
    ):
        pass

"""Data directories that version 0.1.0 wrote open, serve and replay."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import velaray
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.cli.app import main
from velaray.client.admin import Admin, AdminError
from velaray.events.ids import ActorKey
from velaray.schema import AvroSchema, JsonSchema
from velaray.sync.client import Client

ARCHIVE = Path(__file__).parent / "written_by_0_1_0.tar.xz"
EARLIEST = velaray.InitialPosition.Earliest
SHARED = velaray.ConsumerType.Shared
PATIENCE_MS = 30_000


@dataclass
class Reading:
    """The newer of two versions of a schema."""

    sensor: str
    celsius: float
    place: str = "nowhere"


class Site:
    """A cluster over old data, with its clients."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.client = Client(local.service_url)
        self.admin = Admin(local.admin_url)

    def left(self, topic: str, subscription: str, count: int, **options: Any) -> list[str]:
        """Sorted contents of the next ``count`` messages; fails if there is one more."""
        consumer = self.client.subscribe(topic, subscription, **options)
        found = [consumer.receive(PATIENCE_MS).data().decode() for _ in range(count)]
        with pytest.raises(velaray.Timeout):
            consumer.receive(200)
        consumer.close()
        return sorted(found)

    def everything(self, topic: str, count: int) -> list[str]:
        """Contents of the topic from its beginning."""
        return self.left(topic, "all", count, initial_position=EARLIEST)


@dataclass
class Opened:
    """Both clusters, where their data is, and what it holds."""

    a: Site
    b: Site
    path: Path
    expected: dict[str, Any]


@contextmanager
def open_clusters(path: Path) -> Iterator[Opened]:
    with ExitStack() as stack:
        sites = []
        for number, name in enumerate("ab", 1):
            local = LocalCluster(path / name, name=name, cluster_number=number)
            sites.append(Site(stack.enter_context(local)))
            stack.callback(sites[-1].client.close)
        for site, other in (sites, sites[::-1]):
            urls = {"cluster": other.local.config.name, **other.local.urls}
            site.local.run(
                call_by_name(site.local.actor_system, ActorKey.catalog(), "update_cluster", urls)
            )
        yield Opened(*sites, path, json.loads((path / "expected.json").read_text()))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(path, filter="data")
    with open_clusters(path) as clusters:
        yield clusters


@pytest.mark.parametrize("topic", ["plain", "parts"])
def test_all_messages_are_read(opened: Opened, topic: str) -> None:
    expected = opened.expected["a"][topic]["all"]
    assert opened.a.everything(topic, len(expected)) == sorted(expected)


@pytest.mark.parametrize(
    ("topic", "subscription", "options"),
    [
        ("plain", "odd", {"consumer_type": SHARED, "batch_index_ack_enabled": True}),
        ("rolled", "s", {}),
        ("delayed", "s", {"consumer_type": SHARED}),
    ],
)
def test_unacknowledged_messages_are_delivered(
    opened: Opened, topic: str, subscription: str, options: dict[str, Any]
) -> None:
    expected = opened.expected["a"][topic]["left"][subscription]
    assert opened.a.left(topic, subscription, len(expected), **options) == sorted(expected)


def test_deleted_ledgers_and_topics_stay_deleted(opened: Opened) -> None:
    with pytest.raises(AdminError) as missing:
        opened.a.admin.stats("gone")
    assert missing.value.status == 404
    totals = opened.a.admin.ledger_audit()["totals"]
    assert [totals[kind]["ledgers"] for kind in ("missing", "orphan", "dead-letter")] == [0, 0, 0]


def test_a_compacted_topic_has_its_newest_values(opened: Opened) -> None:
    expected = opened.expected["a"]["compacted"]["table"]
    reader = opened.a.client.create_reader(
        "compacted", velaray.MessageId.earliest, is_read_compacted=True
    )
    found = [reader.read_next(PATIENCE_MS) for _ in expected]
    assert not reader.has_message_available()
    assert {one.partition_key(): one.data().decode() for one in found} == expected


def test_an_open_transaction_can_be_ended(opened: Opened) -> None:
    """It holds an acknowledgement and a message; its abort gives back the first."""
    orders = opened.expected["a"]["orders"]
    left = orders["left"]["s"]
    assert opened.a.left("orders", "s", len(left), consumer_type=SHARED) == left
    coordinator, sequence = orders["open"]
    assert opened.a.admin.abort_transaction((coordinator, sequence))
    found = opened.a.left("orders", "s", 2, consumer_type=SHARED)
    assert found == ["committed-1", "committed-2"]


def test_schemas_have_their_versions(opened: Opened) -> None:
    expected = opened.expected["a"]["schemas"]
    for topic, versions in expected.items():
        assert len(opened.a.admin.schemas(topic)) == versions
    for topic, schema, first in (
        ("readings", JsonSchema(Reading), Reading("a", 1.5)),
        ("avro", AvroSchema(Reading), Reading("c", 3.5)),
    ):
        consumer = opened.a.client.subscribe(
            topic, "typed", schema=schema, initial_position=EARLIEST
        )
        assert consumer.receive(PATIENCE_MS).value() == first
        consumer.close()


def test_replication_goes_on(opened: Opened) -> None:
    """Both clusters hold the same messages, and a new one reaches the other cluster once."""
    both = opened.expected["both"]
    topic = "public/shared/both"
    producer = opened.a.client.create_producer(topic, "new")
    producer.send(b"both-new")
    producer.close()
    left = [*both["left_there"]["there"], "both-new"]
    assert opened.b.left(topic, "there", len(left)) == sorted(left)
    left = [*both["left"]["follow"], "both-new"]
    assert opened.a.left(topic, "follow", len(left)) == sorted(left)
    wait_until(lambda: opened.a.admin.stats(topic)["replication"]["b"]["replicationBacklog"] == 0)


def test_a_producer_continues_from_its_last_sequence_id(opened: Opened) -> None:
    producer = opened.a.client.create_producer("plain", "writer-plain")
    assert producer.last_sequence_id() == 59
    producer.close()


def test_journals_replay_to_their_states(opened: Opened) -> None:
    """``velaray journal verify`` finds no damage in either data directory."""
    for name in "ab":
        done = CliRunner().invoke(main, ["journal", "verify", "--data", str(opened.path / name)])
        assert done.exit_code == 0, done.output

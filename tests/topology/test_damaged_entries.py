"""One damaged frame in a sealed ledger fails the reads of its entries, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.official.raw import RawClient
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKey, ActorKind, Position
from velaray.journal.journal import JournalSettings
from velaray.topology.rpc import RemoteError
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Message

MESSAGES, BAD = 60, 25


def value(number: int) -> bytes:
    return b"%04d" % number * 250


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        cluster.actor_system.journal_settings = JournalSettings(
            roll_bytes=64 << 10, roll_records=50
        )
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[velaray.Client]:
    with velaray.Client(cluster.service_url) as client:
        yield client


class Damaged:
    """A topic of `MESSAGES` messages; the frame of number `BAD` is damaged on disk."""

    def __init__(self, cluster: LocalCluster, client: velaray.Client, name: str) -> None:
        self.cluster = cluster
        self.topic = f"persistent://public/default/{name}"
        client.subscribe(self.topic, "durable").close()
        producer = client.create_producer(self.topic, batching_enabled=False)
        for number in range(MESSAGES):
            producer.send(value(number))
        producer.close()
        (self.key,) = (key for key in cluster.keys(ActorKind.PARTITION) if self._is_here(key))
        self.position: Position = self.actor.log.position_of(BAD)
        cluster.kill(self.key)  # and what it has in memory
        root = Path(cluster.config.data_dir)
        (self.file,) = root.rglob(f"{self.position.ledger_id}.ledger")
        self.whole = self.file.read_bytes()
        self.at = self.whole.index(value(BAD))
        self.file.write_bytes(self.whole[: self.at] + b"\0" + self.whole[self.at + 1 :])

    def _is_here(self, key: ActorKey) -> bool:
        return str(key.topic_name) == self.topic

    @property
    def actor(self) -> PartitionActor:
        actor = self.cluster.actor_system.actors[self.key]
        assert isinstance(actor, PartitionActor)
        return actor

    def call(self, method: str, **args: Any) -> Any:
        return self.cluster.run(call_by_name(self.cluster.actor_system, self.key, method, args))

    def holdups(self, name: str) -> list[str]:
        found = self.call("describe_subscription", name=name)
        return [each["text"] for each in found["holdups"] if each["reason"] == "unreadable"]

    def mend(self) -> None:
        self.file.write_bytes(self.whole)


def received(consumer: Any, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(10_000)
        found.append(message.data())
        consumer.acknowledge(message)
    return found


@pytest.fixture
def damaged(
    cluster: LocalCluster, client: velaray.Client, request: pytest.FixtureRequest
) -> Iterator[Damaged]:
    yield Damaged(cluster, client, request.node.name)
    assert cluster.actor_system.failures == []


def test_only_readers_of_a_damaged_entry_get_an_error(
    damaged: Damaged, client: velaray.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "velaray.broker.partition.entry_log")
    other = client.subscribe(
        damaged.topic, "from now on", initial_position=velaray.InitialPosition.Latest
    )
    consumer = client.subscribe(damaged.topic, "durable")
    assert received(consumer, BAD) == [value(number) for number in range(BAD)]
    (why,) = wait_until(lambda: damaged.holdups("durable"))
    assert f"entry {damaged.position} can't be read: {damaged.file.name}: corrupt at byte" in why
    assert damaged.cluster.config.data_dir not in why
    assert str(damaged.file) in caplog.text
    producer = client.create_producer(damaged.topic)
    for number in range(20):
        producer.send(value(100 + number))
    assert received(other, 20) == [value(100 + number) for number in range(20)]
    stats = damaged.call("stats")
    assert stats["unreadable"]["durable"] == [why.partition(";")[0]]
    assert 0 < stats["failed_reads"] < 10  # though there was much that might have led to a read
    damaged.mend()
    assert received(consumer, 1) == [value(BAD)]
    assert damaged.holdups("durable") == []


def test_a_reader_gets_the_undamaged_entries_on_both_sides(
    damaged: Damaged, client: velaray.Client
) -> None:
    start = velaray.MessageId.earliest
    with client.create_reader(damaged.topic, start, start_message_id_inclusive=True) as reader:
        found = [reader.read_next(10_000).data() for _ in range(BAD)]
        assert found == [value(number) for number in range(BAD)]
        behind = Position(damaged.position.ledger_id, damaged.position.entry_id + 1)
        reader.seek(velaray.MessageId(-1, *behind, -1))
        rest = [reader.read_next(10_000).data() for _ in range(MESSAGES - BAD - 1)]
        assert rest == [value(number) for number in range(BAD + 1, MESSAGES)]


def test_the_reading_client_is_told_the_file_and_the_byte(damaged: Damaged) -> None:
    async def scenario() -> None:
        address = await damaged.cluster.actor_system.reach(damaged.key)
        raw = await RawClient.connect(address.host, address.service_port)
        subscribe = pb.CommandSubscribe(
            topic=damaged.topic,
            subscription="durable",
            subType=pb.CommandSubscribe.Shared,
            consumer_id=1,
            request_id=7,
        )
        raw.send(subscribe)
        await raw.next(pb.CommandSuccess)
        raw.send(pb.CommandFlow(consumer_id=1, messagePermits=1000))
        error = await raw.next(pb.CommandError)
        assert (error.request_id, error.error) == (7, pb.PersistenceError)
        assert f"{damaged.file.name}: corrupt at byte " in error.message
        assert "/" not in error.message
        sent = [each for each in raw.history if isinstance(each, Message)]
        assert len(sent) == BAD
        raw.close()

    damaged.cluster.run(scenario())


def test_peeking_at_a_damaged_entry_is_an_error(damaged: Damaged) -> None:
    damaged.call("skip_to", name="durable", offset=BAD)
    assert damaged.call("stats")["oldest_backlog_ms"] >= 0
    with pytest.raises(RemoteError, match="corrupt at byte") as refused:
        damaged.call("peek", name="durable", number=1)
    assert damaged.cluster.config.data_dir not in str(refused.value)

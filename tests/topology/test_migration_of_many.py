"""Tenants with many partitions move, and start a few replicators at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.neighbours import ask, create, neighbours
from tests.support.waiting import wait_until
from tests.topology.migrating import Move
from velaray.geo.replication.connection_pace import AT_ONCE
from velaray.geo.replication.replication_keeper import Kept
from velaray.geo.replication.replicator_target import Target
from velaray.topology.actor_system import ActorSystem

TOPIC = "persistent://acme/n/many"


@pytest.fixture
def move(tmp_path: Path) -> Iterator[Move]:
    with neighbours(tmp_path, hosts=1) as (a, b):
        create("acme/n", a)
        move = Move(a, b)
        yield move
        move.client.close()


class Concurrency:
    """How many calls of a method run at a time, of those with an argument of a type."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, argument: type
    ) -> None:
        self.calls = self.now = self.most = 0
        called = getattr(owner, method)

        async def count(*args: Any) -> Any:
            counted = any(isinstance(each, argument) for each in args)
            self.calls += counted
            self.now += counted
            self.most = max(self.most, self.now)
            try:
                return await called(*args)
            finally:
                self.now -= counted

        monkeypatch.setattr(owner, method, count)


def moves(move: Move, partitions: int, within_s: float) -> None:
    """Move a topic with a message in each partition, all of which are active."""
    ask(move.a, "create_topic", topic=TOPIC, partitions=partitions)
    with velaray.Client(move.a.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        producer = client.create_producer(TOPIC)
        for number in range(2 * partitions):
            producer.send(str(number).encode())
        for _ in range(partitions):
            consumer.acknowledge(consumer.receive(30_000))
        producer.flush()
    move.begin()
    assert wait_until(lambda: move.phase() == "done", within_s)
    assert move.home(move.a) == move.home(move.b) == "b"
    with velaray.Client(move.b.service_url) as client:
        consumer = client.subscribe(TOPIC, "s")
        left = {consumer.receive(30_000).data() for _ in range(partitions)}
    assert len(left) == partitions


def test_replicators_start_and_connect_a_few_at_a_time(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Concurrency(monkeypatch, ActorSystem, "open_rpc", Kept)
    connecting = Concurrency(monkeypatch, Target, "open", Target)
    moves(move, 3 * AT_ONCE, 120)
    assert min(starts.calls, connecting.calls) >= 3 * AT_ONCE
    assert max(starts.most, connecting.most) <= AT_ONCE


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_tenant_with_500_partitions_moves(move: Move) -> None:
    moves(move, 500, 600)

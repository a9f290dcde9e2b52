"""The number of objects of a process that works at a steady state: it doesn't grow with the work.

Cycle collection is off while objects are counted. The processes of actors collect rarely
(`velaray.topology.ray_process`), so reference cycles of every message or survey would fill their
memory with garbage.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import pulsar
import pytest

from tests.support.by_name import call_as_ray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.broker.partition.entries import TailMemory
from velaray.broker.partition.partition_actor import PartitionActor
from velaray.events.ids import ActorKind
from velaray.topology.actor_system import SURVEYS
from velaray.topology.rpc import RemoteError

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
TOPICS = 5
MESSAGES = 300
SURVEYS_OF_A_ROUND = 20
TAIL_BYTES = 30_000
WARM_UP, ROUNDS = 2, 4
NOISE = 75
"""Timers and tasks of a round; far less than an object for each message or each survey."""


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _publish_and_acknowledge(
    producers: list[pulsar.Producer], consumers: list[pulsar.Consumer]
) -> None:
    for producer, consumer in zip(producers, consumers, strict=True):
        for number in range(MESSAGES):
            producer.send_async(b"%d" % number, lambda result, at: None)
        producer.flush()
        messages = [consumer.receive(20_000) for _ in range(MESSAGES)]
        for message in reversed(messages):
            consumer.acknowledge(message)


async def _survey(cluster: LocalCluster) -> None:
    for key in list(cluster.actor_system.actors):
        for method in SURVEYS:
            for _ in range(SURVEYS_OF_A_ROUND):
                with suppress(RemoteError):  # not every actor answers every survey
                    await call_as_ray(cluster.actor_system, key, method, {})


async def _drop_idle_chunks(cluster: LocalCluster) -> None:
    for actor in cluster.actor_system.actors.values():
        if isinstance(actor, PartitionActor):
            actor.log.drop_idle_chunks()
            actor.log.drop_idle_chunks()
            assert not actor.log.cache.chunks_held


def _all_acknowledged(cluster: LocalCluster) -> bool:
    """Whether the cluster has every acknowledgement."""

    async def backlog() -> int:
        found = 0
        for key in list(cluster.actor_system.actors):
            if key.kind is ActorKind.PARTITION:
                stats = await call_as_ray(cluster.actor_system, key, "stats", {})
                for each in stats["subscriptions"].values():
                    found += stats["end_offset"] - each["acked_before"]
        return found

    return bool(cluster.run(backlog()) == 0)


def test_objects_do_not_grow_with_messages_and_surveys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TailMemory.__init__, "__defaults__", (None, TAIL_BYTES))
    with LocalCluster(tmp_path, hosts=1) as cluster:
        client = pulsar.Client(cluster.service_url, logger=QUIET)
        names = [f"steady-{number}" for number in range(TOPICS)]
        consumers = [
            client.subscribe(name, "s", consumer_type=pulsar.ConsumerType.Shared) for name in names
        ]
        producers = [client.create_producer(name, batching_enabled=False) for name in names]
        counts = []
        with _no_collections():
            for _ in range(WARM_UP + ROUNDS):
                _publish_and_acknowledge(producers, consumers)
                wait_until(lambda: _all_acknowledged(cluster))
                cluster.run(_survey(cluster))
                cluster.run(_drop_idle_chunks(cluster))
                counts.append(len(gc.get_objects()))
        client.close()
    # A cache that fills once changes one round, a leak all of them.
    growth = [after - before for before, after in pairwise(counts[WARM_UP - 1 :])]
    assert median(growth) < NOISE, counts


def test_maintenance_drops_older_entries_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TailMemory.__init__, "__defaults__", (None, 0))
    with LocalCluster(tmp_path, maintenance_s=0.05) as cluster:
        client = pulsar.Client(cluster.service_url, logger=QUIET)
        producer = client.create_producer("t", batching_enabled=False)
        for number in range(10):
            producer.send(b"%d" % number)
        (key,) = cluster.keys(ActorKind.PARTITION)
        actor = cluster.actor_system.actors[key]
        assert isinstance(actor, PartitionActor)
        log = actor.log

        async def load() -> int:
            await log.cache.load(0)
            return log.cache.chunks_held

        assert cluster.run(load()) == 1
        wait_until(lambda: log.cache.chunks_held == 0)
        client.close()

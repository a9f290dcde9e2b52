"""What tests of deletion share: journals without actors, and events from any sender."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tests.journal.testing import started, write
from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.aio import Client
from velaray.broker.garbage_collection.deletion import EVENTS, enqueue_deletion
from velaray.broker.garbage_collection.deletion_events import encode_event, event_of
from velaray.broker.garbage_collection.garbage_collector import GarbageCollector
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.journal.journal import Journal
from velaray.journal.store import LedgerStore
from velaray.topology.system_credentials import SystemCredentials

GARBAGE_COLLECTOR = ActorKey.of_garbage_collector(0)


def a_topic(name: str) -> ActorKey:
    """The key of a partition that no cluster knows."""
    return ActorKey.of_partition(TopicName.parse(f"persistent://public/default/{name}"), 7)


async def a_journal(store: LedgerStore, key: ActorKey, ledgers: int = 6) -> Journal:
    """An open journal of so many ledgers."""
    journal = await started(store, key.text())
    for number in range(1, ledgers):
        await write(journal, b"e%d" % number)
        await journal.roll({"events": b"x"}, b"digest")
    return journal


def listed(journal: Journal) -> list[int]:
    return [info.ledger_id for info in journal.ledgers]


def make_journal(cluster: LocalCluster, key: ActorKey, ledgers: int = 6) -> Journal:
    return cluster.run(a_journal(cluster.actor_system.store, key, ledgers))


def stored(cluster: LocalCluster, key: ActorKey) -> list[int]:
    return cluster.run(cluster.actor_system.store.list_ledgers(key.text()))


def tell(cluster: LocalCluster, key: ActorKey, ledgers: Iterable[int]) -> None:
    cluster.run(enqueue_deletion(cluster.actor_system, key, list(ledgers)))


def actor(cluster: LocalCluster) -> GarbageCollector:
    found = cluster.actor_system.actors[GARBAGE_COLLECTOR]
    assert isinstance(found, GarbageCollector)
    return found


def counts(cluster: LocalCluster) -> dict[str, int]:
    """The garbage collector's counts since its start; the call activates it if necessary."""
    return cluster.run(call_by_name(cluster.actor_system, GARBAGE_COLLECTOR, "describe"))["counts"]


def wait_for(cluster: LocalCluster, **wanted: int) -> dict[str, int]:
    """The garbage collector's counts, once they have reached the wanted values."""

    def reached() -> dict[str, int] | None:
        found = counts(cluster)
        return found if all(found[name] >= value for name, value in wanted.items()) else None

    return wait_until(reached, 30.0)


def given_up(cluster: LocalCluster, name: str = "orders") -> tuple[ActorKey, int]:
    """A ledger whose deletion was given up."""
    key = a_topic(name)
    journal = make_journal(cluster, key)
    (first, *_) = listed(journal)
    cluster.run(journal.drop_from_manifest([first]))
    before = counts(cluster)["dead"]
    tell(cluster, key, [first])
    wait_for(cluster, dead=before + 1)
    return key, first


async def _publish(url: str, rpc_key: bytes, topic: str, payloads: list[Any]) -> None:
    async with Client(url, authentication=SystemCredentials(rpc_key)) as client:
        producer = await client.create_producer(topic, batching_enabled=False)
        for payload, properties in payloads:
            await producer.send(payload, properties)


def publish(
    cluster: LocalCluster, *payloads: bytes | None, topic: str = str(EVENTS), **properties: str
) -> None:
    """Publish to the deletion topic, or to another one of them, as only an actor may."""
    pairs = [(payload, properties) for payload in payloads]
    asyncio.run(_publish(cluster.service_url, cluster.config.rpc_key, topic, pairs))


def raw_event(key: ActorKey, ledger_id: int, **changes: Any) -> bytes:
    """An event's payload, with some of its fields changed."""
    event = event_of(key, ledger_id)
    return encode_event(type(event)(**{**vars(event), **changes}))


def running(cluster: LocalCluster) -> bool:
    return bool(cluster.keys(ActorKind.GARBAGE_COLLECTOR))

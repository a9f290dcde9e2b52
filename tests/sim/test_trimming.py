"""The judge of what is trimmed and what expires, of topics that are being deleted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sim.attic import SimDisk
from tests.sim.cluster import SimStore
from tests.sim.loop import NODE
from tests.sim.trimming import check_frame
from velaray.actors.catalog.machine import Bootstrap, CatalogMachine, CreateTopic, DeleteTopic
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.cursor import pack_ranges
from velaray.events.codec import encode
from velaray.events.events_pb2 import EntriesExpired, EntriesTrimmed
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.journal import JournalSettings
from velaray.journal.memory import MemoryStore

TOPIC = TopicName.parse("persistent://public/default/d0")
CREATE, DELETE = CreateTopic(TOPIC), DeleteTopic(TOPIC)
PARTITION = ActorKey.of_partition(TOPIC, 1)
DECISIONS = [
    pytest.param(
        PARTITION.of_subscription("s", 1),
        EntriesExpired(ranges=pack_ranges([(0, 1)]), reason="quota"),
        id="expired",
    ),
    pytest.param(PARTITION, EntriesTrimmed(), id="trimmed"),
]


async def keep(disk: SimDisk, machine: Any, key: ActorKey, *commands: Any) -> None:
    """An actor's journal, once it was asked for something."""
    runtime = await Runtime.recover(
        machine, SimStore(disk), key, lambda: 0, JournalSettings(), lambda error: None
    )
    for command in commands:
        await runtime.ask(command)
    await runtime.close()


def judged(disk: SimDisk, key: ActorKey, event: Any, *commands: Any) -> list[str]:
    """The judge's faults of a decision after ``commands`` to the catalog."""
    cluster = SimpleNamespace(disk=disk, failures=[])
    actor = SimpleNamespace(actor_system=SimpleNamespace(_cluster=cluster))

    async def judge() -> None:
        NODE.set(SimpleNamespace(key=key, actor=actor))  # type: ignore[arg-type]
        bootstrap = Bootstrap("sim", "pulsar://sim", "http://sim")
        await keep(disk, CatalogMachine(), ActorKey.catalog(), bootstrap, *commands)
        await check_frame([encode(event)])

    asyncio.run(judge())
    return cluster.failures


@pytest.mark.parametrize(("key", "event"), DECISIONS)
def test_a_partition_with_a_missing_journal_is_reported(key: ActorKey, event: Any) -> None:
    assert judged(SimDisk(), key, event, CREATE) == [
        f"{key}: journal {PARTITION.text()}: not stored here"
    ]


@pytest.mark.parametrize("later", [(), (CREATE,)], ids=["for good", "and made again"])
@pytest.mark.parametrize(("key", "event"), DECISIONS)
def test_the_journal_of_a_deleted_topic_may_be_missing(
    key: ActorKey, event: Any, later: tuple[CreateTopic, ...]
) -> None:
    assert judged(SimDisk(), key, event, CREATE, DELETE, *later) == []


@pytest.mark.parametrize(("key", "event"), DECISIONS)
@pytest.mark.parametrize("deleted", [False, True])
def test_ledgers_of_a_topic_are_missing_only_if_it_was_deleted(
    key: ActorKey, event: Any, deleted: bool
) -> None:
    disk = SimDisk()

    async def delete_half_of_it() -> None:
        await keep(disk, PartitionMachine(), PARTITION)
        store = MemoryStore(disk)
        for ledger_id in await store.list_ledgers(PARTITION.text()):
            await store.delete_ledger(PARTITION.text(), ledger_id)

    asyncio.run(delete_half_of_it())
    faults = judged(disk, key, event, *([CREATE, DELETE] if deleted else [CREATE]))
    assert bool(faults) is not deleted

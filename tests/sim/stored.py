"""The contents of the disk at the end of a run, compared with the live actors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from google.protobuf.message import Message

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.cluster import SimCluster
from tests.sim.contents import contents_of
from tests.sim.cursors import only_near_ledgers_are_needed
from tests.sim.pasts import pasts_are_as_noted
from tests.sim.shadow import CheckedMachine, reader_of
from tests.sim.undone import undoing_restores_exactly
from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.coordinator.machine import CoordinatorMachine
from velaray.actors.machine import digest
from velaray.actors.partition.compacted_index import CompactedIndexMachine
from velaray.actors.partition.machine import PartitionMachine
from velaray.actors.runtime import Stopped
from velaray.actors.schema_registry.machine import SchemaRegistryMachine
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.coordinator.coordinators import coordinator_of
from velaray.events.codec import decode
from velaray.events.events_pb2 import CursorReset, CursorRestored
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal import journal
from velaray.journal.checkpoint import Checkpoint
from velaray.journal.errors import JournalError
from velaray.journal.memory import MemoryStore
from velaray.journal.replay import checkpoint_of, load_manifest, replay, verify
from velaray.journal.scan import Record

MACHINES: dict[ActorKind, Any] = {
    ActorKind.CATALOG: CatalogMachine,
    ActorKind.PARTITION: PartitionMachine,
    ActorKind.SUBSCRIPTION: SubscriptionMachine,
    ActorKind.COMPACTED: CompactedIndexMachine,
    ActorKind.COORDINATOR: CoordinatorMachine,
    ActorKind.SCHEMA_REGISTRY: SchemaRegistryMachine,
}


class Fold:
    """Recomputes a state from history."""

    def __init__(self, kind: ActorKind) -> None:
        self.machine = MACHINES[kind]()
        self.state = self.machine.initial()
        self.backwards = 0

    def restore(self, checkpoint: Checkpoint) -> None:
        self.state = self.machine.restore(checkpoint.segments)

    def apply(self, record: Record) -> None:
        self.evolve(decode(record.event))

    def evolve(self, event: Message) -> None:
        """Apply one event."""
        before = getattr(self.state, "cursor", None)
        mark = before.acked_before if before is not None else 0
        self.machine.evolve(self.state, event)
        self.machine.check(self.state)
        if before is not None and not isinstance(event, CursorReset | CursorRestored):
            self.backwards += self.state.cursor.acked_before < mark

    def digest(self) -> bytes:
        return digest(self.machine.snapshot(self.state))


async def read_log(store: MemoryStore, key: ActorKey) -> dict[tuple[int, int], list[str]]:
    """A partition's entries as its journal has them."""
    log = {}
    async for record in replay(store, key.text()):
        if record.blob is not None and record.position is not None:
            log[tuple(record.position)] = contents_of(record.blob)
    return log


async def audit(cluster: SimCluster) -> list[str]:
    """Replay equals live for every actor's journal, and every ledger is sound."""
    store, faults = MemoryStore(cluster.disk), []
    expected = await expected_journals(cluster) | await compacted_journals(cluster)
    for name in sorted(expected.intersection(await store.list_journals())):
        key = ActorKey.parse(name)
        await settle(cluster, key)  # nothing below lets another task run
        fold = Fold(key.kind)
        for report in await verify(store, name, fold):
            faults += [f"{name} ledger {report.ledger_id}: {text}" for text in report.problems]
        manifest = await load_manifest(store, name)
        if far := only_near_ledgers_are_needed(manifest.ledgers, journal.MAX_REFERRED):
            faults.append(f"{name}: {far}")
        if fold.backwards:
            faults.append(f"{name}: the cursor went back {fold.backwards} times without a seek")
        if key.kind is ActorKind.SUBSCRIPTION:
            faults += await undoing_restores_exactly(HistoryStore(cluster.disk), key)
        node = cluster.actors.get(key)
        if node is not None and node.actor is not None:
            runtime = node.actor.runtime  # type: ignore[attr-defined]
            if runtime.journal.epoch != manifest.epoch:
                continue  # a slow former activation took over, which an idle owner doesn't notice
            machine = CheckedMachine(MACHINES[key.kind](), reader_of(store, key))
            if runtime._opened and runtime._full:  # the next commit writes it
                fold.evolve(runtime._opened)
            if digest(machine.snapshot(runtime.state)) != fold.digest():
                faults.append(f"{name}: replay gives another state than the live one")
    return faults + await pasts_are_as_noted(HistoryStore(cluster.disk), cluster.pasts, expected)


class _HasDisk(Protocol):
    @property
    def disk(self) -> SimDisk: ...


async def settle(cluster: SimCluster, key: ActorKey) -> None:
    """Return when the actor's state is durable, if it runs: garbage collectors still work."""
    while (node := cluster.actors.get(key)) is not None and node.actor is not None:
        runtime = node.actor.runtime  # type: ignore[attr-defined]
        if runtime._settled() or (runtime._opened and runtime._full):
            return
        with suppress(Stopped, JournalError):  # it ends, and another one may start
            await runtime.read(lambda state: None)
        await asyncio.sleep(0)


async def expected_journals(cluster: _HasDisk) -> set[str]:
    """The journals of existing actors, by the catalog and by their partitions."""
    store = MemoryStore(cluster.disk)
    catalog = await state_of(store, ActorKey.catalog())
    expected = {ActorKey.catalog().text()}
    stored = set(await store.list_journals())
    topics = [topic for found in catalog.namespaces.values() for topic in found.values()]
    for topic in topics:
        registry = ActorKey.of_schema_registry(topic.name, topic.incarnation).text()
        if registry in stored:  # there is none unless a schema was sent
            expected.add(registry)
        for key in topic.actors():
            coordinator = coordinator_of(key.topic_name)
            if coordinator is not None:
                expected.add(coordinator.text())
                continue
            expected.add(key.text())
            if key.text() in stored:
                names = (await state_of(store, key)).subscriptions.values()
                subscriptions = [known.ref for known in names]
                expected |= {
                    key.of_subscription(ref.name, ref.incarnation).text() for ref in subscriptions
                }
    return expected


async def compacted_journals(cluster: SimCluster) -> set[str]:
    """The journals of the partitions' compacted views."""
    store, found = MemoryStore(cluster.disk), set()
    stored = set(await store.list_journals())
    for name in (await expected_journals(cluster)) & stored:
        key = ActorKey.parse(name)
        if key.kind is ActorKind.PARTITION:
            current = (await state_of(store, key)).compactions.current
            if current is not None:
                found.add(key.of_compacted(current.number).text())
    return found


async def state_of(store: MemoryStore, key: ActorKey) -> Any:
    """The state as recovery finds it: from the last checkpoint and the events after it."""
    machine = MACHINES[key.kind]()
    ledgers = (await load_manifest(store, key.text())).ledgers
    if not ledgers:
        return machine.initial()
    last = ledgers[-1].ledger_id
    state = machine.restore((await checkpoint_of(store, key.text(), last)).segments)
    async for record in replay(store, key.text(), last):
        machine.evolve(state, decode(record.event))
    return state


async def strays(cluster: SimCluster) -> list[str]:
    """Stored objects that nothing lists, but the planted: journals, ledgers, marks, indexes."""
    store, faults = MemoryStore(cluster.disk), []
    expected = await expected_journals(cluster) | await compacted_journals(cluster)
    for name, files in cluster.disk._journals.items():
        if name not in expected:
            faults.append(f"journal {name} is stored, and there is no such actor")
            continue
        listed = {info.ledger_id for info in (await load_manifest(store, name)).ledgers}
        listed |= {ledger_id for journal, ledger_id in cluster.disk.planted if journal == name}
        for what in ("ledgers", "marks", "indexes"):
            stray = set(getattr(files, what)) - listed
            if stray:
                faults.append(f"{name}: {what} {sorted(stray)} are stored and not listed")
    return faults

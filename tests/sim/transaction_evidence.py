"""What the journals of a run say about its transactions, from their first event on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from tests.sim.attic import HistoryStore, SimDisk
from tests.sim.contents import contents_of
from velaray.actors.catalog.machine import SYSTEM_TENANT
from velaray.actors.coordinator.machine import CoordinatorMachine
from velaray.actors.coordinator.state import CoordinatorState
from velaray.actors.partition.machine import (
    PartitionMachine,
)
from velaray.actors.partition.state import PartitionState
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntriesTrimmed, EntryAppended, TransactionEnded
from velaray.events.ids import ActorKey, ActorKind, TransactionId
from velaray.journal.memory import MemoryStore
from velaray.journal.replay import replay

Place = tuple[int, int]


@dataclass(frozen=True)
class Stored:
    """An entry: its offset, where clients see it, what is in it, and its transaction."""

    offset: int
    place: Place
    contents: list[str]
    txn: str | None


@dataclass
class PartitionPast:
    """A partition's journal: events, and its entries by offset; which ledgers were trimmed."""

    topic: str
    state: PartitionState
    events: list[Message] = field(default_factory=list)
    entries: list[Stored] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)

    def hidden(self, aborted: set[str]) -> set[Place]:
        """The places of the entries of these transactions."""
        return {entry.place for entry in self.entries if entry.txn in aborted}


@dataclass
class TransactionEvidence:
    """All of it: the coordinators' states at the end and their events, by number; partitions by
    topic; the events of subscriptions by topic and name."""

    states: dict[int, CoordinatorState] = field(default_factory=dict)
    decisions: dict[int, list[Message]] = field(default_factory=dict)
    partitions: dict[str, PartitionPast] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], list[Message]] = field(default_factory=dict)

    def verdicts(self) -> dict[str, bool]:
        """Whether each decided transaction was committed; the first verdict, if there are more."""
        found: dict[str, bool] = {}
        for number, events in self.decisions.items():
            for event in events:
                if type(event).__name__ == "TransactionDecided":
                    name = str(TransactionId(number, event.sequence))  # type: ignore[attr-defined]
                    found.setdefault(name, event.commit)  # type: ignore[attr-defined]
        return found

    def aborted(self) -> set[str]:
        """The decided aborts."""
        return {name for name, committed in self.verdicts().items() if not committed}

    def hidden(self) -> dict[str, set[Place]]:
        """The hidden places by topic."""
        aborted = self.aborted()
        return {topic: past.hidden(aborted) for topic, past in self.partitions.items()}


async def collect(disk: SimDisk, expected: set[str]) -> TransactionEvidence:
    """Collect the evidence from the stored journals of these actors."""
    found, store = TransactionEvidence(), HistoryStore(disk)
    for name in sorted(expected & set(await store.list_journals())):
        key = ActorKey.parse(name)
        if key.tenant == SYSTEM_TENANT:
            continue  # system topics have no transactions
        match key.kind:
            case ActorKind.COORDINATOR:
                await _read_coordinator(found, store, key)
            case ActorKind.PARTITION:
                found.partitions[str(key.topic_name)] = await _read_partition(store, key)
            case ActorKind.SUBSCRIPTION:
                events = [decode(record.event) async for record in replay(store, name)]
                found.subscriptions[str(key.topic_name), key.subscription] = events
    return found


async def _read_coordinator(found: TransactionEvidence, store: MemoryStore, key: ActorKey) -> None:
    machine = CoordinatorMachine()
    state, events = machine.initial(), []
    async for record in replay(store, key.text()):
        event = decode(record.event)
        machine.evolve(state, event)
        events.append(event)
    found.states[key.partition] = state
    found.decisions[key.partition] = events


async def _read_partition(store: MemoryStore, key: ActorKey) -> PartitionPast:
    machine = PartitionMachine()
    past = PartitionPast(str(key.topic_name), machine.initial())
    async for record in replay(store, key.text()):
        event: Any = decode(record.event)
        machine.evolve(past.state, event)
        past.events.append(event)
        if isinstance(event, EntriesTrimmed):
            past.trimmed.update(ledger.ledger_id for ledger in event.ledgers)
        if record.blob is not None and record.position is not None:
            txn = None
            if isinstance(event, EntryAppended) and event.txn_sequence:
                txn = str(TransactionId(event.txn_coordinator, event.txn_sequence))
            place = (record.position.ledger_id, record.position.entry_id)
            contents = contents_of(record.blob)
            past.entries.append(Stored(len(past.entries), place, contents, txn))
    return past


async def hidden_places(store: MemoryStore, key: ActorKey) -> set[Place]:
    """The hidden places, by the partition's own journal."""
    past = await _read_partition(store, key)
    ended = (event for event in past.events if isinstance(event, TransactionEnded))
    return past.hidden(
        {
            str(TransactionId(event.coordinator, event.sequence))
            for event in ended
            if not event.commit
        }
    )


async def unfinished(disk: SimDisk, coordinators: int) -> list[str]:
    """The transactions that aren't over, by the coordinators' journals."""
    store, found = HistoryStore(disk), []
    stored = set(await store.list_journals())
    for number in range(coordinators):
        key = ActorKey.of_coordinator(number)
        if key.text() in stored:
            read = TransactionEvidence()
            await _read_coordinator(read, store, key)
            left = read.states[number].unfinished.values()
            found += [f"({number},{known.sequence}) {known.status}" for known in left]
    return found

"""The facts in a partition's journal about one entry: its publishing, and the open transactions
that delayed its delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

from velaray.actors.coordinator.state import Status
from velaray.actors.partition import transactions
from velaray.actors.partition.ledger_table import LedgerTable
from velaray.actors.partition.remote_transactions import is_remote, name_of
from velaray.actors.partition.transactions import Transactions
from velaray.broker.coordinator import messages as coordinator_messages
from velaray.broker.history import NoHistory, as_text, partition_of
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended, TransactionEnded
from velaray.events.ids import ActorKey, Position, TransactionId
from velaray.journal.replay import HistoryRecord, checkpoint_of, replay
from velaray.journal.store import LedgerStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import reason_of
from velaray.topology.transient import TRANSIENT
from velaray.wire.messages import read_metadata

EVENTS_AT_ONCE = 1000
"""After this many events other tasks of the loop get a turn."""
_DECIDING_S = 5.0


class Fact(NamedTuple):
    """A fact about the message: a word for programs, and a sentence for people.

    ``event`` is the number of the event in the subscription's journal, or in the partition's for
    publishing and for changes of the log by transactions. ``consumer`` is
    the name of the consumer concerned, empty if there is none.
    """

    at_ms: int
    event: int
    what: str
    consumer: str
    text: str


async def facts_of_log(
    store: LedgerStore, key: ActorKey, position: Position, table: LedgerTable
) -> list[Fact]:
    """The publishing of an entry to the partition of a subscription (time and producer), and the
    outcome of the transactions that it waited for, its own first.

    ``table`` has the partition's ledgers. Raises `NoHistory` if there is no such entry;
    `NotStored`, `CorruptJournal`.
    """
    partition = partition_of(key).text()
    if position.ledger_id in dict(table.ledgers()):
        checkpoint = await checkpoint_of(store, partition, position.ledger_id)
        known = transactions.restore(checkpoint.segments)
        story, seen = _Story(position, table, known), 0
        facts: list[Fact] = []
        async for record in replay(store, partition, position.ledger_id):
            facts += story.told(record)
            if story.over:
                break
            seen += 1
            if seen % EVENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if facts:
            return facts
    raise NoHistory(f"{key.topic_name} holds no entry {as_text(position)}")


class _Story:
    """Collects the facts about one entry from the events of a partition."""

    def __init__(self, position: Position, table: LedgerTable, known: Transactions) -> None:
        self._position = position
        self._table = table
        self._known = known  # None until the entry is published
        self._own: TransactionId | None = None
        self._waiting: set[TransactionId] = set()
        self.over = False

    def told(self, record: HistoryRecord) -> Iterator[Fact]:
        """The facts in a record."""
        event = decode(bytes(record.event))
        if isinstance(event, EntryAppended):
            yield from self._appended(record, event)
        elif isinstance(event, TransactionEnded):
            for what, text in self._ended(event):
                yield Fact(record.at_ms, record.sequence, what, "", text)

    def _appended(self, record: HistoryRecord, event: EntryAppended) -> Iterator[Fact]:
        position = record.position
        if self._waiting or position is None:
            return
        if position > self._position:
            self.over = True  # there is no such entry
            return
        if event.txn_sequence:
            transactions.appended(self._known, event, self._table.offset_of(position))
        if position == self._position:
            for what, text in self._published(record, event):
                yield Fact(event.at_ms, record.sequence, what, "", text)

    def _published(self, record: HistoryRecord, event: EntryAppended) -> Iterator[tuple[str, str]]:
        text = "published; its bytes are damaged now"
        if record.blob is not None:
            metadata = read_metadata(bytes(record.blob))
            text = f"published by {metadata.producer_name}, sequence {metadata.sequence_id}"
        if event.txn_sequence:
            self._own = TransactionId(event.txn_coordinator, event.txn_sequence)
            text += f", in {name_of(self._own)}"
        yield "published", text
        ongoing = self._known.ongoing
        self._waiting = set(ongoing)
        self.over = not ongoing
        others = [each for each in ongoing if each != self._own]
        if others:
            first = as_text(self._table.position_of(ongoing[others[0]][0][0]))
            more = f", and for {len(others) - 1} more" if others[1:] else ""
            text = f"waits for {name_of(others[0])}, whose first entry {first} is before it{more}"
            yield "held-back", text

    def _ended(self, event: TransactionEnded) -> Iterator[tuple[str, str]]:
        transaction = TransactionId(event.coordinator, event.sequence)
        if not self._waiting:
            transactions.evolve(self._known, event)
            return
        if transaction not in self._waiting:
            return  # it began later
        self._waiting.discard(transaction)
        verdict = "committed" if event.commit else "aborted"
        self.over = not self._waiting
        if transaction == self._own:
            nobody = "" if event.commit else ": it is never delivered"
            yield verdict, f"its {name_of(transaction)} was {verdict}{nobody}"
            if not event.commit:
                self.over = True
                return
        if not self._waiting:
            yield (
                "readable",
                f"{name_of(transaction)} ended: no open transaction holds it back any more",
            )


async def with_decision(actor_system: ActorSystem, now: dict[str, Any]) -> dict[str, Any]:
    """The message's status ``now``. If it waits for a ``transaction``, the status includes what the
    transaction's coordinator reports, if it can be asked."""
    if now.get("transaction") is None:
        return now
    transaction = TransactionId(*now["transaction"])
    if is_remote(transaction):
        return now  # its end comes from the other cluster's replicators
    key = ActorKey.of_coordinator(transaction.coordinator)
    request = coordinator_messages.Transaction(transaction.sequence)
    try:
        async with asyncio.timeout(_DECIDING_S):
            found = await actor_system.request(key, request)
    except TRANSIENT as error:
        return {**now, "text": f"{now['text']}; its coordinator doesn't answer: {reason_of(error)}"}
    told = {name: found.get(name) for name in ("status", "owner", "client", "deadline_ms")}
    return {**now, **told, "text": f"{now['text']}; {_decision(found)}"}


def _decision(found: dict[str, Any]) -> str:
    status = found["status"]
    if status != Status.OPEN:
        return f"the transaction is {status}; the partition will be told"
    who = " with ".join(filter(None, (found["owner"], found.get("client"))))
    whose = f" by {who}" if who else ""
    age_s, left_s = found["age_ms"] / 1000, found["left_ms"] / 1000
    return f"it was begun{whose} {age_s:.1f} s ago and ends within {left_s:.1f} s"

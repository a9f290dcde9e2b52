"""Backups of a simulated cluster over a store, made while it serves and fails, and judged.

A backup has the state of one moment between its beginning and its end. So these things hold:

- The product's own verification finds no problem.
- Each restored ledger is a beginning of the original one.
- It has all that a client had an answer for before the backup began: messages with a receipt,
  acknowledgements with one, answers to commits and aborts. Nothing is stored twice, transactions
  are whole.

What a restored subscription would deliver is made of its cursor, and judged as deliveries are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.attic import HistoryStore
from tests.sim.checkers import (
    Checker,
    Evidence,
    acknowledged_messages_are_stored,
    confirmed_acks_hold,
    judge,
    nothing_is_stored_twice,
    producers_keep_their_order,
    refused_messages_are_not_stored,
)
from tests.sim.cluster import Activation
from tests.sim.dead_letter_checkers import is_dead_letter_topic
from tests.sim.history import History
from tests.sim.loop import context_of
from tests.sim.store_bucket import SimBucket
from tests.sim.store_requests import Moment, SimObjects, StoreTrap
from tests.sim.stored import Fold, expected_journals, read_log
from tests.sim.transaction_checkers import (
    Told,
    aborted_acks_leave_nothing,
    coordinators_have_serial_histories,
    failed_transactions_are_not_committed,
    ids_are_unique,
    max_read_is_as_derived,
    messages_are_in_their_transactions,
    nothing_joins_after_the_end,
    one_transaction_holds_a_message,
    repeated_answers_are_the_same,
    transfers_are_whole,
    verdicts_never_change,
)
from tests.sim.transaction_evidence import TransactionEvidence, collect
from velaray.actors.catalog.machine import SYSTEM_TENANT
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.backup.blobs import ObjectBlobs
from velaray.backup.consistency import verify_backup
from velaray.backup.creating import BackupSettings, create_backup
from velaray.backup.listing import Listing, numbers_of, read_listing
from velaray.backup.moving import copy_journals
from velaray.backup.stored_backup import BackupStore
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import JournalError
from velaray.journal.manifest import LedgerInfo
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import Call, MemoryBucket, MemoryObjects

if TYPE_CHECKING:
    from tests.sim.store_cluster import StoreCluster

TURNS = 60_000
"""Turns of the loop that a backup and its judgement may take besides those of the run."""
SKEWS_MS = (0, 20, 200)
SLOW_S = 0.05
"""The longest way of a request to the place of the backups."""
PROMISES = ("receipt", "acked", "txn begun", "txn answered")
"""Events that say that something is durable."""
DELIVERIES = ("deliver", "received", "read")
OF_LOGS: tuple[Checker, ...] = (
    acknowledged_messages_are_stored,
    nothing_is_stored_twice,
    refused_messages_are_not_stored,
    producers_keep_their_order,
    confirmed_acks_hold,
)
OF_TRANSACTIONS: tuple[Told, ...] = (
    max_read_is_as_derived,
    one_transaction_holds_a_message,
    aborted_acks_leave_nothing,
    verdicts_never_change,
    repeated_answers_are_the_same,
    ids_are_unique,
    coordinators_have_serial_histories,
    nothing_joins_after_the_end,
    messages_are_in_their_transactions,
    failed_transactions_are_not_committed,
    transfers_are_whole,
)
"""Those that hold at any moment, not only when everything has ended."""


@dataclass(frozen=True)
class Made:
    """A complete backup: when it began, and the ledgers that were dropped by its end."""

    began_s: float
    listing: Listing
    dropped: dict[str, dict[int, LedgerInfo]]


class BackupTrap(StoreTrap):
    """Begins a backup at a request of a kind."""

    def __init__(self, backups: Backups, moment: str, size: float, passes: int) -> None:
        super().__init__(Moment(moment), "back up", size, passes)
        self._backups = backups

    def spring(self) -> None:
        """Begin it."""
        self._backups.begin()


class Backups:
    """Makes backups of a cluster, each in a process of its own, in one place."""

    def __init__(self, cluster: StoreCluster, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed
        self._place = MemoryBucket()
        self._begun = 0
        self.made: list[Made] = []
        self.counted: Counter[str] = Counter()

    def begin(self) -> asyncio.Task[None]:
        """Begin a backup."""
        self._begun += 1
        cluster = self._cluster
        cluster.loop.max_turns += TURNS
        node = Activation(f"backup#{self._begun}", None, cluster)
        rng = Random(f"{self._seed}/backups/{self._begun}")
        self.counted["backups begun"] += 1
        work = self._make(rng)
        return cluster.loop.create_task(work, context=context_of(node))

    async def _make(self, rng: Random) -> None:
        cluster, began_s = self._cluster, self._cluster.history.now()
        objects = SimObjects(cluster, rng, spared=False)
        store = ObjectLedgerStore(
            objects, random_bytes=rng.randbytes, source=rng, patience_s=cluster.patience_s
        )

        async def travel(call: Call) -> None:
            await asyncio.sleep(rng.random() ** 4 * SLOW_S)

        blobs = ObjectBlobs(MemoryObjects(self._place, travel))
        settings = BackupSettings(skew_ms=rng.choice(SKEWS_MS), part_bytes=1_000)
        try:
            former = await self._former(blobs)
            listing, _ = await create_backup(
                store, blobs, former, clock_ms=cluster.clock_ms, settings=settings
            )
        except JournalError as error:
            # An outage, or what it needed was deleted too often.
            cluster.history.add("no backup", error=f"{type(error).__name__}: {error}")
            return
        finally:
            await store.close()
        infos = cluster.disk.attic.infos
        dropped = {journal: dict(found) for journal, found in infos.items()}
        self.made.append(Made(began_s, listing, dropped))
        self.counted["backups made"] += 1
        cluster.history.add("backup", number=listing.number, left_out=listing.left_out)

    async def _former(self, blobs: ObjectBlobs) -> Listing | None:
        complete = any((await numbers_of(blobs)).values())
        return await read_listing(blobs) if complete else None

    async def judged(self, made: Made) -> tuple[list[str], SimBucket]:
        """Restore a backup; returns what is wrong with it, and the store that it is in."""
        store = BackupStore(ObjectBlobs(MemoryObjects(self._place)), made.listing)
        reports = await verify_backup(store, lambda key: Fold(key.kind))
        found = [f"{report.key}: {problem}" for report in reports for problem in report.problems]
        bucket, rng = SimBucket(), Random(f"{self._seed}/restored/{made.listing.number}")
        target = ObjectLedgerStore(MemoryObjects(bucket), random_bytes=rng.randbytes, source=rng)
        await copy_journals(store, target, ())
        await target.close()
        _remember_dropped(self._cluster.bucket, bucket, made)
        found += differing_ledgers(self._cluster.bucket, bucket)
        found += await broken_promises(self._cluster.history, bucket, made.began_s)
        return [f"backup {made.listing.number}: {problem}" for problem in found], bucket


def _remember_dropped(original: SimBucket, restored: SimBucket, made: Made) -> None:
    """Let checkers read what was dropped before the moment."""
    for journal in restored.journals():
        manifest = restored.disk.manifest(journal)
        if manifest is None or not manifest.ledgers:
            continue
        listed, last = manifest.ownership.ledgers, manifest.ledgers[-1].ledger_id
        for ledger_id, info in made.dropped.get(journal, {}).items():
            if ledger_id < last and ledger_id not in listed:
                attic = restored.disk.attic
                attic.infos.setdefault(journal, {})[ledger_id] = info
                content = original.disk.content_of(journal, ledger_id)
                attic.contents.setdefault(journal, {})[ledger_id] = content


def differing_ledgers(original: SimBucket, restored: SimBucket) -> Iterator[str]:
    """The restored ledgers that aren't beginnings of the original ones."""
    for journal in restored.journals():
        for ledger_id in sorted(restored.ledgers(journal)):
            found = restored.content(journal, ledger_id) or b""
            wanted = original.disk.content_of(journal, ledger_id)
            if wanted and wanted[: len(found)] != found:
                yield f"{journal} ledger {ledger_id} has other bytes than were stored"


async def broken_promises(history: History, restored: SimBucket, began_s: float) -> list[str]:
    """The promises from before the backup that the restored data breaks, and its contradictions."""
    expected = await expected_journals(SimpleNamespace(disk=restored.disk))
    past = await collect(restored.disk, expected)
    logs: dict[str, Any] = {}
    stored = set(restored.journals())
    for key in map(ActorKey.parse, sorted(expected & stored)):
        mine = key.tenant != SYSTEM_TENANT and not key.topic.startswith("sc")
        if key.kind is ActorKind.PARTITION and mine:
            logs[str(key.topic_name)] = await read_log(HistoryStore(restored.disk), key)
    letters = {topic: log for topic, log in logs.items() if is_dead_letter_topic(topic)}
    told = promises_before(history, began_s)
    told.events += would_be_delivered(past)
    evidence = Evidence(
        told,
        {topic: log for topic, log in logs.items() if topic not in letters},
        letters=letters,
        hidden=past.hidden(),
    )
    found = judge(evidence, OF_LOGS)
    for checker in OF_TRANSACTIONS:
        found += [f"{checker.__name__}: {fault}" for fault in checker(evidence, past)][:3]
    return found


def promises_before(history: History, began_s: float) -> History:
    """A history with the promises up to a time, and without deliveries."""
    told = History(lambda: 0.0)
    told.events = [
        event
        for event in history.events
        if event[1] not in DELIVERIES and (event[1] not in PROMISES or event[0] < began_s)
    ]
    return told


def would_be_delivered(past: TransactionEvidence) -> Iterator[tuple[float, str, dict[str, Any]]]:
    """A new consumer of each subscription, and the entries that it would get, as events."""
    end_s = 1e9
    machine = SubscriptionMachine()
    for number, ((topic, name), events) in enumerate(sorted(past.subscriptions.items())):
        known = past.partitions.get(topic)
        if known is None:
            continue
        state = machine.initial()
        for event in events:
            machine.evolve(state, event)
        at = {"connection": -1, "consumer": number}
        session = {"subscription": name, "topic": topic, "name": "of the restored", "kind": 1}
        yield end_s, "subscribe", {**at, **session, "durable": True}
        for first, end in state.cursor.unacked_ranges(0, len(known.entries)):
            for entry in known.entries[first:end]:
                ledger, place = entry.place
                yield end_s, "deliver", {**at, "ledger": ledger, "entry": place}

"""The ledger audit reports the one state of every ledger, and lost ledgers as lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from tests.journal.testing import MemoryBackend, on_loop
from tests.topology.deleting import a_journal, a_topic, listed
from velaray.broker.garbage_collection import audit_run
from velaray.broker.garbage_collection.audit_run import _read, audit_ledgers
from velaray.broker.garbage_collection.deletion import EVENTS
from velaray.broker.garbage_collection.deletion_backlog import Waiting
from velaray.broker.garbage_collection.deletion_events import event_of
from velaray.broker.garbage_collection.ledger_audit import Journal, LedgerAudit, Name, State, count
from velaray.events.ids import ActorKey, MessageId
from velaray.journal.garbage_collection import purge
from velaray.journal.manifest import LedgerInfo, Manifest
from velaray.journal.store import LedgerStore

KEY = "partition/public/default/orders/0/1"
FIRST = 5 << 24


def manifest(*listed: int, next_index: int = 10, dead: bool = False) -> Manifest:
    """The manifest of a journal numbered 5 that lists the ledgers of these indexes."""
    infos = tuple(LedgerInfo(FIRST + index, 0, 0, 0, 0, 0, 7, True) for index in listed)
    return Manifest(KEY, 5, 1, next_index, infos, dead)


def states(
    found: Manifest | None,
    stored: list[int],
    pending: list[int] | None = None,
    dead: list[int] | None = None,
) -> dict[int, str]:
    journal = Journal(KEY, found, {FIRST + index: 100 for index in stored})
    names = [{(KEY, FIRST + index) for index in each or []} for each in (pending, dead)]
    return {each.ledger_id - FIRST: str(each.state) for each in count([journal], *names)}


def test_every_ledger_has_a_state() -> None:
    found = states(manifest(3, 4), [0, 1, 2, 3, 10], pending=[0, 3], dead=[0, 1])
    assert found == {
        0: "pending",  # tried again: it is in two topics for a moment
        1: "dead-letter",
        2: "orphan",
        3: "listed",  # enqueued, and still in the manifest
        4: "missing",
        10: "creating",
    }


def test_newer_ledgers_of_a_purged_journal_are_orphans() -> None:
    assert states(manifest(dead=True), [1, 12]) == {1: "orphan", 12: "orphan"}


def test_a_journal_without_a_manifest_is_lost_unless_its_deletion_is_enqueued() -> None:
    assert states(None, [1, 2], pending=[2]) == {1: "orphan", 2: "pending"}


def test_an_event_of_another_journal_does_not_hide_an_orphan() -> None:
    journal = Journal(KEY, manifest(), {FIRST: 100})
    (found,) = count([journal], {("partition/public/default/other/0/1", FIRST)}, set())
    assert found.state is State.ORPHAN


def test_totals_are_the_sum_over_actor_kinds() -> None:
    other = "subscription/public/default/orders/0/1/s/1"
    journals = [
        Journal(KEY, manifest(3, 4), {FIRST + index: 100 for index in (0, 3)}),
        Journal(other, replace(manifest(), number=6), {6 << 24: 50}),
    ]
    audit = LedgerAudit(count(journals, set(), set()))
    assert audit.totals()["orphan"] == {"ledgers": 2, "bytes": 150}
    assert audit.totals()["listed"] == {"ledgers": 1, "bytes": 100}
    assert audit.totals()["missing"] == {"ledgers": 1, "bytes": 7}
    kinds = audit.kinds()
    assert set(kinds) == {"partition", "subscription"}
    assert kinds["subscription"]["orphan"] == {"ledgers": 1, "bytes": 50}
    for state in State:
        sums = [kinds[kind][state] for kind in kinds]
        total = {name: sum(each[name] for each in sums) for name in ("ledgers", "bytes")}
        assert audit.totals()[state] == total


async def _states(store: LedgerStore, key: ActorKey) -> dict[int, State]:
    counted = count([await _read(store, key.text(), ())], set(), set())
    return {each.ledger_id: each.state for each in counted}


@on_loop
async def test_a_store_is_audited_without_changes() -> None:
    store, key = MemoryBackend().store(), a_topic("orders")
    journal = await a_journal(store, key)
    first, second, *rest = listed(journal)
    await journal.drop_from_manifest([first])
    await store.delete_ledger(key.text(), rest[0])
    found = await _states(store, key)
    assert found.pop(first) is State.ORPHAN and found.pop(rest[0]) is State.MISSING
    assert set(found) == {second, *rest[1:]}
    assert set(found.values()) == {State.LISTED}


@on_loop
async def test_a_purged_journal_has_orphans_only_without_events() -> None:
    store, key = MemoryBackend().store(), a_topic("orders")
    told: list[int] = []
    journal = await a_journal(store, key)

    async def tell(ledger_ids: object) -> None:
        assert isinstance(ledger_ids, list)
        told.extend(ledger_ids)

    ledgers = listed(journal)
    await purge(store, key.text(), tell)
    pending = {(key.text(), ledger_id) for ledger_id in told}
    look = await _read(store, key.text(), ())
    assert {each.state for each in count([look], pending, set())} == {State.PENDING}
    assert {each.ledger_id for each in count([look], set(), set())} == set(ledgers)
    assert {each.state for each in count([look], set(), set())} == {State.ORPHAN}


class Moving:
    """A store that changes between the looks of the audit."""

    def __init__(self, store: LedgerStore, after_listing: object) -> None:
        self._store = store
        self._after = after_listing

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def list_ledgers(self, journal: str) -> list[int]:
        found = await self._store.list_ledgers(journal)
        after, self._after = self._after, None
        if callable(after):
            await after()
        return found


@pytest.mark.parametrize("what", ["rolled", "unlisted", "deleted"])
def test_ledgers_that_are_rolled_or_trimmed_are_not_missing(what: str) -> None:
    @on_loop
    async def run() -> None:
        store, key = MemoryBackend().store(), a_topic("orders")
        journal = await a_journal(store, key)
        first = listed(journal)[0]

        async def happen() -> None:
            if what == "rolled":
                await journal.roll({"events": b"x"}, b"digest")
                return
            await journal.drop_from_manifest([first])
            if what == "deleted":
                await store.delete_ledger(key.text(), first)

        moving = Moving(store, happen)
        found = count([await _read(moving, key.text(), ())], set(), set())  # type: ignore[arg-type]
        assert State.MISSING not in {each.state for each in found}

    run()


class Cluster:
    """A store, and the enqueued events in ``waiting``; ``then`` runs after they were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: LedgerStore) -> None:
        self.store = store
        self.waiting: set[Name] = set()
        self.unseen = 0
        """So often nothing of them is seen: they move from one partition to another."""
        self.then: Callable[[], Awaitable[None]] | None = None
        self.looks = 0

        async def pending(actor_system: object) -> AsyncIterator[Waiting]:
            self.looks += 1
            for name in self.waiting if self.looks > self.unseen else ():
                event = event_of(ActorKey.parse(name[0]), name[1])
                yield Waiting(str(EVENTS), MessageId(1, 1), event, 0, 0)
            then, self.then = self.then, None
            if then is not None:
                await then()

        async def no_dead_letters(actor_system: object) -> AsyncIterator[Waiting]:
            for each in ():
                yield each

        monkeypatch.setattr(audit_run, "pending", pending)
        monkeypatch.setattr(audit_run, "dead_letters", no_dead_letters)

    async def audit(self) -> dict[str, int]:
        """How many ledgers are in each state that any is in."""
        found = (await audit_ledgers(self)).totals()  # type: ignore[arg-type]
        return {state: each["ledgers"] for state, each in found.items() if each["ledgers"]}


def test_ledgers_enqueued_for_deletion_after_the_scan_are_not_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @on_loop
    async def run() -> None:
        cluster, key = Cluster(monkeypatch, MemoryBackend().store()), a_topic("orders")
        journal = await a_journal(cluster.store, key)
        first = listed(journal)[0]

        async def happen() -> None:
            cluster.waiting.add((key.text(), first))
            await journal.drop_from_manifest([first])

        cluster.then = happen
        assert await cluster.audit() == {"listed": 6}
        assert cluster.looks == 1
        assert await cluster.audit() == {"listed": 5, "pending": 1}

    run()


@pytest.mark.parametrize("unseen", [0, 1, 2, 3])
def test_an_event_in_flight_is_searched_again(monkeypatch: pytest.MonkeyPatch, unseen: int) -> None:
    @on_loop
    async def run() -> None:
        cluster, key = Cluster(monkeypatch, MemoryBackend().store()), a_topic("orders")
        journal = await a_journal(cluster.store, key)
        first, second, *_ = listed(journal)
        await journal.drop_from_manifest([first, second])
        cluster.waiting.add((key.text(), first))
        cluster.unseen = unseen
        pending = {"orphan": 1, "pending": 1} if unseen < audit_run.LOOKS else {"orphan": 2}
        assert await cluster.audit() == {"listed": 4, **pending}

    run()


def test_a_suspect_deleted_meanwhile_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    @on_loop
    async def run() -> None:
        cluster, key = Cluster(monkeypatch, MemoryBackend().store()), a_topic("orders")
        journal = await a_journal(cluster.store, key)
        first = listed(journal)[0]
        await journal.drop_from_manifest([first])

        async def happen() -> None:
            await cluster.store.delete_ledger(key.text(), first)

        cluster.then = happen
        assert await cluster.audit() == {"listed": 5}

    run()

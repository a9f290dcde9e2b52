"""The ledger audit of a running cluster, the description of one ledger, and the deletion of
orphans.

Ledgers change state during an audit. Ledgers that look lost are read again; only those that look
lost every time are reported as orphans or missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.garbage_collection.deletion import deletes_itself, enqueue_deletion
from velaray.broker.garbage_collection.deletion_backlog import (
    Waiting,
    dead_letters,
    described,
    pending,
)
from velaray.broker.garbage_collection.ledger_audit import (
    LOST,
    Counted,
    Journal,
    LedgerAudit,
    Name,
    State,
    Unread,
    count,
)
from velaray.events.ids import ActorKey, InvalidNameError
from velaray.journal.errors import JournalError, NotStored
from velaray.journal.garbage_collection import dispose
from velaray.journal.manifest import LEDGER_INDEX_BITS, Manifest, decode_manifest
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.recovery import is_owned
from velaray.journal.store import LedgerStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

LOOKS = 3
"""The number of reads of ledgers that look lost."""


async def audit_ledgers(actor_system: ActorSystem) -> LedgerAudit:
    """Determine the state of every ledger of the cluster while the cluster runs.

    A journal that can't be read is listed as such; the others are audited. Raises what
    `ActorSystem.call` raises.
    """
    unread: dict[str, Unread] = {}
    archived = await _archived(actor_system.store)
    keys = sorted({*await _journals(actor_system.store), *archived})
    ledgers = await _look(actor_system, keys, unread, archived)
    lost = _lost(ledgers)
    for _ in range(LOOKS - 1):
        if not lost:
            break
        archived = await _archived(actor_system.store)
        keys = sorted({each.journal for each in lost})
        again = await _look(actor_system, keys, unread, archived)
        still = {each.name for each in _lost(again)}.intersection(each.name for each in lost)
        ledgers = _corrected(ledgers, again, lost)
        lost = [each for each in again if each.name in still]
    return LedgerAudit(ledgers, [unread[key] for key in sorted(unread)])


def _lost(ledgers: Sequence[Counted]) -> list[Counted]:
    return [each for each in ledgers if each.state in LOST]


def _corrected(
    ledgers: Sequence[Counted], again: Sequence[Counted], lost: Sequence[Counted]
) -> list[Counted]:
    """``ledgers``, where the ``lost`` ones are replaced by their states in ``again``, or
    removed."""
    now = {each.name: each for each in again}
    suspects = {each.name for each in lost}
    kept = [each for each in ledgers if each.name not in suspects]
    kept += [now[name] for name in suspects if name in now]
    return sorted(kept, key=lambda each: each.name)


async def _look(
    actor_system: ActorSystem,
    keys: Sequence[str],
    unread: dict[str, Unread],
    archived: Mapping[str, Collection[int]],
) -> list[Counted]:
    """Determine the states of the ledgers of these journals, once; journals that can't be read go
    to ``unread``.

    The store is read first. An actor enqueues a deletion before it drops the ledger from the
    manifest. So if an event isn't found afterwards, it was handled meanwhile.
    """
    journals = []
    for key in keys:
        try:
            journals.append(await _read(actor_system.store, key, archived.get(key, ())))
        except JournalError as error:
            unread[key] = Unread(key, error.told)
    waiting = {_name(each) async for each in pending(actor_system)}
    dead = {_name(each) async for each in dead_letters(actor_system)}
    return count(journals, waiting, dead)


def _name(each: Waiting) -> Name:
    return ("", 0) if each.event is None else (each.event.journal, each.event.ledgerId)


async def _journals(store: LedgerStore) -> list[str]:
    """The journals of actors; other stored objects have no ledgers."""
    found = []
    for key in await store.list_journals():
        try:
            ActorKey.parse(key)
        except InvalidNameError:
            continue
        found.append(key)
    return found


async def _archived(store: LedgerStore) -> dict[str, set[int]]:
    """The ledgers that have objects in the archive, by journal."""
    return await store.archive.list() if isinstance(store, TieredStore) else {}


async def _read(store: LedgerStore, key: str, archived: Collection[int]) -> Journal:
    """A journal; consistent if it doesn't change during the reads. ``archived`` are its ledgers in
    the archive, some of which may be incomplete."""
    before = await _manifest(store, key)
    stored = {}
    for ledger_id in sorted({*await store.list_ledgers(key), *archived}):
        try:
            stored[ledger_id] = await store.size(key, ledger_id)
        except NotStored:
            if ledger_id not in archived:
                continue  # just deleted
            stored[ledger_id] = 0
    after = await _manifest(store, key)
    # Missing ledgers were listed before and after; unlisted ones were unlisted when they were
    # stored.
    if before is not None and after is not None:
        listed = {info.ledger_id for info in before.ledgers}
        ledgers = [each for each in after.ledgers if each.ledger_id in listed.union(stored)]
        after = replace(after, ledgers=tuple(ledgers))
    return Journal(key, after, stored)


async def _manifest(store: LedgerStore, key: str) -> Manifest | None:
    found = await store.read_manifest(key)
    return None if found is None else decode_manifest(store.location(key), found.data)


async def repair(actor_system: ActorSystem, orphans: Collection[Counted]) -> int:
    """Enqueue the deletion of orphans; returns their number. Repeating it does no harm.

    Raises what `enqueue_deletion` raises, and the store's errors: then some may not be enqueued.
    """
    done = 0
    for journal in sorted({each.journal for each in orphans}):
        key = ActorKey.parse(journal)
        ledger_ids = [each.ledger_id for each in orphans if each.journal == journal]
        if deletes_itself(actor_system, key):
            for ledger_id in ledger_ids:
                await dispose(actor_system.store, journal, ledger_id)
        else:
            await enqueue_deletion(actor_system, key, ledger_ids)
        done += len(ledger_ids)
    return done


async def describe_ledger(actor_system: ActorSystem, ledger_id: int) -> dict[str, Any]:
    """The state of a ledger and its events.

    Raises `RemoteError` (NOT_FOUND) if it is neither stored nor listed, and no event names it; else
    as `audit_ledgers`.
    """
    events = [each async for each in pending(actor_system) if _name(each)[1] == ledger_id]
    given_up_events = [
        each async for each in dead_letters(actor_system) if _name(each)[1] == ledger_id
    ]
    named = {_name(each)[0] for each in (*events, *given_up_events)}
    archived = await _archived(actor_system.store)
    for key in sorted({*await _journals(actor_system.store), *archived}):
        try:
            journal = await _read(actor_system.store, key, archived.get(key, ()))
        except JournalError:
            if key in named or ledger_id in await actor_system.store.list_ledgers(key):
                raise
            continue  # another journal's ledger
        numbered = journal.manifest is not None and (
            journal.manifest.number == ledger_id >> LEDGER_INDEX_BITS
        )
        if not (numbered or key in named or ledger_id in journal.stored):
            continue
        waiting = {_name(each) for each in events}
        given_up = {_name(each) for each in given_up_events}
        for each in count([journal], waiting, given_up):
            if each.ledger_id == ledger_id:
                return await _described(actor_system.store, journal, each, events, given_up_events)
    if not named:
        raise RemoteError(
            Reason.NOT_FOUND, f"ledger {ledger_id} is neither stored nor in a manifest"
        )
    gone = {"ledgerId": ledger_id, "journal": sorted(named)[0], "state": "gone", "bytes": 0}
    return {**gone, **_events(events, given_up_events)}


async def _described(
    store: LedgerStore,
    journal: Journal,
    ledger: Counted,
    events: Sequence[Waiting],
    given_up_events: Sequence[Waiting],
) -> dict[str, Any]:
    listed = () if journal.manifest is None else journal.manifest.ledgers
    info = next((each for each in listed if each.ledger_id == ledger.ledger_id), None)
    stored = ledger.state is not State.MISSING
    tier = await _tier(store, journal, ledger.ledger_id) if stored else {}
    return {
        "ledgerId": ledger.ledger_id,
        "journal": journal.key,
        "state": ledger.state.value,
        "bytes": ledger.bytes,
        "location": store.location(journal.key, ledger.ledger_id),
        "sealed": None if info is None else info.sealed,
        "records": None if info is None else info.records,
        "entries": None if info is None else info.entries,
        "deadJournal": journal.manifest is not None and journal.manifest.dead,
        "owned": await is_owned(store, journal.key, ledger.ledger_id) if stored else None,
        **tier,
        **_events(events, given_up_events),
    }


async def _tier(store: LedgerStore, journal: Journal, ledger_id: int) -> dict[str, Any]:
    """The address of the ledger's copy in the archive, since when it is recorded, and whether it is
    the only one; empty if the ledger isn't offloaded."""
    listed = () if journal.manifest is None else journal.manifest.ledgers
    since = [each.offloaded_ms for each in listed if each.ledger_id == ledger_id]
    if not isinstance(store, TieredStore) or not any(since):
        return {}
    found: dict[str, Any] = {
        "archive": store.archive.location(journal.key, ledger_id),
        "offloadedAt": since[0],
        "local": await store.is_local(journal.key, ledger_id),
    }
    return found if found["local"] else {**found, "location": found["archive"]}


def _events(events: Sequence[Waiting], given_up_events: Sequence[Waiting]) -> dict[str, Any]:
    return {
        "pending": [described(each) for each in events],
        "deadLetters": [described(each) for each in given_up_events],
    }

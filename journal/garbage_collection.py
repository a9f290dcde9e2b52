"""Deletion of ledgers: journals of deleted actors, and ledgers that are no longer listed.

Deletion has two phases. First a ledger is removed from the manifest: `Journal.drop_from_manifest`,
or `purge` for a whole journal. The caller has enqueued the deletion before, so the second phase is
done even after a crash. Later `dispose` deletes the ledger. A ledger that isn't listed is never
listed again, so the findings of `dispose` stay true while it deletes. It relies on stored data
alone, so a wrong request does no harm. (Two-phase deletion: PIP-186; here also for ledgers that
were never listed.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum

from velaray.journal.errors import Contended, ManifestConflict, NotStored
from velaray.journal.journal import OPEN_TRIES
from velaray.journal.manifest import LEDGER_INDEX_BITS, Manifest, decode_manifest
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.recovery import is_owned
from velaray.journal.store import LedgerStore

EnqueueDeletion = Callable[[Sequence[int]], Awaitable[None]]
"""Enqueues the deletion of these ledgers, durably on return."""


class Fate(StrEnum):
    """The outcome of deleting a ledger. The first two are success."""

    DELETED = "deleted"
    GONE = "gone"
    LISTED = "listed"
    """It is in use or being created, so it may be deletable later."""
    FOREIGN = "foreign"
    """It isn't a ledger of that journal, so a request for that journal never deletes it."""


async def purge(store: LedgerStore, journal: str, enqueue_deletion: EnqueueDeletion) -> None:
    """Remove the journal of a deleted actor from its manifest, for ever.

    This fences its owner. On return the deletion of every stored ledger is enqueued and the journal
    is dead, or nothing of it is stored. It may be called again after any failure. A deletion may be
    enqueued twice. Raises what ``announce`` raises, `CorruptJournal`, `StorageFull`, `SyncFailed`,
    `Contended`.
    """
    enqueued: set[int] = set()
    for _ in range(OPEN_TRIES):
        stored = await store.read_manifest(journal)
        if stored is None:
            return
        manifest = decode_manifest(store.location(journal), stored.data)
        ledgers = await _ledgers(store, journal, manifest)
        if not ledgers:
            await store.delete_journal(journal)
            return
        if new := [ledger_id for ledger_id in ledgers if ledger_id not in enqueued]:
            await enqueue_deletion(new)
            enqueued.update(new)
        elif manifest.dead:
            return
        first_free = ledgers[-1] + 1 - manifest.ledger_id(0)
        purged = manifest.purged(max(manifest.next_index, first_free))
        try:
            if not manifest.dead:
                written = await store.write_manifest(
                    journal, stored.version, purged.encode(), purged.ownership
                )
                await store.release(journal, written)
        except ManifestConflict:
            continue  # its owner has rolled over meanwhile
    raise Contended(f"journal {journal}: purging it", OPEN_TRIES)


async def _ledgers(store: LedgerStore, journal: str, manifest: Manifest) -> list[int]:
    """All listed and stored ledgers, ascending."""
    listed = {info.ledger_id for info in manifest.ledgers}
    return sorted(listed.union(await store.list_ledgers(journal)))


async def dispose(store: LedgerStore, journal: str, ledger_id: int) -> Fate:
    """Delete a ledger of ``journal``, here and in the archive, unless it is listed.

    Raises `CorruptJournal` if the manifest can't be read, and what deleting raises; then the ledger
    may or may not exist, and the call may be repeated.
    """
    stored = await store.read_manifest(journal)
    manifest = decode_manifest(store.location(journal), stored.data) if stored else None
    if manifest is not None:
        if manifest.owner != journal or manifest.number != ledger_id >> LEDGER_INDEX_BITS:
            return Fate.FOREIGN
        if not manifest.dead and _may_be_listed(manifest, ledger_id):
            return Fate.LISTED
    fate = Fate.DELETED
    try:
        if not await is_owned(store, journal, ledger_id):
            return Fate.FOREIGN
    except NotStored:
        fate = Fate.GONE  # but a slow owner may have written its index since
    await store.delete_ledger(journal, ledger_id)
    if isinstance(store, TieredStore):
        await store.delete_archived(journal, ledger_id)
    if manifest is not None and manifest.dead:
        await _remove_if_empty(store, journal, manifest)
    return fate


def _may_be_listed(manifest: Manifest, ledger_id: int) -> bool:
    """Whether the ledger is listed, or will be if its creation succeeds."""
    listed = any(info.ledger_id == ledger_id for info in manifest.ledgers)
    return listed or ledger_id >= manifest.ledger_id(manifest.next_index)


async def _remove_if_empty(store: LedgerStore, journal: str, manifest: Manifest) -> None:
    # Ledgers from there on were created by a fenced owner.
    end = manifest.ledger_id(manifest.next_index)
    if not await store.has_ledgers(journal, end):
        await store.delete_journal(journal)

"""The steps of a ledger's offload, and the removal of orphans from the archive.

A step begins when the one before it is complete: copy and verify, record, delete locally. What was
recorded is in the manifest, so after a crash the next round repeats the step that isn't.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from velaray.journal.garbage_collection import dispose
from velaray.journal.manifest import LedgerInfo, decode_manifest
from velaray.journal.offload.tiered_store import TieredStore

Mark = Callable[[Collection[int]], Awaitable[None]]
"""`Journal.mark_offloaded` of the owner."""


async def offload_ledger(store: TieredStore, journal: str, info: LedgerInfo, mark: Mark) -> None:
    """Copy a sealed ledger to the archive, verify the copy, and record it.

    Raises what `TieredStore.offload` and ``mark`` raise; then the call may be repeated.
    """
    await store.offload(journal, info.ledger_id, info.bytes)
    await mark([info.ledger_id])


async def delete_local_copies(
    store: TieredStore, journal: str, ledgers: Sequence[LedgerInfo]
) -> list[LedgerInfo]:
    """Delete the local copies of recorded ledgers; returns those that the archive lacks, which
    stay.

    Only the owner may call this, with ledgers that recovery doesn't need. Raises what
    `TieredStore.delete_local` raises.
    """
    lacking = []
    for info in ledgers:
        if not info.offloaded_ms or not await store.is_local(journal, info.ledger_id):
            continue
        if not await store.delete_local(journal, info.ledger_id, info.bytes):
            lacking.append(info)
    return lacking


async def orphans_of(store: TieredStore) -> list[tuple[str, int]]:
    """The ledgers in the archive that no manifest lists. Those that are being copied are listed.

    Raises what both stores raise, and `CorruptJournal` for manifests that can't be read.
    """
    found = []
    for journal, ledger_ids in sorted((await store.archive.list()).items()):
        # The archive is listed first: what is copied is listed in a manifest before.
        stored = await store.read_manifest(journal)
        listed: frozenset[int] = frozenset()
        if stored is not None:
            manifest = decode_manifest(store.location(journal), stored.data)
            listed = manifest.ownership.ledgers
        found += [(journal, ledger_id) for ledger_id in sorted(ledger_ids - listed)]
    return found


async def sweep_archive(store: TieredStore) -> int:
    """Delete the orphans; returns their number. Each one is checked again, as an event's ledger is.

    Raises what `orphans_of` and `dispose` raise; then some may be left.
    """
    orphans = await orphans_of(store)
    for journal, ledger_id in orphans:
        await dispose(store, journal, ledger_id)
    return len(orphans)

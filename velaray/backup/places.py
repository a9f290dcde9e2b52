"""The operations of ``velaray backup`` and ``velaray store``, on directories and URLs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from velaray.backup.blobs import Blobs, FolderBlobs, ObjectBlobs
from velaray.backup.consistency import StateFold, verify_backup
from velaray.backup.creating import BackupSettings, Copied, create_backup
from velaray.backup.listing import Listing, numbers_of, read_listing
from velaray.backup.moving import Moved, copy_journals
from velaray.backup.stored_backup import BackupStore, JournalReport
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError
from velaray.journal.objects.journal_record import Status
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.probe import check_store
from velaray.journal.objects.reading import read_record
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.store import LedgerStore
from velaray.offline.stored_topics import open_data
from velaray.starting import lock_data
from velaray.topology.ownership import (
    RECORD,
    begin_copy,
    data_id_in,
    data_id_of,
    end_copy,
    with_new_data_id,
)
from velaray.topology.stores import is_object_store, keys_of_environment, open_store


class UnusablePlace(JournalError):
    """A directory or a store can't be what the command needs; the text says why."""


def open_blobs(place: str) -> Blobs:
    """The place of backups in a directory or an object store. Raises `StoreRefused`."""
    return ObjectBlobs(open_objects(place)) if is_object_store(place) else FolderBlobs(place)


# -- backups -----------------------------------------------------------------------


async def create(
    data: str, place: str, settings: BackupSettings | None = None
) -> tuple[Listing, Copied]:
    """Make a backup of the cluster's data in ``place``, while the cluster runs or not.

    Raises what `create_backup` raises, and `UnusablePlace` if the place has other things than
    backups of this data.
    """
    _check_apart(data, place)
    store, blobs = open_data(data), open_blobs(place)
    try:
        data_id = await data_id_of(store)
        if not await store.list_journals():
            raise UnusablePlace(f"{data}: there are no journals of a cluster")
        former = await _former(blobs, place)
        if former is not None and data_id_in(former.records.get(RECORD)) != data_id:
            raise UnusablePlace(
                f"{place} has backups of other data than that of {data}: give another place"
            )
        return await create_backup(
            store, blobs, former, clock_ms=_now_ms, records={RECORD}, settings=settings
        )
    finally:
        await store.close()
        await blobs.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _former(blobs: Blobs, place: str) -> Listing | None:
    """The newest complete backup; None if there is none."""
    known = await numbers_of(blobs)
    if not known and await blobs.list(""):
        raise UnusablePlace(f"{place} isn't empty, and it has no backups: give another place")
    return await read_listing(blobs) if any(known.values()) else None


async def verify(
    place: str, number: int | None, fold_of: Callable[[ActorKey], StateFold]
) -> tuple[Listing, list[JournalReport]]:
    """Read everything in a backup (None: the newest complete one), and report on each journal.

    ``fold_of`` gives what recomputes the state of an actor. Raises `NoBackup`,
    `Interrupted`, and `CorruptJournal` or `UnsupportedFormat` if the listing can't be read.
    """
    async with _backup(place, number) as store:
        return store.listing, await verify_backup(store, fold_of)


async def restore(place: str, number: int | None, data: str) -> tuple[Listing, Moved]:
    """Copy a backup (None: the newest complete one) into an empty directory or store.

    The data gets another id, so clusters that replicate with the former data don't take it for
    that. A cluster starts on it only after success. Raises what `verify` and `copy_journals`
    raise, and `UnusablePlace` if ``data`` isn't empty.
    """
    _check_apart(data, place)
    async with _backup(place, number) as store, _empty(data) as target:
        record = store.listing.records.get(RECORD)
        version = await begin_copy(target, f"the restore of backup {store.listing.number}")
        moved = await copy_journals(store, target, {RECORD})
        await end_copy(target, version, None if record is None else with_new_data_id(record))
        return store.listing, moved


@asynccontextmanager
async def _backup(place: str, number: int | None) -> AsyncIterator[BackupStore]:
    blobs = open_blobs(place)
    try:
        yield BackupStore(blobs, await read_listing(blobs, number), keys_of_environment())
    finally:
        await blobs.close()


# -- moving ------------------------------------------------------------------------


async def copy(source: str, target: str) -> Moved:
    """Copy the data of a stopped cluster into an empty directory or store.

    The copy is the same data, with the same id: start the cluster on one of them only. Raises
    `UnusablePlace` if the source is in use or the target isn't empty, `ClusterError` if a cluster
    of this machine runs on a directory, and what `copy_journals` raises.
    """
    _check_apart(target, source)
    _check_apart(source, target)
    store = open_data(source)
    try:
        with ExitStack() as undo:
            undo.enter_context(lock_data(source))
            await data_id_of(store)
            before = await store.read_manifest(RECORD)
            if isinstance(store, ObjectLedgerStore):
                await _check_closed(store, source)
            async with _empty(target) as empty:
                version = await begin_copy(empty, "a copy")
                moved = await copy_journals(store, empty, {RECORD})
                if await store.read_manifest(RECORD) != before:
                    raise UnusablePlace(
                        f"a cluster was started on {source} while it was copied: stop it, remove "
                        "the copy, and copy again"
                    )
                await end_copy(empty, version, None if before is None else before.data)
                return moved
    finally:
        await store.close()


async def _check_closed(store: ObjectLedgerStore, source: str) -> None:
    """Raise `UnusablePlace` unless all journals were closed by their owners."""
    for key in await store.list_journals():
        found = await read_record(store.objects, key)
        if key != RECORD and found is not None and found[0].status is not Status.CLOSED:
            raise UnusablePlace(
                f"{source} is in use, or its cluster didn't stop in good order: {key} isn't "
                "closed. Stop the cluster; if it was killed, start it and stop it"
            )


@asynccontextmanager
async def _empty(place: str) -> AsyncIterator[LedgerStore]:
    """An empty directory, locked meanwhile, or an empty and suitable store.

    Raises `UnusablePlace`, `ClusterError`, `StoreRefused`.
    """
    with ExitStack() as undo:
        if not is_object_store(place):
            if Path(place).exists() and os.listdir(place):
                raise UnusablePlace(f"{place} isn't empty: give a new directory")
            undo.enter_context(lock_data(place))
        store = open_store(place)
        try:
            if isinstance(store, ObjectLedgerStore):
                if await store.objects.list(""):
                    raise UnusablePlace(f"{place} isn't empty: give a new prefix")
                await check_store(store.objects.objects, os.urandom, random)
            yield store
        finally:
            await store.close()


def _check_apart(data: str, place: str) -> None:
    """Raise `UnusablePlace` if ``place`` is ``data`` or inside of it."""
    inner, outer = (_normal(each) for each in (place, data))
    if f"{inner}/".startswith(f"{outer}/"):
        raise UnusablePlace(f"{place} is in {data}: give a place outside of it")


def _normal(place: str) -> str:
    return place.rstrip("/") if is_object_store(place) else str(Path(place).resolve())

"""The store of a cluster's journals, by its location."""

from __future__ import annotations

import os
from pathlib import Path

from velaray.journal.encryption.keys import LedgerKeys
from velaray.journal.files import FileStore
from velaray.journal.journal import JournalSettings
from velaray.journal.objects.host_log import LARGEST_COMMIT, HostLogSettings
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.objects.sealing import AskOwner
from velaray.journal.offload.place import known_place
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.store import LedgerStore
from velaray.topology.config import ClusterConfig
from velaray.topology.encryption_keys import VARIABLE, ledger_keys


def is_object_store(location: str) -> bool:
    """Whether a location is the URL of an object store; otherwise it is a directory."""
    return "://" in location


def store_of(
    config: ClusterConfig, writers: int = 1, ask_owner: AskOwner | None = None
) -> LedgerStore:
    """The journals of a cluster, for its actors. ``writers`` is the number of threads that write
    to a directory, ``ask_owner`` asks processes for journals in an object store. Raises as
    `open_store` does."""
    keys = ledger_keys(config.encryption_keys, config.encryption_required)
    if is_object_store(config.data_dir):
        return ObjectLedgerStore(
            open_objects(config.data_dir),
            config.number_base,
            HostLogSettings(config.commit_interval_ms / 1000),
            generation=config.incarnation,
            ask_owner=ask_owner,
            keys=keys,
        )
    return _tiered(FileStore(config.data_dir, config.number_base, writers, keys))


def journal_settings_of(config: ClusterConfig) -> JournalSettings:
    """The limits of the cluster's journals.

    A journal commits one frame after the other. In an object store a full frame is as large as an
    object that is sent at once, so a busy journal doesn't wait for the interval with each.
    """
    if is_object_store(config.data_dir):
        return JournalSettings(frame_bytes=LARGEST_COMMIT)
    return JournalSettings()


def _tiered(local: FileStore) -> LedgerStore:
    """The store with the archive that its directory names, if any."""
    place = known_place(local.root)
    return local if place is None else TieredStore(local, place.archive())


def directory_of(store: LedgerStore) -> Path | None:
    """The directory of a store of files; None of another store."""
    local = store.local if isinstance(store, TieredStore) else store
    return local.root if isinstance(local, FileStore) else None


def keys_of_environment() -> LedgerKeys | None:
    """The encryption keys that `VARIABLE` names. Raises as `ledger_keys`."""
    return ledger_keys(os.environ.get(VARIABLE, ""))


def open_store(
    location: str, encryption_keys: str | None = None, encryption_required: bool = False
) -> LedgerStore:
    """The journals in a directory, with its archive, or in an object store, for tools.

    ``encryption_keys`` names the keys of encrypted journals, as the setting does ("": there are
    none, None: the variable says it). With ``encryption_required`` other journals are refused.

    Raises `StoreRefused` for a URL that no object store has, or if the environment lacks what
    leads to it; `CorruptJournal` if the directory's file about its archive is damaged; and as
    `ledger_keys`.
    """
    named = os.environ.get(VARIABLE, "") if encryption_keys is None else encryption_keys
    keys = ledger_keys(named, encryption_required)
    if is_object_store(location):
        return ObjectLedgerStore(open_objects(location), keys=keys)
    return _tiered(FileStore(location, keys=keys))

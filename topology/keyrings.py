"""The keyring of a cluster, beside its journals."""

from __future__ import annotations

from velaray.events.backoff import RandomSource
from velaray.journal.encryption.keyring import Keyring
from velaray.journal.encryption.keyring_places import KeyringFiles, KeyringObjects
from velaray.journal.files import FileStore
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.store import LedgerStore


def keyring_objects(store: LedgerStore) -> KeyringObjects | None:
    """Where the keyring of a store's data is; None for a store in memory or of a backup."""
    local = store.local if isinstance(store, TieredStore) else store
    if isinstance(local, FileStore):
        return KeyringFiles(local.root)
    return local.objects.objects if isinstance(local, ObjectLedgerStore) else None


def keyring_of(store: LedgerStore, source: RandomSource, *, creates: bool = True) -> Keyring | None:
    """The keyring of a store's data, with the master keys of the store; None without these.

    It is stored when it is first used, unless ``creates`` is false. ``source`` gives the jitter of
    repeated writes.
    """
    objects = keyring_objects(store)
    if objects is None or store.keys is None:
        return None
    return Keyring(objects, store.keys.provider, source, creates=creates)

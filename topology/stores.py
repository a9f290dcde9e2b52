"""The store of a cluster's journals, by its location."""

from __future__ import annotations

from velaray.journal.files import FileStore
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.remote_objects import open_objects
from velaray.journal.store import LedgerStore


def is_object_store(location: str) -> bool:
    """Whether a location is the URL of an object store; otherwise it is a directory."""
    return "://" in location


def open_store(
    location: str, number_base: int = 0, writers: int = 1, generation: int = 0
) -> LedgerStore:
    """The journals in a directory or an object store.

    ``writers`` is the number of threads that write to a directory. ``generation`` is the number of
    the cluster's start (0: for reading). Raises `StoreRefused` for a URL that no object store
    has, or if the environment lacks what leads to it.
    """
    if is_object_store(location):
        return ObjectLedgerStore(open_objects(location), number_base, generation=generation)
    return FileStore(location, number_base, writers)

"""Ownership of a data directory by a cluster.

Every start of a cluster on a directory takes the next incarnation, by compare-and-set on the store.
Its actors carry that number and check it before they open a journal. An actor of an earlier start
that is still alive is fenced by the epochs of the journals, and exits. When it restarts, this check
fails, so it doesn't serve.

The data has its cluster's name, which other clusters use, and its number, with which ledger ids
begin. It also has a random id of its own: a cluster whose data was lost has another one.
"""

from __future__ import annotations

import math
import secrets
from typing import Any, Final, NamedTuple

import msgpack

from velaray.events.backoff import Backoff
from velaray.journal.errors import JournalError, ManifestConflict
from velaray.journal.store import LedgerStore
from velaray.topology.config import ClusterConfig
from velaray.topology.stores import is_object_store

OWNERSHIP_CHECK_S = 1.0
"""How often what serves a cluster checks that it still owns the data."""
STORE_CHECK_S = 5.0
"""The same for data in an object store, which charges for each request."""
RECORD: Final = "cluster"
"""The name of the record of the owner; it isn't a journal."""
_INCOMPLETE = "incomplete"
_FIRST_DELAY_S = 0.01
_LONGEST_DELAY_S = 0.1
_ATTEMPTS = 100


def check_every_s(config: ClusterConfig) -> float:
    """The seconds between two checks of what serves this cluster."""
    return STORE_CHECK_S if is_object_store(config.data_dir) else OWNERSHIP_CHECK_S


class DueChecks:
    """When what serves a cluster checks the ownership next, if it looks more often than that."""

    def __init__(self, config: ClusterConfig) -> None:
        self._every_s = check_every_s(config)
        self._next_s = -math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether a check is due; the next one is due later then."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        return True


class Superseded(RuntimeError):
    """Another cluster was started on the same data; this one must not serve any more."""


class OtherCluster(RuntimeError):
    """The data belongs to a cluster with another name or number; it isn't changed."""


class IncompleteData(JournalError):
    """The data is being copied here, or the copying was interrupted; nothing must serve it."""


class _Record(NamedTuple):
    """The record of the owner in the store. ``number`` is 0 until one is used, ``data_id`` is empty
    until one is drawn, and ``name`` is empty if the data is older than this field."""

    version: int
    incarnation: int
    number: int
    data_id: str
    name: str


async def _read(store: LedgerStore) -> _Record:
    found = await store.read_manifest(RECORD)
    if found is None:
        return _Record(0, 0, 0, "", "")
    version, raw = found
    record = msgpack.unpackb(raw)
    if _INCOMPLETE in record:
        raise IncompleteData(
            f"the data isn't complete ({record[_INCOMPLETE]} is under way or was interrupted): "
            "wait for it; if it was interrupted, remove what is here and repeat it"
        )
    number, data_id = int(record.get("cluster_number", 0)), str(record.get("data_id", ""))
    name = str(record.get("name", ""))
    return _Record(version, int(record["incarnation"]), number, data_id, name)


async def data_id_of(store: LedgerStore) -> str:
    """The id of the data; empty if it was last owned before there were ids."""
    return (await _read(store)).data_id


def data_id_in(record: bytes | None) -> str:
    """The id in a stored record of the owner; empty if there is none."""
    return "" if record is None else str(msgpack.unpackb(record).get("data_id", ""))


def with_new_data_id(record: bytes) -> bytes:
    """The record of data that goes on beside, or instead of, the data that it was copied from."""
    fields: dict[str, Any] = msgpack.unpackb(record)
    return bytes(msgpack.packb({**fields, "data_id": secrets.token_hex(8)}))


async def begin_copy(store: LedgerStore, what: str) -> int:
    """Record in an empty store that ``what`` fills it; returns the version for `end_copy`.

    Until then no cluster starts on the data. Raises `ManifestConflict` if it isn't empty.
    """
    return await store.write_manifest(RECORD, 0, msgpack.packb({_INCOMPLETE: what}))


async def end_copy(store: LedgerStore, version: int, record: bytes | None) -> None:
    """Store the record of the owner that belongs to the copied data (None: it had no owner)."""
    if record is None:
        await store.delete_journal(RECORD)
    else:
        await store.write_manifest(RECORD, version, record)


async def take_ownership(store: LedgerStore, name: str, cluster_number: int = 0) -> int:
    """Become the owner of the data, for this cluster; returns the new incarnation.

    Success means that every actor of an earlier start that starts from now on refuses to serve, and
    that every running one is fenced as soon as its journal is opened here. The name of the data
    never changes, nor its number once it isn't 0: other clusters are refused with `OtherCluster`,
    and the owner stays the owner. Raises `IncompleteData` if the data is still being copied.
    """
    backoff = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S)
    for _ in range(_ATTEMPTS):
        version, incarnation, number, data_id, known = await _read(store)
        if known not in ("", name):
            raise OtherCluster(
                f"it belongs to cluster {known}: start it with --name {known}, not {name}"
            )
        if number not in (0, cluster_number):
            raise OtherCluster(
                f"its ledgers are those of cluster number {number}, not {cluster_number}: start it "
                f"with --cluster-number {number}"
            )
        record: dict[str, int | str] = {"incarnation": incarnation + 1}
        # The name of older data is only in its catalog, so this name may be wrong.
        record["name"] = known if incarnation else name
        record["data_id"] = data_id or secrets.token_hex(8)
        if cluster_number:
            record["cluster_number"] = cluster_number
        try:
            await store.write_manifest(RECORD, version, msgpack.packb(record))
        except ManifestConflict:
            await backoff.wait()
            continue
        return incarnation + 1
    raise Superseded("several clusters are being started on this data at once; start one only")


async def check_ownership(store: LedgerStore, config: ClusterConfig) -> None:
    """Raise `Superseded` unless the cluster of ``config`` still owns the data.

    It is also raised when there is no data: an actor on a machine that doesn't see the directory
    must never start with an empty state.
    """
    incarnation = (await _read(store)).incarnation
    if incarnation == 0:
        raise Superseded(
            f"no cluster data in {config.data_dir} on this machine: start velaray's actors "
            "only on machines that see the directory"
        )
    if incarnation != config.incarnation:
        raise Superseded(
            f"start {config.incarnation} of cluster {config.name!r} on {config.data_dir} was "
            f"replaced by start {incarnation}; this one stops"
        )

"""Which cluster owns a data directory.

Every start of a cluster on a directory takes the next incarnation, by compare-and-set on
the store. Its actors carry that number and check it before they open a journal; an actor
of an earlier start that is still alive is fenced by the journals themselves (their epochs),
exits, and on its way back finds here that its cluster was replaced, so it stays away.
"""

from __future__ import annotations

import asyncio

import msgpack

from velaray.journal.errors import ManifestConflict
from velaray.journal.store import LedgerStore
from velaray.topology.config import ClusterConfig

_RECORD = "cluster"
_ATTEMPTS = 100


class Superseded(RuntimeError):
    """Another cluster was started on the same data; this one must not serve any longer."""


async def _read(store: LedgerStore) -> tuple[int, int]:
    found = await store.read_manifest(_RECORD)
    if found is None:
        return 0, 0
    version, raw = found
    return version, int(msgpack.unpackb(raw)["incarnation"])


async def take_tenure(store: LedgerStore) -> int:
    """Become the owner of the data: returns the new incarnation.

    Success means every actor of an earlier start that starts from now on refuses to serve,
    and every one that runs is fenced as soon as its journal is opened here.
    """
    for attempt in range(_ATTEMPTS):
        version, incarnation = await _read(store)
        record = msgpack.packb({"incarnation": incarnation + 1})
        try:
            await store.write_manifest(_RECORD, version, record)
        except ManifestConflict:
            await asyncio.sleep(0.01 * (attempt + 1))
            continue
        return incarnation + 1
    raise Superseded("several clusters are being started on this data at once; start one only")


async def check_tenure(store: LedgerStore, config: ClusterConfig) -> None:
    """Raise `Superseded` unless the cluster of ``config`` still owns the data.

    Also raised when the data isn't there at all: an actor on a machine that doesn't see
    the directory must never start from nothing.
    """
    _, incarnation = await _read(store)
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

"""Removal of an actor's needless ledgers: enqueue their deletion, then drop them from the manifest.

See `docs/decisions/0023-deletion-of-ledgers.md`. The needless ledgers follow from the state, so the
next round, of this activation or another, completes a failed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from velaray.actors.runtime import Runtime
from velaray.broker.garbage_collection.deletion import SLOW_S, deletes_itself, enqueue_deletion
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError, StorageFull
from velaray.journal.garbage_collection import dispose
from velaray.journal.journal import Journal
from velaray.journal.manifest import LedgerInfo
from velaray.journal.offload.tiered_store import TieredStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.transient import TRANSIENT

ROLL_BYTES = 1 << 20
"""If this many bytes are kept here only for recovery, the journal is rolled over."""
HISTORY_BYTES = 64 << 20
"""The history that journals without messages keep at least, in bytes."""
_TRANSIENT = (*TRANSIENT, StorageFull)


def beyond_history(ledgers: Sequence[LedgerInfo], kept_bytes: int) -> set[int]:
    """The oldest ledgers that are followed by ``kept_bytes`` of newer ones."""
    newer = 0
    for at in range(len(ledgers) - 1, -1, -1):
        if newer >= kept_bytes:
            return {info.ledger_id for info in ledgers[: at + 1]}
        newer += ledgers[at].bytes
    return set()


class LedgerOwner(Protocol):
    """The protocol of the keeper's actor."""

    key: ActorKey
    actor_system: ActorSystem
    config: ClusterConfig
    runtime: Runtime[Any]

    async def needless_ledgers(self) -> set[int]:
        """Return the listed ledgers that only recovery may still need."""
        ...

    async def ledgers_dropped(self, ledger_ids: Collection[int]) -> None:
        """Note that these ledgers aren't listed any more."""


class LedgerKeeper:
    """The rounds of removal of one actor."""

    def __init__(self, actor: LedgerOwner) -> None:
        self._actor = actor
        self._archive_checked = False

    async def run(self) -> None:
        """Repeat the rounds; never returns."""
        while True:
            await asyncio.sleep(self._actor.config.maintenance_s)
            with suppress(*_TRANSIENT):
                await self.once()

    async def once(self) -> None:
        """Run one round. Raises the error that prevents its completion; another round will complete
        it."""
        actor, runtime = self._actor, self._actor.runtime
        journal = runtime.journal
        assert isinstance(journal, Journal)
        listed = {info.ledger_id: info for info in journal.ledgers}
        needless = await actor.needless_ledgers()
        offloaded = {each.ledger_id for each in journal.ledgers if each.offloaded_ms}
        journal.leave(needless | offloaded)
        going = sorted(needless & listed.keys() - journal.needed)
        if going:
            await enqueue_deletion(actor.actor_system, actor.key, going)
            began_s = asyncio.get_running_loop().time()
            await runtime.drop_from_manifest(going)
            if asyncio.get_running_loop().time() - began_s > SLOW_S:
                await enqueue_deletion(actor.actor_system, actor.key, going)
        await actor.ledgers_dropped(needless - {info.ledger_id for info in journal.ledgers})
        if deletes_itself(actor.actor_system, actor.key):
            await self._delete(going)
            await self._delete_left_in_archive()
        stuck = (needless | offloaded) & journal.needed - {
            info.ledger_id for info in journal.ledgers[-1:]
        }
        # Without their checkpoints: each roll-over writes another one, and would cause the next.
        if sum(listed[each].record_bytes for each in stuck & listed.keys()) >= ROLL_BYTES:
            runtime.roll_over()

    async def _delete(self, ledger_ids: Collection[int]) -> None:
        """Delete ledgers without an event; the next activation deletes those that remain after an
        error."""
        for ledger_id in ledger_ids:
            with suppress(JournalError):
                await dispose(self._actor.actor_system.store, self._actor.key.text(), ledger_id)

    async def _delete_left_in_archive(self) -> None:
        """Delete what an earlier activation dropped, and had no time to delete in the archive. What
        it left in the local store is deleted when the journal is opened."""
        store, journal = self._actor.actor_system.store, self._actor.runtime.journal
        if self._archive_checked or not isinstance(store, TieredStore):
            return
        assert isinstance(journal, Journal)
        with suppress(JournalError):
            stored = await store.archive.ledgers(self._actor.key.text())
            await self._delete(sorted(stored - {info.ledger_id for info in journal.ledgers}))
            self._archive_checked = True

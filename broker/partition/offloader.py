"""The offload of one partition's sealed ledgers to the archive.

A round deletes the local copies whose deletion lag is over, and starts an offload if a threshold of
the namespace is exceeded. An administrator may start one at any time. One ledger is copied after
the other, oldest first. What is done is in the journal's manifest, so the next round, of this
activation or another, continues after a failure. See docs/decisions/0046-tiered-ledgers.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime, Stopped
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError
from velaray.journal.journal import Journal
from velaray.journal.manifest import LedgerInfo
from velaray.journal.offload.rounds import delete_local_copies, offload_ledger
from velaray.journal.offload.tiered_store import TieredStore
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.rpc import RemoteError, reason_of

logger = logging.getLogger(__name__)

_FAILURES = (JournalError, OSError)
NO_ARCHIVE = "this cluster has no archive: start it with --offload URL"


class Partition(Protocol):
    """What an offloader needs of its partition."""

    topic: str
    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    policies: TopicPolicies
    runtime: Runtime[PartitionState]

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


def beyond_thresholds(
    ledgers: Sequence[LedgerInfo], policies: TopicPolicies, now_ms: int
) -> list[LedgerInfo]:
    """The sealed ledgers that the policies move to the archive, oldest first.

    As in Pulsar, a ledger goes if it and all newer ones have more bytes than the threshold, or if
    it was sealed too long ago. Negative thresholds are off.
    """
    size, found = 0, []
    for info in reversed(ledgers):
        size += info.record_bytes
        too_big = 0 <= policies.offload_bytes < size
        too_old = 0 <= policies.offload_ms <= now_ms - info.sealed_ms
        if info.sealed and (too_big or too_old):
            found.append(info)
    return found[::-1]


def beyond_size(ledgers: Sequence[LedgerInfo], kept_bytes: int) -> list[LedgerInfo]:
    """The sealed ledgers but the newest ones that have ``kept_bytes`` together, oldest first."""
    size, found = 0, []
    for info in reversed(ledgers):
        size += info.record_bytes
        if info.sealed and size > kept_bytes:
            found.append(info)
    return found[::-1]


class Offloader:
    """Moves the ledgers of one activation of a partition."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._running: asyncio.Task[Any] | None = None
        self._moved: set[int] = set()
        self._status, self._last_error = "NOT_RUN", ""

    @property
    def _store(self) -> TieredStore | None:
        store = self._partition.actor_system.store
        return store if isinstance(store, TieredStore) else None

    @property
    def running(self) -> bool:
        """Whether ledgers are being copied."""
        return self._running is not None

    @property
    def _ledgers(self) -> Sequence[LedgerInfo]:
        """The ledgers that aren't trimmed, oldest first."""
        trimmed = self._partition.runtime.state.trimmed
        return [info for info in self._journal.ledgers if info.ledger_id not in trimmed]

    @property
    def _journal(self) -> Journal:
        journal = self._partition.runtime.journal
        assert isinstance(journal, Journal)
        return journal

    def begin(self) -> None:
        """Repeat the rounds from now on; there are none without an archive."""
        if (store := self._store) is not None:
            self._partition.spawn(self._run(store))

    async def _run(self, store: TieredStore) -> None:
        partition = self._partition
        while True:
            await asyncio.sleep(partition.config.maintenance_s)
            try:
                await self.delete_due(store)
            except _FAILURES as error:
                logger.warning(
                    "%s: offloaded ledgers stay here for now: %s", partition.topic, error
                )
            now_ms = partition.actor_system.clock_ms()
            due = beyond_thresholds(self._ledgers, partition.policies, now_ms)
            if not self.running and any(not info.offloaded_ms for info in due):
                self._start(store, due)

    # -- copying -------------------------------------------------------------------

    def trigger(self, before: int | None, kept_bytes: int) -> None:
        """Begin to offload the ledgers before ledger ``before``; None: all but the newest ones that
        have ``kept_bytes`` together.

        Raises `RemoteError`: CONFLICT while an offload runs, INVALID without an archive.
        """
        store = self._store
        if store is None:
            raise RemoteError(Reason.INVALID, NO_ARCHIVE)
        if self.running:
            raise RemoteError(Reason.CONFLICT, "Offload already in progress")
        if before is None:
            wanted = beyond_size(self._ledgers, kept_bytes)
        else:
            wanted = [info for info in self._ledgers if info.sealed and info.ledger_id < before]
        self._start(store, wanted)

    def _start(self, store: TieredStore, wanted: Sequence[LedgerInfo]) -> None:
        self._status, self._last_error = "RUNNING", ""
        self._running = self._partition.spawn(self._offload(store, wanted))
        self._running.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running = None

    async def _offload(self, store: TieredStore, wanted: Sequence[LedgerInfo]) -> None:
        partition = self._partition
        try:
            for info in wanted:
                # It may be trimmed meanwhile; then the mark is left out, and a sweep deletes it.
                if not info.offloaded_ms and info in self._journal.ledgers:
                    mark = partition.runtime.mark_offloaded
                    await offload_ledger(store, partition.key.text(), info, mark)
        except Stopped:
            raise
        except _FAILURES as error:
            logger.warning("offloading ledgers of %s failed: %s", partition.topic, error)
            self._status, self._last_error = "ERROR", reason_of(error)
        else:
            self._status = "SUCCESS"

    def described(self) -> dict[str, Any]:
        """The status of the last offload of this activation, and the first position that isn't in
        the archive, None if all are."""
        first = next((info.ledger_id for info in self._ledgers if not info.offloaded_ms), None)
        return {"status": self._status, "last_error": self._last_error, "first": first}

    # -- deleting ------------------------------------------------------------------

    async def delete_due(self, store: TieredStore) -> None:
        """Delete the local copies of ledgers that were offloaded long enough ago and that recovery
        doesn't need. A copy that has disappeared from the archive is made again first."""
        partition, journal = self._partition, self._journal
        before_ms = partition.actor_system.clock_ms() - partition.policies.offload_lag_ms
        kept = journal.needed | self._moved
        due = [
            info
            for info in journal.ledgers
            if 0 < info.offloaded_ms <= before_ms and info.ledger_id not in kept
        ]
        key = partition.key.text()
        lacking = await delete_local_copies(store, key, due)
        self._moved.update(info.ledger_id for info in due if info not in lacking)
        for info in lacking:
            logger.warning(
                "%s: the archive lacks a part of ledger %d", partition.topic, info.ledger_id
            )
            await store.offload(key, info.ledger_id, info.bytes)

"""Maintenance of unused topics: the catalog activates partitions with expired data.

An active partition does its own maintenance. An inactive one has a manifest with the closing times
of its ledgers, and its newest ledger doesn't change. So the catalog can compute, without an
activation, when a ledger leaves retention, exceeds the time to live, or moves to the archive. At
that time the catalog activates the partition, which does its maintenance and becomes inactive
again. This happens once for each such time. If a subscription still holds a ledger back, its next
acknowledgement activates the partition anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from velaray.broker.actor_messages import Describe
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey
from velaray.journal.manifest import LedgerInfo, decode_manifest
from velaray.topology.actor_system import ActorSystem
from velaray.topology.transient import TRANSIENT_OR_STORE


def due_times(
    ledgers: Sequence[LedgerInfo], resting_ms: int | None, policies: TopicPolicies
) -> Iterator[int]:
    """The times, in milliseconds, at which a ledger leaves retention, its messages expire, or it
    moves to the archive.

    ``resting_ms`` is the time of the last write to the newest ledger, if that is open and not
    empty. Without retention ledgers are trimmed as soon as they are consumed, so they have no such
    time.
    """
    closed = [info.sealed_ms for info in ledgers if info.sealed and info.entries]
    for since_ms in closed if resting_ms is None else [*closed, resting_ms]:
        yield from (since_ms + age for age in (policies.retention_ms, policies.ttl_ms) if age > 0)
    if policies.offloads:
        yield from (
            since_ms + policies.offload_ms for since_ms in closed if policies.offload_ms >= 0
        )
        copied = (info.offloaded_ms for info in ledgers if info.offloaded_ms)
        yield from (since_ms + policies.offload_lag_ms for since_ms in copied)


class ScheduledActivation:
    """The catalog's rounds of scheduled activation."""

    def __init__(self, actor_system: ActorSystem) -> None:
        self._actor_system = actor_system
        self._woken: dict[ActorKey, int] = {}
        # The newest ledger, its size, and the time since which it has that size.
        self._newest: dict[ActorKey, tuple[int, int, int]] = {}

    async def once(self, partitions: Sequence[tuple[ActorKey, TopicPolicies]]) -> None:
        """Activate those of all ``partitions`` that may have expired data by now.

        A partition that can't be reached or read is tried again in the next round.
        """
        now_ms = self._actor_system.clock_ms()
        for key, policies in partitions:
            if not policies.ages:
                continue
            # An error of the store is reported by the actors that use the journal.
            with suppress(*TRANSIENT_OR_STORE):
                if await self._is_due(key, policies, now_ms):
                    await self._actor_system.request(key, Describe())
                    self._woken[key] = now_ms
        present = {key for key, _ in partitions}
        self._woken = {key: at for key, at in self._woken.items() if key in present}
        self._newest = {key: seen for key, seen in self._newest.items() if key in present}

    async def _is_due(self, key: ActorKey, policies: TopicPolicies, now_ms: int) -> bool:
        store = self._actor_system.store
        stored = await store.read_manifest(key.text())
        if stored is None:
            return False
        ledgers = decode_manifest(store.location(key.text()), stored.data).ledgers
        resting_ms = await self._resting_since(key, ledgers[-1:], now_ms)
        last_ms = self._woken.get(key, -1)
        return any(last_ms < at_ms <= now_ms for at_ms in due_times(ledgers, resting_ms, policies))

    async def _resting_since(
        self, key: ActorKey, newest: Sequence[LedgerInfo], now_ms: int
    ) -> int | None:
        """The time since which the open ledger hasn't changed, as far as known here; None: it is
        empty."""
        for info in newest:
            size = await self._actor_system.store.size(key.text(), info.ledger_id)
            if info.sealed or size <= info.data_offset:
                continue
            seen = self._newest.get(key)
            if seen is None or seen[:2] != (info.ledger_id, size):
                self._newest[key] = seen = (info.ledger_id, size, now_ms)
            return seen[2]
        return None

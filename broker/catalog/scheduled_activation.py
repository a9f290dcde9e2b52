"""Looking after topics that nobody uses: the catalog wakes a partition when something of it may go.

While a partition runs it looks itself what may expire and be trimmed. One that sleeps has a
manifest, which says when its ledgers were closed, and its newest one stays as it is; so it is known
without waking it when one gets out of retention, or too old for the time to live. Then it is
activated, does its rounds, and is passivated again. That is done once for each such moment: what a
subscription holds back then waits for who acknowledges it, which wakes the partition anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey
from velaray.journal.manifest import LedgerInfo, decode_manifest
from velaray.topology.actor_system import ActorSystem
from velaray.topology.transient import TRANSIENT_OR_STORE


def due_times(
    ledgers: Sequence[LedgerInfo], resting_ms: int | None, policies: TopicPolicies
) -> Iterator[int]:
    """When, in milliseconds, time lets go of a ledger, or of the messages in it.

    ``resting_ms``: since when nothing is written to the newest one, if it is open and has any.
    Without retention ledgers go as soon as they are consumed, which needs no waiting.
    """
    closed = [info.sealed_ms for info in ledgers if info.sealed and info.entries]
    for since_ms in closed if resting_ms is None else [*closed, resting_ms]:
        yield from (since_ms + age for age in (policies.retention_ms, policies.ttl_ms) if age > 0)


class ScheduledActivation:
    """The rounds of the catalog."""

    def __init__(self, actor_system: ActorSystem) -> None:
        self._actor_system = actor_system
        self._woken: dict[ActorKey, int] = {}
        # The newest ledger, its size, and since when it has that.
        self._newest: dict[ActorKey, tuple[int, int, int]] = {}

    async def once(self, partitions: Sequence[tuple[ActorKey, TopicPolicies]]) -> None:
        """Wake those of all ``partitions`` of which something may go by now.

        Who can't be reached or read is left for the next round.
        """
        now_ms = self._actor_system.clock_ms()
        for key, policies in partitions:
            if policies.retention_ms <= 0 and policies.ttl_ms <= 0:
                continue
            # A store that can't be read is told by who needs it.
            with suppress(*TRANSIENT_OR_STORE):
                if await self._is_due(key, policies, now_ms):
                    await self._actor_system.call(key, "describe")
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
        """Since when the open ledger is as it is, as far as this knows; None: there is nothing."""
        for info in newest:
            size = await self._actor_system.store.size(key.text(), info.ledger_id)
            if info.sealed or size <= info.data_offset:
                continue
            seen = self._newest.get(key)
            if seen is None or seen[:2] != (info.ledger_id, size):
                self._newest[key] = seen = (info.ledger_id, size, now_ms)
            return seen[2]
        return None

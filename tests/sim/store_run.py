"""One run of a seed with hosts over an object store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from tests.sim.faults import Fault
from tests.sim.history import History
from tests.sim.hosts_run import HostsWorld, run_hosts_world
from tests.sim.loop import SimLoop
from tests.sim.run import Outcome, quiet
from tests.sim.store_cluster import KILLED, StoreCluster, watch_store
from tests.sim.store_faults import carry_out_with_store, make_store_faults
from velaray.journal.errors import JournalError
from velaray.journal.objects.ledger_store import ObjectLedgerStore
from velaray.journal.objects.memory_objects import MemoryObjects


class StoreWorld(HostsWorld):
    """Everything of one run over a store."""

    cluster: StoreCluster

    def _make_cluster(
        self, loop: SimLoop, seed: int, history: History, relaxed: bool
    ) -> StoreCluster:
        return StoreCluster(loop, seed, history, relaxed)

    def watch(self, patch: Any) -> None:
        """Watch the product."""
        super().watch(patch)
        watch_store(patch, self.cluster)

    async def _carry_out(self) -> None:
        await carry_out_with_store(self.cluster, self._faults, self._seed)

    async def _post_mortem(self) -> None:
        await super()._post_mortem()
        self._problems += await readers_agree(self.cluster)

    def counts(self) -> Counter[str]:
        """How many processes were killed, how many of them in the middle of what, and how much is
        left behind."""
        killed = self.cluster.killed
        counts = Counter({"hosts killed": killed["host"]})
        counts += Counter({f"killed mid-{what}": killed[what] for what in KILLED})
        counts["logs sealed"] = self.cluster.bucket.seals()
        counts["journals released instead"] = self.cluster.released
        counts["parts that no record names"] = self.cluster.bucket.unneeded_parts()
        return counts


async def readers_agree(cluster: StoreCluster) -> list[str]:
    """Whether the product's reader finds in every listed ledger what the checkers found."""
    bucket, faults = cluster.bucket, []
    store = ObjectLedgerStore(MemoryObjects(bucket))
    for journal in bucket.journals():
        record = bucket.record(journal)
        for ledger_id in sorted(record.listed) if record is not None else ():
            expected = bucket.content(journal, ledger_id)
            try:
                size = await store.size(journal, ledger_id)
                found = await store.read(journal, ledger_id, 0, size)
            except JournalError as error:
                faults.append(f"{journal} ledger {ledger_id} can't be read: {error}")
                continue
            if found != expected:
                faults.append(f"{journal} ledger {ledger_id}: a reader finds other bytes")
    await store.close()
    return faults


def run_store(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them."""
    faults: list[Fault] = make_store_faults(seed)[:fault_count]
    with quiet():
        return replace(run_hosts_world(StoreWorld, seed, faults), hosts=False, store=True)

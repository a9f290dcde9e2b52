"""One run of a seed over an object store, with machines that join and are lost, and backups."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random

from tests.sim.deletions import deleted_in_the_end
from tests.sim.history import History
from tests.sim.hosts_run import run_hosts_world
from tests.sim.loop import SimLoop
from tests.sim.machines_cluster import (
    MachinesCluster,
    carry_out_with_machines,
    make_machines_faults,
)
from tests.sim.run import CALM_S, Outcome, quiet
from tests.sim.store_backups import broken_promises
from tests.sim.store_bucket import SimBucket
from tests.sim.store_run import StoreWorld
from tests.sim.stored import audit, expected_journals
from tests.sim.transaction_cast import COORDINATORS
from tests.sim.transaction_evidence import unfinished
from tests.support.by_name import call_by_name
from velaray.broker.garbage_collection.deletion_backlog import dead_letters, take_up
from velaray.events.ids import ActorKey

SETTLED_S = 5.0
BACKUP_S = 60.0
"""A backup of a cluster that is at rest takes less."""
NEW_TOPICS = 3
"""Topics of the cluster on restored data: their journals take new numbers."""
TURNS = 200_000
"""Turns of the loop that a cluster on restored data may take."""


class MachinesWorld(StoreWorld):
    """Everything of one run."""

    cluster: MachinesCluster
    counted: Counter[str] | None = None
    """The counts of the time before the store is replaced."""
    events: int | None = None
    """The number of events before that. What follows begins at an earlier state."""

    def _make_cluster(
        self, loop: SimLoop, seed: int, history: History, relaxed: bool
    ) -> MachinesCluster:
        return MachinesCluster(loop, seed, history, relaxed)

    async def _carry_out(self) -> None:
        await carry_out_with_machines(self.cluster, self._faults, self._seed)

    async def _post_mortem(self) -> None:
        await self._back_up()
        await super()._post_mortem()
        cluster, rng = self.cluster, Random(f"{self._seed}/restored")
        self._problems += cluster.doubts
        self._problems += shared_ledgers(cluster.bucket)
        stores = []
        for made in cluster.backups.made:
            self._stage = f"judging backup {made.listing.number}"
            problems, bucket = await cluster.backups.judged(made)
            self._problems += problems
            stores.append((made.began_s, bucket))
        self.counted = super().counts()
        if stores and not self._problems:
            self._stage = "restoring a backup"
            await self._go_on_with(*rng.choice(stores))

    async def _back_up(self) -> None:
        """A backup of a cluster without faults is made."""
        self._stage = "making the last backup"
        backups = self.cluster.backups
        before, task = len(backups.made), backups.begin()
        await asyncio.wait([task], timeout=BACKUP_S)
        if len(backups.made) == before:
            self._problems.append("no backup was made of a cluster without faults")

    async def _go_on_with(self, began_s: float, bucket: SimBucket) -> None:
        """All machines and the store are lost; the cluster goes on with what was restored."""
        cluster = self.cluster
        cluster.loop.max_turns += TURNS
        cluster.counted["clusters on restored data"] += 1
        self.events = len(self._history.events)
        cluster.go_on_with(bucket)
        await cluster.open_proxy()
        until_s = cluster.loop.time() + CALM_S
        for number in range(NEW_TOPICS):
            named = {"topic": f"persistent://public/default/new{number}"}
            await call_by_name(cluster.admin, ActorKey.catalog(), "ensure_topic", named)
        for name in sorted(await expected_journals(cluster)):
            await cluster.admin.reach(ActorKey.parse(name))
        await asyncio.sleep(SETTLED_S)
        await cluster.admin.reach(ActorKey.of_garbage_collector(0))
        # What failed until its last attempt before the moment.
        await take_up(cluster.admin, [each async for each in dead_letters(cluster.admin)])
        found = await audit(cluster) + await deleted_in_the_end(cluster, CALM_S)
        while left := await unfinished(cluster.disk, COORDINATORS):
            if cluster.loop.time() > until_s:
                found.append(f"transactions at the end: {left}")
                break
            await asyncio.sleep(1.0)
        found += shared_ledgers(bucket)
        found += await broken_promises(self._history, bucket, began_s)
        self._problems += [f"after the restore: {problem}" for problem in found]

    def problems(self) -> list[str]:
        """The faults that the run found; its history ends when the store is replaced."""
        whole, told = self._history, History(lambda: 0.0)
        told.events = whole.events[: self.events]
        self._history = told
        try:
            return super().problems()
        finally:
            self._history = whole

    def counts(self) -> Counter[str]:
        """The counts of this run for a campaign."""
        counts = super().counts() if self.counted is None else self.counted
        return counts + self.cluster.counted + self.cluster.backups.counted


def shared_ledgers(bucket: SimBucket) -> list[str]:
    """Ledgers that several journals have: numbers of journals are given once in a cluster."""
    owners: dict[int, str] = {}
    found = []
    for journal in bucket.journals():
        manifest = bucket.disk.manifest(journal)
        listed = manifest.ownership.ledgers if manifest is not None else frozenset()
        for ledger_id in sorted(listed | bucket.disk.attic.infos.get(journal, {}).keys()):
            other = owners.setdefault(ledger_id, journal)
            if other != journal:
                found.append(f"{other} and {journal} have ledger {ledger_id}")
    return found


def run_machines(seed: int, fault_count: int | None = None) -> Outcome:
    """Run ``seed`` with its faults, or with the first ``fault_count`` of them."""
    faults = make_machines_faults(seed)[:fault_count]
    with quiet():
        outcome = run_hosts_world(MachinesWorld, seed, faults)
        return replace(outcome, hosts=False, machines=True)

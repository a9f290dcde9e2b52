"""The deletion of ledgers, checked at the end on the disk and by the product's own ledger audit.

Deletions that failed until their last attempt are dead letters. The run removes their fault and
retries them, as an operator does. A forged event, which names another actor's ledger, deletes
nothing.
"""

from __future__ import annotations

import asyncio
from copy import deepcopy

from tests.sim.cluster import SimCluster
from tests.sim.stored import expected_journals, strays
from velaray.broker.garbage_collection.audit_run import audit_ledgers
from velaray.broker.garbage_collection.deletion import deletes_itself, enqueue_deletion
from velaray.broker.garbage_collection.deletion_backlog import dead_letters, take_up
from velaray.broker.garbage_collection.ledger_audit import State
from velaray.events.ids import ActorKey, ActorKind

TURN_S = 10.0
TURNS_A_SECOND = 500  # an idle cluster with hosts takes 360
_WRONG = (State.ORPHAN, State.MISSING, State.DEAD)


async def deleted_in_the_end(cluster: SimCluster, within_s: float) -> list[str]:
    """Faults of the stored data when all enqueued deletions should be done."""
    await _forge(cluster)
    # An event is due by the clock of the actor that enqueued it, which may be ahead.
    ahead_s = cluster.fastest_ms / 1000
    # The bound on turns finds loops that make no progress. Waiting for a clock isn't one.
    cluster.loop.max_turns += int(ahead_s * TURNS_A_SECOND)
    until = cluster.loop.time() + within_s + ahead_s
    while (found := await _left(cluster)) and cluster.loop.time() < until:
        await asyncio.sleep(TURN_S)
        await _mend(cluster)
    audit, planted = await audit_ledgers(cluster.admin), cluster.disk.planted
    found += [
        f"the census finds {each.state}: ledger {each.ledger_id} of {each.journal}"
        for state in _WRONG
        for each in audit.of(state)
        if each.name not in planted
    ]
    for journal, ledger_id in planted:
        if cluster.disk._files(journal).ledgers.pop(ledger_id, None) is None:
            found.append(f"a forged event deleted ledger {ledger_id} in {journal}")
    planted.clear()
    return found + cluster.disk.faults


async def _left(cluster: SimCluster) -> list[str]:
    """Ledgers that still wait for deletion, and the forged event while it is enqueued."""
    audit = await audit_ledgers(cluster.admin) if cluster.disk.planted else None
    waiting = [each.name for each in audit.of(State.PENDING)] if audit else []
    return await strays(cluster) + [
        f"nobody has dealt with the forged event of {name}"
        for name in cluster.disk.planted
        if name in waiting
    ]


async def _mend(cluster: SimCluster) -> None:
    """Wait until all failed deletions are dead letters, remove the fault and retry them."""
    stuck = {
        (journal, ledger_id)
        for journal, ledger_id in cluster.disk.stubborn
        if ledger_id in cluster.disk._files(journal).ledgers
        and (journal, ledger_id) not in cluster.disk.planted
    }
    if not stuck:
        return
    audit = await audit_ledgers(cluster.admin)
    if stuck <= {each.name for each in audit.of(State.DEAD)}:
        cluster.disk.stubborn.clear()
        await take_up(cluster.admin, [each async for each in dead_letters(cluster.admin)])


async def _forge(cluster: SimCluster) -> None:
    """Enqueue another actor's ledger at the place of a deleted one."""
    disk = cluster.disk
    if not disk.takes_foreign_ledgers:
        return
    for journal in sorted(await expected_journals(cluster)):
        key, manifest = ActorKey.parse(journal), disk.manifest(journal)
        if key.kind is not ActorKind.PARTITION or deletes_itself(cluster.admin, key):
            continue
        if manifest is None or manifest.ledgers[0].ledger_id == manifest.ledger_id(0):
            continue  # it never had one that isn't listed
        catalog = disk._files(ActorKey.catalog().text()).ledgers
        ledger_id = manifest.ledger_id(0)
        if ledger_id in disk._files(journal).ledgers:
            continue  # it waits for its deletion
        disk._files(journal).ledgers[ledger_id] = deepcopy(catalog[max(catalog)])
        disk.planted.add((journal, ledger_id))
        await enqueue_deletion(cluster.admin, key, [ledger_id])
        return

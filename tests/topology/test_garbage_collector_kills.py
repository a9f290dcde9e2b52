"""A garbage collector that is killed at any step loses no deletion and deletes nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.deleting import (
    GARBAGE_COLLECTOR,
    a_topic,
    counts,
    listed,
    make_journal,
    running,
    stored,
    tell,
    wait_for,
)
from velaray.broker.garbage_collection.collectors import collectors_to_wake, has_work
from velaray.broker.garbage_collection.deletion import enqueue_deletion
from velaray.broker.garbage_collection.deletion_backlog import dead_letters, pending
from velaray.client.dead_letters import DeadLetterProducers
from velaray.journal.errors import SyncFailed


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(path, deleters=1, deletion_retry_s=0.1, maintenance_s=0.2) as running:
        yield running


class Killing:
    """A store that kills the garbage collector at one of its steps, or fails there."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._store = cluster.actor_system.store
        self.watched = a_topic("orders").text()
        self.at = ""
        self.fails = False
        self.killed = 0
        cluster.actor_system.store = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def kill(self) -> None:
        """End the garbage collector, which includes the caller."""
        self.at = ""
        self.killed += 1
        self._cluster.actor_system.kill(GARBAGE_COLLECTOR)
        await asyncio.sleep(0)  # here the cancellation comes

    async def read_manifest(self, journal: str) -> Any:
        if self.at == "before the look" and journal == self.watched:
            await self.kill()
        return await self._store.read_manifest(journal)

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        if self.fails and journal == self.watched:
            raise SyncFailed(f"{ledger_id}.ledger", "refused")
        if self.at == "before the deletion" and journal == self.watched:
            await self.kill()
        await self._store.delete_ledger(journal, ledger_id)
        if self.at == "before the acknowledgement" and journal == self.watched:
            await self.kill()


STEPS = ["before the look", "before the deletion", "before the acknowledgement"]


@pytest.mark.parametrize("step", STEPS)
def test_the_next_activation_finishes_the_deletion(cluster: LocalCluster, step: str) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, second, *rest = listed(journal)
    killing = Killing(cluster)
    counts(cluster)
    cluster.run(journal.drop_from_manifest([first, second]))
    tell_and_die = enqueue_deletion(cluster.actor_system, key, [first, second])
    killing.at = step
    cluster.run(tell_and_die)
    wait_until(lambda: killing.killed)
    assert not running(cluster)
    counts(cluster)  # as Ray starts it anew
    wait_until(lambda: stored(cluster, key) == rest)
    wait_until(lambda: not cluster.run(has_work(cluster.actor_system)))
    assert killing.killed == 1


def test_a_kill_loses_no_event_on_its_way_to_the_retry_topic(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, *rest = listed(journal)
    killing = Killing(cluster)
    killing.fails = True
    moved = DeadLetterProducers._send

    async def send_and_die(*args: Any) -> None:
        await moved(*args)
        if killing.killed < 3:
            await killing.kill()

    monkeypatch.setattr(DeadLetterProducers, "_send", send_and_die)
    cluster.run(journal.drop_from_manifest([first]))
    tell(cluster, key, [first])
    for times in (1, 2, 3):
        wait_until(lambda times=times: killing.killed >= times and counts(cluster))
    killing.fails = False
    wait_until(lambda: stored(cluster, key) == rest)
    wait_until(lambda: not cluster.run(has_work(cluster.actor_system)))


def test_an_interrupted_enqueueing_may_be_repeated(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key, 40)
    old, rest = listed(journal)[:30], listed(journal)[30:]
    killing = Killing(cluster)
    counts(cluster)

    async def tell_while_it_dies() -> None:
        telling = asyncio.ensure_future(enqueue_deletion(cluster.actor_system, key, old))
        await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0.02)
            await killing.kill()
        await telling  # it was repeated until a garbage collector answered
        await journal.drop_from_manifest(old)

    cluster.run(tell_while_it_dies())
    counts(cluster)  # as Ray starts it anew
    wait_until(lambda: stored(cluster, key) == rest)
    wait_until(lambda: not cluster.run(has_work(cluster.actor_system)))


def of_a_collector(tasks: set[asyncio.Task[Any]]) -> set[str]:
    """Those of these tasks that belong to a garbage collector or its client."""
    running = [task.get_coro() for task in tasks if not task.done()]
    files = {str(coroutine): coroutine.cr_code.co_filename for coroutine in running}  # type: ignore[union-attr]
    return {
        text
        for text, file in files.items()
        if Path(file).parent.name == "aio" or Path(file).name.startswith("deleter_")
    }


def test_a_killed_garbage_collector_leaves_nothing_behind(cluster: LocalCluster) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    cluster.run(journal.drop_from_manifest(listed(journal)[:1]))
    tell(cluster, key, [listed(journal)[0]])
    wait_for(cluster, received=1)

    async def tasks_after_the_kill() -> set[str]:
        before = asyncio.all_tasks()
        client = cluster.actor_system.actors[GARBAGE_COLLECTOR]._client  # type: ignore[attr-defined]
        connections = list(client.core.pool._open.values())
        cluster.actor_system.kill(GARBAGE_COLLECTOR)
        assert connections and all(each.closed for each in connections)
        for _ in range(20):
            await asyncio.sleep(0.01)
        return of_a_collector(asyncio.all_tasks() & before)

    assert cluster.run(tasks_after_the_kill()) == set()


def test_a_garbage_collector_that_stops_gracefully_leaves_nothing_behind(
    cluster: LocalCluster,
) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, *rest = listed(journal)
    tell(cluster, key, [first])  # it is listed: there is something left to do
    wait_for(cluster, in_use=1)
    cluster.run(cluster.actor_system.dismiss(GARBAGE_COLLECTOR))

    async def left() -> set[str]:
        return of_a_collector(asyncio.all_tasks())

    assert cluster.run(left()) == set()
    cluster.run(journal.drop_from_manifest([first]))
    assert len(cluster.run(collectors_to_wake(cluster.actor_system))) == 1
    wait_for(cluster, deleted=1)
    assert stored(cluster, key) == rest


def test_no_collector_is_activated_without_events(cluster: LocalCluster) -> None:
    counts(cluster)
    assert cluster.run(collectors_to_wake(cluster.actor_system)) == []


def test_a_garbage_collector_is_idle_only_without_pending_events(cluster: LocalCluster) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, *_ = listed(journal)
    actor = None

    async def idle() -> bool:
        return actor is not None and actor.idle()

    tell(cluster, key, [first])
    wait_for(cluster, retried=1)
    cluster.run(_drop_rpc(cluster))
    actor = cluster.actor_system.actors[GARBAGE_COLLECTOR]
    assert not cluster.run(idle())
    waiting = cluster.run(_names(pending(cluster.actor_system)))
    assert waiting == [(key.text(), first)]
    cluster.run(journal.drop_from_manifest([first]))
    wait_until(lambda: cluster.run(idle()), 30.0)
    assert cluster.run(_names(pending(cluster.actor_system))) == []
    assert cluster.run(_names(dead_letters(cluster.actor_system))) == []


async def _drop_rpc(cluster: LocalCluster) -> None:
    cluster.actor_system.drop_rpc()


async def _names(waiting: Any) -> list[tuple[str, int]]:
    return [(each.event.journal, each.event.ledgerId) async for each in waiting]

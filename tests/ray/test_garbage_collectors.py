"""Garbage collectors on Ray restart by themselves after a kill or a stop of their cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.ray.support import RayNodes, actors, wait_until
from tests.topology.deleting import a_journal, a_topic, listed
from velaray.broker.garbage_collection.deletion import enqueue_deletion
from velaray.client.admin import Admin
from velaray.cluster import Cluster
from velaray.geo.actor_kinds import make_actor
from velaray.journal.files import FileStore
from velaray.topology.ray_host import make_actor_system

KEY = a_topic("orders")


def drop_from_manifest(cluster: Cluster, count: int) -> None:
    """Have the first ledgers of the journal deleted, as their owner does."""

    async def run() -> None:
        actor_system = make_actor_system(cluster.config, make_actor)
        journal = await a_journal(actor_system.store, KEY)
        gone = listed(journal)[:count]
        await enqueue_deletion(actor_system, KEY, gone)
        await journal.drop_from_manifest(gone)
        await journal.close()
        actor_system.drop_rpc()
        await actor_system.store.close()

    asyncio.run(run())


def unlisted(cluster: Cluster) -> int:
    """How many ledgers are stored that no manifest lists."""
    totals = Admin(cluster.admin_url).ledger_audit()["totals"]
    assert totals["orphan"]["ledgers"] == totals["missing"]["ledgers"] == 0
    return sum(totals[state]["ledgers"] for state in ("pending", "dead-letter"))


def stored(cluster: Cluster) -> int:
    async def run() -> int:
        store = FileStore(cluster.config.data_dir)
        found = await store.list_ledgers(KEY.text())
        await store.close()
        return len(found)

    return asyncio.run(run())


@pytest.mark.long
def test_enqueued_ledgers_are_deleted_after_any_kill(nodes: RayNodes, data_dir: Path) -> None:
    with Cluster.start(
        data_dir, service_port=0, admin_port=0, placement="dedicated", name="deletes"
    ) as first:
        drop_from_manifest(first, 3)
        before = stored(first)
        (collector,) = actors(first, "deleter")  # it has just begun to subscribe
        os.kill(collector["pid"], signal.SIGKILL)
        wait_until(lambda: stored(first) == before - 3, "Ray starts it anew, and it goes on")
        assert unlisted(first) == 0
        assert actors(first, "deleter")[0]["pid"] != collector["pid"]
        drop_from_manifest(first, 2)
        before = stored(first)
        (collector,) = actors(first, "deleter")
        os.kill(collector["pid"], signal.SIGKILL)
    with Cluster.start(
        data_dir, service_port=0, admin_port=0, placement="dedicated", name="deletes"
    ) as second:
        wait_until(lambda: unlisted(second) == 0, "what was left is done")
        assert stored(second) <= before


@pytest.mark.long
def test_a_collector_of_an_earlier_start_is_not_reused(nodes: RayNodes, data_dir: Path) -> None:
    """By its name Ray still knows it, and has it leave later, for ever."""
    first = Cluster.start(
        data_dir, service_port=0, admin_port=0, placement="dedicated", name="deletes"
    )
    drop_from_manifest(first, 2)
    (collector,) = actors(first, "deleter")
    os.kill(collector["pid"], signal.SIGSTOP)
    first._lock.close()  # as if whoever started it had died; its actors go on
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(
            Cluster.start, data_dir, service_port=0, admin_port=port, name="deletes"
        )
        wait_until(lambda: answers(port), "the second one serves")
        os.kill(collector["pid"], signal.SIGCONT)
        with starting.result() as second:
            wait_until(lambda: unlisted(second) == 0, "what was left is done")


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

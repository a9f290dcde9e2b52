"""Garbage collectors delete dropped ledgers and nothing else, also after crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.topology.deleting import (
    GARBAGE_COLLECTOR,
    a_topic,
    listed,
    make_journal,
    publish,
    raw_event,
    stored,
    tell,
    wait_for,
)
from velaray.actors.machine import Reason
from velaray.broker.garbage_collection.messages import EnqueueDeletion
from velaray.events.ids import ActorKey
from velaray.journal.errors import SyncFailed
from velaray.journal.files import FileStore
from velaray.topology.metrics import METRICS
from velaray.topology.rpc import RemoteError


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(path, deleters=1, deletion_retry_s=0.2, maintenance_s=0.2) as running:
        yield running


def test_a_ledger_dropped_from_the_manifest_after_its_event_is_deleted(
    cluster: LocalCluster,
) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, second, *rest = listed(journal)
    tell(cluster, key, [first, second])
    cluster.run(journal.drop_from_manifest([first, second]))
    found = wait_for(cluster, deleted=2, acked=2)
    assert stored(cluster, key) == rest
    assert found["sent"] == 2 and found["dead"] == found["forged"] == 0


def test_a_repeated_event_of_a_deleted_ledger_is_done(cluster: LocalCluster) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, *rest = listed(journal)
    cluster.run(journal.drop_from_manifest([first]))
    tell(cluster, key, [first])
    wait_for(cluster, deleted=1)
    tell(cluster, key, [first])
    found = wait_for(cluster, gone=1)
    assert stored(cluster, key) == rest
    assert found["deleted"] == 1


def test_forged_events_delete_nothing(cluster: LocalCluster) -> None:
    key, other = a_topic("orders"), a_topic("payments")
    journal, others = make_journal(cluster, key), make_journal(cluster, other)
    first, *rest = listed(journal)
    of_other = listed(others)[0]
    cluster.run(journal.drop_from_manifest([first]))
    before = stored(cluster, key), stored(cluster, other)
    tell(cluster, key, [rest[0]])
    wait_for(cluster, in_use=1)
    publish(cluster, b"no event", b"", None)  # malformed
    publish(
        cluster,
        raw_event(key, of_other),  # another actor's ledger
        raw_event(other, first),
        raw_event(key, first, topicName="persistent://public/default/payments"),
        raw_event(key, first, ledgerComponent="managed-cursor"),
        raw_event(key, first, cursorName="s"),
        raw_event(key, first, journal="../../etc"),
        raw_event(key, first, journal="deleter/0"),
        raw_event(key, -1),
        raw_event(key, first, ledgerType="Offload-Ledger"),
    )
    publish(cluster, raw_event(key, rest[0]), RECONSUMETIMES="minus one")  # it is listed
    found = wait_for(cluster, malformed=3, forged=10)
    assert (stored(cluster, key), stored(cluster, other)) == before
    assert found["deleted"] == found["gone"] == found["dead"] == 0


class Refusing:
    """A store that refuses to delete ledgers a number of times."""

    def __init__(self, store: FileStore, times: int) -> None:
        self._store = store
        self.times = times
        self.tried: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def delete_ledger(self, journal: str, ledger_id: int) -> None:
        self.tried.append(asyncio.get_running_loop().time())
        if len(self.tried) <= self.times:
            raise SyncFailed(f"{ledger_id}.ledger", "refused")
        await self._store.delete_ledger(journal, ledger_id)


def refuse(cluster: LocalCluster, times: int) -> Refusing:
    store = cluster.actor_system.store
    assert isinstance(store, FileStore)
    refusing = Refusing(store, times)
    cluster.actor_system.store = refusing  # type: ignore[assignment]
    return refusing


def one_unlisted(cluster: LocalCluster) -> tuple[ActorKey, int]:
    """A ledger that is enqueued and dropped from the manifest."""
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    (first, *_) = listed(journal)
    cluster.run(journal.drop_from_manifest([first]))
    tell(cluster, key, [first])
    return key, first


def test_a_refused_deletion_is_retried_after_the_delay(cluster: LocalCluster) -> None:
    refusing = refuse(cluster, 9)
    key, first = one_unlisted(cluster)
    found = wait_for(cluster, deleted=1, retried=9)  # counted when the copy is acknowledged
    assert first not in stored(cluster, key)
    assert found["failed"] == found["retried"] == 9 and found["dead"] == 0
    delays = [later - at for at, later in pairwise(refusing.tried)]
    assert min(delays) >= cluster.config.deletion_retry_s


def test_a_deletion_refused_too_often_is_a_dead_letter(cluster: LocalCluster) -> None:
    refuse(cluster, 100)
    key, first = one_unlisted(cluster)
    found = wait_for(cluster, dead=1)
    assert first in stored(cluster, key)
    assert found["failed"] == 11 and found["retried"] == 10
    assert found["received"] == 11 and found["acked"] == 0


def test_a_listed_ledger_is_deleted_after_the_manifest_drops_it(cluster: LocalCluster) -> None:
    key = a_topic("orders")
    journal = make_journal(cluster, key)
    first, *rest = listed(journal)
    tell(cluster, key, [first])
    wait_for(cluster, in_use=2)
    assert first in stored(cluster, key)
    cluster.run(journal.drop_from_manifest([first]))
    wait_for(cluster, deleted=1)
    assert stored(cluster, key) == rest


def test_several_garbage_collectors_share_the_work(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, deletion_retry_s=0.2, deleters=3) as cluster:
        keys = [a_topic(f"orders-{number}") for number in range(12)]
        journals = [make_journal(cluster, key) for key in keys]
        for key, journal in zip(keys, journals, strict=True):
            gone = listed(journal)[:3]
            tell(cluster, key, gone)
            cluster.run(journal.drop_from_manifest(gone))
        wait_until(lambda: all(len(stored(cluster, key)) == 3 for key in keys), 30.0)

        def of_each(name: str) -> list[int]:
            deleters = map(ActorKey.of_garbage_collector, range(3))
            found = [
                cluster.run(call_by_name(cluster.actor_system, key, "describe")) for key in deleters
            ]
            return [each["counts"][name] for each in found]

        wait_until(lambda: sum(of_each("deleted")) == 36, 30.0)  # counted once the event is done
        assert sum(of_each("sent")) == 36
        assert all(of_each("sent"))


def test_a_garbage_collector_counts_its_work(cluster: LocalCluster) -> None:
    one_unlisted(cluster)
    found = wait_for(cluster, deleted=1)
    samples = cluster.run(call_by_name(cluster.actor_system, GARBAGE_COLLECTOR, "metrics"))
    values = {name: value for name, _, value in samples}
    assert values["velaray_ledger_deletion_deleted_total"] == found["deleted"] == 1
    assert set(values) == {f"velaray_ledger_deletion_{name}_total" for name in found}
    assert set(values) <= set(METRICS)
    labels = samples[0][1]
    assert labels == {"cluster": "standalone", "kind": "deleter", "deleter_id": "0"}


def test_invalid_requests_are_refused(cluster: LocalCluster) -> None:
    for journal in ("deleter/0", "nobody/1", "partition/../x"):
        request = EnqueueDeletion(journal, [1])
        with pytest.raises(RemoteError) as refused:
            cluster.run(cluster.actor_system.request(GARBAGE_COLLECTOR, request))
        assert refused.value.kind == Reason.INVALID
    with pytest.raises(RemoteError, match=r"message EnqueueDeletion, field ledger_ids"):
        args = {"journal": "partition/x", "ledger_ids": "all"}
        cluster.run(call_by_name(cluster.actor_system, GARBAGE_COLLECTOR, "enqueue_deletion", args))
    with pytest.raises(RemoteError, match="has no method 'burn'"):
        cluster.run(call_by_name(cluster.actor_system, GARBAGE_COLLECTOR, "burn"))

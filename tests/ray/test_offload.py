"""SIGKILLs of the processes that offload ledgers to an S3 server, and of those that read them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pulsar
import pytest

from tests.ray.support import Publisher, RayNodes, quiet_client, wait_until
from tests.support.on_s3 import on_s3
from tests.support.s3_server import S3Server
from velaray import cluster as starting
from velaray.client.admin import Admin, Unavailable
from velaray.cluster import Cluster
from velaray.journal.offload.tiered_store import TieredStore
from velaray.journal.replay import load_manifest, verify
from velaray.topology.config import ClusterConfig
from velaray.topology.stores import open_store

ROOT = Path(__file__).parents[2]
TOPICS = [f"persistent://public/default/kept-{number}" for number in range(3)]
RATE = {"publishThrottlingRateInMsg": 50, "publishThrottlingRateInByte": -1}
"""Of each topic: ledgers are made no faster than they are moved."""
SETTLED_WITHIN_S = 120.0

pytestmark = on_s3


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with small ledgers, which are offloaded at once and soon deleted here."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)  # before Ray starts
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        patch.setattr(starting, "ClusterConfig", partial(ClusterConfig, maintenance_s=0.5))
        with (
            RayNodes(workers=1, setup="tests.ray.small_ledgers.shrink"),
            Cluster.start(
                tmp_path_factory.mktemp("d"),
                service_port=0,
                admin_port=0,
                placement="shared",
                deletion_retry_s=2.0,
                offload=s3_server.new_store(),
            ) as cluster,
        ):
            admin = Admin(cluster.admin_url)
            admin.set_policy("public/default", "offloadThreshold", 0)
            admin.set_policy("public/default", "offloadDeletionLagMs", 0)
            admin.set_policy("public/default", "publishRate", RATE)
            yield cluster


class Tiers:
    """What is stored where, read without the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._data = cluster.config.data_dir

    def counts(self) -> tuple[int, int]:
        """The ledgers of topics that are marked as offloaded, and those of them that are only in
        the archive."""
        return asyncio.run(self._counts())

    async def _counts(self) -> tuple[int, int]:
        store = self._open()
        marked = moved = 0
        for journal in await store.list_journals("partition/public/default"):
            offloaded = (await load_manifest(store, journal)).offloaded
            marked += len(offloaded)
            moved += len(offloaded.difference(await store.local.list_ledgers(journal)))
        await store.close()
        return marked, moved

    def archived(self) -> set[str]:
        """The journals that have ledgers in the archive."""
        return asyncio.run(self._archived())

    async def _archived(self) -> set[str]:
        store = self._open()
        found = set(await store.archive.list())
        await store.close()
        return found

    def problems(self) -> list[str]:
        """What verification finds in the journals of topics."""
        return asyncio.run(self._problems())

    async def _problems(self) -> list[str]:
        store = self._open()
        found = []
        for journal in await store.list_journals("partition/public/default"):
            for report in await verify(store, journal):
                found += report.problems
        await store.close()
        return found

    def _open(self) -> TieredStore:
        store = open_store(self._data)
        assert isinstance(store, TieredStore)
        return store


def strike(cluster: Cluster, times: int) -> int:
    """SIGKILL hosts at random moments, the one for work in the background included."""
    chance, pause, struck = random.Random(7), threading.Event(), 0
    while struck < times:
        pause.wait(chance.uniform(0.5, 3.0))
        hosts = [each for each in cluster.actors() if each["key"].startswith("host/")]
        if hosts:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(chance.choice(hosts)["pid"], signal.SIGKILL)
                struck += 1
    return struck


def read(cluster: Cluster, topic: str, count: int) -> list[int]:
    """The first messages of a topic."""
    client = quiet_client(cluster.service_url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(60_000).data()) for _ in range(count)]
    client.close()
    return found


def are_moved(tiers: Tiers) -> bool:
    """Whether most ledgers are only in the archive; recovery needs the others here."""
    marked, moved = tiers.counts()
    return moved >= 0.9 * marked


def is_clean(admin: Admin) -> bool:
    """Whether every ledger is listed, in either tier."""
    try:
        totals = admin.ledger_audit()["totals"]
    except Unavailable:
        return False
    return not any(each["ledgers"] for state, each in totals.items() if state != "listed")


FEW = pytest.param(1, 3, marks=pytest.mark.timeout(600))
MANY = pytest.param(50, 50, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])


@pytest.mark.parametrize(("kills", "ledgers"), [FEW, MANY])
def test_no_message_is_lost_and_no_object_is_left(
    cluster: Cluster, kills: int, ledgers: int
) -> None:
    admin, tiers = Admin(cluster.admin_url), Tiers(cluster)
    client = quiet_client(cluster.service_url)
    for topic in TOPICS:
        client.subscribe(topic, "keeps", initial_position=pulsar.InitialPosition.Earliest).close()
    publishers = [Publisher(cluster.service_url, topic) for topic in TOPICS]
    for publisher in publishers:
        publisher.start()
    try:
        struck = strike(cluster, kills)
        wait_until(lambda: tiers.counts()[0] >= ledgers, "ledgers are copied", SETTLED_WITHIN_S)
    finally:
        sent = [publisher.stop() for publisher in publishers]
    wait_until(partial(are_moved, tiers), "they are deleted here", SETTLED_WITHIN_S)
    marked, moved = tiers.counts()
    for topic, numbers in zip(TOPICS, sent, strict=True):
        assert read(cluster, topic, len(numbers)) == numbers
    assert tiers.problems() == []
    wait_until(lambda: is_clean(admin), "no orphans, none missing", SETTLED_WITHIN_S)
    print(
        f"{struck} hosts killed, {sum(map(len, sent))} messages; {marked} ledgers offloaded, "
        f"{moved} of them only in the archive"
    )
    client.close()
    for topic in TOPICS:
        admin.delete_topic(topic, force=True)
    wait_until(lambda: not tiers.archived(), "the archive is empty", SETTLED_WITHIN_S)
    wait_until(lambda: is_clean(admin), "everything is deleted", SETTLED_WITHIN_S)
    assert admin.dead_ledgers() == []

"""Backups of a cluster that serves, with transactions open, and what a restored cluster has."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import velaray
from tests.backup.workload import Load, judge
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.backup import creating, places
from velaray.backup.creating import BackupSettings
from velaray.backup.cut import Moment, cut_ledger
from velaray.cli.journal import MachineFold
from velaray.events.ids import ActorKind

RESTORES = 20
KILLED = (ActorKind.PARTITION, ActorKind.SUBSCRIPTION, ActorKind.COORDINATOR)


def back_up_and_judge(data: str, load: Load, place: Path, restored: Path) -> int:
    """Make a backup, verify it, start a cluster on its restore, and judge that."""
    before = load.acknowledged()
    listing, _ = asyncio.run(places.create(data, str(place)))
    assert load.acknowledged().published > before.published, "the cluster didn't serve meanwhile"
    _, reports = asyncio.run(places.verify(str(place), listing.number, MachineFold))
    assert [each for each in reports if each.problems] == []
    asyncio.run(places.restore(str(place), listing.number, str(restored)))
    with velaray.LocalCluster.start(restored) as again:
        return judge(again.service_url, before)


def begin(load: Load) -> None:
    wait_until(lambda: load.failures or len(load.acknowledged().moved) > 20, 60)
    assert load.failures == []


@pytest.mark.slow
def test_a_restored_cluster_has_what_was_acknowledged(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "data") as cluster, Load(cluster.service_url, 1) as load:
        begin(load)
        data, place = cluster.config.data_dir, tmp_path / "backups"
        assert back_up_and_judge(data, load, place, tmp_path / "restored") > 100
    assert load.failures == []


@pytest.mark.long
def test_a_store_under_load_is_backed_up(tmp_path: Path, s3_url: str) -> None:
    with velaray.LocalCluster.start(s3_url) as cluster, Load(cluster.service_url, 4) as load:
        begin(load)
        assert back_up_and_judge(s3_url, load, tmp_path / "backups", tmp_path / "restored") > 20
    assert load.failures == []


@pytest.mark.long
def test_journals_of_different_moments_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the moment, the judges would have something to find."""
    copy_journal = creating._Maker._copy_journal

    async def cut_nowhere(store, journal, info, moment, known):
        return await cut_ledger(store, journal, info, Moment(None), known)

    async def copy_later(maker, key, before, moment):
        moved = len(load.acknowledged().moved)
        await asyncio.to_thread(wait_until, lambda: len(load.acknowledged().moved) > moved + 10, 60)
        return await copy_journal(maker, key, before, moment)

    monkeypatch.setattr(creating, "cut_ledger", cut_nowhere)
    monkeypatch.setattr(creating._Maker, "_copy_journal", copy_later)
    place = str(tmp_path / "place")
    with LocalCluster(tmp_path / "data") as cluster, Load(cluster.service_url, 3) as load:
        begin(load)
        one_by_one = BackupSettings(at_once=1)
        asyncio.run(places.create(cluster.config.data_dir, place, one_by_one))
    _, reports = asyncio.run(places.verify(place, None, MachineFold))
    found = " ".join(problem for report in reports for problem in report.problems)
    assert "but its partition ends at" in found
    assert "is committed here, but unknown at its coordinator" in found


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_restores_under_load_and_kills(tmp_path: Path) -> None:
    choices = random.Random(2)
    with (
        LocalCluster(tmp_path / "data", maintenance_s=0.5) as cluster,
        Load(cluster.service_url, 2, churn=True) as load,
    ):
        begin(load)
        found = [0]
        for number in range(RESTORES):
            keys = [key for kind in KILLED for key in cluster.keys(kind)]
            cluster.kill(choices.choice(sorted(keys)))
            place, restored = tmp_path / "backups", tmp_path / f"restored-{number}"
            found.append(back_up_and_judge(cluster.config.data_dir, load, place, restored))
            assert found[-1] > found[-2]
    assert load.failures == []

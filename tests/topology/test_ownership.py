"""Which cluster owns data: its name stays, and the number that its ledger ids begin with."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgpack
import pytest

from velaray.cluster import Cluster
from velaray.journal.files import FileStore
from velaray.starting import ClusterError, own_data
from velaray.topology.config import ClusterConfig
from velaray.topology.ownership import (
    DueChecks,
    OtherCluster,
    check_ownership,
    data_id_of,
    take_ownership,
)


def _config(data_dir: Path, name: str, number: int) -> ClusterConfig:
    return ClusterConfig(str(data_dir), 0, b"", name=name, cluster_number=number)


def test_a_data_directory_keeps_the_name_and_number_of_its_cluster(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))

    async def starts() -> None:
        assert await take_ownership(store, "a") == 1
        assert await take_ownership(store, "a", 0) == 2
        assert await take_ownership(store, "a", 7) == 3  # none was used before
        assert await take_ownership(store, "a", 7) == 4
        for other in (0, 8):
            with pytest.raises(OtherCluster, match="start it with --cluster-number 7"):
                await take_ownership(store, "a", other)
        with pytest.raises(
            OtherCluster, match="it belongs to cluster a: start it with --name a, not b"
        ):
            await take_ownership(store, "b", 7)
        assert await take_ownership(store, "a", 7) == 5  # a refused start isn't one
        await check_ownership(store, ClusterConfig(str(tmp_path), 5, b""))

    asyncio.run(starts())
    with pytest.raises(ClusterError, match=f"{tmp_path} can't be taken over: its ledgers"):
        own_data(_config(tmp_path, "a", 8))
    assert own_data(_config(tmp_path, "a", 7))[0] == 6


def test_older_data_is_not_assigned_an_uncertain_name(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path))

    async def starts() -> None:
        await store.write_manifest("cluster", 0, msgpack.packb({"incarnation": 5}))
        assert await take_ownership(store, "wrong") == 6
        assert await take_ownership(store, "right") == 7

    asyncio.run(starts())


@pytest.mark.parametrize(("place", "every_s"), [("/data", 1), ("s3://bucket/prefix", 5)])
def test_ownership_is_checked_less_often_where_requests_cost(place: str, every_s: int) -> None:
    checks = DueChecks(ClusterConfig(place, 1, b""))
    due = [checks.is_due(float(now_s)) for now_s in range(11)]
    assert [now_s for now_s, is_due in enumerate(due) if is_due] == list(range(0, 11, every_s))


def test_a_data_directory_has_a_permanent_id(tmp_path: Path) -> None:
    (first, one), (second, same) = (
        own_data(_config(tmp_path / "a", "x", number)) for number in (0, 7)
    )
    _, other = own_data(_config(tmp_path / "b", "x", 0))
    assert (first, second) == (1, 2)
    assert one == same != other
    assert asyncio.run(data_id_of(FileStore(str(tmp_path / "none")))) == ""


@pytest.mark.parametrize("number", [-1, 2047])
def test_a_cluster_number_that_does_not_fit_ledger_ids_is_refused(
    tmp_path: Path, number: int
) -> None:
    with pytest.raises(ValueError, match=f"cluster_number={number} must be 0 to 2046"):
        Cluster.start(tmp_path / "data", cluster_number=number)
    assert not (tmp_path / "data").exists()

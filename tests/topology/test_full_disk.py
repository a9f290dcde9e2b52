"""A full disk reads as a full disk at the client, wherever it is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import velaray
from tests.support.local_cluster import LocalCluster
from velaray.client.exceptions import Timeout
from velaray.journal.errors import StorageFull


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster


def test_a_partition_without_space_to_start_recovers_later(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def full(journal: str, ledger_id: int, header: bytes, epoch: int) -> Any:
        raise StorageFull(str(tmp_path / f"{ledger_id}.ledger"), "No space left on device")

    with velaray.Client(cluster.service_url, operation_timeout_seconds=2) as client:
        with monkeypatch.context() as disk:
            disk.setattr(cluster.actor_system.store, "create_ledger", full)
            with pytest.raises(Timeout) as refused:
                client.create_producer("no-room")
        assert "BrokerPersistenceError" in str(refused.value)
        assert "storage is full (No space left on device); free some space" in str(refused.value)
        assert str(tmp_path) not in str(refused.value)
        client.create_producer("no-room").send(b"there is room again")

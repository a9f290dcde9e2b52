"""What travels to the processes of actors: settings without secrets, which each process reads."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from velaray.journal.objects.memory_objects import MemoryObjects
from velaray.topology import sent_config
from velaray.topology.config import AuthSettings, ClusterConfig
from velaray.topology.ownership import Superseded
from velaray.topology.sent_config import SECRETS, sent, store_secrets

TOKEN_SECRET, RPC_KEY, REPLICATION_SECRET = b"signs every token", b"opens all", b"of replicators"


def config(location: str, incarnation: int = 1) -> ClusterConfig:
    return ClusterConfig(
        location,
        incarnation,
        RPC_KEY,
        auth=AuthSettings(TOKEN_SECRET, anonymous_role="guest"),
        replication_secret=REPLICATION_SECRET,
        hosts=2,
    )


@pytest.fixture(params=["directory", "object store"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    if request.param == "directory":
        return str(tmp_path)
    objects = MemoryObjects()
    monkeypatch.setattr(sent_config, "open_objects", lambda url: objects)
    return "s3://bucket/prefix"


def test_the_secrets_of_a_cluster_do_not_travel(location: str) -> None:
    whole = config(location)
    store_secrets(whole)
    travels = pickle.dumps(sent(whole))
    for secret in (TOKEN_SECRET, RPC_KEY, REPLICATION_SECRET):
        assert secret not in travels
    assert pickle.loads(travels).received() == whole
    without = replace(whole, incarnation=2, auth=None, replication_secret=b"")
    store_secrets(without)
    assert sent(without).received() == without


def test_settings_with_secrets_cannot_be_sent(location: str) -> None:
    with pytest.raises(TypeError, match="send a SentConfig"):
        pickle.dumps(config(location))


def test_a_process_of_an_earlier_start_gets_no_secrets(location: str) -> None:
    first, second = config(location), config(location, 2)
    store_secrets(first)
    store_secrets(second)
    assert sent(second).received() == second
    with pytest.raises(Superseded, match=r"no secrets of start 1 in .* on this machine"):
        sent(first).received()
    store_secrets(first)  # the data is a copy of an earlier state
    store_secrets(first)
    assert sent(first).received() == first


def test_a_process_with_an_event_loop_reads_them(location: str) -> None:
    whole = config(location)

    async def scenario() -> ClusterConfig:
        store_secrets(whole)
        return sent(whole).received()

    assert asyncio.run(scenario()) == whole


def test_others_cannot_read_them(tmp_path: Path) -> None:
    store_secrets(config(str(tmp_path)))
    file = tmp_path / SECRETS / "1"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700

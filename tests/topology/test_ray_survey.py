"""A survey of the hosts of a Ray cluster, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from velaray.broker.actor_messages import Metrics
from velaray.events.ids import ActorKey
from velaray.geo.actor_kinds import make_actor
from velaray.topology import ray_host
from velaray.topology.config import ClusterConfig
from velaray.topology.ray_host import SharedActorSystem

ACTOR_S = 0.2
KEYS = [ActorKey.of_coordinator(number).text() for number in range(60)]


def host(
    keys: Callable[[], Awaitable[Any]], answers: Callable[[], Awaitable[Any]]
) -> SimpleNamespace:
    """The handle of a host with these calls."""
    return SimpleNamespace(
        keys=SimpleNamespace(remote=keys),
        call_started=SimpleNamespace(remote=lambda method, timeout_s: answers()),
    )


async def its_keys() -> list[str]:
    return KEYS


async def its_answers() -> dict[str, Any]:
    await asyncio.sleep(2 * ACTOR_S)  # less than 60 times its part
    return {text: [] for text in KEYS}


async def hang() -> Any:
    await asyncio.Event().wait()


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedActorSystem:
    """A cluster with two hosts that hang, and a slow one."""
    hosts = {"hangs": host(hang, hang), "slow": host(its_keys, its_answers)}
    hosts["starts to hang"] = host(its_keys, hang)
    monkeypatch.setattr(ray_host, "hosts_in_ray", lambda config: [*hosts, "away"])

    def get_actor(name: str, namespace: str) -> SimpleNamespace:
        if name not in hosts:
            raise ValueError(f"there is no actor {name}")
        return hosts[name]

    monkeypatch.setattr(ray_host.ray, "get_actor", get_actor)
    return SharedActorSystem(ClusterConfig(str(tmp_path), 1, b"key"), make_actor)


def test_a_host_has_time_for_each_of_its_actors(system: SharedActorSystem) -> None:
    found = asyncio.run(system.survey(Metrics, ACTOR_S))
    assert [key.text() for key in found] == KEYS
    assert set(map(type, found.values())) == {list}

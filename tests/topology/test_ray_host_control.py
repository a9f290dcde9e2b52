"""What `RayHostControl` says of hosts that do not answer. Real hosts: `tests.ray.test_hosts`."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from velaray.actors.machine import Reason
from velaray.topology import ray_host_control
from velaray.topology.config import ClusterConfig
from velaray.topology.ray_host_control import RayHostControl
from velaray.topology.rpc import RemoteError

DESCRIBED = {
    "pid": 17,
    "node": "n",
    "actors": ["catalog"],
    "memory": 1,
    "cpu_s": 1.0,
    "lag_s": 0.0,
    "version": "0.2.0",
}
RESTARTS = ActorUnavailableError("IOError: The actor is restarting.", b"\x43" * 16)


def remote(answer: Any) -> Any:
    """A method of an actor of Ray: it answers, or fails."""

    async def call(*args: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return deepcopy(answer)

    return SimpleNamespace(remote=call)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> RayHostControl:
    """Of three hosts: one runs, one restarts, one was never started."""
    described = {**DESCRIBED, "key": "host/0"}
    hosts = {"host/0": remote(described), "host/1": remote(RESTARTS)}

    def get_actor(name: str, namespace: str) -> Any:
        if name not in hosts:
            raise ValueError(name)
        lines = remote(["a line"] if name == "host/0" else RESTARTS)
        return SimpleNamespace(describe=hosts[name], log_lines=lines)

    directory = SimpleNamespace(drained=remote(["host/0"]), move=remote(RESTARTS))
    monkeypatch.setattr(ray_host_control.ray, "get_actor", get_actor)
    monkeypatch.setattr(ray_host_control, "directory_of", lambda config: directory)
    names = ["host/0", "host/1", "host/2"]
    monkeypatch.setattr(ray_host_control, "hosts_in_ray", lambda config: names)
    return RayHostControl(ClusterConfig("unused", 0, b""))


def test_a_host_that_restarts_is_silent(control: RayHostControl) -> None:
    (host,) = asyncio.run(control.hosts())
    assert (host.name, host.drained, host.actors) == ("host/0", True, ("catalog",))
    assert asyncio.run(control.silent()) == ["host/1"]


def test_a_host_tells_its_last_lines(control: RayHostControl) -> None:
    assert asyncio.run(control.log_lines("host/0")) == ["a line"]
    with pytest.raises(RemoteError, match="no host 'host/2' was started"):
        asyncio.run(control.log_lines("host/2"))
    with pytest.raises(RemoteError, match="doesn't answer now: it restarts"):
        asyncio.run(control.log_lines("host/1"))


def test_a_refusal_has_no_ids_of_ray(control: RayHostControl) -> None:
    with pytest.raises(RemoteError, match="doesn't answer now: it restarts") as refused:
        asyncio.run(control.move("persistent://public/default/t"))
    assert refused.value.kind == Reason.UNAVAILABLE
    assert "43434343" not in str(refused.value) and "IOError" not in str(refused.value)

"""The directory of placements as a Ray actor: it decides which host runs an actor.

It has no journal. A new directory rebuilds its table by asking the hosts.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

from velaray.events.ids import ActorKey
from velaray.topology.config import ClusterConfig
from velaray.topology.placement import PlacementTable, host_names
from velaray.topology.ray_nodes import actor_resources, running_hosts

DIRECTORY = "placement"
_REPORT_TIMEOUT_S = 5.0


class PlacementDirectory:
    """The Ray class of the directory."""

    def __init__(self, hosts: int, own_hosts: int, namespace: str) -> None:
        self._namespace = namespace
        self._table = PlacementTable(hosts, own_hosts)
        for name in dict.fromkeys((*host_names(hosts, own_hosts), *running_hosts(namespace))):
            self._table.add_host(name)
            with contextlib.suppress(ValueError, RayActorError, GetTimeoutError):
                host = ray.get_actor(name, namespace)
                keys: list[str] = ray.get(host.keys.remote(), timeout=_REPORT_TIMEOUT_S)
                self._table.found(name, map(ActorKey.parse, keys))

    def __repr__(self) -> str:
        return f"{self._namespace}:{DIRECTORY}"

    def place(self, key_text: str) -> str:
        """The name of the host that runs an actor, or is to run it."""
        return self._table.place(ActorKey.parse(key_text))

    def released(self, host: str, key_text: str) -> None:
        """Note that a host has passivated an actor."""
        self._table.released(host, ActorKey.parse(key_text))

    def move(self, group: str, to: str) -> tuple[str, str]:
        """Place a group in another host; returns the former host and the new one. See
        `PlacementTable.move`."""
        return self._table.move(group, to)

    def relief(self, group: str, isolated: bool) -> str:
        """The host to which a group should move by load or isolation; "": nowhere."""
        return self._table.relief(group, time.monotonic(), isolated)

    def relieve(self, group: str, to: str, isolated: bool) -> bool:
        """Move a group by load or isolation, if it should still move there."""
        now_s = time.monotonic()
        if self._table.relief(group, now_s, isolated) != to:
            return False
        self._table.move(group, to)
        self._table.relieved(group, now_s)
        return True

    def add_hosts(self, names: list[str]) -> None:
        """Place actors in further hosts, which run."""
        for name in names:
            self._table.add_host(name)

    def level(self) -> tuple[str, str] | None:
        """Place a topic's group of the fullest host in the emptiest one; returns the group and its
        former host. None: the hosts' numbers of actors can't be brought closer now."""
        now_s = time.monotonic()
        found = self._table.levelling(now_s)
        if found is None:
            return None
        group, to = found
        before, _ = self._table.move(group, to)
        self._table.relieved(group, now_s)
        return group, before

    def drain(self, host: str) -> list[str]:
        """Place nothing more in a host; returns the groups that it has. See
        `PlacementTable.drain`."""
        return self._table.drain(host)

    def resume(self, host: str) -> None:
        """Place actors in a drained host again."""
        self._table.resume(host)

    def drained(self) -> list[str]:
        """The hosts that take no further actors."""
        return self._table.drained()

    def describe(self) -> dict[str, Any]:
        """The process of the directory."""
        node = ray.get_runtime_context().get_node_id()
        return {"key": DIRECTORY, "pid": os.getpid(), "node": node}

    def placed_in(self, host: str) -> list[str]:
        """The actors of a host."""
        return [key.text() for key in self._table.placed_in(host)]


@cache
def _directory_class() -> Any:
    return ray.remote(PlacementDirectory)


def directory_of(config: ClusterConfig) -> Any:
    """The Ray handle of the cluster's directory, which is created unless it exists."""
    options = _directory_class().options(
        name=DIRECTORY,
        namespace=config.ray_namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=-1,
        num_cpus=0,
        resources=actor_resources(config),
    )
    return options.remote(config.hosts, config.own_hosts, config.ray_namespace)

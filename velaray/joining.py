"""Nodes that join a running cluster: each gets a proxy, hosts, and a part of the topics.

`velaray start` looks for them; without it, the cluster goes on with the nodes that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import Any, Final

import ray
from ray.exceptions import RayError

from velaray.geo.actor_kinds import make_actor
from velaray.nodes import Node, Nodes, marked_nodes, surveyed
from velaray.proxies import open_proxy_of_joined
from velaray.starting import ClusterError, run_to_end
from velaray.topology.config import ClusterConfig, UnsafeBindingError, check_binding
from velaray.topology.host_control import HostStatus
from velaray.topology.placement import host_name, is_shared
from velaray.topology.ray_connection import one_line
from velaray.topology.ray_host import host_of
from velaray.topology.ray_host_control import RayHostControl
from velaray.topology.ray_nodes import DATA_RESOURCE
from velaray.topology.rpc import RemoteError

logger = logging.getLogger("velaray")

MOVES: Final = 10
"""The most topics that move to even out the hosts between two looks at the nodes."""
_SERVES_WITHIN_S = 60.0
_LOOK_S = 0.2


class JoiningNodes:
    """Looks for nodes that have joined the cluster, or come back to it."""

    def __init__(self, config: ClusterConfig, nodes: Nodes) -> None:
        """``nodes`` are those of the start."""
        self._config = config
        self._resource = nodes.resource
        self._known = {node.ray_address: node for node in nodes.proxied}
        self._ids: frozenset[str] | None = None
        """The ids of the nodes at the last look; a node that returns has a new one."""
        self._uneven = False
        self._problem = ""
        """Why the last look failed, which is said once."""

    def look(self) -> None:
        """Include nodes that joined since the last look; move up to `MOVES` topics to their hosts.

        A node that can't be used is named in a log line and left out until it joins again.
        What Ray or a host doesn't answer in time is tried again at the next look.
        """
        if self._resource != DATA_RESOURCE:
            return  # the cluster is on one machine
        problem = ""
        try:
            marked = marked_nodes()
            ids = frozenset(marked.values())
            if self._ids is not None and ids - self._ids:
                self._include(marked)
            self._ids = ids
            if self._uneven:
                self._uneven = run_to_end(self._level())
        except (RayError, RemoteError, TimeoutError) as error:
            problem = one_line(error)
        if problem and problem != self._problem:
            logger.warning("nodes that join aren't in use yet: %s", problem)
        self._problem = problem

    def _include(self, marked: dict[str, str]) -> None:
        usable = {}
        for address, node_id in marked.items():
            if address in self._known or self._admit(address, node_id):
                usable[node_id] = self._known[address]
        if self._config.hosts:
            for node_id, node in usable.items():
                self._uneven |= run_to_end(self._settle(node_id, node, usable))

    def _admit(self, address: str, node_id: str) -> bool:
        """Give a new node a proxy; False: it can't be used."""
        try:
            (node,) = surveyed(self._config.host, {address: node_id})
            check_binding(node.address, self._config.auth, self._config.tls)
        except (ClusterError, UnsafeBindingError) as error:
            logger.warning("the node %s that joined isn't used: %s", address, error)
            return False
        config = replace(self._config, nodes=(*self._config.nodes, node.address))
        open_proxy_of_joined(config, address, _SERVES_WITHIN_S)
        self._config, self._known[address] = config, node
        logger.info("the node %s has joined: %s", address, config.service_url)
        return True

    async def _settle(self, node_id: str, node: Node, nodes: dict[str, Node]) -> bool:
        """Run hosts on a node that has none: one for each of its cores.

        They are new ones, as long as the cluster has fewer hosts than cores, and then such of nodes
        with more hosts than cores. Returns whether the node got some.
        """
        control = RayHostControl(self._config)
        shared = [host for host in await control.hosts() if is_shared(host.name)]
        if any(host.node == node_id for host in shared):
            return False
        missing = sum(each.cores for each in nodes.values()) - len(shared)
        new = min(max(missing, 0), node.cores)
        names = _new_names([host.name for host in shared], new)
        for name in names:
            await self._started(name, node_id)
        await control.add_hosts(names)
        moved = _surplus(shared, nodes)[: node.cores - new]
        for name in moved:
            await control.drain(name)
            await self._ended(name)
            await self._started(name, node_id)
            await control.resume(name)
        return bool(names or moved)

    async def _started(self, name: str, node_id: str) -> None:
        async with asyncio.timeout(_SERVES_WITHIN_S):
            await host_of(name, self._config, make_actor, node_id).keys.remote()

    async def _ended(self, name: str) -> None:
        """End a host for good, and wait until Ray has released its name."""
        namespace = self._config.ray_namespace
        async with asyncio.timeout(_SERVES_WITHIN_S):
            while True:
                try:
                    handle: Any = await asyncio.to_thread(ray.get_actor, name, namespace)
                except ValueError:
                    return
                ray.kill(handle)
                await asyncio.sleep(_LOOK_S)

    async def _level(self) -> bool:
        """Move topics to the emptiest hosts; whether more may have to move."""
        control = RayHostControl(self._config)
        for _ in range(MOVES):
            if not await control.level():
                return False
        return True


def _new_names(names: list[str], count: int) -> list[str]:
    """Names of further hosts."""
    candidates = map(host_name, range(len(names) + count))
    return [name for name in candidates if name not in names][:count]


def _surplus(shared: list[HostStatus], nodes: dict[str, Node]) -> list[str]:
    """The hosts that a node has beyond the number of its cores, those with fewest actors first."""
    on_node = Counter(host.node for host in shared)
    found = []
    for host in sorted(shared, key=lambda host: len(host.actors)):
        cores = nodes[host.node].cores if host.node in nodes else 0
        if on_node[host.node] > cores:
            on_node[host.node] -= 1
            found.append(host.name)
    return found

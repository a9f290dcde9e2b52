"""The nodes of Ray on which a cluster runs, and what each contributes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from velaray.starting import ClusterError
from velaray.topology.addresses import NoAddressError, is_per_node, own_address
from velaray.topology.ray_connection import one_line
from velaray.topology.ray_nodes import DATA_RESOURCE, resource_of_node

_SURVEY_S = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster: its address in Ray, the one that it listens on, its cores."""

    ray_address: str
    address: str
    cores: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines that get a proxy, and the Ray resource of the nodes that run actors."""

    proxied: tuple[Node, ...]
    resource: str


def nodes_of(host: str) -> Nodes:
    """Where a cluster that listens on ``host`` runs, on the Ray of this process.

    If each node has its own address, these are the nodes with the resource `DATA_RESOURCE`, this
    one first. Without such nodes, or with the address of one machine, it is this machine.

    Raises `ClusterError` if a node has no address for ``host`` or doesn't answer, or if ``host`` is
    one machine's and another one has the resource.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    own = next(_ray_address(node) for node in alive if node["NodeID"] == here)
    marked = marked_nodes()
    if is_per_node(host) and marked:
        places = sorted(marked, key=lambda address: (address != own, address))
        return Nodes(surveyed(host, {each: marked[each] for each in places}), DATA_RESOURCE)
    others = ", ".join(sorted(marked.keys() - {own}))
    if others:
        raise ClusterError(
            f"{host} is an address of one machine, and nodes of other machines have the resource "
            f"{DATA_RESOURCE}: {others}; give a network that every node has an address in, such as "
            "--host 10.1.0.0/16, or start Ray there without the resource"
        )
    return Nodes((Node(own, *_survey(host)),), resource_of_node(own))


def marked_nodes() -> dict[str, str]:
    """The live nodes with the resource `DATA_RESOURCE`: the id of each by its address in Ray."""
    return {
        _ray_address(node): str(node["NodeID"])
        for node in ray.nodes()
        if node["Alive"] and DATA_RESOURCE in node["Resources"]
    }


def _ray_address(node: dict[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _survey(host: str) -> tuple[str, int]:
    """The address that this node listens on, and its cores."""
    return own_address(host), os.cpu_count() or 1


def _survey_one_of_several(host: str) -> tuple[str, int]:
    if not is_per_node(host):
        raise NoAddressError(f"it has no interface {host}")
    return _survey(host)


def surveyed(host: str, node_ids: dict[str, str]) -> tuple[Node, ...]:
    """Ask nodes, whose ids are given by their addresses in Ray.

    Raises `ClusterError` if one has no address for ``host`` or doesn't answer.
    """
    asked = {
        address: ray.remote(_survey_one_of_several)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(host)
        for address, node_id in node_ids.items()
    }
    found = []
    for ray_address, answer in asked.items():
        try:
            found.append(Node(ray_address, *ray.get(answer, timeout=_SURVEY_S)))
        except RayError as error:
            raise ClusterError(
                f"the node {ray_address} can't be used: {one_line(error)}"
            ) from error
    return tuple(found)

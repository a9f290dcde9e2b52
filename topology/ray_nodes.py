"""The nodes of Ray on which the actors of a cluster run, by a resource that these nodes have."""

from __future__ import annotations

import ray

from velaray.topology.config import ClusterConfig
from velaray.topology.placement import HOST_PREFIX, host_names

DATA_RESOURCE = "velaray_data"
"""The resource of the nodes that see the data directory."""
_LEAST_SHARE = 0.0001
"""The least amount of a resource that Ray counts."""


def resource_of_node(address: str) -> str:
    """The resource that Ray gives to the nodes at one address."""
    return f"node:{address}"


def share_of(resource: str) -> dict[str, float]:
    """The resources of a Ray actor that runs only on nodes with this one ("": on any node)."""
    return {resource: _LEAST_SHARE} if resource else {}


def actor_resources(config: ClusterConfig) -> dict[str, float]:
    """The resources of an actor that needs the data of the cluster."""
    return share_of(config.node_resource)


def running_hosts(namespace: str) -> list[str]:
    """The names of the hosts that Ray knows in a cluster's namespace. Blocks for one request."""
    return [
        found["name"]
        for found in ray.util.list_named_actors(all_namespaces=True)
        if found["namespace"] == namespace and found["name"].startswith(f"{HOST_PREFIX}/")
    ]


def hosts_in_ray(config: ClusterConfig) -> list[str]:
    """The names of all hosts of a cluster: those of its start, and those of nodes that joined
    later. Blocks as `running_hosts` does."""
    names = host_names(config.hosts, config.own_hosts)
    return [*dict.fromkeys((*names, *running_hosts(config.ray_namespace)))]

"""The nodes of Ray on which the actors of a cluster run, by a resource that these nodes have."""

from __future__ import annotations

from velaray.topology.config import ClusterConfig

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

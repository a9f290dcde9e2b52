"""Finding the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

import ray

from velaray.events.ids import ActorKey, TopicName
from velaray.topology.cluster import FRONT_DOOR
from velaray.topology.config import ClusterConfig, namespace_of
from velaray.topology.ray_fabric import activate


class NoClusterError(LookupError):
    """No velaray cluster runs on the Ray cluster that this process is connected to."""


def front_door(name: str = "standalone") -> Any:
    """The Ray handle of the cluster's front door.

    Connects to Ray if this process isn't connected. Raises `NoClusterError`.
    """
    if not ray.is_initialized():
        ray.init(address="auto", log_to_driver=False)
    try:
        return ray.get_actor(FRONT_DOOR, namespace_of(name))
    except ValueError as error:
        raise NoClusterError(
            f"no velaray cluster {name!r} on this Ray cluster: run `velaray start`"
        ) from error


def service_url(name: str = "standalone") -> str:
    """The service URL of the running cluster. Raises `NoClusterError`."""
    return str(ray.get(front_door(name).describe.remote())["service_url"])


def handle(topic: str, name: str = "standalone") -> Any:
    """The Ray handle of a topic partition's actor, which is activated if need be.

    ``handle.call.remote(method, args)`` answers what `velaray.topology.partition_admin`
    offers. Raises `NoClusterError`, or what the catalog says if the topic may not exist.
    """
    door = front_door(name)
    parsed = TopicName.parse(topic)
    incarnation, config = ray.get(door.resolve.remote(str(parsed)))
    key = ActorKey.of_partition(parsed, incarnation)
    assert isinstance(config, ClusterConfig)
    return activate(key, config)

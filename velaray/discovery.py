"""Discovery of the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

import ray

from velaray.cluster import PROXY
from velaray.events.ids import TopicName
from velaray.topology.config import namespace_of
from velaray.topology.ray_connection import RayUnavailable, connect_ray


class NoClusterError(LookupError):
    """No velaray cluster runs on the Ray cluster of this process."""


def proxy(name: str = "standalone") -> Any:
    """The Ray handle of the cluster's proxy.

    Connects to Ray if this process isn't connected. Raises `NoClusterError`.
    """
    if not ray.is_initialized():
        try:
            connect_ray()
        except RayUnavailable as error:
            raise NoClusterError(str(error)) from error
    try:
        return ray.get_actor(PROXY, namespace_of(name))
    except ValueError as error:
        raise NoClusterError(
            f"no velaray cluster {name!r} on this Ray cluster: run `velaray start`"
        ) from error


def service_url(name: str = "standalone") -> str:
    """The service URL of the running cluster. Raises `NoClusterError`."""
    return str(ray.get(proxy(name).describe.remote())["service_url"])


def handle(topic: str, name: str = "standalone") -> Any:
    """The Ray handle of a topic partition's actor, which is activated if necessary.

    ``handle.call.remote("entry_at", {"position": [1, 0]})`` sends the request `EntryAt` of
    `velaray.broker.partition.messages`; other requests are named likewise. Raises
    `NoClusterError`, or the catalog's error if the topic may not exist.
    """
    parsed = TopicName.parse(topic)
    return ray.get(proxy(name).handle.remote(str(parsed)))

"""Discovery of the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

import ray

from velaray.cluster import PROXY
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


def handles(name: str = "standalone") -> Any:
    """The Ray handle of the actor that serves the cluster's handles. Raises `NoClusterError`."""
    return ray.get(proxy(name).handles.remote())

"""Discovery of the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

import ray

from velaray.proxies import answering_proxy, proxies_of
from velaray.topology.ray_connection import RayUnavailable, connect_ray


class NoClusterError(LookupError):
    """No velaray cluster runs on the Ray cluster of this process."""


_ANSWER_S = 60.0


def proxy(name: str = "standalone") -> Any:
    """The Ray handle of one of the cluster's proxies that serve.

    Connects to Ray if this process isn't connected. Raises `NoClusterError`, and what calls of Ray
    raise if no proxy answers within a minute.
    """
    if not ray.is_initialized():
        try:
            connect_ray()
        except RayUnavailable as error:
            raise NoClusterError(str(error)) from error
    proxies = proxies_of(name)
    if not proxies:
        raise NoClusterError(
            f"no velaray cluster {name!r} on this Ray cluster: run `velaray start`"
        )
    return proxies[0] if len(proxies) == 1 else answering_proxy(proxies, _ANSWER_S)[0]


def service_url(name: str = "standalone") -> str:
    """The service URL of the running cluster. Raises `NoClusterError`."""
    return str(ray.get(proxy(name).describe.remote())["service_url"])


def handles(name: str = "standalone") -> Any:
    """The Ray handle of the actor that serves the cluster's handles. Raises `NoClusterError`."""
    return ray.get(proxy(name).handles.remote())

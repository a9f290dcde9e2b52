"""Access to the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

from velaray.client.exceptions import InvalidConfiguration
from velaray.sync.client import Client


def connect(name: str = "standalone", **client_kwargs: Any) -> Client:
    """Create a client of the cluster of this name that runs on this Ray cluster.

    Takes the keyword arguments of `velaray.Client` except ``service_url``. Raises
    `velaray.discovery.NoClusterError` if no such cluster runs here. The asyncio version:
    ``velaray.aio.Client(velaray.service_url(name))``.
    """
    return Client(service_url(name), **client_kwargs)


def service_url(name: str = "standalone") -> str:
    """The service URL of the cluster of this name that runs on this Ray cluster.

    Raises `velaray.discovery.NoClusterError` if no cluster runs here.
    """
    _require_ray()
    from velaray import discovery

    return discovery.service_url(name)


def handle(topic: str, name: str = "standalone") -> Any:
    """The handle of a topic partition of the cluster of this name, for direct Ray calls.

    ``ray.get(handle.call.remote("stats"))`` works in every placement. The actor is started if it
    isn't running. Raises `velaray.discovery.NoClusterError` if no such cluster runs here.
    """
    _require_ray()
    from velaray import discovery

    return discovery.handle(topic, name)


def connect_ray(address: str = "auto") -> None:
    """Connect this process to the Ray at an address, or to the one on this machine.

    Raises `velaray.topology.ray_connection.RayUnavailable`, which states the remedy.
    """
    from velaray.topology import ray_connection

    ray_connection.connect_ray(address)


def ensure_ray_token() -> str:
    """Turn on Ray's token authentication for processes that this one starts; returns the token.

    Creates a token if there is none. Raises `velaray.topology.ray_connection.RayUnavailable`.
    """
    from velaray.topology import ray_connection

    ray_connection.ensure_token()
    return ray_connection.token()


def _require_ray() -> None:
    """Load Ray, which takes a second; raises `InvalidConfiguration` if it isn't installed."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise InvalidConfiguration(
            f"Ray can't be loaded ({error}): pip install ray, or give a service URL to Client"
        ) from error

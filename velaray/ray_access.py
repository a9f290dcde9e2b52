"""Access to the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

from velaray.client.enums import InitialPosition
from velaray.client.exceptions import InvalidConfiguration
from velaray.handles import (
    CoordinatorHandle,
    ReplicatorHandle,
    SchemaRegistryHandle,
    SubscriptionHandle,
    TopicHandle,
)
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


def handle(topic: str, name: str = "standalone") -> TopicHandle:
    """The handle of a topic, or of one of its partitions: publish, statistics.

    ``ray.get(velaray.handle("flights").publish.remote(b"departed"))`` works in every placement. All
    functions that return handles raise `velaray.discovery.NoClusterError` if no cluster of this
    ``name`` runs on this Ray cluster. Other errors are those of the calls.
    """
    return TopicHandle(_handles(name), topic)


def subscription_handle(
    topic: str,
    subscription: str,
    name: str = "standalone",
    *,
    ack_timeout_s: float = 60.0,
    initial_position: InitialPosition = InitialPosition.Latest,
) -> SubscriptionHandle:
    """The handle of a Shared subscription: receive batches, acknowledge.

    ``ack_timeout_s``, at least 10: messages that aren't acknowledged within this time are
    redelivered. ``initial_position``: where a new subscription begins.
    """
    target = topic, subscription, ack_timeout_s, initial_position
    return SubscriptionHandle(_handles(name), *target)


def coordinator_handle(number: int = 0, name: str = "standalone") -> CoordinatorHandle:
    """The handle of a transaction coordinator: begin, commit, abort. Every coordinator is suitable
    for every topic."""
    return CoordinatorHandle(_handles(name), number)


def schema_registry_handle(topic: str, name: str = "standalone") -> SchemaRegistryHandle:
    """The handle of the schema registry of a topic."""
    return SchemaRegistryHandle(_handles(name), topic)


def replicator_handle(topic: str, cluster: str, name: str = "standalone") -> ReplicatorHandle:
    """The handle of a topic's replicators to ``cluster``, another cluster."""
    return ReplicatorHandle(_handles(name), topic, cluster)


def _handles(name: str) -> Any:
    _require_ray()
    from velaray import discovery

    return discovery.handles(name)


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

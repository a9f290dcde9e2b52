"""Reaching the running cluster from inside Ray: a driver, a task or an actor."""

from __future__ import annotations

from typing import Any

from velaray.client import Client


def connect(**client_kwargs: Any) -> Client:
    """A client of the cluster that runs on this Ray cluster, wherever this is called.

    Takes the keyword arguments of `velaray.Client` but ``service_url``. Raises
    `velaray.topology.discovery.NoClusterError` if no cluster runs here. The asyncio twin:
    ``velaray.aio.Client(velaray.service_url())``.
    """
    return Client(service_url(), **client_kwargs)


def service_url(name: str = "standalone") -> str:
    """The service URL of the cluster of this name that runs on this Ray cluster.

    Raises `velaray.topology.discovery.NoClusterError` if no cluster runs here.
    """
    # Ray is imported only by those who ask for it: it costs a second.
    from velaray.topology import discovery

    return discovery.service_url(name)


def handle(topic: str) -> Any:
    """The Ray actor handle of a topic partition, for those who want Ray calls.

    The actor is started if it isn't running. Raises
    `velaray.topology.discovery.NoClusterError` if no cluster runs here.
    """
    from velaray.topology import discovery

    return discovery.handle(topic)

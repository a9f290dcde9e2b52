"""The proxies of a cluster as Ray actors: one for each node, all on the same ports.

A proxy runs on the node with its address and on no other. If the node is lost, Ray starts the proxy
again when a node with that address is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from velaray.admin.proxy_actor import ProxyActor
from velaray.console.serving import admin_port_app
from velaray.topology.config import ClusterConfig, namespace_of
from velaray.topology.ray_nodes import resource_of_node, share_of
from velaray.topology.sent_config import sent

PROXY = "front-door"
"""The name of the first proxy; that of another one also has its node's address."""


def is_proxy(actor_name: str) -> bool:
    """Whether a Ray actor of the cluster is a proxy."""
    return actor_name.split("/")[0] == PROXY


def open_proxies(config: ClusterConfig, ray_addresses: Sequence[str]) -> None:
    """Start a proxy on each node, which is given by its address in Ray, and wait until all serve.

    Raises `RayError` if one can't listen.
    """
    serving = [
        _open_proxy(f"{PROXY}/{address}" if number else PROXY, config, address)
        for number, address in enumerate(ray_addresses)
    ]
    ray.get(serving)


def open_proxy_of_joined(config: ClusterConfig, ray_address: str, timeout_s: float) -> None:
    """Start a proxy on a node that has joined the cluster, unless it has one, and wait for it.

    Raises `RayError` if it can't listen.
    """
    name = f"{PROXY}/{ray_address}"
    ray.get(_open_proxy(name, config, ray_address, may_exist=True), timeout=timeout_s)


def _open_proxy(name: str, config: ClusterConfig, ray_address: str, may_exist: bool = False) -> Any:
    """The pending description of a new proxy, or of the one with this name if it ``may_exist``."""
    proxy: Any = (
        ray.remote(ProxyActor)
        .options(
            name=name,
            namespace=config.ray_namespace,
            lifetime="detached",
            get_if_exists=may_exist,
            max_restarts=-1,
            num_cpus=0,
            resources=share_of(resource_of_node(ray_address)),
        )
        .remote(name, sent(config), admin_port_app)
    )
    return proxy.describe.remote()


def proxies_of(cluster: str) -> list[Any]:
    """The Ray handles of a cluster's proxies, that of the first node first."""
    namespace = namespace_of(cluster)
    names = [
        each["name"]
        for each in ray.util.list_named_actors(all_namespaces=True)
        if each["namespace"] == namespace and is_proxy(each["name"])
    ]
    return [ray.get_actor(name, namespace) for name in sorted(names)]


def answering_proxy(proxies: list[Any], timeout_s: float) -> tuple[Any, dict[str, Any]]:
    """The first proxy that answers, and its description: the others may be lost with their nodes.

    Raises the `RayError` of one that failed, or `GetTimeoutError` if none answers in time.
    """
    asked = {proxy.describe.remote(): proxy for proxy in proxies}
    failure: RayError = GetTimeoutError(f"no proxy answers within {timeout_s:g} s")
    while asked:
        ready, _ = ray.wait(list(asked), num_returns=1, timeout=timeout_s)
        if not ready:
            break
        proxy = asked.pop(ready[0])
        try:
            return proxy, ray.get(ready[0])
        except RayError as error:
            failure = error
    raise failure

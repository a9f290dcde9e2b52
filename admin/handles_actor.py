"""The Ray actor that serves the handles of a cluster, in a process of its own.

It is created when a handle is first made, and runs until the cluster stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from velaray.admin.handle_calls import HandleCalls
from velaray.geo.actor_kinds import make_actor
from velaray.topology.config import ClusterConfig
from velaray.topology.ownership import check_every_s, check_ownership
from velaray.topology.ray_host import make_actor_system
from velaray.topology.ray_nodes import actor_resources
from velaray.topology.ray_process import name_process
from velaray.topology.rpc import reason_of
from velaray.topology.sent_config import SentConfig, sent

logger = logging.getLogger("velaray")

HANDLES = "handles"


def handles_actor(config: ClusterConfig) -> Any:
    """Its Ray handle. It is created on this node unless it exists."""
    node = ray.get_runtime_context().get_node_id()
    options = ray.remote(HandlesActor).options(
        name=HANDLES,
        namespace=config.ray_namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=1000,
        num_cpus=0,
        resources=actor_resources(config),
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=True),
    )
    return options.remote(sent(config))


class HandlesActor:
    """The Ray class."""

    def __init__(self, settings: SentConfig) -> None:
        self._title = settings.title(HANDLES)  # Ray asks for it also if the rest fails
        self._config = config = settings.received()
        name_process(self, config, HANDLES)
        actor_system = make_actor_system(config, make_actor)
        # An error here makes Ray not restart this actor: its cluster was superseded.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, check_ownership(actor_system.store, config)).result()
        self._actor_system = actor_system
        self._calls = HandleCalls(actor_system, config.tls_service_url or config.service_url)
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        self._watching.add_done_callback(_end_process)

    def __repr__(self) -> str:
        return self._title

    async def invoke(
        self, kind: str, target: Sequence[Any], method: str, /, *args: Any, **kwargs: Any
    ) -> Any:
        """The result of a method of a handle; see `HandleCalls.invoke`."""
        return await self._calls.invoke(kind, target, method, *args, **kwargs)

    async def describe(self) -> dict[str, Any]:
        """The process, for people and for tests that kill it."""
        context = ray.get_runtime_context()
        return {"key": HANDLES, "pid": os.getpid(), "node": context.get_node_id()}

    async def _watch(self) -> None:
        """Raise `Superseded` when another cluster owns the data."""
        while True:
            await asyncio.sleep(check_every_s(self._actor_system.config))
            await check_ownership(self._actor_system.store, self._actor_system.config)


def _end_process(watching: asyncio.Task[None]) -> None:
    """End the process: the cluster is superseded, or the data can't be read."""
    error = None if watching.cancelled() else watching.exception()
    if error is not None:
        logger.error("handles stop: %s", reason_of(error))
        os._exit(1)

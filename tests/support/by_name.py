"""Requests by name to any actor: ``call_by_name(actor_system, key, "seek", {"name": "s"})``."""

from __future__ import annotations

from functools import cache
from typing import Any

from velaray.broker.actor_messages import ACTOR_REQUESTS, request_named
from velaray.broker.catalog.catalog_actor import CatalogActor
from velaray.broker.coordinator.messages import TO_COORDINATOR
from velaray.broker.garbage_collection.messages import TO_COLLECTOR
from velaray.broker.partition import messages as partition_messages
from velaray.broker.schema_registry.messages import TO_REGISTRY
from velaray.events.ids import ActorKey, ActorKind
from velaray.geo.inbound.messages import TO_INBOUND_REPLICATOR, Pulls
from velaray.geo.replication import messages as replication_messages
from velaray.geo.tenant_migration import messages as migration_messages
from velaray.topology.actor_system import REACH_TIMEOUT_S, ActorSystem
from velaray.topology.in_process import InProcessActorSystem
from velaray.topology.messages import Codec, Request, requests_of


@cache
def _accepted_by(kind: ActorKind) -> Codec:
    match kind:
        case ActorKind.CATALOG:
            return CatalogActor.accepts
        case ActorKind.COORDINATOR:
            return TO_COORDINATOR
        case ActorKind.SCHEMA_REGISTRY:
            return TO_REGISTRY
        case ActorKind.GARBAGE_COLLECTOR:
            return TO_COLLECTOR
        case ActorKind.PARTITION:
            modules = (partition_messages, replication_messages, migration_messages)
            requests = {each for it in modules for each in requests_of(it)}
            return Codec(*ACTOR_REQUESTS, *requests, Pulls)
        case ActorKind.INBOUND_REPLICATOR:
            return TO_INBOUND_REPLICATOR
    return Codec(*ACTOR_REQUESTS)


async def call_by_name(
    actor_system: ActorSystem,
    key: ActorKey,
    method: str,
    args: dict[str, Any] | None = None,
    timeout: float = REACH_TIMEOUT_S,
) -> Any:
    """Send the request that the name and the arguments stand for. Raises as `request_named` and
    `ActorSystem.request` do."""
    request = request_named(key, _accepted_by(key.kind), method, args or {})
    assert isinstance(request, Request)
    return await actor_system.request(key, request, timeout)


async def call_as_ray(
    actor_system: InProcessActorSystem, key: ActorKey, method: str, args: dict[str, Any]
) -> Any:
    """Call an actor as the holder of its Ray handle does: the actor checks the arguments."""
    await actor_system.address(key)
    return await actor_system.actors[key].call(method, args)

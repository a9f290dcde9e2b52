"""Creates actors by their kind."""

from __future__ import annotations

from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.actor_system import ActorBase, ActorSystem
from velaray.wire.replication import REPLICATOR_PREFIX


def make_actor(key: ActorKey, actor_system: ActorSystem) -> ActorBase:
    """The actor for ``key``. Imports only what its kind needs, so processes stay small."""
    match key.kind:
        case ActorKind.CATALOG:
            from velaray.broker.catalog.catalog_actor import CatalogActor
            from velaray.geo.tenant_migration.migrations import Migrations

            return CatalogActor(key, actor_system, Migrations)
        case ActorKind.PARTITION:
            from velaray.geo.partition_actors import make_partition_actor

            return make_partition_actor(key, actor_system)
        case ActorKind.SUBSCRIPTION:
            if key.subscription.startswith(REPLICATOR_PREFIX):
                from velaray.geo.replication.replicator_actor import ReplicatorActor

                return ReplicatorActor(key, actor_system)
            from velaray.broker.subscription.subscription_actor import SubscriptionActor

            return SubscriptionActor(key, actor_system)
        case ActorKind.COORDINATOR:
            from velaray.broker.coordinator.coordinator_actor import CoordinatorActor

            return CoordinatorActor(key, actor_system)
        case ActorKind.SCHEMA_REGISTRY:
            from velaray.broker.schema_registry.schema_registry_actor import SchemaRegistryActor

            return SchemaRegistryActor(key, actor_system)
        case ActorKind.GARBAGE_COLLECTOR:
            from velaray.broker.garbage_collection.garbage_collector import GarbageCollector

            return GarbageCollector(key, actor_system)
        case ActorKind.INBOUND_REPLICATOR:
            from velaray.geo.inbound.inbound_replicator_actor import InboundReplicatorActor

            return InboundReplicatorActor(key, actor_system)
        case ActorKind.COMPACTED:
            raise ValueError(f"{key} has no actor of its own: its partition serves it")

"""Which body an actor gets, by its kind."""

from __future__ import annotations

from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.actor_system import ActorBase, ActorSystem
from velaray.wire.replication import REPLICATOR_PREFIX


def make_body(key: ActorKey, fabric: ActorSystem) -> ActorBase:
    """The body for ``key``. Imports only what that kind needs: actor processes stay small."""
    match key.kind:
        case ActorKind.CATALOG:
            from velaray.broker.catalog.catalog_actor import CatalogActor
            from velaray.geo.tenant_migration.migrations import Migrations

            return CatalogActor(key, fabric, Migrations)
        case ActorKind.PARTITION:
            from velaray.broker.partition.partition_actor import PartitionActor
            from velaray.geo.partition_geo import PartitionGeo

            return PartitionActor(key, fabric, PartitionGeo)
        case ActorKind.SUBSCRIPTION:
            if key.subscription.startswith(REPLICATOR_PREFIX):
                from velaray.geo.replication.replicator_actor import ReplicatorActor

                return ReplicatorActor(key, fabric)
            from velaray.broker.subscription.subscription_actor import SubscriptionActor

            return SubscriptionActor(key, fabric)
        case ActorKind.COORDINATOR:
            from velaray.broker.coordinator.coordinator_actor import CoordinatorActor

            return CoordinatorActor(key, fabric)
        case ActorKind.SCHEMA_REGISTRY:
            from velaray.broker.schema_registry.schema_registry_actor import SchemaRegistryActor

            return SchemaRegistryActor(key, fabric)
        case ActorKind.DELETER:
            from velaray.broker.garbage_collection.garbage_collector import GarbageCollector

            return GarbageCollector(key, fabric)
        case ActorKind.PULLER:
            from velaray.geo.inbound.inbound_replicator_actor import InboundReplicatorActor

            return InboundReplicatorActor(key, fabric)
        case ActorKind.COMPACTED:
            raise ValueError(f"{key} is no actor: it belongs to its partition")

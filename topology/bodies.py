"""Which body an actor gets, by its kind."""

from __future__ import annotations

from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.fabric import Body, Fabric
from velaray.wire.replication import REPLICATOR_PREFIX


def make_body(key: ActorKey, fabric: Fabric) -> Body:
    """The body for ``key``. Imports only what that kind needs: actor processes stay small."""
    match key.kind:
        case ActorKind.CATALOG:
            from velaray.topology.catalog_body import CatalogBody

            return CatalogBody(key, fabric)
        case ActorKind.PARTITION:
            from velaray.topology.partition_body import PartitionBody

            return PartitionBody(key, fabric)
        case ActorKind.SUBSCRIPTION:
            if key.subscription.startswith(REPLICATOR_PREFIX):
                from velaray.topology.replication.replicator_body import ReplicatorBody

                return ReplicatorBody(key, fabric)
            from velaray.topology.subscription_body import SubscriptionBody

            return SubscriptionBody(key, fabric)
        case ActorKind.COORDINATOR:
            from velaray.topology.transactions.coordinator_body import CoordinatorBody

            return CoordinatorBody(key, fabric)
        case ActorKind.SCHEMA_REGISTRY:
            from velaray.topology.schemas.schema_registry_body import SchemaRegistryBody

            return SchemaRegistryBody(key, fabric)
        case ActorKind.DELETER:
            from velaray.topology.ledgers.deleter_body import DeleterBody

            return DeleterBody(key, fabric)
        case ActorKind.PULLER:
            from velaray.topology.pulling.puller_body import PullerBody

            return PullerBody(key, fabric)
        case ActorKind.COMPACTED:
            raise ValueError(f"{key} is no actor: it belongs to its partition")

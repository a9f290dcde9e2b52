"""The metadata of a tenant: how it is read here and sent to another cluster.

It consists of roles, clusters, namespaces and topics with their policies, live schemas, and durable
subscriptions. Cluster policies don't belong to a tenant. Subscription progress isn't metadata: it
is replicated with the messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.catalog.messages import Namespaces, Policies, Tenants, Topics
from velaray.broker.partition.messages import SubscriptionProperties
from velaray.broker.schema_registry.messages import Schemas
from velaray.broker.schema_registry.schema_calls import has_registry, info_of
from velaray.events.ids import ActorKey, TopicName
from velaray.schemas.json_form import data_text
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError
from velaray.wire.replication import REPLICATOR_PREFIX

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A version of a topic's schema; ``identity`` is equal for those that count as one."""

    type: str
    schema: str
    properties: Properties
    identity: str


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic; ``partitions`` is 0 if it isn't partitioned. ``subscriptions`` maps each partition's
    name to its subscriptions and their properties. ``schemas`` are the live ones, oldest first."""

    partitions: int
    properties: Properties
    policies: Mapping[str, Any]
    schemas: tuple[SchemaText, ...]
    subscriptions: Mapping[str, Mapping[str, Properties]]


@dataclass(frozen=True, slots=True)
class NamespaceMetadata:
    """A namespace: the policies that are set on it, and its topics by full name."""

    policies: Mapping[str, Any]
    topics: Mapping[str, TopicMetadata]


@dataclass(frozen=True, slots=True)
class TenantMetadata:
    """A tenant; its namespaces by ``tenant/namespace``."""

    tenant: str
    admin_roles: tuple[str, ...]
    allowed_clusters: tuple[str, ...]
    namespaces: Mapping[str, NamespaceMetadata]

    def as_json(self) -> dict[str, Any]:
        """As JSON for the admin interface."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> TenantMetadata:
        """The inverse of `as_json`."""
        return cls(
            found["tenant"],
            tuple(found["admin_roles"]),
            tuple(found["allowed_clusters"]),
            {name: _namespace_of(space) for name, space in found["namespaces"].items()},
        )


def _namespace_of(found: Mapping[str, Any]) -> NamespaceMetadata:
    topics = {name: _topic_of(topic) for name, topic in found["topics"].items()}
    return NamespaceMetadata(found["policies"], topics)


def _topic_of(found: Mapping[str, Any]) -> TopicMetadata:
    return TopicMetadata(
        found["partitions"],
        found["properties"],
        found["policies"],
        tuple(SchemaText(**schema) for schema in found["schemas"]),
        found["subscriptions"],
    )


async def read_tenant(actor_system: ActorSystem, tenant: str) -> TenantMetadata:
    """Read the metadata of a tenant. This activates its partitions.

    This isn't a snapshot: each part is read at a different time. Raises `RemoteError`: NOT_FOUND if
    the tenant doesn't exist or a part of it was deleted meanwhile; and what `ActorSystem.call`
    raises.
    """
    catalog = ActorKey.catalog()
    found = (await actor_system.request(catalog, Tenants())).get(tenant)
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {tenant!r}")
    spaces = await actor_system.request(catalog, Namespaces(tenant))
    return TenantMetadata(
        tenant,
        tuple(found["admin_roles"]),
        tuple(found["allowed_clusters"]),
        {name: await _read_namespace(actor_system, name) for name in spaces},
    )


async def _read_namespace(actor_system: ActorSystem, name: str) -> NamespaceMetadata:
    catalog = ActorKey.catalog()
    policies = await actor_system.request(catalog, Policies(namespace=name))
    topics = await actor_system.request(catalog, Topics(name))
    read = await each(topics, lambda topic: _read_topic(actor_system, topic))
    return NamespaceMetadata(
        policies, {topic["topic"]: it for topic, it in zip(topics, read, strict=True)}
    )


async def _read_topic(actor_system: ActorSystem, found: Mapping[str, Any]) -> TopicMetadata:
    name, incarnation = TopicName.parse(found["topic"]), found["incarnation"]
    policies = await actor_system.request(ActorKey.catalog(), Policies(str(name)))
    subscriptions = {}
    for key in ActorKey.of_partitions(name, incarnation, found["partitions"]):
        own = await actor_system.request(key, SubscriptionProperties())
        subscriptions[str(key.topic_name)] = {
            each: properties
            for each, properties in own.items()
            if not each.startswith(REPLICATOR_PREFIX)
        }
    schemas = await _read_schemas(actor_system, ActorKey.of_schema_registry(name, incarnation))
    return TopicMetadata(found["partitions"], found["properties"], policies, schemas, subscriptions)


async def _read_schemas(actor_system: ActorSystem, key: ActorKey) -> tuple[SchemaText, ...]:
    if not await has_registry(actor_system, key):
        return ()
    return tuple(
        SchemaText(
            found["type"],
            data_text(info_of(found)),
            found["properties"],
            found["identity"].hex(),
        )
        for found in await actor_system.request(key, Schemas())
    )

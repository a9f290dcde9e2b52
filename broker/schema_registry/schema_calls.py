"""Calls to a topic's schema registry, for all actors of the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.schema_registry.messages import Schema, SchemaPolicies
from velaray.events.ids import ActorKey
from velaray.journal.errors import NotStored
from velaray.journal.replay import load_manifest
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Strategy
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

STRATEGY = "schemaCompatibilityStrategy"
ENFORCED = "schemaValidationEnforced"
AUTO_UPDATE = "isAllowAutoUpdateSchema"
LEGACY_JSON = "schemaJsonAllowLegacyJacksonFormat"
NATIVE_FIELDS = "schemaProtobufNativeFieldCheck"
POLICIES = (STRATEGY, ENFORCED, AUTO_UPDATE, LEGACY_JSON, NATIVE_FIELDS)

LEASE_S = 2.0
"""Seconds for which a partition may use a cached version, from the moment it asked. A deletion
waits that long for partitions that can't be reached."""


def info_fields(info: SchemaInfo) -> dict[str, Any]:
    """The fields of a schema in an answer."""
    return {
        "type": str(info.type),
        "name": info.name,
        "data": info.data,
        "properties": dict(info.properties),
    }


def info_of(fields: Mapping[str, Any]) -> SchemaInfo:
    """The inverse of `info_fields`; other fields are ignored."""
    type_ = SchemaType(fields["type"])
    return SchemaInfo(type_, fields["name"], fields["data"], fields["properties"])


def schema_policies(policies: Mapping[str, Any]) -> SchemaPolicies:
    """The effective policies of a topic as requests name them."""
    return SchemaPolicies(
        Strategy(policies[STRATEGY]),
        policies[NATIVE_FIELDS],
        policies[LEGACY_JSON],
        policies[AUTO_UPDATE],
    )


async def has_registry(actor_system: ActorSystem, key: ActorKey) -> bool:
    """Whether a schema was ever sent to this registry; activates nothing.

    Raises what the store raises.
    """
    try:
        return bool((await load_manifest(actor_system.store, key.text())).ledgers)
    except NotStored:
        return False


async def find_schema(
    actor_system: ActorSystem, key: ActorKey, version: int | None
) -> dict[str, Any]:
    """A version, deleted or not; None: the latest live one.

    Raises what `ActorSystem.request` raises: `RemoteError` with NOT_FOUND if there is none.
    """
    if not await has_registry(actor_system, key):
        raise no_schema(key)
    return await actor_system.request(key, Schema(version))


def no_schema(key: ActorKey, version: int | None = None) -> RemoteError:
    """The error that there is no such version; None: no version at all."""
    what = "schema" if version is None else f"schema version {version}"
    return RemoteError(Reason.NOT_FOUND, f"{key.topic_name} has no {what}")

"""Read the metadata of a tenant from the admin interface of another cluster.

Unknown policies, and topics that can't exist here, are left out and listed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from velaray.actors.catalog.clusters import REPLICATION
from velaray.actors.catalog.inbound_replication import PULL_FROM
from velaray.actors.catalog.policies import (
    POLICIES,
    SUBSCRIPTION_RATES,
    InvalidPolicyError,
    Level,
    canonical,
)
from velaray.broker.catalog.pulsar_policies import QUOTA, TOPIC_PATHS, from_namespace_document
from velaray.events.ids import InvalidNameError, TopicName
from velaray.geo.inbound.inbound_progress import TopicStats
from velaray.geo.inbound.subscription_progress import properties_of
from velaray.geo.replication.remote_admin import NotThere, Refused, RemoteAdmin, path_of
from velaray.schemas import InvalidSchemaError, SchemaInfo
from velaray.schemas.json_form import info_from_text
from velaray.schemas.validation import validate
from velaray.topology.fan_out import each

_NOT_ALLOWED = 405
_NOT_IMPLEMENTED = 501
_WHERE_FIELDS = frozenset({"replication_clusters", "pull_from"})
"""Fields about replication, which this cluster sets by itself."""
_VELARAYS = frozenset(
    {
        *(REPLICATION, PULL_FROM, "deadLetter", SUBSCRIPTION_RATES),
        *("schemaJsonAllowLegacyJacksonFormat", "schemaProtobufNativeFieldCheck"),
    }
)
"""Topic policies that Pulsar doesn't have under this name, or that aren't imported."""


@dataclass(slots=True)
class FoundTopic:
    """A topic; ``partitions`` is 0 if it isn't partitioned. ``subscriptions`` maps each partition's
    name to its durable subscriptions and their properties. ``schemas`` are oldest first."""

    partitions: int
    policies: dict[str, Any]
    schemas: list[SchemaInfo]
    subscriptions: dict[str, dict[str, dict[str, str]]]


@dataclass(slots=True)
class FoundTenant:
    """A tenant: its namespaces with their policies, its topics by full name, and descriptions of
    what isn't imported."""

    tenant: str
    admin_roles: list[str]
    namespaces: dict[str, dict[str, Any]] = field(default_factory=dict)
    topics: dict[str, FoundTopic] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


async def read_tenant(admin: RemoteAdmin, tenant: str) -> FoundTenant:
    """Read everything but messages. Raises `NotThere`, `CannotReplicate`, `MalformedStats`."""
    told = await admin.get(f"tenants/{quote(tenant)}") or {}
    found = FoundTenant(tenant, sorted(told.get("adminRoles") or ()))
    for namespace in await admin.get(f"namespaces/{quote(tenant)}"):
        await _read_namespace(admin, namespace, found)
    return found


async def topics_of(admin: RemoteAdmin, namespace: str) -> tuple[dict[TopicName, int], list[str]]:
    """The topics of a namespace with their partitions, and those that can't exist here. Raises
    `CannotReplicate`."""
    names = await admin.get(f"persistent/{namespace}/partitioned")
    partitioned = [TopicName.parse(name) for name in names]
    counts = await each(partitioned, lambda name: admin.get(f"{path_of(name)}/partitions"))
    topics = {
        name: int(count["partitions"])
        for name, count in zip(partitioned, counts, strict=True)
        if not _is_systems(name)
    }
    strangers = []
    for text in await admin.get(f"persistent/{namespace}"):
        try:
            name = TopicName.parse(text)
        except InvalidNameError as error:
            strangers.append(f"topic {text}: {error}")
            continue
        if name.partition < 0 and not _is_systems(name):
            topics.setdefault(name, 0)
        elif name.partition >= topics.get(name.topic, 0) and not _is_systems(name):
            strangers.append(f"topic {text}: it is a partition of a topic that doesn't exist")
    return topics, strangers


def _is_systems(name: TopicName) -> bool:
    return name.local.startswith("__") or "__transaction_" in name.local


async def _read_namespace(admin: RemoteAdmin, namespace: str, found: FoundTenant) -> None:
    document = await admin.get(f"namespaces/{namespace}") or {}
    found.namespaces[namespace] = dict(_policies(namespace, document, admin.cluster, found))
    topics, strangers = await topics_of(admin, namespace)
    found.left_out += strangers
    try:
        others = await admin.get(f"non-persistent/{namespace}") or []
    except (NotThere, Refused):
        others = []  # velaray has none
    found.left_out += [f"topic {name}: it isn't persistent" for name in sorted(others)]
    pairs = sorted(topics.items())
    read = await each(pairs, lambda pair: _read_topic(admin, pair[0], pair[1], found))
    found.topics |= {str(name): topic for (name, _), topic in zip(pairs, read, strict=True)}


def _policies(
    namespace: str, document: Mapping[str, Any], cluster: str, found: FoundTenant
) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name in _WHERE_FIELDS:
            continue
        try:
            known = from_namespace_document({name: value}, cluster)
        except InvalidPolicyError as error:
            found.left_out.append(f"policy of {namespace}: {error}")
            continue
        yield from ((policy, json.loads(text)) for policy, text in known.items())


async def _read_topic(
    admin: RemoteAdmin, topic: TopicName, partitions: int, found: FoundTenant
) -> FoundTopic:
    subscriptions = {
        str(name): await _read_subscriptions(admin, name) for name in topic.members(partitions)
    }
    policies = await _read_policies(admin, topic, found)
    names = sorted({name for each in subscriptions.values() for name in each})
    if rates := await _read_rates(admin, topic, names, found):
        policies[SUBSCRIPTION_RATES] = rates
    schemas = [schema async for schema in _schemas(admin, topic, found)]
    return FoundTopic(partitions, policies, schemas, subscriptions)


async def _read_subscriptions(admin: RemoteAdmin, name: TopicName) -> dict[str, dict[str, str]]:
    try:
        cursors = TopicStats(await admin.get(f"{path_of(name)}/internalStats")).cursors()
        stats = (await admin.get(f"{path_of(name)}/stats"))["subscriptions"] if cursors else {}
    except NotThere:
        return {}  # the partition was never used
    read = {sub: properties_of(stats.get(sub)) for sub in cursors}
    return {sub: properties for sub, properties in read.items() if properties is not None}


async def _read_policies(
    admin: RemoteAdmin, topic: TopicName, found: FoundTenant
) -> dict[str, Any]:
    policies = {}
    for name, policy in POLICIES.items():
        if Level.TOPIC not in policy.levels or name in _VELARAYS:
            continue
        last = "backlogQuotaMap" if name == QUOTA else TOPIC_PATHS.get(name, name)
        try:
            value = await admin.get(f"{path_of(topic)}/{last}")
        except NotThere:
            continue
        except Refused as error:
            if error.status in (_NOT_ALLOWED, _NOT_IMPLEMENTED):
                return {}  # topics have no policies of their own there
            raise
        if value in (None, {}, []):
            continue
        try:
            policies[name] = json.loads(canonical(name, Level.TOPIC, json.dumps(value).encode()))
        except InvalidPolicyError as error:
            found.left_out.append(f"policy of {topic}: {error}")
    return policies


async def _read_rates(
    admin: RemoteAdmin, topic: TopicName, subscriptions: list[str], found: FoundTenant
) -> dict[str, Any]:
    """The dispatch rates of single subscriptions, by name."""
    rates: dict[str, Any] = {}
    for name in subscriptions:
        try:
            value = await admin.get(f"{path_of(topic)}/{quote(name, safe='')}/dispatchRate")
        except NotThere:
            continue
        except Refused as error:
            if error.status in (_NOT_ALLOWED, _NOT_IMPLEMENTED):
                return {}  # subscriptions have no rates of their own there
            raise
        if value is None:
            continue
        try:
            text = json.dumps({name: value}).encode()
            rates |= json.loads(canonical(SUBSCRIPTION_RATES, Level.TOPIC, text))
        except InvalidPolicyError as error:
            found.left_out.append(f"policy of {topic}: {error}")
    return rates


async def _schemas(
    admin: RemoteAdmin, topic: TopicName, found: FoundTenant
) -> AsyncIterator[SchemaInfo]:
    local = quote(topic.local, safe="")
    try:
        told = await admin.get(f"schemas/{topic.namespace_name}/{local}/schemas")
    except NotThere:
        return
    rows = (told or {}).get("getSchemaResponses") or ()
    for row in sorted(rows, key=lambda row: int(row["version"])):
        try:
            info = info_from_text(
                row["type"], row.get("data") or "", row.get("properties") or {}, topic.local
            )
            validate(info)
        except InvalidSchemaError as error:
            found.left_out.append(f"schema version {row['version']} of {topic}: {error}")
        else:
            yield info

"""Routes of the admin interface for policies of namespaces and topics.

Every policy is a sub-resource under Pulsar's name: GET reads what is set there (204 if
nothing is; ``?applied=true``: what holds there), PUT or POST sets it, DELETE lets the wider
scope decide again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from velaray.actors.policies import POLICIES, InvalidPolicyError, Level, canonical
from velaray.topology.admin.http import (
    PREFIX,
    AdminError,
    Handler,
    Route,
    answer,
    ask_catalog,
    done,
    flag,
    json_body,
    says_nothing,
    users_namespace_of,
    whole_topic_of,
)

QUOTA = "backlogQuota"
QUOTA_LOCK = web.AppKey("quota_lock", asyncio.Lock)

# Where a topic's path differs from the policy's name.
TOPIC_PATHS = {
    "deduplication": "deduplicationEnabled",
    "maxProducersPerTopic": "maxProducers",
    "maxConsumersPerTopic": "maxConsumers",
    "maxUnackedMessagesPerConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesPerSubscription": "maxUnackedMessagesOnSubscription",
}

# The fields of Pulsar's namespace document.
_FIELDS = {
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    QUOTA: "backlog_quota_map",
    "subscriptionExpirationTime": "subscription_expiration_time_minutes",
    "deduplication": "deduplicationEnabled",
    "autoTopicCreation": "autoTopicCreationOverride",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "schemaCompatibilityStrategy": "schema_compatibility_strategy",
    "schemaValidationEnforced": "schema_validation_enforced",
    "isAllowAutoUpdateSchema": "is_allow_auto_update_schema",
    "schemaJsonAllowLegacyJacksonFormat": "schema_json_allow_legacy_jackson_format",
    "schemaProtobufNativeFieldCheck": "schema_protobuf_native_field_check",
    "delayedDelivery": "delayed_delivery_policies",
    "maxTopicsPerNamespace": "max_topics_per_namespace",
    "maxProducersPerTopic": "max_producers_per_topic",
    "maxConsumersPerTopic": "max_consumers_per_topic",
    "maxConsumersPerSubscription": "max_consumers_per_subscription",
    "maxSubscriptionsPerTopic": "max_subscriptions_per_topic",
    "maxUnackedMessagesPerConsumer": "max_unacked_messages_per_consumer",
    "maxUnackedMessagesPerSubscription": "max_unacked_messages_per_subscription",
    "compactionThreshold": "compaction_threshold",
    "replication": "replication_clusters",
    "pullFrom": "pull_from",
}
# Fields that hold one value for each cluster.
_CLUSTER_FIELDS = {
    "dispatchRate": "topicDispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "publishRate": "publishMaxMessageRate",
}
# Bundles are how Pulsar spreads topics over brokers; here Ray places every actor by itself.
_WITHOUT_MEANING = {"bundles"}


def as_namespace_document(own: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A namespace's own policies as Pulsar's namespace document; what isn't set is left out."""
    document = {_FIELDS[name]: value for name, value in own.items() if name in _FIELDS}
    for name, field in _CLUSTER_FIELDS.items():
        if name in own:
            document[field] = {cluster: own[name]}
    return document


def from_namespace_document(body: Mapping[str, Any], cluster: str) -> dict[str, bytes]:
    """The policies (as JSON, by name) that Pulsar's namespace document sets.

    Fields that say "not set" are passed over. Raises `InvalidPolicyError` for values that
    aren't accepted and for fields that would have no effect here.
    """
    by_field = {field: name for name, field in _FIELDS.items()}
    rates = {field: name for name, field in _CLUSTER_FIELDS.items()}
    policies = {}
    for field, value in body.items():
        if field in rates and isinstance(value, dict) and value.keys() <= {cluster}:
            field, value = rates[field], value.get(cluster)
        elif field in by_field:
            field = by_field[field]
        elif field in _WITHOUT_MEANING or says_nothing(value):
            continue
        else:
            raise InvalidPolicyError(f"field {field!r} can't be honoured here; leave it out")
        if value not in (None, {}, [], "UNDEFINED"):
            policies[field] = canonical(field, Level.NAMESPACE, json.dumps(value).encode())
    return policies


# -- sub-resources -----------------------------------------------------------------


def _scope(request: web.Request) -> dict[str, str]:
    if "topic" in request.match_info:
        return {"topic": str(whole_topic_of(request))}
    return {"namespace": users_namespace_of(request)}


async def _own(request: web.Request, name: str) -> Any:
    return (await ask_catalog(request, "policies", **_scope(request))).get(name)


async def _read(request: web.Request, name: str) -> Any:
    if not flag(request, "applied"):
        return await _own(request, name)
    found = await ask_catalog(request, "policies", effective=[name], **_scope(request))
    return found[name]


async def _set(request: web.Request, name: str, value: Any) -> None:
    text = json.dumps(value).encode()
    await ask_catalog(request, "set_policy", name=name, value=text, **_scope(request))


def _handlers(name: str) -> tuple[Handler, Handler, Handler]:
    async def read(request: web.Request) -> web.Response:
        value = await _read(request, name)
        return done() if value is None else answer(value)

    async def change(request: web.Request) -> web.Response:
        value = await json_body(request)
        if value is None:
            value = _in_query(request, name)
        if value == "UNDEFINED":  # of a strategy: the wider scope says
            return await remove(request)
        await _set(request, name, value)
        return done()

    async def remove(request: web.Request) -> web.Response:
        await ask_catalog(request, "remove_policy", name=name, **_scope(request))
        return done()

    return read, change, remove


def _in_query(request: web.Request, name: str) -> Any:
    """A value given as a query parameter: so Pulsar's tools send a topic's messageTTL."""
    text = request.query.get(name)
    if text is None:
        raise AdminError(400, f"give the value of {name} as the body")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdminError(400, f"{name} isn't JSON: {error}") from error


# -- backlog quotas: one policy with an entry for each type ------------------------


async def _quotas(request: web.Request) -> web.Response:
    return answer(await _read(request, QUOTA) or {})


async def _set_quota(request: web.Request) -> web.Response:
    quota = await json_body(request)
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        await _set(request, QUOTA, {**quotas, _quota_type(request): quota})
    return done()


async def _remove_quota(request: web.Request) -> web.Response:
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        quotas.pop(_quota_type(request), None)
        if quotas:
            await _set(request, QUOTA, quotas)
        else:
            await ask_catalog(request, "remove_policy", name=QUOTA, **_scope(request))
    return done()


def _quota_type(request: web.Request) -> str:
    return request.query.get("backlogQuotaType", "destination_storage")


def _routes() -> list[Route]:
    routes: list[Route] = []
    for level, base in (
        (Level.NAMESPACE, f"{PREFIX}/namespaces/{{tenant}}/{{namespace}}"),
        (Level.TOPIC, f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/{{topic}}"),
    ):
        routes += [
            ("GET", f"{base}/backlogQuotaMap", _quotas),
            ("POST", f"{base}/backlogQuota", _set_quota),
            ("DELETE", f"{base}/backlogQuota", _remove_quota),
        ]
        for name, policy in POLICIES.items():
            if level not in policy.levels or name == QUOTA:
                continue
            path = f"{base}/{TOPIC_PATHS.get(name, name) if level is Level.TOPIC else name}"
            read, change, remove = _handlers(name)
            routes += [("GET", path, read), ("PUT", path, change), ("POST", path, change)]
            routes.append(("DELETE", path, remove))
    return routes


ROUTES: tuple[Route, ...] = tuple(_routes())

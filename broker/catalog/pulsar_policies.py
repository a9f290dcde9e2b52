"""Policies with the names and groups of Pulsar's admin interface."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from velaray.actors.catalog.policies import InvalidPolicyError, Level, canonical
from velaray.actors.catalog.policy_types import says_nothing

QUOTA = "backlogQuota"

# Where a topic's path differs from the policy's name.
TOPIC_PATHS = {
    "deduplication": "deduplicationEnabled",
    "maxProducersPerTopic": "maxProducers",
    "maxConsumersPerTopic": "maxConsumers",
    "maxUnackedMessagesPerConsumer": "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesPerSubscription": "maxUnackedMessagesOnSubscription",
}

# Where a namespace's path differs.
NAMESPACE_PATHS = {
    "resourceGroup": "resourcegroup",
    "bookieAffinity": "persistence/bookieAffinity",
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
    "isolation": "isolation",
    "properties": "properties",
}
# Fields that hold one value for each cluster.
_CLUSTER_FIELDS = {
    "dispatchRate": "topicDispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "publishRate": "publishMaxMessageRate",
}
# Pulsar spreads topics over brokers by bundles; here Ray places each actor.
_WITHOUT_MEANING = {"bundles"}
# The cluster that deletes the namespace from all others; Pulsar's tools name the one they call.
_MAY_DELETE = "clusterThatCanDeleteNamespace"


def as_namespace_document(own: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A namespace's own policies as Pulsar's namespace document, without policies that aren't
    set."""
    document = {_FIELDS[name]: value for name, value in own.items() if name in _FIELDS}
    for name, field in _CLUSTER_FIELDS.items():
        if name in own:
            document[field] = {cluster: own[name]}
    return document


def from_namespace_document(body: Mapping[str, Any], cluster: str) -> dict[str, bytes]:
    """The policies (as JSON, by name) that Pulsar's namespace document sets.

    Fields with the value for "not set" are ignored. Raises `InvalidPolicyError` for values that
    aren't accepted and for fields that would have no effect here.
    """
    by_field = {field: name for name, field in _FIELDS.items()}
    rates = {field: name for name, field in _CLUSTER_FIELDS.items()}
    own_value = {_MAY_DELETE: cluster}
    policies = {}
    for field, value in body.items():
        if field in rates and isinstance(value, dict) and value.keys() <= {cluster}:
            field, value = rates[field], value.get(cluster)
        elif field in by_field:
            field = by_field[field]
        elif field in _WITHOUT_MEANING or says_nothing(value) or value == own_value.get(field):
            continue
        else:
            raise InvalidPolicyError(f"field {field!r} isn't supported here; leave it out")
        if value not in (None, "", {}, [], "UNDEFINED"):
            policies[field] = canonical(field, Level.NAMESPACE, json.dumps(value).encode())
    return policies

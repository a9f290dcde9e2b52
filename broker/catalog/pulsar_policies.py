"""Policies with the names and groups of Pulsar's admin interface."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from velaray.actors.catalog.policies import (
    PERMISSIONS,
    POLICIES,
    SUBSCRIPTION_PERMISSIONS,
    InvalidPolicyError,
    Level,
    canonical,
)
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

# The fields of Pulsar's namespace document that aren't the policy's name in snake case.
_OTHER_FIELDS = {
    "retention": "retention_policies",
    "messageTTL": "message_ttl_in_seconds",
    QUOTA: "backlog_quota_map",
    "subscriptionExpirationTime": "subscription_expiration_time_minutes",
    "deduplication": "deduplicationEnabled",
    "autoTopicCreation": "autoTopicCreationOverride",
    "autoSubscriptionCreation": "autoSubscriptionCreationOverride",
    "delayedDelivery": "delayed_delivery_policies",
    "replication": "replication_clusters",
}
# Fields that hold one value for each cluster.
_CLUSTER_FIELDS = {
    "dispatchRate": "topicDispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "replicatorDispatchRate": "replicatorDispatchRate",
    "publishRate": "publishMaxMessageRate",
}
# Grants are in an object of their own.
_GRANTS = "auth_policies"
_GRANT_FIELDS = {
    PERMISSIONS: "namespace_auth",
    SUBSCRIPTION_PERMISSIONS: "subscription_auth_roles",
}
# Pulsar spreads topics over brokers by bundles; here Ray places each actor.
_WITHOUT_MEANING = {"bundles", _GRANTS}  # grants are read before
# The cluster that deletes the namespace from all others; Pulsar's tools name the one they call.
_MAY_DELETE = "clusterThatCanDeleteNamespace"


def _field(name: str) -> str:
    """The field of a policy in Pulsar's namespace document."""
    return _OTHER_FIELDS.get(name) or re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def as_namespace_document(own: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A namespace's own policies as Pulsar's namespace document, without policies that aren't
    set."""
    document = {
        _field(name): value
        for name, value in own.items()
        if name not in _CLUSTER_FIELDS and name not in _GRANT_FIELDS
    }
    granted = {field: own[name] for name, field in _GRANT_FIELDS.items() if name in own}
    if granted:
        document[_GRANTS] = granted
    for name, field in _CLUSTER_FIELDS.items():
        if name in own:
            document[field] = {cluster: own[name]}
    return document


def _grants_of(found: Any) -> dict[str, Any]:
    """The grants in a namespace document, in the fields of their policies.

    Raises `InvalidPolicyError` for grants on topics, which exist only after the namespace.
    """
    if says_nothing(found):
        return {}
    names = {field: _field(name) for name, field in _GRANT_FIELDS.items()}
    if not isinstance(found, dict):
        raise InvalidPolicyError(f"field {_GRANTS!r} must be an object")
    for field, value in found.items():
        if field not in names and not says_nothing(value):
            raise InvalidPolicyError(
                f"field '{_GRANTS}.{field}' isn't supported here: grant it on each topic"
            )
    return {names[field]: value for field, value in found.items() if field in names}


def from_namespace_document(body: Mapping[str, Any], cluster: str) -> dict[str, bytes]:
    """The policies (as JSON, by name) that Pulsar's namespace document sets.

    Fields with the value for "not set" are ignored. Raises `InvalidPolicyError` for values that
    aren't accepted and for fields that would have no effect here.
    """
    body = {**body, **_grants_of(body.get(_GRANTS))}
    by_field = {
        _field(name): name
        for name, policy in POLICIES.items()
        if Level.NAMESPACE in policy.levels and name not in _CLUSTER_FIELDS
    }
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
        known = POLICIES.get(field)
        is_unset = known is not None and not known.in_every_answer and value == known.default
        if value not in (None, "", {}, [], "None", "UNDEFINED") and not is_unset:
            policies[field] = canonical(field, Level.NAMESPACE, json.dumps(value).encode())
    return policies

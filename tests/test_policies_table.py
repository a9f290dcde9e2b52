"""Every policy of the table is applied: its row names the code, and a test here its effect."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tools.policies_reference import page
from velaray.actors.catalog.policies import POLICIES, TABLE, InvalidPolicyError, Level, canonical

TESTS = Path(__file__).parent
_APPLY = "topology/test_policies_apply.py"
_RIGHTS = "security/test_authorisation.py"
_MAINTENANCE = "topology/test_maintenance.py"
_SCHEMAS = "topology/test_schemas.py"
_RATES = "official/test_dispatch_rates.py"
_OFFLOAD = "topology/test_offload.py"
_CONSUMERS = "test_consumers_beyond_the_limit_are_refused"
_LIMITS = "test_subscriptions_apply_changed_limits"
EFFECTS = {
    "retention": (_MAINTENANCE, "test_retention_by_size_keeps_the_newest_megabytes"),
    "messageTTL": (_MAINTENANCE, "test_only_old_messages_expire_by_their_publish_time"),
    "backlogQuota": (_MAINTENANCE, "test_a_backlog_beyond_its_quota_is_evicted_from_its_old_end"),
    "subscriptionExpirationTime": (
        _MAINTENANCE,
        "test_a_long_unused_subscription_is_deleted_even_across_a_crash",
    ),
    "deduplication": (_APPLY, "test_de_duplication_is_switched_in_a_running_topic"),
    "autoTopicCreation": (
        "actors/test_catalog.py",
        "test_policy_decides_whether_and_how_topics_are_created_by_use",
    ),
    "autoSubscriptionCreation": (
        _APPLY,
        "test_subscriptions_are_created_only_if_policy_allows_it",
    ),
    "schemaCompatibilityStrategy": (
        _SCHEMAS,
        "test_the_strategy_of_a_topic_overrides_that_of_its_namespace",
    ),
    "schemaValidationEnforced": (
        _SCHEMAS,
        "test_producers_need_a_schema_where_schemas_are_enforced",
    ),
    "isAllowAutoUpdateSchema": (
        _SCHEMAS,
        "test_without_auto_update_only_known_schemas_are_accepted",
    ),
    "schemaJsonAllowLegacyJacksonFormat": (
        "schemas/test_validation.py",
        "test_the_older_form_of_json_schemas_is_accepted_where_it_is_allowed",
    ),
    "schemaProtobufNativeFieldCheck": (
        "schemas/test_compatibility.py",
        "test_fields_of_native_messages_are_compared_on_request",
    ),
    "delayedDelivery": (
        "topology/test_delayed_delivery.py",
        "test_the_policy_limits_delays_and_turns_them_off",
    ),
    "deadLetter": (
        "official/test_poison.py",
        "test_only_the_message_that_kills_becomes_a_dead_letter",
    ),
    "maxTopicsPerNamespace": (
        "actors/test_catalog.py",
        "test_a_namespaces_limit_counts_partitions",
    ),
    "maxProducersPerTopic": (
        _APPLY,
        "test_producers_beyond_the_limit_are_refused_until_it_is_raised",
    ),
    "subscriptionTypesEnabled": (_APPLY, "test_only_enabled_types_of_subscription_connect"),
    "permissions": (_RIGHTS, "test_an_action_is_granted_and_revoked"),
    "permissionsOnSubscriptions": (_RIGHTS, "test_a_subscription_is_reserved_for_roles"),
    "subscriptionAuthMode": (_RIGHTS, "test_names_of_subscriptions_may_be_tied_to_roles"),
    "maxConsumersPerTopic": (_APPLY, _CONSUMERS),
    "maxConsumersPerSubscription": (_APPLY, _CONSUMERS),
    "maxSubscriptionsPerTopic": (_APPLY, "test_subscriptions_beyond_the_limit_are_refused"),
    "maxUnackedMessagesPerConsumer": (_APPLY, _LIMITS),
    "maxUnackedMessagesPerSubscription": (_APPLY, _LIMITS),
    "maxMessageSize": (_APPLY, "test_messages_above_the_size_limit_are_refused_in_order"),
    "erasable": ("topology/test_erasure.py", "test_erasure_by_subject"),
    "encryptionRequired": ("official/test_encryption_required.py", "test_a_producer_must_encrypt"),
    "offloadThreshold": (_OFFLOAD, "test_thresholds_of_the_namespace_offload_by_themselves"),
    "offloadThresholdInSeconds": (_OFFLOAD, "test_a_ledger_is_offloaded_at_its_age"),
    "offloadDeletionLagMs": (
        _OFFLOAD,
        "test_a_topic_is_offloaded_on_request_and_read_from_the_archive",
    ),
    "compactionThreshold": (
        "topology/test_compaction.py",
        "test_a_topic_is_compacted_when_it_has_grown_by_the_threshold",
    ),
    "dispatchRate": (_RATES, "test_a_topic_delivers_at_its_rate"),
    "subscriptionDispatchRate": (_RATES, "test_consumers_of_a_shared_subscription_take_turns"),
    "dispatchRateOfSubscriptions": (_RATES, "test_a_subscription_has_a_rate_of_its_own"),
    "replicatorDispatchRate": (
        "topology/test_replication_view.py",
        "test_a_rate_limits_replication",
    ),
    "publishRate": (_APPLY, "test_publishers_are_throttled_to_their_rate"),
    "replication": (
        "topology/test_replication.py",
        "test_the_first_message_of_a_new_topic_is_replicated",
    ),
    "properties": (
        "topology/test_admin_tools.py",
        "test_properties_of_subscriptions_and_namespaces_are_changed",
    ),
    "isolation": ("topology/test_isolation.py", "test_a_running_partition_learns_it"),
    "pullFrom": (
        "topology/test_inbound_replication.py",
        "test_removing_a_cluster_from_the_policy_ends_its_inbound_replication",
    ),
}
"""The test that shows the effect of each policy: its file and its name."""


def test_every_policy_has_a_test_of_its_effect() -> None:
    assert EFFECTS.keys() == POLICIES.keys()


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_names_what_applies_the_policy(name: str) -> None:
    module, _, place = POLICIES[name].applied_by.partition(":")
    assert hasattr(importlib.import_module(f"velaray.{module}"), place)
    path, test = EFFECTS[name]
    assert f"def {test}(" in (TESTS / path).read_text()


@pytest.mark.parametrize("name", POLICIES)
def test_a_row_has_a_description_and_a_valid_default(name: str) -> None:
    row = POLICIES[name]
    assert row.description.endswith(".")
    if row.default not in (None, [], {}):
        level = next(iter(row.levels))
        assert json.loads(canonical(name, level, json.dumps(row.default).encode())) == row.default


NOT_APPLIED = sorted(TABLE.keys() - POLICIES.keys())


def test_policies_of_pulsar_that_are_not_applied_are_rows() -> None:
    assert {"subscribeRate", "entryFilters", "inactiveTopicPolicies"} <= set(NOT_APPLIED)


@pytest.mark.parametrize("name", NOT_APPLIED)
def test_a_row_that_is_not_applied_has_the_reason_and_a_neutral_value(name: str) -> None:
    row = TABLE[name]
    assert row.description.endswith(".") and row.not_applied and not row.applied_by
    row.type.parse(row.default)
    with pytest.raises(ValueError, match="must be"):
        row.type.parse(17)
    assert row.type.schema()
    with pytest.raises(InvalidPolicyError, match=f"doesn't support the policy {name}: "):
        canonical(name, next(iter(row.levels)), b"17")
    assert Level.CLUSTER not in row.levels


def test_the_page_lists_what_is_not_applied() -> None:
    for name in NOT_APPLIED:
        section = page().partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert f"- Not applied: {TABLE[name].not_applied}\n" in section

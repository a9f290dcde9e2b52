"""`pulsar-admin` over the operations that are served: the OpenAPI document describes each request
and each answer."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pulsar
import pytest

import velaray
from benchmarks.contract import Absent
from tests.official import java_client
from tests.official.support import LocalServer
from tests.official.test_pulsar_admin import FOLDER, REFUSED, WORKING, run
from tests.support.recorded_http import Contract, recorded

pytestmark = pytest.mark.long

_NS = "public/contract"
_T = f"persistent://{_NS}/plain"
_MANY = f"persistent://{_NS}/many"
_KEPT = "persistent://public/default/by-tools"
_BUNDLE = "0x00000000_0xffffffff"
_SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'

# Policies: the name in commands, and the options that set it for a namespace and for a topic; "":
# this level has no such command.
_POLICIES: tuple[tuple[str, str, str], ...] = (
    ("retention", "-t 10m -s 10M", "-t 10m -s 10M"),
    ("message-ttl", "-ttl 60", "-t 60"),
    ("max-topics-per-namespace", "-t 50", ""),
    ("max-producers-per-topic", "-p 5", ""),
    ("max-producers", "", "-p 5"),
    ("max-consumers-per-topic", "-c 5", ""),
    ("max-consumers", "", "-c 5"),
    ("max-consumers-per-subscription", "-c 5", "-c 5"),
    ("max-subscriptions-per-topic", "-m 5", "-s 5"),
    ("max-unacked-messages-per-consumer", "-c 5", "-m 5"),
    ("max-unacked-messages-per-subscription", "-c 5", "-m 5"),
    ("max-message-size", "", "-m 1000"),
    ("compaction-threshold", "-t 10M", "-t 10M"),
    ("deduplication", "-e", "-e"),
    ("delayed-delivery", "-e -t 1s", "-e -t 1s"),
    ("dispatch-rate", "-md 10 -bd 100 -dt 1", "-md 10 -bd 100 -dt 1"),
    ("subscription-dispatch-rate", "-md 10 -bd 100 -dt 1", "-md 10 -bd 100 -dt 1"),
    ("replicator-dispatch-rate", "-md 10 -bd 100 -dt 1", "-md 10 -bd 100 -dt 1"),
    ("publish-rate", "-m 10 -b 100", "-m 10 -b 100"),
    ("subscription-expiration-time", "-t 60", ""),
    ("auto-topic-creation", "-e -t non-partitioned", ""),
    ("auto-subscription-creation", "-e", "-e"),
    ("schema-compatibility-strategy", "", "-s FULL"),
    ("subscription-types-enabled", "-t Shared", "-t Shared"),
)
# Policies that velaray doesn't apply: they can be read and removed.
_UNAPPLIED = (
    *("subscribe-rate", "persistence", "inactive-topic-policies", "offload-policies"),
    *("deduplication-snapshot-interval", "dispatcher-pause-on-ack-state-persistent"),
)


def _policies() -> Iterator[str]:
    for name, for_namespace, for_topic in _POLICIES:
        levels = (("namespaces", _NS, for_namespace), ("topicPolicies", _T, for_topic))
        for command, place, options in levels:
            if options:
                yield f"{command} set-{name} {place} {options}"
                yield f"{command} get-{name} {place}"
                yield f"{command} remove-{name} {place}"
    for name in _UNAPPLIED:
        for command, place in (("namespaces", _NS), ("topicPolicies", _T)):
            yield f"{command} get-{name} {place}"
            yield f"{command} remove-{name} {place}"


class _Known(NamedTuple):
    """What commands name: a stored entry, an open transaction, a broker."""

    ledger_id: int
    entry_id: int
    transaction: str
    broker: str


def _commands(schema: Path, known: _Known) -> list[str]:
    """Commands that succeed, in an order in which they do."""
    return [
        f"namespaces create {_NS} --clusters standalone",
        "namespaces list public",
        f"topics create {_T} -m a=b",
        f"topics create-partitioned-topic {_MANY} -p 2",
        *_policies(),
        *_of_namespaces(),
        *_of_topics(),
        *_of_everything_in_a_namespace(known),
        *_of_schemas_and_transactions(schema, known),
        *_of_clusters(known),
        f"topics terminate {_T}",
        f"topics partitioned-terminate {_MANY}",
        f"topics delete {_T} --force",
        f"topics delete-partitioned-topic {_MANY} --force",
        f"namespaces delete {_NS} --force",
    ]


def _of_namespaces() -> list[str]:
    return [
        f"namespaces set-backlog-quota {_NS} -l 10M -p producer_request_hold",
        f"namespaces get-backlog-quotas {_NS}",
        f"namespaces remove-backlog-quota {_NS}",
        f"topicPolicies set-backlog-quota {_T} -l 10M -p producer_request_hold",
        f"topicPolicies get-backlog-quota {_T}",
        f"topicPolicies remove-backlog-quota {_T}",
        f"namespaces set-clusters {_NS} -c standalone",
        f"namespaces get-clusters {_NS}",
        f"topicPolicies set-replication-clusters {_T} -c standalone",
        f"topicPolicies get-replication-clusters {_T}",
        f"topicPolicies remove-replication-clusters {_T}",
        f"namespaces set-schema-compatibility-strategy {_NS} -c FULL",
        f"namespaces get-schema-compatibility-strategy {_NS}",
        f"namespaces set-is-allow-auto-update-schema {_NS} --enable",
        f"namespaces get-is-allow-auto-update-schema {_NS}",
        f"namespaces set-schema-validation-enforce {_NS} --enable",
        f"namespaces get-schema-validation-enforce {_NS}",
        f"topics set-schema-validation-enforce {_T} --enable",
        f"topics get-schema-validation-enforce {_T}",
        f"namespaces set-properties {_NS} -p a=b,c=d",
        f"namespaces get-property {_NS} -k a",
        f"namespaces remove-property {_NS} -k a",
        f"namespaces clear-properties {_NS}",
        f"namespaces topics {_NS}",
        f"namespaces get-encryption-required {_NS}",
        f"namespaces get-subscription-auth-mode {_NS}",
        f"namespaces get-anti-affinity-group {_NS}",
        f"namespaces get-offload-threshold {_NS}",
        f"namespaces set-offload-threshold {_NS} -s 10M -t 1h",
        f"namespaces get-offload-threshold {_NS}",
        f"namespaces set-offload-deletion-lag {_NS} -l 1d",
        f"namespaces get-offload-deletion-lag {_NS}",
        f"namespaces get-entry-filters {_NS}",
        f"namespaces get-resource-group {_NS}",
        f"namespaces get-bookie-affinity-group {_NS}",
        f"namespaces get-allowed-clusters {_NS}",
        f"namespaces grant-permission {_NS} --role app --actions produce,consume",
        f"namespaces permissions {_NS}",
        f"namespaces grant-subscription-permission {_NS} --subscription one --roles app",
        f"namespaces subscription-permission {_NS}",
        f"namespaces revoke-subscription-permission {_NS} --subscription one --role app",
        f"namespaces revoke-permission {_NS} --role app",
    ]


def _of_topics() -> list[str]:
    return [
        f"topics grant-permission {_T} --role app --actions produce",
        f"topics permissions {_T}",
        f"topics revoke-permission {_T} --role app",
        f"topics list-partitioned-topics {_NS}",
        f"topics get-partitioned-topic-metadata {_MANY}",
        f"topics partitioned-lookup {_MANY}",
        f"topics get-properties {_T}",
        f"topics update-properties {_T} -p c=d",
        f"topics remove-properties {_T} -k c",
        f"topics create-subscription {_T} -s one",
        f"topics create-subscription {_MANY} -s one -m earliest",
        f"topics subscriptions {_T}",
        f"topics set-replicated-subscription-status {_T} -s one -e",
        f"topics get-replicated-subscription-status {_T} -s one",
        *(
            f"topicPolicies {each}-subscription-dispatch-rate {_T} --subscription one{options}"
            for each, options in (("set", " -md 10 -bd 100 -dt 1"), ("get", ""), ("remove", ""))
        ),
        f"topics skip {_T} -s one -n 1",
        f"topics clear-backlog {_T} -s one",
        f"topics expire-messages {_T} -s one -t 1",
        f"topics expire-messages-all-subscriptions {_T} -t 1",
        f"topics reset-cursor {_T} -s one -m -1:-1",
        f"topics reset-cursor {_T} -s one -t 1h",
        f"topics stats {_T}",
        f"topics stats-internal {_T}",
        f"topics partitioned-stats {_MANY} --per-partition",
        f"topics partitioned-stats-internal {_MANY}",
        f"topics info-internal {_MANY}",
        f"topics get-backlog-size {_T} -m -1:-1",
        f"topics offload-status {_T}",
        f"topics compact {_T}",
        f"topics compaction-status {_T}",
        f"topics unload {_T}",
        f"topics unsubscribe {_T} -s one",
    ]


def _of_everything_in_a_namespace(known: _Known) -> list[str]:
    return [
        f"namespaces clear-backlog {_NS} -s one --force",
        f"namespaces clear-backlog {_NS} -b {_BUNDLE} --force",
        f"namespaces clear-backlog {_NS} -b {_BUNDLE} -s one --force",
        f"namespaces unsubscribe {_NS} -b {_BUNDLE} -s one",
        f"namespaces unsubscribe {_NS} -s one",
        f"namespaces unload {_NS} -b {_BUNDLE}",
        f"namespaces update-migration-state {_NS}",
        f"namespaces set-subscription-auth-mode {_NS} -m None",
        f"namespaces remove-entry-filters {_NS}",
        f"namespaces remove-resource-group {_NS}",
        f"namespaces delete-anti-affinity-group {_NS}",
        f"namespaces delete-bookie-affinity-group {_NS}",
        f"namespaces clear-offload-deletion-lag {_NS}",
        f"topicPolicies get-entry-filters-per-topic {_T}",
        f"topicPolicies remove-entry-filters-per-topic {_T}",
        f"topics remove-shadow-topics {_T}",
        f"topics get-message-by-id {_KEPT} -l {known.ledger_id} -e {known.entry_id}",
        f"topics expire-messages {_KEPT} -s s -p {known.ledger_id}:{known.entry_id}",
    ]


def _of_schemas_and_transactions(schema: Path, known: _Known) -> list[str]:
    return [
        f"schemas upload {_T} -f {schema}",
        f"schemas get {_T}",
        f"schemas get {_T} --version 0",
        f"schemas get {_T} --all-version",
        f"schemas metadata {_T}",
        f"schemas compatibility {_T} -f {schema}",
        f"schemas delete {_T}",
        "transactions coordinators-list",
        "transactions coordinator-stats",
        "transactions coordinator-stats -c 0",
        "transactions coordinator-internal-stats -c 0",
        f"transactions transaction-buffer-stats -t {_T} -l",
        f"transactions buffer-snapshot-internal-stats -t {_T}",
        f"transactions pending-ack-stats -t {_KEPT} -s s -l",
        f"transactions pending-ack-internal-stats -t {_KEPT} -s s",
        f"transactions position-stats-in-pending-ack -t {_KEPT} -s s -l 1 -e 1",
        "transactions slow-transactions -t 1s",
        f"transactions transaction-metadata {known.transaction}",
        f"transactions transaction-in-buffer-stats -t {_KEPT} {known.transaction}",
        f"transactions transaction-in-pending-ack-stats -t {_KEPT} -s s {known.transaction}",
        f"transactions abort-transaction {known.transaction}",
        "transactions scale-transactionCoordinators -r 2",
    ]


def _of_clusters(known: _Known) -> list[str]:
    return [
        "tenants create contract -c standalone -r admin",
        "tenants get contract",
        "tenants update contract -c standalone -r other",
        "tenants delete contract",
        "clusters get standalone",
        "clusters get-cluster-migration standalone",
        "clusters update-cluster-migration standalone",
        "ns-isolation-policy brokers standalone",
        f"ns-isolation-policy broker standalone --broker {known.broker}",
        f"brokers namespaces standalone --url {known.broker}",
        "brokers get-all-dynamic-config",
        "resourcegroups list",
    ]


@pytest.fixture(scope="module")
def tools_path() -> str:
    try:
        return java_client.class_path(FOLDER / "pom.xml")
    except Absent as reason:
        pytest.skip(f"no pulsar-admin here: {reason}")


def test_requests_and_answers_are_those_of_the_document(
    tools_path: str, local: LocalServer, connect: Any, tmp_path: Path
) -> None:
    client: pulsar.Client = connect(local.service_url)
    client.subscribe(_KEPT, "s").close()
    kept = client.create_producer(_KEPT).send(b"hello")
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "AVRO", "schema": _SCHEMA, "properties": {}}))
    admin_url = local.cluster.admin_url
    with urllib.request.urlopen(f"{admin_url}/openapi.json") as found:
        contract = Contract(json.load(found))
    with velaray.Client(local.service_url) as own, recorded(admin_url) as proxy:
        transaction = own.new_transaction()
        own.create_producer(_KEPT).send(b"hidden", txn=transaction)
        known = _Known(
            kept.ledger_id(),
            kept.entry_id(),
            "-m {} -l {}".format(*transaction.txn_id),
            urlsplit(proxy.url).netloc,
        )
        commands = [*(command for command, _ in WORKING), *_commands(schema, known)]
        results = run(tools_path, proxy.url, [*commands, *(command for command, _ in REFUSED)])
    failed = [result for result in results[: len(commands)] if not result.succeeded]
    assert not failed, "\n".join(f"{each.command}: {each.said[:300]}" for each in failed)
    faults = {
        f"{each.method} {each.target}: {fault}"
        for each in proxy.exchanges
        for fault in contract.faults(each)
    }
    assert not faults, "\n".join(sorted(faults))
    called = {found[0] for each in proxy.exchanges if (found := contract.operation_of(each))}
    left = {each for each in contract.operations if not _is_covered(each, called)}
    assert not left, "\n".join(sorted(left))


def _is_covered(operation: str, called: set[str]) -> bool:
    """Whether an operation, or the one that does the same under the other method, was called; or
    no command calls it."""
    method, _, path = operation.partition(" ")
    same = {"PUT", "POST"} if method in ("PUT", "POST") else {method}
    return any(f"{each} {path}" in called for each in same) or bool(_NO_COMMAND.search(operation))


# Operations that no command of Pulsar 4.0 calls: velaray's own, those of later versions, and values
# of policies that velaray refuses, whose commands `REFUSED` has in part.
_NO_COMMAND = re.compile(
    "|".join(
        (
            r"/velaray/|/policies|/v3/ledgers|/v3/replication|GET /admin/v3/transactions$",
            r"/(openapi.json|docs|metrics)$|/homes$|/tenants/{tenant}/(home|metadata)$",
            r"/(isolation|pullFrom|deadLetters?|schema(JsonAllow|ProtobufNative)\w+)$",
            r"/(describe|undo|undelete|why/{message}|deadLetters/{message}/forget)$|/marks(/|$)",
            r"/(deletedTopics|erasable|erasures|{topic}/messages)$",
            r"GET /admin/v2/brokers(/ready)?$|/schemas/.*/version$|namespaces/.*/migration$",
            r"DELETE .*/(allowedClusters|encryptionRequired|schemaValidationEnforced)$",
            r"DELETE .*/(isAllowAutoUpdateSchema|replication|subscriptionAuthMode)$",
            r"DELETE .*/namespaces/.*/schemaCompatibilityStrategy$",
            r"DELETE .*/(offload(Policies|Threshold\w*)|deduplicationSnapshotInterval)$",
            r"(PUT|POST) .*/(allowedClusters|antiAffinity|bookieAffinity|entryFilters)$",
            r"(PUT|POST) .*/(inactiveTopicPolicies|offloadPolicies|persistence|subscribeRate)$",
            r"(PUT|POST) .*/(resource[gG]roup|deduplicationSnapshotInterval|shadowTopics)$",
            r"(PUT|POST) .*/dispatcherPauseOnAckStatePersistent$",
            r"persistent/.*/(isAllowAutoUpdateSchema|resourceGroup)$|/clusters/{cluster}/peers$",
        )
    )
)

"""The admin interface over HTTP, against a cluster in this process."""

from __future__ import annotations

import asyncio
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import jwt
import pulsar
import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.by_name import call_by_name
from tests.support.local_cluster import LocalCluster
from velaray.admin import subscriptions as admin_subscriptions
from velaray.admin.api import admin_app, serve_admin
from velaray.admin.http import MAX_BODY
from velaray.broker.garbage_collection.topic_deletion import sweep_topic
from velaray.broker.partition.messages import DeleteSubscription
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.journal.memory import MemoryStore
from velaray.topology.actor_system import Activation, ActorSystem, Address, Unreachable
from velaray.topology.config import AuthSettings, ClusterConfig
from velaray.topology.messages import Request

V2 = "/admin/v2"
TOPICS = f"{V2}/persistent/public/default"
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


class Reply(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Http:
    """Requests with JSON bodies to one address."""

    def __init__(self, url: str, token: str = "") -> None:
        self._address = urlsplit(url).netloc
        self._token = token

    def __call__(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None
    ) -> Reply:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = HTTPConnection(self._address, timeout=30)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        found = dict(response.getheaders())
        if found.get("Content-Type", "").startswith("application/json"):
            content = json.loads(content)
        return Reply(response.status, content, found)


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


def publish(client: pulsar.Client, topic: str, *contents: bytes, **options: Any) -> list[Any]:
    producer = client.create_producer(topic, batching_enabled=False, **options)
    try:
        return [producer.send(content) for content in contents]
    finally:
        producer.close()


def backlog(http: Http, topic: str, subscription: str) -> int:
    return http("GET", f"{TOPICS}/{topic}/stats").body["subscriptions"][subscription]["msgBacklog"]


# -- clusters, brokers, look-ups ---------------------------------------------------


def test_clusters_and_brokers(http: Http, cluster: LocalCluster) -> None:
    assert http("GET", f"{V2}/clusters").body == ["standalone"]
    assert http("GET", f"{V2}/clusters/standalone").body == {
        "serviceUrl": cluster.admin_url,
        "brokerServiceUrl": cluster.service_url,
        "serviceUrlTls": "",
        "brokerServiceUrlTls": "",
        "progress": "exact",
        "hasToken": False,
        "replicationKeys": [],
        "local": True,
    }
    assert http("GET", f"{V2}/clusters/elsewhere").status == 404
    assert http("GET", f"{V2}/brokers/health").body == b"ok"
    assert http("GET", f"{V2}/brokers/standalone").body == [urlsplit(cluster.admin_url).netloc]
    assert http("GET", f"{V2}/brokers/elsewhere").status == 404


def test_a_lookup_names_the_address_that_serves_the_topic(http: Http) -> None:
    found = http("GET", "/lookup/v2/topic/persistent/public/default/looked-up").body
    assert found["brokerUrl"].startswith("pulsar://127.0.0.1:")
    assert found["nativeUrl"] == found["brokerUrl"]
    assert found["brokerUrlTls"] == ""
    refused = http("GET", "/lookup/v2/topic/persistent/public/nowhere/t")
    assert refused.status == 404
    assert "public/nowhere" in refused.body["reason"]


def test_the_official_client_looks_up_topics_over_http(cluster: LocalCluster, http: Http) -> None:
    assert http("PUT", f"{TOPICS}/by-http/partitions", 2).status == 204
    client = pulsar.Client(cluster.admin_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        consumer = client.subscribe("by-http", "s")
        publish(client, "by-http", b"over http")
        assert consumer.receive(10_000).data() == b"over http"
    finally:
        client.close()


# -- tenants and namespaces --------------------------------------------------------


def test_tenants_are_created_updated_and_deleted(http: Http) -> None:
    body = {"adminRoles": ["ops"], "allowedClusters": ["standalone"]}
    assert http("PUT", f"{V2}/tenants/acme", body).status == 204
    assert http("PUT", f"{V2}/tenants/acme", body).status == 409
    assert "acme" in http("GET", f"{V2}/tenants").body
    assert http("GET", f"{V2}/tenants/acme").body == body
    assert http("POST", f"{V2}/tenants/acme", {**body, "adminRoles": []}).status == 204
    assert http("GET", f"{V2}/tenants/acme").body["adminRoles"] == []
    assert http("PUT", f"{V2}/namespaces/acme/orders").status == 204
    assert http("PUT", f"{V2}/namespaces/acme/orders").status == 409
    assert http("GET", f"{V2}/namespaces/acme").body == ["acme/orders"]
    assert http("DELETE", f"{V2}/tenants/acme").status == 409
    assert http("DELETE", f"{V2}/namespaces/acme/orders").status == 204
    assert http("DELETE", f"{V2}/tenants/acme").status == 204
    for path in ("tenants/acme", "namespaces/acme", "namespaces/acme/orders"):
        refused = http("GET", f"{V2}/{path}")
        assert (refused.status, list(refused.body)) == (404, ["reason"])


def test_a_tenant_needs_clusters_that_exist(http: Http) -> None:
    refused = http("PUT", f"{V2}/tenants/lost", {"allowedClusters": ["mars"]})
    assert refused.status == 422
    assert "mars" in refused.body["reason"]
    assert http("PUT", f"{V2}/tenants/lost", {"allowedClusters": "standalone"}).status == 400


def test_a_namespace_with_topics_cannot_be_deleted(http: Http) -> None:
    http("PUT", f"{V2}/namespaces/public/full")
    assert http("PUT", f"{V2}/persistent/public/full/t").status == 204
    assert http("DELETE", f"{V2}/namespaces/public/full").status == 409
    assert http("DELETE", f"{V2}/persistent/public/full/t").status == 204
    assert http("DELETE", f"{V2}/namespaces/public/full").status == 204


def test_a_namespace_is_created_with_the_document_of_pulsars_tools(http: Http) -> None:
    document = {
        "auth_policies": {"namespaceAuth": {}, "topicAuthentication": {}},
        "replication_clusters": [],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "message_ttl_in_seconds": 60,
        "topicDispatchRate": {
            "standalone": {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1}
        },
    }
    path = f"{V2}/namespaces/public/documented"
    assert http("PUT", path, document).status == 204
    found = http("GET", path).body
    assert found == {key: document[key] for key in ("message_ttl_in_seconds", "topicDispatchRate")}
    assert http("GET", f"{path}/messageTTL").body == 60


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"inactive_topic_policies": {"deleteWhileInactive": True}}, "inactive_topic_policies"),
        ({"encryption_required": "perhaps"}, "encryptionRequired"),
        ({"message_ttl_in_seconds": -5}, "messageTTL"),
        ({"topicDispatchRate": {"mars": {"dispatchThrottlingRateInMsg": 1}}}, "topicDispatchRate"),
    ],
)
def test_a_document_that_cannot_be_honoured_creates_nothing(
    http: Http, document: dict[str, Any], named: str
) -> None:
    refused = http("PUT", f"{V2}/namespaces/public/refused", document)
    assert refused.status == 422
    assert named in refused.body["reason"]
    assert http("GET", f"{V2}/namespaces/public/refused").status == 404


# -- policies ----------------------------------------------------------------------


def test_a_policy_is_set_read_and_removed(http: Http) -> None:
    path = f"{V2}/namespaces/public/policies"
    http("PUT", path)
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    assert http("GET", f"{path}/retention").status == 204
    assert http("POST", f"{path}/retention", retention).status == 204
    assert http("GET", f"{path}/retention").body == retention
    assert http("GET", path).body == {"retention_policies": retention}
    assert http("DELETE", f"{path}/retention").status == 204
    assert http("GET", f"{path}/retention").status == 204
    assert http("GET", f"{path}/retention?applied=true").body["retentionTimeInMinutes"] == 0
    refused = http("POST", f"{path}/retention", {"retentionTimeInMinutes": 5})
    assert refused.status == 422
    assert "lacks retentionSizeInMB" in refused.body["reason"]
    assert http("POST", f"{path}/retention", raw=b"{").status == 400
    assert http("POST", f"{path}/retention").status == 400


def test_policies_of_topics_have_their_own_routes(http: Http) -> None:
    topic = f"{TOPICS}/with-policies"
    assert http("POST", f"{topic}/maxProducers", 3).status == 404
    http("PUT", topic)
    assert http("POST", f"{topic}/maxProducers", 3).status == 204
    assert http("GET", f"{topic}/maxProducers").body == 3
    assert http("POST", f"{topic}/messageTTL?messageTTL=90").status == 204
    assert http("GET", f"{topic}/messageTTL").body == 90
    assert http("POST", f"{V2}/namespaces/public/default/deduplication", False).status == 204
    assert http("GET", f"{topic}/deduplicationEnabled").status == 204
    assert http("GET", f"{topic}/deduplicationEnabled?applied=true").body is False
    assert http("DELETE", f"{V2}/namespaces/public/default/deduplication").status == 204
    assert http("GET", f"{topic}/maxTopicsPerNamespace").status == 501


def test_backlog_quotas_are_set_by_type(http: Http) -> None:
    path = f"{V2}/namespaces/public/quotas"
    http("PUT", path)
    size = {"limitSize": 10, "policy": "producer_exception"}
    age = {"limitTime": 60, "policy": "producer_request_hold"}
    assert http("GET", f"{path}/backlogQuotaMap").body == {}
    assert http("POST", f"{path}/backlogQuota", size).status == 204
    assert http("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", age).status == 204
    both = {"destination_storage": size, "message_age": age}
    assert http("GET", f"{path}/backlogQuotaMap").body == both
    assert http("DELETE", f"{path}/backlogQuota").status == 204
    assert http("GET", f"{path}/backlogQuotaMap").body == {"message_age": age}
    assert http("DELETE", f"{path}/backlogQuota?backlogQuotaType=message_age").status == 204
    assert http("GET", f"{path}/backlogQuotaMap").body == {}
    assert http("POST", f"{path}/backlogQuota?backlogQuotaType=mood", size).status == 422


# -- topics ------------------------------------------------------------------------


def test_topics_are_created_and_listed(http: Http) -> None:
    space = f"{V2}/persistent/public/listed"
    http("PUT", f"{V2}/namespaces/public/listed")
    assert http("PUT", f"{space}/plain", {"owner": "ops"}).status == 204
    assert http("PUT", f"{space}/plain", {"owner": "ops"}).status == 409
    assert http("PUT", f"{space}/wide/partitions", 2).status == 204
    assert http("PUT", f"{space}/wide/partitions", 2).status == 409
    assert http("PUT", f"{space}/odd/partitions", {"partitions": 1}).status == 204
    prefix = "persistent://public/listed"
    served = [f"{prefix}/{n}" for n in ("odd-partition-0", "plain", "wide-partition-0")]
    assert http("GET", space).body == [*served, f"{prefix}/wide-partition-1"]
    assert http("GET", f"{space}/partitioned").body == [f"{prefix}/odd", f"{prefix}/wide"]
    assert http("GET", f"{space}/plain/partitions").body == {"partitions": 0}
    assert http("GET", f"{space}/wide/partitions").body == {"partitions": 2}
    assert http("GET", f"{space}/plain/properties").body == {"owner": "ops"}
    listing = f"{V2}/namespaces/public/listed/topics"
    assert http("GET", listing).body == http("GET", f"{listing}?mode=ALL").body
    assert http("GET", f"{listing}?mode=NON_PERSISTENT").body == []
    assert http("GET", f"{listing}?mode=SOME").status == 400
    assert http("GET", f"{V2}/non-persistent/public/listed").body == []
    assert http("GET", f"{V2}/non-persistent/public/nowhere").status == 404
    assert http("GET", f"{V2}/persistent/public/nowhere").status == 404


def test_partition_metadata_creates_only_when_asked_to(http: Http) -> None:
    path = f"{TOPICS}/made-by-metadata/partitions"
    assert http("GET", path).status == 404
    assert http("GET", f"{path}?checkAllowAutoCreation=false").status == 404
    assert http("GET", f"{path}?checkAllowAutoCreation=true").body == {"partitions": 0}
    assert http("GET", path).status == 200


@pytest.mark.parametrize(
    ("body", "status"), [("2", 400), (True, 400), (None, 400), (0, 422), (-1, 422), (1 << 40, 422)]
)
def test_an_invalid_number_of_partitions_is_refused(http: Http, body: Any, status: int) -> None:
    assert http("PUT", f"{TOPICS}/senseless/partitions", body).status == status


def test_topics_grow_and_their_subscriptions_with_them(http: Http, client: pulsar.Client) -> None:
    topic = f"{TOPICS}/growing"
    http("PUT", f"{topic}/partitions", 1)
    assert http("PUT", f"{topic}/subscription/s").status == 204
    assert http("POST", f"{topic}/partitions", 3).status == 204
    assert http("POST", f"{topic}/partitions", 3).status == 204
    assert http("GET", f"{topic}/partitions").body == {"partitions": 3}
    publish(client, "growing-partition-2", b"early")
    assert backlog(http, "growing-partition-2", "s") == 1
    assert http("POST", f"{topic}/partitions", 2).status == 422
    http("PUT", f"{TOPICS}/fixed")
    assert http("POST", f"{TOPICS}/fixed/partitions", 2).status == 409
    assert http("POST", f"{TOPICS}/absent/partitions", 2).status == 404


def test_names_are_percent_encoded(http: Http, client: pulsar.Client) -> None:
    name, subscription = "ein Thema/mit:%41é", "a/b %2F?é"
    topic = f"{TOPICS}/{quote('ein Thema:%41é', safe='')}"
    assert http("PUT", f"{TOPICS}/{quote(name, safe='')}").status == 422
    assert http("PUT", topic).status == 204
    assert "persistent://public/default/ein Thema:%41é" in http("GET", TOPICS).body
    path = f"{topic}/subscription/{quote(subscription, safe='')}"
    assert http("PUT", path).status == 204
    assert http("GET", f"{topic}/subscriptions").body == [subscription]
    assert http("DELETE", path).status == 204
    assert http("DELETE", topic).status == 204


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", f"{TOPICS}/t-partition-3", 422),
        ("PUT", f"{V2}/persistent/pub%20lic/default/t", 422),
        ("GET", f"{V2}/nothing/here", 501),
        ("GET", "/nothing/here", 404),
        ("PATCH", f"{V2}/tenants/public", 405),
        ("DELETE", f"{TOPICS}/absent", 404),
        ("DELETE", f"{TOPICS}/absent/partitions", 404),
        ("GET", f"{TOPICS}/absent/stats", 404),
        ("PUT", f"{TOPICS}/absent/unload", 404),
        ("DELETE", f"{TOPICS}/absent?force=maybe", 400),
    ],
)
def test_refusals_name_the_reason(http: Http, method: str, path: str, status: int) -> None:
    refused = http(method, path)
    assert (refused.status, list(refused.body)) == (status, ["reason"])


def test_a_body_that_is_too_big_is_refused(http: Http) -> None:
    refused = http("PUT", f"{TOPICS}/big", raw=b"1" * (MAX_BODY + 1))
    assert refused.status == 413
    assert list(refused.body) == ["reason"]


@pytest.mark.parametrize("raw", [b'{"a": "\\ud800"}', b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_body_of_invalid_json_is_refused(http: Http, raw: bytes) -> None:
    refused = http("PUT", f"{TOPICS}/bad-body", raw=raw)
    assert (refused.status, list(refused.body)) == (400, ["reason"])


def test_stats_describe_the_topic(http: Http, client: pulsar.Client) -> None:
    http("PUT", f"{TOPICS}/told")
    producer = client.create_producer("told", "teller", batching_enabled=False)
    consumer = client.subscribe("told", "s", pulsar.ConsumerType.Shared, consumer_name="listener")
    for number in range(5):
        producer.send(b"%d" % number)
    consumer.acknowledge(consumer.receive(10_000))
    for _ in range(4):
        consumer.receive(10_000)
    consumer.redeliver_unacknowledged_messages()
    found = http("GET", f"{TOPICS}/told/stats").body
    assert [each["producerName"] for each in found["publishers"]] == ["teller"]
    assert found["numberOfEntries"] == 5
    assert found["storageSize"] > 0
    subscription = found["subscriptions"]["s"]
    assert subscription["type"] == "Shared"
    assert subscription["isDurable"] is True
    assert [each["consumerName"] for each in subscription["consumers"]] == ["listener"]
    internal = http("GET", f"{TOPICS}/told/internalStats").body
    assert internal["state"] == "LedgerOpened"
    assert sum(ledger["entries"] for ledger in internal["ledgers"]) == 5
    last = http("GET", f"{TOPICS}/told/lastMessageId").body
    assert internal["lastConfirmedEntry"] == f"{last['ledgerId']}:{last['entryId']}"
    assert last["entryId"] == 4
    producer.close()
    consumer.close()


def test_partitioned_stats_are_the_sum(http: Http, client: pulsar.Client) -> None:
    http("PUT", f"{TOPICS}/summed/partitions", 2)
    assert http("PUT", f"{TOPICS}/summed/subscription/s").status == 204
    publish(client, "summed-partition-0", b"1", b"2")
    publish(client, "summed-partition-1", b"3")
    found = http("GET", f"{TOPICS}/summed/partitioned-stats").body
    assert found["metadata"] == {"partitions": 2}
    assert found["subscriptions"]["s"]["msgBacklog"] == 3
    assert found["numberOfEntries"] == 3
    parts = found["partitions"]
    assert sum(part["storageSize"] for part in parts.values()) == found["storageSize"]
    first = parts["persistent://public/default/summed-partition-0"]
    assert first["subscriptions"]["s"]["msgBacklog"] == 2
    short = http("GET", f"{TOPICS}/summed/partitioned-stats?perPartition=false").body
    assert short["partitions"] == {}
    inside = http("GET", f"{TOPICS}/summed/partitioned-internalStats").body["partitions"]
    assert sorted(inside) == sorted(parts)
    assert http("GET", f"{TOPICS}/summed/stats").status == 405
    assert http("GET", f"{TOPICS}/summed/lastMessageId").status == 405
    assert http("GET", f"{TOPICS}/summed-partition-0/partitioned-stats").status == 404


def test_a_terminated_topic_refuses_messages(http: Http, client: pulsar.Client) -> None:
    http("PUT", f"{TOPICS}/ended/partitions", 2)
    publish(client, "ended-partition-1", b"last")
    last = http("POST", f"{TOPICS}/ended/terminate").body
    assert [last[number]["entryId"] for number in ("0", "1")] == [-1, 0]
    assert http("POST", f"{TOPICS}/ended/terminate/partitions").body == last
    with pytest.raises(pulsar.TopicTerminated):
        publish(client, "ended-partition-1", b"too late")
    assert http("GET", f"{TOPICS}/ended/partitioned-stats").body["terminated"] is True


def test_an_unloaded_topic_is_activated_by_its_next_use(
    http: Http, client: pulsar.Client, cluster: LocalCluster
) -> None:
    publish(client, "unloaded", b"kept")

    def runs() -> bool:
        return any(key.topic == "unloaded" for key in cluster.keys(ActorKind.PARTITION))

    assert runs()
    assert http("PUT", f"{TOPICS}/unloaded/unload").status == 204
    assert not runs()
    assert http("GET", f"{TOPICS}/unloaded/stats").body["numberOfEntries"] == 1


# -- subscriptions -----------------------------------------------------------------


def test_subscriptions_are_created_listed_and_deleted(http: Http, client: pulsar.Client) -> None:
    topic = f"{TOPICS}/subscribed"
    ids = publish(client, "subscribed", b"0", b"1", b"2")
    assert http("PUT", f"{topic}/subscription/end").status == 204
    assert http("PUT", f"{topic}/subscription/end").status == 409
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
    assert http("PUT", f"{topic}/subscription/start", EARLIEST).status == 204
    assert http("PUT", f"{topic}/subscription/late", latest).status == 204
    middle = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id()}
    body = {**middle, "properties": {"for": "tests"}}
    assert http("PUT", f"{topic}/subscription/middle", body).status == 204
    assert http("GET", f"{topic}/subscriptions").body == ["end", "late", "middle", "start"]
    found = http("GET", f"{topic}/stats").body["subscriptions"]
    assert {name: each["msgBacklog"] for name, each in found.items()} == {
        "end": 0,
        "late": 0,
        "middle": 2,
        "start": 3,
    }
    assert found["middle"]["subscriptionProperties"] == {"for": "tests"}
    assert http("DELETE", f"{topic}/subscription/end").status == 204
    assert http("DELETE", f"{topic}/subscription/end").status == 404
    assert http("PUT", f"{topic}/subscription/bad", {"ledgerId": "x", "entryId": 1}).status == 400


def test_an_invalid_age_is_refused(http: Http) -> None:
    topic = f"{TOPICS}/aged"
    http("PUT", topic)
    http("PUT", f"{topic}/subscription/s")
    for path in ("subscription/s", "all_subscription"):
        refused = http("POST", f"{topic}/{path}/expireMessages/{2**63 - 1}")
        assert refused.status == 400
        assert "seconds must be a whole number, at most 9223372036854775" in refused.body["reason"]
        assert http("POST", f"{topic}/{path}/expireMessages/{(2**63 - 1) // 1000}").status == 204


def test_a_subscription_with_consumers_is_deleted_only_by_force(
    http: Http, client: pulsar.Client
) -> None:
    topic = f"{TOPICS}/consumed"
    http("PUT", f"{topic}/partitions", 2)
    http("PUT", f"{topic}/subscription/s")
    assert http("PUT", f"{topic}/subscription/s/properties", {"made": "first"}).status == 204
    consumer = client.subscribe("consumed-partition-1", "s")
    refused = http("DELETE", f"{topic}/subscription/s")
    assert refused.status == 412
    assert "consumed-partition-1" in refused.body["reason"]
    assert http("GET", f"{TOPICS}/consumed-partition-0/subscriptions").body == ["s"]
    assert http("DELETE", f"{topic}/subscription/s?force=true").status == 204
    # The consumer may have subscribed again by now: then there is a new one of the same name.
    assert http("GET", f"{topic}/subscription/s/properties").body != {"made": "first"}
    consumer.close()


def test_a_repeated_deletion_continues_with_the_remaining_partitions(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_each = admin_subscriptions.ask_each

    async def twice(request: Any, target: Any, asked: Request[Any]) -> list[Any]:
        if isinstance(asked, DeleteSubscription):
            await ask_each(request, target, asked)
        return await ask_each(request, target, asked)

    topic = f"{TOPICS}/twice"
    http("PUT", f"{topic}/partitions", 2)
    http("PUT", f"{topic}/subscription/s")
    monkeypatch.setattr(admin_subscriptions, "ask_each", twice)
    assert http("DELETE", f"{topic}/subscription/s").status == 204
    for number in range(2):
        assert http("GET", f"{TOPICS}/twice-partition-{number}/subscriptions").body == []


def test_cursors_are_reset_by_id_and_time(http: Http, client: pulsar.Client) -> None:
    topic = f"{TOPICS}/sought"
    ids = publish(client, "sought", b"0", b"1", b"2", b"3")
    path = f"{topic}/subscription/s"
    http("PUT", path, EARLIEST)
    at = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id(), "partitionIndex": -1}
    assert http("POST", f"{path}/resetcursor", at).status == 204
    assert backlog(http, "sought", "s") == 3
    assert http("POST", f"{path}/resetcursor", {**at, "isExcluded": True}).status == 204
    assert backlog(http, "sought", "s") == 2
    assert http("POST", f"{path}/resetcursor/0").status == 204
    assert backlog(http, "sought", "s") == 4
    assert http("POST", f"{path}/resetcursor/{2**62}").status == 204
    assert backlog(http, "sought", "s") == 0
    assert http("POST", f"{path}/resetcursor", EARLIEST).status == 204
    assert backlog(http, "sought", "s") == 4
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "isExcluded": True}
    assert http("POST", f"{path}/resetcursor", latest).status == 204
    assert backlog(http, "sought", "s") == 0
    assert http("POST", f"{topic}/subscription/none/resetcursor/0").status == 404
    for bad in ("-1", "1.5", "soon", str(2**63)):
        assert http("POST", f"{path}/resetcursor/{bad}").status == 400
    assert http("POST", f"{path}/resetcursor").status == 400


def test_a_subscription_can_be_reset_before_its_start(http: Http, client: pulsar.Client) -> None:
    publish(client, "pre-start", b"0", b"1")
    path = f"{TOPICS}/pre-start/subscription/s"
    http("PUT", path)
    assert backlog(http, "pre-start", "s") == 0
    assert http("POST", f"{path}/resetcursor/0").status == 204
    assert backlog(http, "pre-start", "s") == 2


def test_a_reset_reaches_connected_consumers(http: Http, client: pulsar.Client) -> None:
    consumer = client.subscribe("rewound", "s", initial_position=pulsar.InitialPosition.Earliest)
    publish(client, "rewound", b"0", b"1")
    for _ in range(2):
        consumer.acknowledge(consumer.receive(10_000))
    assert http("POST", f"{TOPICS}/rewound/subscription/s/resetcursor/0").status == 204
    assert [consumer.receive(10_000).data() for _ in range(2)] == [b"0", b"1"]
    consumer.close()


def test_on_a_partitioned_topic_every_partition_is_reset_and_skipped(
    http: Http, client: pulsar.Client
) -> None:
    topic, path = f"{TOPICS}/fanned", f"{TOPICS}/fanned/subscription/s"
    http("PUT", f"{topic}/partitions", 2)
    (first, *_) = publish(client, "fanned-partition-0", b"0", b"1", b"2")
    publish(client, "fanned-partition-1", b"3", b"4", b"5")
    http("PUT", path, EARLIEST)

    def waiting() -> int:
        stats = http("GET", f"{topic}/partitioned-stats").body
        return stats["subscriptions"]["s"]["msgBacklog"]

    assert http("POST", f"{path}/resetcursor/{2**62}").status == 204
    assert waiting() == 0
    assert http("POST", f"{path}/resetcursor/0").status == 204
    assert waiting() == 6
    assert http("POST", f"{path}/skip/1").status == 204
    assert waiting() == 4
    at = {"ledgerId": first.ledger_id(), "entryId": first.entry_id(), "partitionIndex": 0}
    assert http("POST", f"{path}/resetcursor", at).status == 405
    one = f"{TOPICS}/fanned-partition-0/subscription/s"
    assert http("POST", f"{one}/resetcursor", at).status == 204
    assert waiting() == 5
    assert http("POST", f"{path}/skip_all").status == 204
    assert waiting() == 0
    assert http("POST", f"{path}/resetcursor", {"ledgerId": -1, "entryId": -1}).status == 204
    assert waiting() == 6
    assert http("GET", f"{path}/position/1").status == 405


def test_messages_are_skipped_by_number_or_completely(http: Http, client: pulsar.Client) -> None:
    path = f"{TOPICS}/skipped/subscription/s"
    client.subscribe("skipped", "s").close()
    publish(client, "skipped", *(b"%d" % number for number in range(5)))
    assert http("POST", f"{path}/skip/2").status == 204
    assert backlog(http, "skipped", "s") == 3
    assert http("POST", f"{path}/skip/9").status == 204
    assert backlog(http, "skipped", "s") == 0
    assert http("POST", f"{path}/skip/many").status == 400
    assert http("POST", f"{TOPICS}/skipped/subscription/none/skip_all").status == 404


def acknowledge_only(client: pulsar.Client, topic: str, number: int) -> None:
    """Acknowledge this one of the messages published to ``topic``, with subscription s."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    for _ in range(number):
        consumer.receive(10_000)
    consumer.acknowledge(consumer.receive(10_000))
    consumer.close()


def test_skipping_keeps_later_acknowledgements(http: Http, client: pulsar.Client) -> None:
    path = f"{TOPICS}/skipped-holes/subscription/s"
    client.subscribe("skipped-holes", "s").close()
    publish(client, "skipped-holes", *(b"%d" % number for number in range(5)))
    acknowledge_only(client, "skipped-holes", 3)
    assert backlog(http, "skipped-holes", "s") == 4
    assert http("POST", f"{path}/skip/2").status == 204
    assert backlog(http, "skipped-holes", "s") == 2


def test_peeking_skips_acknowledged_messages(http: Http, client: pulsar.Client) -> None:
    client.subscribe("peeked-holes", "s").close()
    publish(client, "peeked-holes", b"0", b"1", b"2")
    acknowledge_only(client, "peeked-holes", 1)
    path = f"{TOPICS}/peeked-holes/subscription/s/position"
    assert http("GET", f"{path}/2").body == b"2"


def test_a_message_is_peeked_with_its_properties(http: Http, client: pulsar.Client) -> None:
    client.subscribe("peeked", "s").close()
    producer = client.create_producer(
        "peeked", "peer", batching_enabled=False, compression_type=pulsar.CompressionType.ZSTD
    )
    producer.send(b"first " * 100, {"größe": "1\n2"}, partition_key="schlüssel", event_timestamp=7)
    producer.close()
    path = f"{TOPICS}/peeked/subscription/s/position"
    found = http("GET", f"{path}/1")
    assert (found.status, found.body) == (200, b"first " * 100)
    assert json.loads(found.headers["X-Pulsar-PROPERTY"]) == {"größe": "1\n2"}
    assert found.headers["X-Pulsar-partition-key"] == quote("schlüssel")
    assert found.headers["X-Pulsar-producer-name"] == "peer"
    assert found.headers["X-Pulsar-event-time"] == "1970-01-01T00:00:00.007Z"
    assert http("GET", f"{path}/2").status == 404
    assert http("GET", f"{path}/0").status == 400
    assert backlog(http, "peeked", "s") == 1


# -- deleting topics ---------------------------------------------------------------


def journals(cluster: LocalCluster, topic: str) -> list[str]:
    found = cluster.run(cluster.actor_system.store.list_journals())
    return [text for text in found if f"/{topic}/" in text]


def test_a_topic_with_clients_is_deleted_only_by_force(
    http: Http, client: pulsar.Client, cluster: LocalCluster
) -> None:
    producer = client.create_producer("clung-to")
    assert http("DELETE", f"{TOPICS}/clung-to").status == 412
    producer.close()
    consumer = client.subscribe("clung-to", "s")
    assert http("DELETE", f"{TOPICS}/clung-to").status == 412
    old = journals(cluster, "clung-to")
    assert len(old) == 2
    assert http("DELETE", f"{TOPICS}/clung-to?force=true").status == 204
    # The consumer may have connected again, which creates the topic anew.
    assert not set(old) & set(journals(cluster, "clung-to"))
    consumer.close()


def test_a_deleted_topic_leaves_nothing_to_its_successor(
    http: Http, client: pulsar.Client, cluster: LocalCluster
) -> None:
    http("PUT", f"{TOPICS}/reborn/partitions", 2)
    http("PUT", f"{TOPICS}/reborn/subscription/s")
    publish(client, "reborn", b"0", b"1", b"2")
    assert http("DELETE", f"{TOPICS}/reborn").status == 409
    assert http("DELETE", f"{TOPICS}/reborn/partitions").status == 204
    assert journals(cluster, "reborn") == []
    assert http("DELETE", f"{TOPICS}/reborn/partitions").status == 404
    http("PUT", f"{TOPICS}/reborn/partitions", 2)
    assert http("GET", f"{TOPICS}/reborn/subscriptions").body == []
    stats = http("GET", f"{TOPICS}/reborn/partitioned-stats").body
    assert stats["numberOfEntries"] == 0
    http("PUT", f"{TOPICS}/simple")
    assert http("DELETE", f"{TOPICS}/simple/partitions").status == 404


def decide_deletion(cluster: LocalCluster, topic: str) -> None:
    """Stop a deletion after its decision and one partition's journal."""
    arguments = {"topic": str(TopicName.parse(topic))}
    cluster.run(call_by_name(cluster.actor_system, ActorKey.catalog(), "delete_topic", arguments))
    partition = min(journals(cluster, topic))
    cluster.run(cluster.actor_system.dismiss(ActorKey.parse(partition)))
    cluster.run(cluster.actor_system.store.delete_journal(partition))


@pytest.mark.parametrize("reborn", [False, True])
def test_repeating_a_deletion_that_a_crash_interrupted_finishes_it(
    http: Http, client: pulsar.Client, cluster: LocalCluster, reborn: bool
) -> None:
    name = f"halved-{reborn}"
    client.subscribe(name, "s").close()
    client.subscribe(f"{name}-not", "s").close()
    decide_deletion(cluster, name)
    assert len(journals(cluster, name)) == 1
    if reborn:
        publish(client, name, b"of the successor")
    assert http("DELETE", f"{TOPICS}/{name}?force=true").status == 204
    assert journals(cluster, name) == []
    assert http("DELETE", f"{TOPICS}/{name}").status == 404
    assert len(journals(cluster, f"{name}-not")) == 2


def test_the_actors_of_a_deleted_topic_stop(
    http: Http, client: pulsar.Client, cluster: LocalCluster
) -> None:
    consumer = client.subscribe("stopped", "s")
    old = {key for key in cluster.actor_system.actors if key.topic == "stopped"}
    assert len(old) == 2
    assert http("DELETE", f"{TOPICS}/stopped?force=true").status == 204
    assert not old & cluster.actor_system.actors.keys()
    consumer.close()


def test_leftovers_of_a_deleted_topic_are_removed_without_touching_its_successor(
    http: Http, client: pulsar.Client, cluster: LocalCluster
) -> None:
    client.subscribe("phoenix", "s").close()
    topic = TopicName.parse("phoenix")
    cluster.run(
        call_by_name(
            cluster.actor_system, ActorKey.catalog(), "delete_topic", {"topic": str(topic)}
        )
    )
    old = journals(cluster, "phoenix")
    cluster.run(cluster.actor_system.dismiss(ActorKey.parse(min(old))))
    publish(client, "phoenix", b"alive")
    assert cluster.run(sweep_topic(cluster.actor_system, topic)) == 2
    (alive,) = journals(cluster, "phoenix")
    assert alive not in old
    assert http("GET", f"{TOPICS}/phoenix/stats").body["numberOfEntries"] == 1
    assert cluster.run(sweep_topic(cluster.actor_system, topic)) == 0


# -- tokens, and actors out of reach -----------------------------------------------


def test_with_authentication_every_request_needs_a_token(tmp_path: Path) -> None:
    secret = b"0123456789abcdef" * 2
    good = jwt.encode({"sub": "ops"}, secret, "HS256")
    forged = jwt.encode({"sub": "ops"}, b"x" * 32, "HS256")
    stale = jwt.encode({"sub": "ops", "exp": 1}, secret, "HS256")
    with LocalCluster(tmp_path, auth=AuthSettings(secret=secret)) as cluster:
        for token in ("", forged, stale, "junk"):
            for path in ("/tenants", "/brokers/health", "/nothing/here"):
                refused = Http(cluster.admin_url, token)("GET", f"{V2}{path}")
                assert (refused.status, list(refused.body)) == (401, ["reason"])
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            for path in ("/openapi.json", "/docs"):
                assert Http(cluster.admin_url, token)("GET", path).status == 401
        assert Http(cluster.admin_url, forged)("PUT", f"{TOPICS}/t").status == 401
        assert Http(cluster.admin_url, good)("PUT", f"{TOPICS}/t").status == 204


class NoActorSystem(ActorSystem):
    """A cluster none of whose actors can be reached."""

    async def address(self, key: ActorKey) -> Address:
        raise Unreachable(f"{key} is restarting")

    async def request(self, *args: Any, **options: Any) -> Any:
        raise Unreachable("could not call the catalog")

    async def dismiss(self, key: ActorKey) -> None:
        raise NotImplementedError

    async def survey(
        self, request: type[Request[Any]], timeout_s: float, keep: Any = None
    ) -> dict[ActorKey, Any]:
        raise NotImplementedError

    def fatal(self, actor: Activation, error: BaseException) -> None:
        raise NotImplementedError


def test_an_unreachable_actor_gives_a_retriable_error() -> None:
    async def ask() -> tuple[int, str, dict[str, str]]:
        config = ClusterConfig(data_dir="", incarnation=1, rpc_key=b"")
        app = admin_app(NoActorSystem(config, MemoryStore()))
        async with TestClient(TestServer(app)) as http:
            response = await http.get(f"{V2}/brokers/health")
            return response.status, response.headers["Retry-After"], await response.json()

    status, retry_after, body = asyncio.run(ask())
    assert (status, retry_after) == (503, "1")
    assert "could not call the catalog" in body["reason"]


def test_a_port_that_is_taken_is_an_error(cluster: LocalCluster) -> None:
    port = urlsplit(cluster.admin_url).port
    assert port is not None
    with pytest.raises(OSError, match=str(port)):
        cluster.run(serve_admin(cluster.actor_system, "127.0.0.1", port))

"""What Pulsar's tools send over HTTP: harmless defaults are taken, the rest is refused by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest

from tests.support.local_cluster import LocalCluster
from tests.topology.test_admin_api import EARLIEST, TOPICS, V2, Http, backlog, publish

NAMESPACES = f"{V2}/namespaces/public"
WHOLE = "0x00000000_0xffffffff"
# As `pulsar-admin namespaces create --clusters standalone` sends it.
NAMESPACE_DOCUMENT: dict[str, Any] = {
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "replication_clusters": ["standalone"],
    "allowed_clusters": [],
    "backlog_quota_map": {},
    "topicDispatchRate": {},
    "deleted": False,
    "encryption_required": False,
    "subscription_auth_mode": "None",
    "offload_threshold": -1,
    "schema_compatibility_strategy": "UNDEFINED",
    "subscription_types_enabled": [],
    "properties": {},
    "migrated": False,
    "clusterThatCanDeleteNamespace": "standalone",
}
CLUSTER_DOCUMENT = {
    "serviceUrl": "http://127.0.0.1:9",
    "brokerServiceUrl": "pulsar://127.0.0.1:9",
    "brokerClientTlsEnabled": False,
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}


@pytest.fixture(scope="module")
def http(cluster: LocalCluster) -> Http:
    return Http(cluster.admin_url)


def made(http: Http, name: str) -> str:
    """The path of a new topic."""
    assert http("PUT", f"{TOPICS}/{name}").status == 204
    return f"{TOPICS}/{name}"


# -- harmless defaults -------------------------------------------------------------


def test_a_cluster_is_created_and_updated_like_pulsar_admin_does(http: Http) -> None:
    path = f"{V2}/clusters/by-tool"
    assert http("PUT", path, CLUSTER_DOCUMENT).status == 204
    assert (
        http("POST", path, {**CLUSTER_DOCUMENT, "serviceUrl": "http://127.0.0.1:10"}).status == 204
    )
    assert http("GET", path).body["serviceUrl"] == "http://127.0.0.1:10"
    own = {**CLUSTER_DOCUMENT, "brokerClientSslFactoryPlugin": "mine"}
    refused = http("POST", path, own)
    assert refused.status == 422
    assert "brokerClientSslFactoryPlugin" in refused.body["reason"]
    assert http("DELETE", path).status == 204


def test_a_namespace_is_created_like_pulsar_admin_does(http: Http) -> None:
    path = f"{NAMESPACES}/by-tool"
    assert http("PUT", path, NAMESPACE_DOCUMENT).status == 204
    assert http("GET", f"{path}/replication").body == ["standalone"]
    elsewhere = {**NAMESPACE_DOCUMENT, "clusterThatCanDeleteNamespace": "elsewhere"}
    refused = http("PUT", f"{path}-2", elsewhere)
    assert refused.status == 422
    assert "clusterThatCanDeleteNamespace" in refused.body["reason"]
    assert http("GET", f"{path}-2").status == 404


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        (
            "replicatorDispatchRate",
            {
                "dispatchThrottlingRateInMsg": 10,
                "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": False,
                "ratePeriodInSecond": "1",
            },
            {
                "dispatchThrottlingRateInMsg": 10,
                "dispatchThrottlingRateInByte": -1,
                "ratePeriodInSecond": 1,
            },
        ),
        (
            "retention",
            {"retentionTimeInMinutes": "10", "retentionSizeInMB": "-1"},
            {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        ),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": "true", "topicType": "", "defaultNumPartitions": None},
            {"allowAutoTopicCreation": True},
        ),
        ("deduplication", "false", False),
        ("maxProducersPerTopic", "12", 12),
    ],
)
def test_values_without_effect_and_numbers_as_strings_are_accepted(
    http: Http, name: str, given: Any, kept: Any
) -> None:
    path = f"{NAMESPACES}/lenient"
    http("PUT", path)
    assert http("POST", f"{path}/{name}", given).status == 204
    assert http("GET", f"{path}/{name}").body == kept
    assert http("POST", f"{path}/{name}", raw=b"null").status == 204
    assert http("GET", f"{path}/{name}").status == 204


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        (
            "replicatorDispatchRate",
            {
                "dispatchThrottlingRateInMsg": 10,
                "dispatchThrottlingRateInByte": -1,
                "relativeToPublishRate": True,
            },
            "relativeToPublishRate, which velaray doesn't apply",
        ),
        ("retention", {"retentionTimeInMinutes": "ten", "retentionSizeInMB": 1}, "TimeInMinutes"),
        (
            "retention",
            {"retentionTimeInMinutes": "", "retentionSizeInMB": 1},
            "lacks",
        ),
    ],
)
def test_other_values_are_refused_by_name(http: Http, name: str, given: Any, named: str) -> None:
    refused = http("POST", f"{NAMESPACES}/default/{name}", given)
    assert refused.status == 422
    assert named in refused.body["reason"]
    assert http("GET", f"{NAMESPACES}/default/{name}").status == 204


@pytest.mark.parametrize(
    ("path", "harmless", "refused"),
    [
        ("deduplicationSnapshotInterval", None, 10),
        ("persistence", {}, {"bookkeeperEnsemble": 2}),
        ("subscribeRate", {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30},
         {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}),
        ("inactiveTopicPolicies", {"maxInactiveDurationSeconds": 60, "deleteWhileInactive": False},
         {"maxInactiveDurationSeconds": 60, "deleteWhileInactive": True}),
        ("entryFilters", {"entryFilterNames": ""}, {"entryFilterNames": "x"}),
        ("dispatcherPauseOnAckStatePersistent", False, True),
    ],
)  # fmt: skip
def test_policies_that_are_not_applied_are_never_stored(
    http: Http, path: str, harmless: Any, refused: Any
) -> None:
    http("PUT", f"{TOPICS}/unapplied")
    for base in (f"{NAMESPACES}/default", f"{TOPICS}/unapplied"):
        before = http("GET", f"{base}/{path}")
        assert before.status in (200, 204)
        assert http("POST", f"{base}/{path}", harmless).status == 204
        answered = http("POST", f"{base}/{path}", refused)
        assert answered.status == 501
        assert f"doesn't support the policy {path}" in answered.body["reason"]
        assert http("GET", f"{base}/{path}")[:2] == before[:2]
        assert http("DELETE", f"{base}/{path}").status == 204
        assert http("GET", f"{base.replace('default', 'absent')}/{path}").status == 404
        by_name = f"{base}/policies/{path}"
        assert http("GET", by_name)[:2] == before[:2]
        assert http("PUT", by_name, harmless).status == 204
        assert http("PUT", by_name, refused)[:2] == answered[:2]
        assert http("DELETE", by_name).status == 204


def test_the_name_of_a_resource_group_is_refused_as_text(http: Http) -> None:
    http("PUT", f"{TOPICS}/group")
    for path in (f"{NAMESPACES}/default/resourcegroup", f"{TOPICS}/group/resourceGroup"):
        answered = http("POST", path, raw=b"team")
        assert answered.status == 501
        assert "doesn't support the policy resourceGroup" in answered.body["reason"]


def test_policies_that_are_not_applied_are_described(http: Http) -> None:
    path = f"{V2}/namespaces/{{tenant}}/{{namespace}}/dispatcherPauseOnAckStatePersistent"
    found = http("GET", "/openapi.json").body["paths"][path]["post"]
    assert "It isn't applied: the state of acknowledgements is" in found["description"]
    body = found["requestBody"]["content"]["application/json"]["schema"]
    assert body["const"] is False


# -- brokers -----------------------------------------------------------------------


def test_routes_of_brokers_answer_pulsar_admin(http: Http, cluster: LocalCluster) -> None:
    host, brokers = urlsplit(cluster.admin_url).netloc, f"{V2}/brokers"
    assert http("GET", f"{brokers}/ready").body == b"ok"
    assert http("GET", f"{brokers}/version").body.startswith(b"velaray-")
    leader = {"brokerId": host, "serviceUrl": cluster.admin_url}
    assert http("GET", f"{brokers}/leaderBroker").body == leader
    settings = http("GET", f"{brokers}/configuration/runtime").body
    assert settings["clusterName"] == "standalone"
    assert settings["enableNonPersistentTopics"] == "false"
    assert all(isinstance(value, str) for value in settings.values())
    assert http("GET", f"{brokers}/configuration").body == []
    assert http("GET", f"{brokers}/configuration/values").body == {}
    assert http("GET", f"{brokers}/internal-configuration").status == 200
    assert http("GET", f"{brokers}/backlog-quota-check").status == 204
    owned = http("GET", f"{brokers}/standalone/{host}/ownedNamespaces").body
    assert f"public/default/{WHOLE}" in owned
    made(http, "reported")
    assert http("GET", f"{TOPICS}/reported/stats").status == 200
    topics = http("GET", f"{V2}/broker-stats/topics").body["public/default"][WHOLE]["persistent"]
    assert topics["persistent://public/default/reported"]["storageSize"] > 0
    assert http("GET", f"{V2}/broker-stats/load-report").body["numTopics"] >= 1
    assert (
        http("GET", f"{V2}/broker-stats/metrics").body[0]["dimensions"]["cluster"] == "standalone"
    )
    chosen = http(
        "GET", f"{V2}/broker-stats/metrics?names=pulsar_rate_in,velaray_actors_silent"
    ).body
    assert {name for row in chosen for name in row["metrics"]} == {
        "pulsar_rate_in",
        "velaray_actors_silent",
    }
    refused = http("GET", f"{V2}/broker-stats/metrics?names=pulsar_rate_of_typos")
    assert (refused.status, refused.body["reason"]) == (
        400,
        "there is no metric 'pulsar_rate_of_typos'",
    )


# -- refusals ----------------------------------------------------------------------

CHECKERS = f"{V2}/brokers/configuration/schemaRegistryCompatibilityCheckers/org.acme.Checker"


@pytest.mark.parametrize(
    ("method", "path", "feature"),
    [
        ("GET", f"{V2}/bookies/all", "BookKeeper"),
        ("GET", "/admin/v3/functions/public/default", "functions"),
        ("GET", "/admin/v3/sink/public/default", "connectors"),
        ("GET", "/admin/v3/packages/function/public/default", "packages"),
        ("GET", f"{V2}/resource-quotas", "resource quotas"),
        ("POST", f"{V2}/brokers/configuration/name/1", "dynamic configuration"),
        ("POST", CHECKERS, "AVRO, JSON, PROTOBUF_NATIVE and KEY_VALUE are built in"),
        ("POST", f"{V2}/brokers/shutdown", "velaray start"),
        ("GET", f"{V2}/broker-stats/mbeans", "Java"),
        ("DELETE", f"{TOPICS}/t/truncate", "truncating"),
        ("GET", "/admin/namespaces/public/standalone", "first admin interface"),
        ("GET", f"{V2}/non-persistent/public/default/t/stats", "non-persistent"),
        ("PUT", f"{V2}/non-persistent/public/default/t/partitions", "non-persistent"),
        ("GET", "/lookup/v2/topic/non-persistent/public/default/t", "non-persistent"),
        ("GET", f"/lookup/v2/topic/persistent/public/default/{'t' * 3}?listenerName=x", "listener"),
    ],
)
def test_unsupported_features_are_refused_by_name(
    http: Http, method: str, path: str, feature: str
) -> None:
    refused = http(method, path, {} if method != "GET" else None)
    assert refused.status == 501
    assert f"velaray doesn't support {method} {path.partition('?')[0]}" in refused.body["reason"]
    assert feature in refused.body["reason"]
    assert http("GET", f"{TOPICS}/ttt/stats").status == 404


def test_a_shadow_topic_is_refused_by_name(http: Http) -> None:
    source = {"PULSAR.SHADOW_SOURCE": "persistent://public/default/source"}
    for path, body in (
        (f"{TOPICS}/shadow", source),
        (f"{TOPICS}/shadow/partitions", {"partitions": 2, "properties": source}),
    ):
        refused = http("PUT", path, body)
        assert refused.status == 501
        assert "PULSAR.SHADOW_SOURCE" in refused.body["reason"]
    assert http("GET", f"{TOPICS}/shadow/stats").status == 404


def test_a_global_policy_is_not_applied_as_a_local_one(http: Http) -> None:
    path = made(http, "not-global")
    refused = http("POST", f"{path}/messageTTL?isGlobal=true&messageTTL=5")
    assert refused.status == 501
    assert "isGlobal" in refused.body["reason"]
    assert http("GET", f"{path}/messageTTL?isGlobal=true").status == 501
    assert http("GET", f"{path}/messageTTL").status == 204
    assert http("POST", f"{path}/messageTTL?isGlobal=false&messageTTL=5").status == 204
    assert http("GET", f"{path}/messageTTL").body == 5


def test_refusals_have_the_right_code_for_clients(cluster: LocalCluster) -> None:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(cluster.service_url, logger=quiet)
    named = pulsar.Client(cluster.service_url, listener_name="nowhere", logger=quiet)
    try:
        with pytest.raises(pulsar.NotAllowedError):
            client.create_producer("non-persistent://public/default/volatile")
        with pytest.raises(pulsar.NotAllowedError):
            client.subscribe("non-persistent://public/default/volatile", "s")
        with pytest.raises(pulsar.NotAllowedError):
            named.create_producer("public/default/by-listener")
    finally:
        client.close()
        named.close()


# -- reading -----------------------------------------------------------------------


def test_entries_are_read_by_id_by_number_and_by_time(http: Http, client: pulsar.Client) -> None:
    path = made(http, "read")
    ids = publish(client, "read", b"a", b"b", b"c")
    first = ids[0]
    found = http("GET", f"{path}/ledger/{first.ledger_id()}/entry/{first.entry_id()}")
    assert (found.body, found.headers["X-Pulsar-publish-time"][-1]) == (b"a", "Z")
    assert http("GET", f"{path}/ledger/{first.ledger_id()}/entry/77").status == 404
    look = f"{path}/examinemessage?initialPosition"
    assert http("GET", f"{look}=earliest&messagePosition=2").body == b"b"
    assert http("GET", f"{look}=latest&messagePosition=1").body == b"c"
    assert http("GET", f"{look}=latest&messagePosition=99").body == b"a"
    assert http("GET", f"{look}=somewhere").status == 412
    assert http("GET", f"{path}/messageid/0").body["entryId"] == first.entry_id()
    assert http("GET", f"{path}/messageid/{1 << 62}").body["entryId"] == ids[2].entry_id()
    at = {"ledgerId": first.ledger_id(), "entryId": first.entry_id()}
    assert http("PUT", f"{path}/backlogSize", at).body > 0
    assert http("GET", f"{path}/internal-info").body["ledgers"][0]["entries"] == 3
    empty = made(http, "read-nothing")
    assert http("GET", f"{empty}/examinemessage").status == 404


def test_a_backlog_is_analyzed_and_expired_up_to_an_id(http: Http, client: pulsar.Client) -> None:
    path = made(http, "analyzed")
    assert http("PUT", f"{path}/subscription/s", EARLIEST).status == 204
    ids = publish(client, "analyzed", b"a", b"b", b"c", b"d")
    found = http("POST", f"{path}/subscription/s/analyzeBacklog").body
    assert (found["entries"], found["messages"], found["aborted"]) == (4, 4, False)
    at = {"ledgerId": ids[1].ledger_id(), "entryId": ids[1].entry_id(), "excluded": True}
    assert http("POST", f"{path}/subscription/s/expireMessages", at).status == 204
    assert backlog(http, "analyzed", "s") == 3
    assert (
        http("POST", f"{path}/subscription/s/expireMessages", {**at, "excluded": False}).status
        == 204
    )
    assert backlog(http, "analyzed", "s") == 2
    # As the tools send it: the message itself is left out.
    assert http("POST", f"{path}/subscription/s/resetcursor", at).status == 204
    assert http("GET", f"{path}/subscription/s/position/1").body == b"c"


@pytest.mark.parametrize("partitions", [None, 2])
def test_properties_of_topics_are_changed(http: Http, partitions: int | None) -> None:
    path = f"{V2}/persistent/public/default/properties-of-{partitions}"
    if partitions is None:
        assert http("PUT", path, {"a": "1"}).status == 204
    else:
        given = {"partitions": partitions, "properties": {"a": "1"}}
        assert http("PUT", f"{path}/partitions", given).status == 204
    assert http("PUT", f"{path}/properties", {"a": "2", "b": "3"}).status == 204
    assert http("PUT", f"{path}/properties", {"c": "4"}).status == 204
    assert http("GET", f"{path}/properties").body == {"a": "2", "b": "3", "c": "4"}
    assert http("DELETE", f"{path}/properties?key=a").status == 204
    assert http("DELETE", f"{path}/properties?key=absent").status == 204
    assert http("GET", f"{path}/properties").body == {"b": "3", "c": "4"}
    assert http("DELETE", f"{path}/properties").status == 400
    assert http("PUT", f"{path}/properties", {"a": 1}).status == 400
    assert http("PUT", f"{V2}/persistent/public/default/absent/properties", {}).status == 404


def test_properties_of_subscriptions_and_namespaces_are_changed(http: Http) -> None:
    path = made(http, "with-properties")
    own = f"{path}/subscription/s"
    assert http("PUT", f"{own}?replicated=true", EARLIEST).status == 204
    assert http("PUT", f"{own}/properties", {"a": "1", "b": "2"}).status == 204
    assert http("PUT", f"{own}/properties", {"b": "3"}).status == 204
    assert http("GET", f"{own}/properties").body == {"b": "3"}
    assert list(http("GET", f"{own}/replicatedSubscriptionStatus").body.values()) == [True]
    assert http("GET", f"{path}/subscription/absent/properties").status == 404
    space = f"{NAMESPACES}/with-properties"
    assert http("PUT", space).status == 204
    assert http("PUT", f"{space}/property/k/v").status == 204
    assert http("PUT", f"{space}/properties", {"l": "w"}).status == 204
    assert http("GET", f"{space}/properties").body == {"k": "v", "l": "w"}
    assert http("DELETE", f"{space}/property/k").body == b"v"
    assert http("GET", f"{space}/property/k").status == 204
    assert http("DELETE", f"{space}/properties").status == 204
    assert http("GET", f"{space}/properties").body == {}


def test_operations_on_a_namespace_apply_to_all_its_topics(
    http: Http, client: pulsar.Client
) -> None:
    space = f"{NAMESPACES}/whole"
    assert http("PUT", space).status == 204
    assert http("GET", f"{space}/bundles").body == {
        "boundaries": ["0x00000000", "0xffffffff"],
        "numBundles": 1,
    }
    topic = f"{V2}/persistent/public/whole/t"
    assert http("PUT", f"{topic}/partitions", 2).status == 204
    for name in ("s", "r"):
        assert http("PUT", f"{topic}/subscription/{name}", EARLIEST).status == 204
    publish(client, "public/whole/t-partition-1", b"x")

    def left(name: str) -> int:
        found = http("GET", f"{topic}/partitioned-stats").body["subscriptions"]
        return found[name]["msgBacklog"]

    assert http("POST", f"{space}/clearBacklog/s").status == 204
    assert (left("s"), left("r")) == (0, 1)
    assert http("POST", f"{space}/{WHOLE}/clearBacklog").status == 204
    assert left("r") == 0
    assert http("POST", f"{space}/unsubscribe/r").status == 204
    assert http("GET", f"{topic}/subscriptions").body == ["s"]
    assert http("PUT", f"{space}/unload").status == 204
    assert http("PUT", f"{space}/0x00000000_0x7fffffff/unload").status == 404
    assert http("POST", f"{topic}/createMissedPartitions").status == 204
    assert http("POST", f"{topic}/trim").status == 204
    parts = http("GET", f"{topic}/internal-info").body["partitions"]
    assert sorted(parts) == [f"persistent://public/whole/t-partition-{n}" for n in (0, 1)]
    bundle = http("GET", "/lookup/v2/topic/persistent/public/whole/t/bundle")
    assert bundle.body == WHOLE.encode()


def test_all_policies_of_a_topic_are_removed_at_once(http: Http) -> None:
    path = made(http, "all-policies")
    assert http("POST", f"{path}/maxProducers", 3).status == 204
    assert http("POST", f"{path}/messageTTL?messageTTL=90").status == 204
    assert http("DELETE", f"{path}/policies").status == 204
    assert http("GET", f"{path}/policies").body == {}


def test_a_schema_strategy_has_an_older_name(http: Http) -> None:
    path = f"{NAMESPACES}/older-names"
    assert http("PUT", path).status == 204
    older = f"{path}/schemaAutoUpdateCompatibilityStrategy"
    assert http("GET", older).body == "Full"
    assert http("PUT", older, "AutoUpdateDisabled").status == 204
    assert http("GET", f"{path}/schemaCompatibilityStrategy").body == "ALWAYS_INCOMPATIBLE"
    assert http("PUT", older, "Sometimes").status == 422

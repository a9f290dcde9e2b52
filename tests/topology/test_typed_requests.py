"""Requests of the wrong shape are refused by name, by each kind of actor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.by_name import call_as_ray
from tests.support.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe
from velaray.broker.catalog.messages import (
    EnsureTopic,
    RegisterCluster,
    SetPolicy,
    Topic,
    UpdateTenant,
)
from velaray.broker.coordinator.messages import MayJoin
from velaray.broker.partition.messages import HasSubscription
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.geo.replication.messages import Replicated, Replication
from velaray.geo.replication.replicator_messages import Replicate, Status
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.messages import Request, method_of
from velaray.topology.rpc import RemoteError

TOPIC = TopicName.parse("t")
CATALOG = ActorKey.catalog()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def replicator(cluster: LocalCluster) -> ActorKey:
    """The actor of a running replicator to a cluster that doesn't answer."""
    own, topic = cluster.config.name, str(TopicName.parse("replicated"))
    for request in (
        RegisterCluster("b", "pulsar://127.0.0.1:1", "http://127.0.0.1:1"),
        UpdateTenant("public", (), (own, "b")),
        EnsureTopic(topic),
        SetPolicy("replication", json.dumps([own, "b"]).encode(), topic),
    ):
        cluster.run(cluster.actor_system.request(CATALOG, request))
    found = cluster.run(cluster.actor_system.request(CATALOG, Topic(topic)))
    partition = ActorKey.of_partition(TopicName.parse(topic), found["incarnation"])

    def connected() -> ActorKey | None:
        states = cluster.run(cluster.actor_system.request(partition, Replication()))
        running = cluster.keys(ActorKind.SUBSCRIPTION)
        return running[0] if running and states["b"]["state"] != "starting" else None

    return wait_until(connected)


def key_of(cluster: LocalCluster, kind: str) -> ActorKey:
    if kind == "catalog":
        return CATALOG
    if kind == "coordinator":
        return ActorKey.of_coordinator(0)
    ensure = EnsureTopic(str(TOPIC))
    found = cluster.run(cluster.actor_system.request(CATALOG, ensure))
    partition = ActorKey.of_partition(TOPIC, found["incarnation"])
    if kind == "partition":
        return partition
    if kind == "inbound replicator":
        return partition.of_inbound_replicator("b")
    return ActorKey.of_schema_registry(TOPIC, found["incarnation"])


@pytest.mark.parametrize(
    ("kind", "method", "args", "text"),
    [
        ("catalog", "ensure_topic", {}, "message EnsureTopic: field 'topic' is missing"),
        ("coordinator", "abort", {"sequence": "1"}, "message Abort, field sequence"),
        ("partition", "has_subscription", {"name": "s"}, "field 'incarnation' is missing"),
        ("partition", "append", {"size": 1}, "message Append: unknown field 'size'"),
        ("partition", "terminate", {"now": True}, "message Terminate: unknown field 'now'"),
        ("partition", "adopt_producers", {"rows": "p"}, "message AdoptProducers, field rows"),
        ("partition", "entry_at", {"position": [1, 2, 0]}, "message EntryAt, field position"),
        ("partition", "nth_entry", {"number": 1}, "field 'latest' is missing"),
        ("partition", "pending_at", {"name": "s", "position": [1, "0"]}, "field position[1]"),
        ("partition", "pending_acks", {"name": "s", "sequence": 1}, "its coordinator and sequence"),
        ("partition", "create_subscription", {"name": "s", "position": "end"}, "enum value 'end'"),
        ("partition", "delete_subscription", {"name": "s", "force": "no"}, "field force"),
        ("partition", "set_properties", {"name": "s", "properties": {"a": 1}}, "field properties"),
        ("partition", "seek", {"name": "s", "position": [1]}, "message Seek, field position"),
        ("partition", "seek", {"name": "s"}, "give a position or time_ms"),
        ("partition", "skip_to", {"name": "s", "offset": 1.5}, "message SkipTo, field offset"),
        ("partition", "undo", {"name": "s"}, "message Undo: field 'sequence' is missing"),
        ("partition", "peek", {"name": "s", "number": None}, "message Peek, field number"),
        ("partition", "fence", {"migration": "1"}, "message Fence, field migration"),
        ("partition", "take_progress", {"source": "b", "parts": [b"", 1]}, "field parts[1]"),
        ("partition", "foreign_waits", {"transaction": [1]}, "field transaction"),
        ("partition", "export_progress", {"subscription": "s"}, "field 'cluster' is missing"),
        ("partition", "name_participants", {"clusters": {"b": "t"}}, "'coordinator' is missing"),
        ("partition", "replication", {"cluster": "b"}, "Replication: unknown field 'cluster'"),
        ("inbound replicator", "pull", {"epoch": 1, "life": 1}, "Pull: field 'remote' is missing"),
        ("registry", "delete", {"through": None}, "message Delete, field through"),
    ],
)
def test_a_malformed_request_is_refused(
    cluster: LocalCluster, kind: str, method: str, args: dict[str, Any], text: str
) -> None:
    with pytest.raises(RemoteError) as refused:
        cluster.run(call_as_ray(cluster.actor_system, key_of(cluster, kind), method, args))
    assert refused.value.kind == Reason.INVALID
    assert text in refused.value.message


@pytest.mark.parametrize("kind", ["catalog", "coordinator", "inbound replicator", "registry"])
def test_an_actor_refuses_requests_of_another_kind(cluster: LocalCluster, kind: str) -> None:
    with pytest.raises(RemoteError, match="unknown message 'HasSubscription'") as refused:
        cluster.run(cluster.actor_system.request(key_of(cluster, kind), HasSubscription("s", 1)))
    assert refused.value.kind == Reason.INVALID


@pytest.mark.parametrize(
    "kind", ["catalog", "coordinator", "inbound replicator", "partition", "registry"]
)
def test_every_actor_describes_itself(cluster: LocalCluster, kind: str) -> None:
    key = key_of(cluster, kind)
    assert cluster.run(cluster.actor_system.request(key, Describe()))["key"] == key.text()


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Replicate("new", Remote("b", "pulsar://b:1")), "Replicate, field epoch"),
        (Replicate(1, Remote("b", None)), "Replicate, field remote.service_url"),
        (Replicated([1]), "unknown message 'Replicated'"),
    ],
)
def test_a_replicator_refuses_requests_of_the_wrong_shape(
    cluster: LocalCluster, replicator: ActorKey, request_: Request[None], text: str
) -> None:
    with pytest.raises(RemoteError) as refused:
        cluster.run(cluster.actor_system.request(replicator, request_))
    assert refused.value.kind == Reason.INVALID
    assert text in refused.value.message


def test_a_replicator_tells_everyone_its_status(
    cluster: LocalCluster, replicator: ActorKey
) -> None:
    ask = cluster.actor_system.request
    assert not cluster.run(ask(replicator, Status()))["connected"]
    assert not cluster.run(call_as_ray(cluster.actor_system, replicator, "status", {}))["connected"]
    assert not cluster.run(ask(replicator, Describe()))["replicator"]["connected"]


def test_requests_are_named_after_their_classes() -> None:
    assert [method_of(each) for each in (MayJoin, Describe)] == ["may_join", "describe"]

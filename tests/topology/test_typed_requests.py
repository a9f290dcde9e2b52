"""Requests of the wrong shape are refused by name, by each kind of actor."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.local_cluster import LocalCluster
from velaray.actors.machine import Reason
from velaray.broker.actor_messages import Describe
from velaray.broker.catalog.messages import EnsureTopic
from velaray.broker.coordinator.messages import MayJoin
from velaray.broker.partition.messages import HasSubscription
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.messages import method_of
from velaray.topology.rpc import RemoteError

TOPIC = TopicName.parse("t")
CATALOG = ActorKey.catalog()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


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
        ("registry", "delete", {"through": None}, "message Delete, field through"),
    ],
)
def test_a_malformed_request_is_refused(
    cluster: LocalCluster, kind: str, method: str, args: dict[str, Any], text: str
) -> None:
    with pytest.raises(RemoteError) as refused:
        cluster.run(cluster.actor_system.call(key_of(cluster, kind), method, args))
    assert refused.value.kind == Reason.INVALID
    assert text in refused.value.message


@pytest.mark.parametrize("kind", ["catalog", "coordinator", "registry"])
def test_an_actor_refuses_requests_of_another_kind(cluster: LocalCluster, kind: str) -> None:
    with pytest.raises(RemoteError, match="unknown message 'HasSubscription'") as refused:
        cluster.run(cluster.actor_system.request(key_of(cluster, kind), HasSubscription("s", 1)))
    assert refused.value.kind == Reason.INVALID


@pytest.mark.parametrize("kind", ["catalog", "coordinator", "partition", "registry"])
def test_every_actor_describes_itself(cluster: LocalCluster, kind: str) -> None:
    key = key_of(cluster, kind)
    assert cluster.run(cluster.actor_system.request(key, Describe()))["key"] == key.text()


def test_requests_are_named_after_their_classes() -> None:
    assert [method_of(each) for each in (MayJoin, Describe)] == ["may_join", "describe"]

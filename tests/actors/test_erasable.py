"""The catalog's rules about erasable namespaces."""

from __future__ import annotations

import pytest

from velaray.actors.catalog.machine import (
    CatalogMachine,
    CreateTopic,
    DeleteTopic,
    Done,
    RemovePolicy,
    SetPolicy,
)
from velaray.actors.catalog.migrations import BeginMigration
from velaray.actors.catalog.state import CLUSTER, Catalog, Scope
from velaray.actors.machine import Reason
from velaray.actors.testing import History, given
from velaray.events.events_pb2 import (
    ClusterRegistered,
    NamespaceCreated,
    PolicySet,
    TenantCreated,
)
from velaray.events.ids import TopicName

PEOPLE = Scope("public", "people")
TOPIC = TopicName.parse("persistent://public/people/t")
EXCLUDED = [
    ("compactionThreshold", b"1000"),
    ("deadLetter", b'{"maxRedeliverCount":3}'),
    ("replication", b'["here","there"]'),
    ("pullFrom", b'["there"]'),
]


def registered(name: str, *, own: bool = False) -> ClusterRegistered:
    url, admin = "pulsar://h:6650", "http://h:8080"
    return ClusterRegistered(name=name, service_url=url, admin_url=admin, own=own)


def started() -> History[Catalog]:
    return given(
        CatalogMachine(),
        registered("here", own=True),
        registered("there"),
        TenantCreated(tenant="public", allowed_clusters=["here", "there"]),
        NamespaceCreated(tenant="public", namespace="people"),
    )


def erasable() -> History[Catalog]:
    return (
        started()
        .when(SetPolicy(PEOPLE, "erasable", b'"key"'))
        .then(
            events=[
                PolicySet(tenant="public", namespace="people", name="erasable", value=b'"key"')
            ],
            reply=Done(True),
        )
    )


def test_the_policy_changes_only_while_there_are_no_topics() -> None:
    (
        erasable()
        .when(SetPolicy(PEOPLE, "erasable", b'"subject"'))
        .then(reply=Done(True))
        .when(CreateTopic(TOPIC))
        .when(SetPolicy(PEOPLE, "erasable", b'"subject"'))
        .then(reply=Done(False))
        .when(SetPolicy(PEOPLE, "erasable", b'"key"'))
        .then_refused(Reason.NOT_ALLOWED, "has topics")
        .when(RemovePolicy(PEOPLE, "erasable"))
        .then_refused(Reason.NOT_ALLOWED, "has topics")
        .when(DeleteTopic(TOPIC, window_ms=1000), 5)
        .when(RemovePolicy(PEOPLE, "erasable"), 6)
        .then_refused(Reason.NOT_ALLOWED, "aren't purged")
    )
    (
        erasable()
        .when(RemovePolicy(PEOPLE, "erasable"))
        .then(reply=Done(True))
        .when(CreateTopic(TOPIC))
        .when(SetPolicy(PEOPLE, "erasable", b'"none"'))
        .then(reply=Done(True))
    )


@pytest.mark.parametrize(("name", "value"), EXCLUDED)
def test_excluded_policies_are_refused_in_any_order(name: str, value: bytes) -> None:
    topic = Scope.of_topic(TOPIC)
    (
        erasable()
        .when(CreateTopic(TOPIC))
        .when(SetPolicy(PEOPLE, name, value))
        .then_refused(Reason.NOT_ALLOWED, f"policy {name}: namespace public/people is erasable")
        .when(SetPolicy(topic, name, value))
        .then_refused(Reason.NOT_ALLOWED, "is erasable")
    )
    (
        started()
        .when(SetPolicy(PEOPLE, name, value))
        .then(reply=Done(True))
        .when(SetPolicy(PEOPLE, "erasable", b'"key"'))
        .then_refused(Reason.NOT_ALLOWED, f"policy {name} is in effect")
    )


def test_messages_of_an_erasable_namespace_cannot_be_required_to_be_encrypted() -> None:
    name = "encryptionRequired"
    refused = f"policy {name}: namespace public/people is erasable"
    (
        erasable()
        .when(SetPolicy(PEOPLE, name, b"true"))
        .then_refused(Reason.NOT_ALLOWED, refused)
        .when(SetPolicy(PEOPLE, name, b"false"))
        .then(reply=Done(True))
    )
    (
        started()
        .when(SetPolicy(PEOPLE, name, b"true"))
        .then(reply=Done(True))
        .when(SetPolicy(PEOPLE, "erasable", b'"key"'))
        .then_refused(Reason.NOT_ALLOWED, f"policy {name} is in effect")
    )


def test_a_policy_of_the_cluster_concerns_erasable_namespaces() -> None:
    (
        erasable()
        .when(SetPolicy(CLUSTER, "compactionThreshold", b"1"))
        .then_refused(Reason.NOT_ALLOWED, "public/people is erasable")
        .when(SetPolicy(CLUSTER, "compactionThreshold", b"0"))
        .then(reply=Done(True))
    )


def test_the_tenant_stays_here() -> None:
    move = BeginMigration("public", "there", found=("public",))
    erasable().when(move, 1).then_refused(Reason.NOT_ALLOWED, "public/people is erasable")

"""What the catalog's machine says of topics that are pulled from other clusters."""

from __future__ import annotations

from tests.actors.test_catalog import DEFAULT, FLIGHTS, created, policy_set, started
from tests.actors.test_clusters import THERE
from velaray.actors.catalog.clusters import DeleteCluster
from velaray.actors.catalog.inbound_replication import PULL_FROM, pulled_from, pulled_partitions
from velaray.actors.catalog.machine import Done, SetPolicy
from velaray.actors.catalog.state import Scope
from velaray.actors.machine import Reason

TOPIC = Scope.of_topic(FLIGHTS)
FROM_THERE = b'["there"]'


def test_only_registered_clusters_are_replicated_from() -> None:
    (
        started()
        .when(SetPolicy(DEFAULT, PULL_FROM, FROM_THERE))
        .then_refused(Reason.NOT_ALLOWED, "there")
        .when(SetPolicy(DEFAULT, PULL_FROM, b'["here"]'))
        .then_refused(Reason.NOT_ALLOWED, "here is this cluster")
        .when(SetPolicy(DEFAULT, PULL_FROM, b'"there"'))
        .then_refused(Reason.INVALID, "must be a list")
        .when(SetPolicy(DEFAULT, PULL_FROM, b"[]"))
        .then(events=[policy_set(DEFAULT, PULL_FROM, b"[]")], reply=Done(True))
    )


def test_a_cluster_that_is_replicated_from_cannot_be_deleted() -> None:
    (
        started(THERE, policy_set(DEFAULT, PULL_FROM, FROM_THERE))
        .when(DeleteCluster("there"))
        .then_refused(Reason.NOT_ALLOWED, f"policy pullFrom of {DEFAULT} names it")
    )


def test_the_nearest_policy_decides_inbound_replication() -> None:
    events = (THERE, policy_set(DEFAULT, PULL_FROM, FROM_THERE), created(FLIGHTS, 2))
    history = started(*events)
    history.then_state(lambda state: list(pulled_from(state, TOPIC)) == ["there"])
    history.then_state(lambda state: [key.partition for key in pulled_partitions(state)] == [0, 1])
    history = started(*events, policy_set(TOPIC, PULL_FROM, b"[]"))
    history.then_state(lambda state: pulled_from(state, TOPIC) == {})
    history.then_state(lambda state: pulled_partitions(state) == [])
    started().then_state(lambda state: pulled_partitions(state) == [])

"""Deleted topics: they can be had back while their window is open, and never by halves."""

from __future__ import annotations

from tests.actors.test_catalog import DEFAULT, FLIGHTS, created, policy_set, started
from velaray.actors.catalog.deleted_topics import (
    BeginPurge,
    EndPurge,
    UndeleteTopic,
    restorable_topics,
)
from velaray.actors.catalog.machine import (
    CreateNamespace,
    CreateTopic,
    DeleteNamespace,
    DeleteTopic,
    Done,
    Ensured,
)
from velaray.actors.catalog.state import (
    Catalog,
    DeletedTopic,
    Scope,
    Topic,
    find_topic,
    own_policies,
)
from velaray.actors.machine import Reason
from velaray.events.events_pb2 import (
    BurialBegun,
    NamespaceCreated,
    NamespaceDeleted,
    TopicBuried,
    TopicDeleted,
    TopicRestored,
)
from velaray.events.ids import TopicName

AT = 1_000_000
WINDOW = 60_000
DELETED = TopicDeleted(topic=str(FLIGHTS), restorable_until_ms=AT + WINDOW, deleted_ms=AT)
AT_ONCE = TopicDeleted(topic=str(FLIGHTS))
RETENTION = policy_set(Scope.of_topic(FLIGHTS), "messageTTL", b"60")


def lies(state: Catalog, incarnation: int = 1) -> bool:
    """Whether the topic is deleted and among the deleted topics."""
    return find_topic(state, FLIGHTS) is None and incarnation in state.deleted_topics


def test_a_topic_deleted_without_a_window_can_only_be_purged() -> None:
    (
        started(created())
        .when(DeleteTopic(FLIGHTS))
        .then(events=[AT_ONCE], reply=Done(True))
        .then_state(lies)
        .when(UndeleteTopic(FLIGHTS))
        .then_refused(Reason.NOT_FOUND)
        .when(BeginPurge(1))
        .then(events=[], reply=Done(False))
        .when(EndPurge(1))
        .then(events=[TopicBuried(incarnation=1)], reply=Done(True))
        .then_state(lambda state: not state.deleted_topics)
        .when(EndPurge(1))
        .then(events=[], reply=Done(False))
        .when(BeginPurge(1))
        .then(events=[], reply=Done(False))
    )


def test_an_undeleted_topic_has_its_partitions_properties_and_policies() -> None:
    topic = Topic(FLIGHTS, 4, 1, {"owner": "ana"})
    (
        started(created(partitions=4, owner="ana"), RETENTION)
        .when(DeleteTopic(FLIGHTS, window_ms=WINDOW), AT)
        .then(events=[DELETED], reply=Done(True))
        .then_state(lambda state: state.deleted_topics[1].topic == topic)
        .when(BeginPurge(1), AT)
        .then_refused(Reason.NOT_ALLOWED)
        .when(EndPurge(1), AT)
        .then_refused(Reason.NOT_ALLOWED)
        .when(UndeleteTopic(FLIGHTS), AT)
        .then(events=[TopicRestored(incarnation=1)], reply=Ensured(topic, created=True))
        .then_state(lambda state: own_policies(state, Scope.of_topic(FLIGHTS))["messageTTL"] == 60)
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.NOT_FOUND)
    )


def test_a_deleted_topic_can_only_be_purged_after_its_window() -> None:
    (
        started(created(), DELETED)
        .when(UndeleteTopic(FLIGHTS), AT + WINDOW)
        .then_refused(Reason.NOT_FOUND)
        .when(BeginPurge(1), AT + WINDOW)
        .then(events=[BurialBegun(incarnation=1)], reply=Done(True))
        .when(BeginPurge(1), AT + WINDOW)
        .then(events=[], reply=Done(False))
        .when(EndPurge(1), AT + WINDOW)
        .then(events=[TopicBuried(incarnation=1)])
    )


def test_a_topic_cannot_be_undeleted_after_its_purge_began_even_if_the_clock_goes_back() -> None:
    (
        started(created(), DELETED, BurialBegun(incarnation=1))
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.NOT_FOUND)
        .when(EndPurge(1), AT)
        .then(events=[TopicBuried(incarnation=1)])
    )


def test_a_topic_is_not_undeleted_over_a_newer_one_of_its_name() -> None:
    (
        started(created(), DELETED, created(incarnation=2))
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.ALREADY_EXISTS)
        .when(DeleteTopic(FLIGHTS, window_ms=WINDOW), AT)
        .then(events=[DELETED])
        .when(UndeleteTopic(FLIGHTS), AT)
        .then(events=[TopicRestored(incarnation=2)])
        .then_state(lambda state: set(state.deleted_topics) == {1})
    )


def test_a_topic_is_not_undeleted_into_a_deleted_or_full_namespace() -> None:
    topic = TopicName.parse("other")
    (
        started(created(), DELETED)
        .when(DeleteNamespace(DEFAULT.tenant, DEFAULT.namespace), AT)
        .then(reply=Done(True))
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.NOT_FOUND)
    )
    (
        started(created(), DELETED, policy_set(DEFAULT, "maxTopicsPerNamespace", b"1"))
        .when(CreateTopic(topic), AT)
        .then(reply=Ensured(Topic(topic, 0, 2), created=True))
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.NOT_ALLOWED)
    )


def test_forced_deletion_of_a_namespace_deletes_its_topics_atomically() -> None:
    other = TopicName.parse("other")
    gone = NamespaceDeleted(tenant=DEFAULT.tenant, namespace=DEFAULT.namespace)
    back = NamespaceCreated(tenant=DEFAULT.tenant, namespace=DEFAULT.namespace)
    forced = DeleteNamespace(DEFAULT.tenant, DEFAULT.namespace, force=True, window_ms=WINDOW)
    (
        started(created(), RETENTION)
        .when(CreateTopic(other), AT)
        .when(DeleteNamespace(DEFAULT.tenant, DEFAULT.namespace), AT)
        .then_refused(Reason.NOT_EMPTY)
        .when(forced, AT)
        .then(
            events=[
                DELETED,
                TopicDeleted(topic=str(other), restorable_until_ms=AT + WINDOW, deleted_ms=AT),
                gone,
            ],
            reply=Done(True),
        )
        .then_state(lambda state: set(state.deleted_topics) == {1, 2})
        .when(UndeleteTopic(FLIGHTS), AT)
        .then_refused(Reason.NOT_FOUND)
        .when(CreateNamespace(DEFAULT.tenant, DEFAULT.namespace), AT)
        .then(events=[back], reply=Done(True))
        .when(UndeleteTopic(FLIGHTS), AT)
        .then(events=[TopicRestored(incarnation=1)])
        .then_state(lambda state: own_policies(state, Scope.of_topic(FLIGHTS))["messageTTL"] == 60)
    )


def test_deleted_topics_survive_a_checkpoint() -> None:
    (
        started(created(partitions=3), RETENTION, DELETED)
        .then_state(
            lambda state: (
                state.deleted_topics
                == {
                    1: DeletedTopic(
                        Topic(FLIGHTS, 3, 1), AT + WINDOW, False, {"messageTTL": b"60"}, AT
                    )
                }
            )
        )
        .when(UndeleteTopic(FLIGHTS), AT)
        .then(events=[TopicRestored(incarnation=1)])
    )


def restorable(state: Catalog, now_ms: int) -> list[int]:
    """The incarnations of the topics of the default namespace that can be restored."""
    found = restorable_topics(state, DEFAULT.tenant, DEFAULT.namespace, now_ms)
    return [each.topic.incarnation for each in found]


def test_the_newest_topic_of_a_name_is_restorable_while_its_window_is_open() -> None:
    (
        started(created(), DELETED, created(incarnation=2), DELETED)
        .then_state(lambda state: restorable(state, AT) == [2])
        .then_state(lambda state: restorable(state, AT + WINDOW - 1) == [2])
        .then_state(lambda state: restorable(state, AT + WINDOW) == [])
        .then_state(lambda state: restorable_topics(state, DEFAULT.tenant, "other", AT) == [])
    )
    (
        started(created(), DELETED, BurialBegun(incarnation=1)).then_state(
            lambda state: restorable(state, AT) == []
        )
    )


def test_topics_that_earlier_versions_deleted_have_no_time_of_deletion() -> None:
    earlier = TopicDeleted(topic=str(FLIGHTS), restorable_until_ms=AT + WINDOW)
    (
        started(created(), earlier)
        .then_state(lambda state: state.deleted_topics[1].deleted_ms == 0)
        .when(UndeleteTopic(FLIGHTS), AT)
        .then(events=[TopicRestored(incarnation=1)])
    )

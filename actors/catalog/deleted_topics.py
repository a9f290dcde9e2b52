"""Deleted topics that are still stored: rules of the catalog's machine.

A deleted topic is kept until no manifest lists its journals any more. A topic that was deleted with
a window can be restored whole until the window ends; then its purge begins, after which it can't.
The catalog decides both, so neither a clock nor a crash leaves half a topic.

Commands: `UndeleteTopic`, `BeginPurge`, `EndPurge`. Events: TopicRestored, BurialBegun,
TopicBuried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from velaray.actors.catalog.state import Catalog, DeletedTopic, Scope, Topic
from velaray.actors.machine import Decision, Reason, refuse
from velaray.events.events_pb2 import BurialBegun, TopicBuried, TopicDeleted, TopicRestored
from velaray.events.ids import TopicName


@dataclass(frozen=True, slots=True)
class UndeleteTopic:
    """Restore a deleted topic with everything in it. Replies `Ensured`.

    Refused NOT_FOUND if there is none whose window is open, ALREADY_EXISTS if there is a newer
    topic of the name.
    """

    topic: TopicName


@dataclass(frozen=True, slots=True)
class BeginPurge:
    """Begin to purge a deleted topic's journals; it can't be restored from now on. Replies `Done`,
    also if they are purged already. Refused NOT_ALLOWED while its window is open."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class EndPurge:
    """Confirm that no manifest lists a deleted topic's journals. Replies `Done`, also if that was
    known.

    Refused NOT_ALLOWED if its purge hasn't begun.
    """

    incarnation: int


def newest_deleted_topic(state: Catalog, name: TopicName, now_ms: int) -> DeletedTopic | None:
    """The restorable topic of a name that was deleted last."""
    found = restorable_topics(state, name.tenant, name.namespace, now_ms)
    return next((each for each in found if each.topic.name == name.topic), None)


def restorable_topics(
    state: Catalog, tenant: str, namespace: str, now_ms: int
) -> list[DeletedTopic]:
    """The topics of a namespace that can be restored, sorted by name; of each name the one that was
    deleted last."""
    found = {
        deleted_topic.topic.name: deleted_topic
        for _, deleted_topic in sorted(state.deleted_topics.items())
        if (deleted_topic.topic.name.tenant, deleted_topic.topic.name.namespace)
        == (tenant, namespace)
        and not deleted_topic.begun
        and now_ms < deleted_topic.until_ms
    }
    return [found[name] for name in sorted(found)]


def decide_begin(state: Catalog, command: BeginPurge, now_ms: int) -> Decision | None:
    """The decision on `BeginPurge`; None if the purge has begun or is over."""
    deleted_topic = state.deleted_topics.get(command.incarnation)
    if deleted_topic is None or deleted_topic.begun:
        return None
    if now_ms < deleted_topic.until_ms:
        left_s = (deleted_topic.until_ms - now_ms) / 1000
        return refuse(
            Reason.NOT_ALLOWED,
            f"topic {deleted_topic.topic.name} can be undeleted for {left_s:.0f} s more",
        )
    return Decision((BurialBegun(incarnation=command.incarnation),))


def decide_end(state: Catalog, command: EndPurge) -> Decision | None:
    """The decision on `EndPurge`; None if the purge has ended."""
    deleted_topic = state.deleted_topics.get(command.incarnation)
    if deleted_topic is None:
        return None
    if not deleted_topic.begun:
        return refuse(Reason.NOT_ALLOWED, f"the purge of {deleted_topic.topic.name} hasn't begun")
    return Decision((TopicBuried(incarnation=command.incarnation),))


def evolve_deleted(state: Catalog, event: TopicDeleted, topic: Topic) -> None:
    """Record a deleted topic."""
    policies = state.policies.pop(Scope.of_topic(topic.name), {})
    until_ms = event.restorable_until_ms
    state.deleted_topics[topic.incarnation] = DeletedTopic(
        topic, until_ms, not until_ms, policies, event.deleted_ms
    )


def evolve_restored(state: Catalog, event: TopicRestored) -> Topic:
    """Remove the record of a restored topic."""
    deleted_topic = state.deleted_topics.pop(event.incarnation)
    if deleted_topic.policies:
        state.policies[Scope.of_topic(deleted_topic.topic.name)] = dict(deleted_topic.policies)
    return deleted_topic.topic


def evolve_begun(state: Catalog, event: BurialBegun) -> None:
    """Record that a purge has begun."""
    deleted_topic = state.deleted_topics[event.incarnation]
    state.deleted_topics[event.incarnation] = replace(deleted_topic, begun=True)

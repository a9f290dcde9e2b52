"""Deleted topics that are still stored: rules of the catalog's machine.

A deleted topic lies in its grave until nothing lists its journals any more. If it was deleted with
a window, it can be had back whole until that is over; then its burial begins, after which it
can't. Both are decided here, so no clock and no crash makes for half a topic.

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
    """Have a deleted topic back with all it had. Replies `Ensured`.

    Refused NOT_FOUND if there is none whose window is open, ALREADY_EXISTS if there is a newer
    topic of the name.
    """

    topic: TopicName


@dataclass(frozen=True, slots=True)
class BeginPurge:
    """A deleted topic's journals are to go; it can't be had back from now on. Replies `Done`,
    also if they went already. Refused NOT_ALLOWED while its window is open."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class EndPurge:
    """Nothing lists a deleted topic's journals any more. Replies `Done`, also if that was known.

    Refused NOT_ALLOWED if its burial hasn't begun.
    """

    incarnation: int


def newest_grave(state: Catalog, name: TopicName, now_ms: int) -> DeletedTopic | None:
    """Of the deleted topics of a name that can be had back, the one that was deleted last."""
    found = [
        grave
        for grave in state.graves.values()
        if grave.topic.name == name.topic and not grave.begun and now_ms < grave.until_ms
    ]
    return max(found, key=lambda grave: grave.topic.incarnation, default=None)


def decide_begin(state: Catalog, command: BeginPurge, now_ms: int) -> Decision | None:
    """See `BeginPurge`; None if it has begun, or is over."""
    grave = state.graves.get(command.incarnation)
    if grave is None or grave.begun:
        return None
    if now_ms < grave.until_ms:
        left_s = (grave.until_ms - now_ms) / 1000
        return refuse(
            Reason.NOT_ALLOWED, f"topic {grave.topic.name} can be undeleted for {left_s:.0f} s more"
        )
    return Decision((BurialBegun(incarnation=command.incarnation),))


def decide_end(state: Catalog, command: EndPurge) -> Decision | None:
    """See `EndPurge`; None if it has ended."""
    grave = state.graves.get(command.incarnation)
    if grave is None:
        return None
    if not grave.begun:
        return refuse(Reason.NOT_ALLOWED, f"the burial of {grave.topic.name} hasn't begun")
    return Decision((TopicBuried(incarnation=command.incarnation),))


def evolve_deleted(state: Catalog, event: TopicDeleted, topic: Topic) -> None:
    """A topic was deleted: into its grave with it."""
    policies = state.policies.pop(Scope.of_topic(topic.name), {})
    until_ms = event.restorable_until_ms
    state.graves[topic.incarnation] = DeletedTopic(topic, until_ms, not until_ms, policies)


def evolve_restored(state: Catalog, event: TopicRestored) -> Topic:
    """A deleted topic is back."""
    grave = state.graves.pop(event.incarnation)
    if grave.policies:
        state.policies[Scope.of_topic(grave.topic.name)] = dict(grave.policies)
    return grave.topic


def evolve_begun(state: Catalog, event: BurialBegun) -> None:
    """A burial has begun."""
    grave = state.graves[event.incarnation]
    state.graves[event.incarnation] = replace(grave, begun=True)

"""Bugs of administration: topics, policies, subscriptions, terminations."""

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, do_nothing_async
from velaray.actors.catalog import machine as catalog
from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.catalog.policies import DEFAULTS
from velaray.actors.machine import Decision
from velaray.actors.partition import machine as partition
from velaray.broker.catalog import catalog_actor
from velaray.broker.catalog.messages import Serving
from velaray.broker.garbage_collection import topic_deletion
from velaray.broker.partition.subscription_deletion import SubscriptionDeletion
from velaray.events.events_pb2 import TopicCreated
from velaray.journal.memory import MemoryStore


def _without_events(original: Any) -> Any:
    """The answer says that it's done; nothing is journaled."""

    def decide(*arguments: Any) -> Decision:
        return Decision(reply=original(*arguments).reply)

    return decide


def _forget_policies(original: Any) -> Any:
    def restore(self: CatalogMachine, segments: Any) -> Any:
        state = original(self, segments)
        state.policies.clear()
        return state

    return restore


def _reuse_an_incarnation(original: Any) -> Any:
    def new_topic(*arguments: Any) -> Decision:
        decision: Decision = original(*arguments)
        for event in decision.events:
            if isinstance(event, TopicCreated) and event.incarnation > 1:
                event.incarnation -= 1
        return decision

    return new_topic


def _sweep_nothing(original: Any) -> Any:
    async def sweep(actor_system: Any, topic: Any) -> int:
        return 1

    return sweep


def _serve_deleted_topics(original: Any) -> Any:
    return {**original, Serving: lambda state, request: {"policies": DEFAULTS}}


MUTANTS: dict[str, Mutant] = {
    "do-not-journal-terminations": Mutant(
        "a termination is answered and not journaled",
        ((partition, "_terminate", _without_events),),
        within=300,
    ),
    "do-not-journal-deleted-subscriptions": Mutant(
        "the deletion of a subscription is answered and not journaled",
        ((partition, "_delete_subscription", _without_events),),
        within=100,
    ),
    "leave-half-deleted-subscriptions": Mutant(
        "a deletion that a crash interrupted isn't finished",
        ((SubscriptionDeletion, "_finish", do_nothing_async),),
        within=300,
    ),
    "keep-journals-of-the-deleted": Mutant(
        "deleted subscriptions and topics keep their journals",
        ((MemoryStore, "delete_journal", do_nothing_async),),
        within=100,
    ),
    "do-not-journal-deleted-topics": Mutant(
        "the deletion of a topic is answered and not journaled",
        ((catalog, "_delete_topic", _without_events),),
        within=100,
    ),
    "keep-data-of-deleted-topics": Mutant(
        "the deletion of a topic ends when it is decided",
        ((topic_deletion, "sweep_topic", _sweep_nothing),),
        within=100,
    ),
    "serve-deleted-topics": Mutant(
        "a partition of a deleted topic starts again",
        ((catalog_actor, "QUERIES", _serve_deleted_topics),),
        within=500,
    ),
    "reuse-an-incarnation": Mutant(
        "a new topic gets the number of the previous one",
        ((catalog, "_new_topic", _reuse_an_incarnation),),
        within=100,
    ),
    "lose-policies-on-recovery": Mutant(
        "a recovered catalog has no policies",
        ((CatalogMachine, "restore", _forget_policies),),
        within=50,
    ),
    "do-not-journal-added-partitions": Mutant(
        "added partitions are answered and not journaled",
        ((catalog, "_grow", _without_events),),
        within=100,
    ),
}

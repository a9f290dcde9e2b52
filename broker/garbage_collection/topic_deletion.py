"""Deleting a topic, so that no crash in between leaves it half there.

The deletion is decided by one event of the catalog. From that event on nobody finds the topic, and
a new one of its name has another incarnation, so what is left of the old one can't be mistaken for
the new one's. It lies in its grave (`velaray.actors.catalog.deleted_topics`) then: at once, or when
its window is over, it is buried. Its actors are stopped, their journals are unlisted, and their
ledgers deleted one by one (`velaray.broker.garbage_collection.deletion`). All that can be repeated;
the catalog does so by itself until it is done. Before the first event, a crash changed nothing.
"""

from __future__ import annotations

from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.garbage_collection.deletion import purge_journal
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

_KINDS = (
    # A subscription's new journal is kept only if a partition that still holds its own says so:
    # once the partitions' journals are gone, all that is still to come deletes itself.
    ActorKind.PARTITION,
    ActorKind.SUBSCRIPTION,
    ActorKind.SCHEMA_REGISTRY,
    ActorKind.COMPACTED,
)


async def delete_topic(actor_system: ActorSystem, topic: TopicName, *, force: bool) -> None:
    """Delete a topic with all its partitions, subscriptions and messages.

    Raises `RemoteError`: NOT_FOUND if neither the topic nor leftovers of one are there, BUSY
    if clients are connected and ``force`` is false (nothing was changed). After any other
    error the deletion may have been decided: repeat the call until it succeeds or answers
    NOT_FOUND, or leave the rest to the catalog. Success means that nothing lists anything of the
    topic; what is stored of it will be deleted. With a window (``undelete_s`` of the cluster) it
    means that nobody finds it, and it is buried when the window is over.

    What clients that are still connected publish after the decision goes with the topic,
    although they got receipts for it.
    """
    found = await _find(actor_system, topic)
    if found is not None:
        if not force:
            await _refuse_if_connected(actor_system, topic, found)
        await actor_system.call(
            ActorKey.catalog(),
            "delete_topic",
            {
                "topic": str(topic),
                "incarnation": found["incarnation"],
                "window_ms": round(actor_system.config.undelete_s * 1000),
            },
        )
        if actor_system.config.undelete_s:
            await stop_topic(actor_system, topic, found["incarnation"])
            return
    swept = await sweep_topic(actor_system, topic)
    if found is None and not swept:
        raise RemoteError(Reason.NOT_FOUND, f"no topic {topic}")


async def delete_namespace(actor_system: ActorSystem, namespace: str, *, force: bool) -> None:
    """Delete ``tenant/namespace`` and, with ``force``, all topics in it, whoever is connected.

    One decision of the catalog; what follows is as with `delete_topic`, for each of the topics.
    Raises `RemoteError`: NOT_FOUND if there is no such namespace, NOT_EMPTY for one with topics
    unless ``force``. After any other error it may have been decided; the catalog does the rest.
    """
    tenant, name = namespace.split("/")
    args = {
        "namespace": namespace,
        "force": force,
        "window_ms": round(actor_system.config.undelete_s * 1000),
    }
    await actor_system.call(ActorKey.catalog(), "delete_namespace", args)
    for deleted_topic in await actor_system.call(ActorKey.catalog(), "graves", {}):
        topic = TopicName.parse(deleted_topic["topic"])
        if (topic.tenant, topic.namespace) != (tenant, name):
            continue
        if deleted_topic["due"]:
            await sweep_topic(actor_system, topic)
        else:
            await stop_topic(actor_system, topic, deleted_topic["incarnation"])


async def stop_topic(actor_system: ActorSystem, topic: TopicName, incarnation: int) -> None:
    """Stop the actors of a deleted topic in good order. Nobody activates them again."""
    for kind in _KINDS:
        for key in await _stored(actor_system, topic, kind):
            if key.topic_incarnation == incarnation and kind is not ActorKind.COMPACTED:
                await actor_system.dismiss(key)


async def sweep_topic(actor_system: ActorSystem, topic: TopicName) -> int:
    """Stop and bury what is left of deleted topics of this name; returns how many journals.

    A topic of this name that exists, or that can be undeleted, is left alone.
    """
    deleted_topics = await actor_system.call(ActorKey.catalog(), "graves", {"topic": str(topic)})
    for deleted_topic in deleted_topics:
        if deleted_topic["due"]:
            await actor_system.call(
                ActorKey.catalog(), "begin_burial", {"incarnation": deleted_topic["incarnation"]}
            )
    swept = 0
    for kind in _KINDS:
        swept += await _sweep_kind(actor_system, topic, kind)
    for deleted_topic in deleted_topics:
        if deleted_topic["due"]:
            await actor_system.call(
                ActorKey.catalog(), "end_burial", {"incarnation": deleted_topic["incarnation"]}
            )
    return swept


async def _sweep_kind(actor_system: ActorSystem, topic: TopicName, kind: ActorKind) -> int:
    # First what is stored, then what exists: a topic that is created in between isn't in the
    # list, and incarnations never come back but by being undeleted, which the catalog says.
    stored = await _stored(actor_system, topic, kind)
    if not stored:
        return 0
    deleted_topics = await actor_system.call(ActorKey.catalog(), "graves", {"topic": str(topic)})
    kept = {
        deleted_topic["incarnation"]
        for deleted_topic in deleted_topics
        if not deleted_topic["begun"]
    }
    found = await _find(actor_system, topic)
    if found is not None:
        kept.add(found["incarnation"])
    dead = [key for key in stored if key.topic_incarnation not in kept]
    if kind is not ActorKind.COMPACTED:
        for key in dead:
            await actor_system.dismiss(key)
    for key in dead:
        await purge_journal(actor_system, key)
    return len(dead)


async def _find(actor_system: ActorSystem, topic: TopicName) -> dict[str, Any] | None:
    try:
        return dict(await actor_system.call(ActorKey.catalog(), "topic", {"topic": str(topic)}))
    except RemoteError as error:
        if error.kind == Reason.NOT_FOUND:
            return None
        raise


async def _stored(actor_system: ActorSystem, topic: TopicName, kind: ActorKind) -> list[ActorKey]:
    """The actors of topics of this name that have a journal."""
    prefix = f"{kind}/{'/'.join(ActorKey.of_partition(topic, 0).text().split('/')[1:4])}/"
    journals = await actor_system.store.list_journals()
    return [ActorKey.parse(text) for text in journals if text.startswith(prefix)]


async def _refuse_if_connected(
    actor_system: ActorSystem, topic: TopicName, found: dict[str, Any]
) -> None:
    for key in ActorKey.of_partitions(topic, found["incarnation"], found["partitions"]):
        stats = await actor_system.call(key, "stats")
        consumers = sum(len(each["consumers"]) for each in stats["subscriptions"].values())
        if stats["producers"] or consumers:
            raise RemoteError(
                Reason.BUSY,
                f"{key.topic_name} has {len(stats['producers'])} connected producers "
                f"and {consumers} connected consumers: close them, or delete with force",
            )

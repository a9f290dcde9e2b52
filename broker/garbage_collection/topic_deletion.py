"""Deletion of topics, safe against crashes at any point.

One event of the catalog decides the deletion. From then on look-ups don't find the topic. A new
topic of its name has another incarnation, so the remains of the old one can't be mistaken for it.
The catalog keeps the deleted topic (`velaray.actors.catalog.deleted_topics`) until its purge, which
begins at once, or at the end of its window. The purge stops the topic's actors, drops their ledgers
from the manifests, and enqueues the deletion of each
(`velaray.broker.garbage_collection.deletion`). Every step can be repeated; the catalog repeats them
until the purge is complete. A crash before the first event changes nothing.
"""

from __future__ import annotations

from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as catalog_messages
from velaray.broker.garbage_collection.deletion import purge_journal
from velaray.broker.partition.messages import Stats
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

_KINDS = (
    # A subscription's new journal is kept only if a partition with a journal confirms the
    # subscription. So partitions come first: without their journals, later activations delete
    # themselves.
    ActorKind.PARTITION,
    ActorKind.SUBSCRIPTION,
    ActorKind.SCHEMA_REGISTRY,
    ActorKind.COMPACTED,
)


async def delete_topic(actor_system: ActorSystem, topic: TopicName, *, force: bool) -> None:
    """Delete a topic with all its partitions, subscriptions and messages.

    Raises `RemoteError`: NOT_FOUND if neither the topic nor remains of one exist, BUSY if clients
    are connected and ``force`` is false (nothing was changed). After any other error the deletion
    may have been decided: repeat the call until it succeeds or answers NOT_FOUND, or leave the rest
    to the catalog. Success means that no manifest lists anything of the topic; what is stored of it
    will be deleted. With a window (``undelete_s`` of the cluster) it means that look-ups don't find
    the topic, and that its purge begins at the end of the window.

    Messages that connected clients publish after the decision are deleted with the topic, although
    the clients got receipts for them.
    """
    found = await _find(actor_system, topic)
    if found is not None:
        if not force:
            await _refuse_if_connected(actor_system, topic, found)
        window_ms = round(actor_system.config.undelete_s * 1000)
        delete = catalog_messages.DeleteTopic(str(topic), found["incarnation"], window_ms)
        await actor_system.request(ActorKey.catalog(), delete)
        if actor_system.config.undelete_s:
            await stop_topic(actor_system, topic, found["incarnation"])
            return
    swept = await sweep_topic(actor_system, topic)
    if found is None and not swept:
        raise RemoteError(Reason.NOT_FOUND, f"no topic {topic}")


async def delete_namespace(actor_system: ActorSystem, namespace: str, *, force: bool) -> None:
    """Delete ``tenant/namespace`` and, with ``force``, all topics in it, even with connected
    clients.

    The catalog makes one decision; then each topic is purged as in `delete_topic`. Raises
    `RemoteError`: NOT_FOUND if there is no such namespace, NOT_EMPTY for one with topics unless
    ``force``. After any other error it may have been decided; then the catalog does the rest.
    """
    tenant, name = namespace.split("/")
    window_ms = round(actor_system.config.undelete_s * 1000)
    delete = catalog_messages.DeleteNamespace(namespace, force, window_ms)
    await actor_system.request(ActorKey.catalog(), delete)
    deleted_topics = catalog_messages.DeletedTopics()
    for deleted_topic in await actor_system.request(ActorKey.catalog(), deleted_topics):
        topic = TopicName.parse(deleted_topic["topic"])
        if (topic.tenant, topic.namespace) != (tenant, name):
            continue
        if deleted_topic["due"]:
            await sweep_topic(actor_system, topic)
        else:
            await stop_topic(actor_system, topic, deleted_topic["incarnation"])


async def stop_topic(actor_system: ActorSystem, topic: TopicName, incarnation: int) -> None:
    """Stop the actors of a deleted topic in good order. They aren't activated again."""
    for kind in _KINDS:
        for key in await _stored(actor_system, topic, kind):
            if key.topic_incarnation == incarnation and kind is not ActorKind.COMPACTED:
                await actor_system.dismiss(key)


async def sweep_topic(actor_system: ActorSystem, topic: TopicName) -> int:
    """Stop and purge the remains of deleted topics of this name; returns the number of journals.

    A topic of this name that exists, or that can be undeleted, stays.
    """
    deleted_topics = await _deleted_topics(actor_system, topic)
    for deleted_topic in deleted_topics:
        if deleted_topic["due"]:
            begin = catalog_messages.BeginPurge(deleted_topic["incarnation"])
            await actor_system.request(ActorKey.catalog(), begin)
    swept = 0
    for kind in _KINDS:
        swept += await _sweep_kind(actor_system, topic, kind)
    for deleted_topic in deleted_topics:
        if deleted_topic["due"]:
            end = catalog_messages.EndPurge(deleted_topic["incarnation"])
            await actor_system.request(ActorKey.catalog(), end)
    return swept


async def _sweep_kind(actor_system: ActorSystem, topic: TopicName, kind: ActorKind) -> int:
    # Read what is stored first, then what exists: a topic that is created in between isn't in the
    # list. Incarnations return only by undeletion, which the catalog reports.
    stored = await _stored(actor_system, topic, kind)
    if not stored:
        return 0
    deleted_topics = await _deleted_topics(actor_system, topic)
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


async def _deleted_topics(actor_system: ActorSystem, topic: TopicName) -> list[dict[str, Any]]:
    request = catalog_messages.DeletedTopics(str(topic))
    return await actor_system.request(ActorKey.catalog(), request)


async def _find(actor_system: ActorSystem, topic: TopicName) -> dict[str, Any] | None:
    try:
        request = catalog_messages.Topic(str(topic))
        return await actor_system.request(ActorKey.catalog(), request)
    except RemoteError as error:
        if error.kind == Reason.NOT_FOUND:
            return None
        raise


async def _stored(actor_system: ActorSystem, topic: TopicName, kind: ActorKind) -> list[ActorKey]:
    """The actors of topics of this name that have a journal."""
    under = f"{kind}/{'/'.join(ActorKey.of_partition(topic, 0).text().split('/')[1:4])}"
    return list(map(ActorKey.parse, await actor_system.store.list_journals(under)))


async def _refuse_if_connected(
    actor_system: ActorSystem, topic: TopicName, found: dict[str, Any]
) -> None:
    for key in ActorKey.of_partitions(topic, found["incarnation"], found["partitions"]):
        stats = await actor_system.request(key, Stats())
        consumers = sum(len(each["consumers"]) for each in stats["subscriptions"].values())
        if stats["producers"] or consumers:
            raise RemoteError(
                Reason.BUSY,
                f"{key.topic_name} has {len(stats['producers'])} connected producers "
                f"and {consumers} connected consumers: close them, or delete with force",
            )

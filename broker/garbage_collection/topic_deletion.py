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
from velaray.broker.garbage_collection.deletion import bury_journal
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


async def delete_topic(fabric: ActorSystem, topic: TopicName, *, force: bool) -> None:
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
    found = await _find(fabric, topic)
    if found is not None:
        if not force:
            await _refuse_if_connected(fabric, topic, found)
        await fabric.call(
            ActorKey.catalog(),
            "delete_topic",
            {
                "topic": str(topic),
                "incarnation": found["incarnation"],
                "window_ms": round(fabric.config.undelete_s * 1000),
            },
        )
        if fabric.config.undelete_s:
            await stop_topic(fabric, topic, found["incarnation"])
            return
    swept = await sweep_topic(fabric, topic)
    if found is None and not swept:
        raise RemoteError(Reason.NOT_FOUND, f"no topic {topic}")


async def delete_namespace(fabric: ActorSystem, namespace: str, *, force: bool) -> None:
    """Delete ``tenant/namespace`` and, with ``force``, all topics in it, whoever is connected.

    One decision of the catalog; what follows is as with `delete_topic`, for each of the topics.
    Raises `RemoteError`: NOT_FOUND if there is no such namespace, NOT_EMPTY for one with topics
    unless ``force``. After any other error it may have been decided; the catalog does the rest.
    """
    tenant, name = namespace.split("/")
    args = {
        "namespace": namespace,
        "force": force,
        "window_ms": round(fabric.config.undelete_s * 1000),
    }
    await fabric.call(ActorKey.catalog(), "delete_namespace", args)
    for grave in await fabric.call(ActorKey.catalog(), "graves", {}):
        topic = TopicName.parse(grave["topic"])
        if (topic.tenant, topic.namespace) != (tenant, name):
            continue
        if grave["due"]:
            await sweep_topic(fabric, topic)
        else:
            await stop_topic(fabric, topic, grave["incarnation"])


async def stop_topic(fabric: ActorSystem, topic: TopicName, incarnation: int) -> None:
    """Stop the actors of a deleted topic in good order. Nobody activates them again."""
    for kind in _KINDS:
        for key in await _stored(fabric, topic, kind):
            if key.topic_incarnation == incarnation and kind is not ActorKind.COMPACTED:
                await fabric.dismiss(key)


async def sweep_topic(fabric: ActorSystem, topic: TopicName) -> int:
    """Stop and bury what is left of deleted topics of this name; returns how many journals.

    A topic of this name that exists, or that can be undeleted, is left alone.
    """
    graves = await fabric.call(ActorKey.catalog(), "graves", {"topic": str(topic)})
    for grave in graves:
        if grave["due"]:
            await fabric.call(
                ActorKey.catalog(), "begin_burial", {"incarnation": grave["incarnation"]}
            )
    swept = 0
    for kind in _KINDS:
        swept += await _sweep_kind(fabric, topic, kind)
    for grave in graves:
        if grave["due"]:
            await fabric.call(
                ActorKey.catalog(), "end_burial", {"incarnation": grave["incarnation"]}
            )
    return swept


async def _sweep_kind(fabric: ActorSystem, topic: TopicName, kind: ActorKind) -> int:
    # First what is stored, then what exists: a topic that is created in between isn't in the
    # list, and incarnations never come back but by being undeleted, which the catalog says.
    stored = await _stored(fabric, topic, kind)
    if not stored:
        return 0
    graves = await fabric.call(ActorKey.catalog(), "graves", {"topic": str(topic)})
    kept = {grave["incarnation"] for grave in graves if not grave["begun"]}
    found = await _find(fabric, topic)
    if found is not None:
        kept.add(found["incarnation"])
    dead = [key for key in stored if key.topic_incarnation not in kept]
    if kind is not ActorKind.COMPACTED:
        for key in dead:
            await fabric.dismiss(key)
    for key in dead:
        await bury_journal(fabric, key)
    return len(dead)


async def _find(fabric: ActorSystem, topic: TopicName) -> dict[str, Any] | None:
    try:
        return dict(await fabric.call(ActorKey.catalog(), "topic", {"topic": str(topic)}))
    except RemoteError as error:
        if error.kind == Reason.NOT_FOUND:
            return None
        raise


async def _stored(fabric: ActorSystem, topic: TopicName, kind: ActorKind) -> list[ActorKey]:
    """The actors of topics of this name that have a journal."""
    prefix = f"{kind}/{'/'.join(ActorKey.of_partition(topic, 0).text().split('/')[1:4])}/"
    journals = await fabric.store.list_journals()
    return [ActorKey.parse(text) for text in journals if text.startswith(prefix)]


async def _refuse_if_connected(
    fabric: ActorSystem, topic: TopicName, found: dict[str, Any]
) -> None:
    for key in ActorKey.of_partitions(topic, found["incarnation"], found["partitions"]):
        stats = await fabric.call(key, "stats")
        consumers = sum(len(each["consumers"]) for each in stats["subscriptions"].values())
        if stats["producers"] or consumers:
            raise RemoteError(
                Reason.BUSY,
                f"{key.topic_name} has {len(stats['producers'])} connected producers "
                f"and {consumers} connected consumers: close them, or delete with force",
            )

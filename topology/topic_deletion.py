"""Deleting a topic, so that no crash in between leaves it half there.

The deletion is decided by one event of the catalog; only then is anything destroyed. From
that event on nobody finds the topic any more, and a new one of its name has another
incarnation, so what is left of the old one can't be mistaken for the new one's. What follows
(stop its actors, delete their journals) can be repeated: a call that finds no topic but
leftovers of one finishes the job. Before the event, a crash changed nothing.
"""

from __future__ import annotations

from typing import Any

from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey, ActorKind, TopicName
from velaray.topology.fabric import Fabric
from velaray.topology.links import RemoteError


async def delete_topic(fabric: Fabric, topic: TopicName, *, force: bool) -> None:
    """Delete a topic with all its partitions, subscriptions and messages.

    Raises `RemoteError`: NOT_FOUND if neither the topic nor leftovers of one are there, BUSY
    if clients are connected and ``force`` is false (nothing was changed). After any other
    error the deletion may have been decided: repeat the call until it succeeds or answers
    NOT_FOUND. Success means that nothing of the topic is stored.

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
            {"topic": str(topic), "incarnation": found["incarnation"]},
        )
    swept = await sweep_topic(fabric, topic)
    if found is None and not swept:
        raise RemoteError(Reason.NOT_FOUND, f"no topic {topic}")


async def sweep_topic(fabric: Fabric, topic: TopicName) -> int:
    """Stop and delete what is left of deleted topics of this name; returns how many journals.

    A topic of this name that exists is left alone.
    """
    # A subscription's new journal is kept only if a partition that still holds its own says
    # so: once the partitions' journals are gone, all that is still to come deletes itself.
    swept = await _sweep_kind(fabric, topic, ActorKind.PARTITION)
    swept += await _sweep_kind(fabric, topic, ActorKind.SUBSCRIPTION)
    swept += await _sweep_kind(fabric, topic, ActorKind.SCHEMA_REGISTRY)
    return swept + await _sweep_kind(fabric, topic, ActorKind.COMPACTED)


async def _sweep_kind(fabric: Fabric, topic: TopicName, kind: ActorKind) -> int:
    # First what is stored, then what exists: a topic that is created in between isn't in the
    # list, and incarnations never come back, so nothing that lives can be taken for dead.
    stored = await _stored(fabric, topic, kind)
    if not stored:
        return 0
    found = await _find(fabric, topic)
    alive = None if found is None else found["incarnation"]
    dead = [key for key in stored if key.topic_incarnation != alive]
    if kind is not ActorKind.COMPACTED:
        for key in dead:
            await fabric.dismiss(key)
    for key in dead:
        await fabric.store.delete_journal(key.text())
    return len(dead)


async def _find(fabric: Fabric, topic: TopicName) -> dict[str, Any] | None:
    try:
        return dict(await fabric.call(ActorKey.catalog(), "topic", {"topic": str(topic)}))
    except RemoteError as error:
        if error.kind == Reason.NOT_FOUND:
            return None
        raise


async def _stored(fabric: Fabric, topic: TopicName, kind: ActorKind) -> list[ActorKey]:
    """The actors of topics of this name that have a journal."""
    prefix = f"{kind}/{'/'.join(ActorKey.of_partition(topic, 0).text().split('/')[1:4])}/"
    journals = await fabric.store.list_journals()
    return [ActorKey.parse(text) for text in journals if text.startswith(prefix)]


async def _refuse_if_connected(fabric: Fabric, topic: TopicName, found: dict[str, Any]) -> None:
    numbers = range(found["partitions"]) if found["partitions"] else (-1,)
    for number in numbers:
        key = ActorKey.of_partition(topic.of_partition(number), found["incarnation"])
        stats = await fabric.call(key, "stats")
        consumers = sum(len(each["consumers"]) for each in stats["subscriptions"].values())
        if stats["producers"] or consumers:
            raise RemoteError(
                Reason.BUSY,
                f"{topic.of_partition(number)} has {len(stats['producers'])} connected producers "
                f"and {consumers} connected consumers: close them, or delete with force",
            )

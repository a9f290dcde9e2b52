"""The first phase of ledger deletion: owners enqueue it before they drop ledgers from the manifest.

See `docs/decisions/0023-deletion-of-ledgers.md`. The deletion topics' own ledgers are deleted by
their owners, without an event: each event would lead to another ledger to delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from velaray.broker.garbage_collection.messages import EnqueueDeletion
from velaray.events.ids import ActorKey, TopicName
from velaray.journal.garbage_collection import dispose, purge
from velaray.journal.offload.tiered_store import TieredStore

if TYPE_CHECKING:
    from velaray.topology.actor_system import ActorSystem

EVENTS = TopicName.parse("persistent://pulsar/system/__ledger_deletion")
RETRY = TopicName.parse(f"{EVENTS}-RETRY")
DEAD = TopicName.parse(f"{EVENTS}-DLQ")
TOPICS = (EVENTS, RETRY, DEAD)
"""The topics of events: new ones, retried ones, and dead letters."""
WORKER = "ledger-deletion-worker"
"""The subscription of the garbage collectors."""
OPERATOR = "ledger-deletion-operator"
"""The subscription of `DEAD` that keeps dead letters until an operator handles them."""
SLOW_S = 1.0
"""After a longer wait between enqueueing a deletion and dropping its ledgers, it is enqueued again.

A ledger can't be deleted while a manifest lists it. Its event becomes a dead letter after some
attempts, so the first event may be used up by then.
"""

_OWN = {(topic.tenant, topic.namespace, topic.local) for topic in TOPICS}


def is_deletion_topic(topic: TopicName) -> bool:
    """Whether it is one of `TOPICS`, or a partition of one."""
    return (topic.tenant, topic.namespace, topic.local) in _OWN


def deletes_itself(actor_system: ActorSystem, key: ActorKey) -> bool:
    """Whether the owner of this journal deletes its ledgers itself, without an event."""
    return not actor_system.config.deleters or (key.tenant, key.namespace, key.topic) in _OWN


async def enqueue_deletion(
    actor_system: ActorSystem, key: ActorKey, ledger_ids: Sequence[int]
) -> None:
    """Enqueue the deletion of these ledgers of ``key``'s journal, once they aren't listed any more.

    All events are durable when it returns; repeating it does no harm. Raises `Unreachable`,
    `RemoteError`: then some may be enqueued.
    """
    if not ledger_ids or deletes_itself(actor_system, key):
        return
    collector = ActorKey.of_garbage_collector(
        crc32(key.text().encode()) % actor_system.config.deleters
    )
    await actor_system.request(collector, EnqueueDeletion(key.text(), list(ledger_ids)))


async def purge_journal(actor_system: ActorSystem, key: ActorKey) -> None:
    """Drop all ledgers of a deleted actor's journal from the manifest, and enqueue their deletion.

    Success means that no manifest lists any of them, and that everything stored will be deleted. It
    may be repeated after any failure. Raises what `enqueue_deletion` and `purge` raise.
    """

    enqueued: list[int] = []

    async def tell(ledger_ids: Sequence[int]) -> None:
        await enqueue_deletion(actor_system, key, ledger_ids)
        enqueued.extend(ledger_ids)

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await purge(actor_system.store, key.text(), tell)
    if loop.time() - began_s > SLOW_S:
        await enqueue_deletion(actor_system, key, enqueued)
    if deletes_itself(actor_system, key):
        store = actor_system.store
        stored = {*enqueued, *await store.list_ledgers(key.text())}
        if isinstance(store, TieredStore):  # an interrupted deletion left some there alone
            stored |= await store.archive.ledgers(key.text())
        for ledger_id in sorted(stored):
            await dispose(store, key.text(), ledger_id)

"""One entry: its messages, and its history in each subscription as a timeline."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from velaray.client.message_id import MessageId
from velaray.console.entries import Shown, messages_of
from velaray.console.messages import Schemas, ledgers_of, positions, read_entry
from velaray.console.pages import page
from velaray.console.parts import Part, part
from velaray.console.topics import full_name
from velaray.console.visit import FormError, Visit
from velaray.events.ids import EARLIEST, LATEST, Position, TopicName
from velaray.events.ids import MessageId as StoredId
from velaray.wire.replication import REPLICATOR_PREFIX

MOST_SUBSCRIPTIONS = 5
"""Timelines on a page, unless one subscription is chosen."""


class Story(NamedTuple):
    """The history of an entry in a subscription: its ``facts``, and its state ``now``."""

    subscription: str
    found: Part[dict[str, Any]]


async def _position(visit: Visit, partition: str, text: str) -> Position:
    """The position that a query names. Raises `FormError`, `InvalidMessageIdError`."""
    ends = {"earliest": EARLIEST, "latest": LATEST}
    if text not in ends:
        return StoredId.parse(text).position
    found = positions(await ledgers_of(visit, partition), ends[text], 1)
    if not found:
        raise FormError(f"{partition} holds no messages")
    return found[0]


async def _entry(visit: Visit, partition: str, at: Position) -> list[Shown]:
    answer = await read_entry(visit, partition, at)
    schemas = Schemas(visit, str(TopicName.parse(partition).topic))
    return messages_of(answer, await schemas.of(answer))


async def show(visit: Visit) -> web.Response:
    """The page of ``ledger:entry`` of a plain topic or a partition."""
    topic, text = full_name(visit.needed("topic")), visit.needed("id")
    name = TopicName.parse(topic)
    if text.count(":") == 2:  # ledger:entry:partition
        text, _, number = text.rpartition(":")
        if number.isdigit() and name.partition < 0:
            topic = str(name.of_partition(int(number)))
    if name.partition < 0 and topic == str(name) and await visit.admin.topics.partitions(topic):
        raise FormError("a message id belongs to one partition: open the partition's messages")
    at = await _position(visit, topic, text)
    names, entry, stats = await asyncio.gather(
        part(visit.admin.subscriptions(topic)),
        part(_entry(visit, topic, at)),
        part(visit.admin.topics.stats(topic)),
    )
    known = names.value or []
    chosen = visit.text("subscription")
    replicators = [REPLICATOR_PREFIX + each for each in (stats.value or {}).get("replication", ())]
    wanted = [chosen] if chosen else [*known[:MOST_SUBSCRIPTIONS], *replicators]
    id_of_it = MessageId(-1, at.ledger_id, at.entry_id)
    stories = await asyncio.gather(
        *(part(visit.admin.subscriptions.explain(topic, each, id_of_it)) for each in wanted)
    )
    return visit.render(
        "message.html",
        topic=topic,
        id=f"{at.ledger_id}:{at.entry_id}",
        entry=entry,
        known=known,
        chosen=chosen,
        stories=[Story(*each) for each in zip(wanted, stories, strict=True)],
        prefix=REPLICATOR_PREFIX,
        problem=names.problem,
    )


ROUTES = (("GET", "/console/message", page(show)),)

"""Dead letters: messages that consumers gave up, and deletions of ledgers that were given up."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, NamedTuple

from aiohttp import web

from velaray.console.attention import DEAD_LETTERS
from velaray.console.entries import Shown, raw_messages_of
from velaray.console.messages import ledgers_of, positions, read_entry
from velaray.console.pages import Outcome, change, page
from velaray.console.parts import Part, part
from velaray.console.topics import full_name, partition_names, topic_names
from velaray.console.visit import FormError, Visit, link
from velaray.events.ids import LATEST, MessageId
from velaray.wire.dead_letters import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_OLD,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
)

MOST_TOPICS = 50
NEWEST = 5
"""Dead letters of a topic that are shown."""
_MARKS = (ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID_OLD, REAL_SUBSCRIPTION, REAL_TOPIC)


class Letter(NamedTuple):
    """A dead letter: where it is, where it came from, and why, if its properties tell."""

    message: Shown
    topic: str
    origin: str
    origin_id: str
    subscription: str


class Row(NamedTuple):
    """A dead-letter topic: its statistics, and its newest letters."""

    topic: str
    stats: Part[dict[str, Any]]
    newest: Part[list[Letter]]


async def _newest(visit: Visit, topic: str, partitions: int) -> list[Letter]:
    found: list[Letter] = []
    for partition in partition_names(topic, partitions):
        ledgers = await ledgers_of(visit, partition)
        for at in reversed(positions(ledgers, LATEST, NEWEST)):
            answer = await read_entry(visit, partition, at)
            for message, _ in raw_messages_of(answer, None):
                told = message.properties
                origin_id = told.get(ORIGIN_MESSAGE_ID, "").strip("()")
                found.append(
                    Letter(
                        message,
                        partition,
                        told.get(REAL_TOPIC, ""),
                        ":".join(each.strip() for each in origin_id.split(",")[:2]),
                        told.get(REAL_SUBSCRIPTION, ""),
                    )
                )
    return sorted(found, key=lambda letter: letter.message.published, reverse=True)[:NEWEST]


async def show(visit: Visit) -> web.Response:
    """The page."""
    names, given_up = await asyncio.gather(topic_names(visit), part(visit.admin.ledgers.dead()))
    found = {name: count for name, count in names.items() if name.endswith(DEAD_LETTERS)}
    wanted = dict(list(found.items())[:MOST_TOPICS])
    stats, newest = await asyncio.gather(
        asyncio.gather(*(part(visit.admin.topics.stats(name)) for name in wanted)),
        asyncio.gather(*(part(_newest(visit, *each)) for each in wanted.items())),
    )
    rows = [Row(*each) for each in zip(wanted, stats, newest, strict=True)]
    return visit.render(
        "dead_letters.html", rows=rows, more=len(found) - len(rows), given_up=given_up
    )


async def republish(visit: Visit) -> Outcome:
    """Publish a copy of a dead letter to the topic that it came from. The letter stays."""
    topic = full_name(visit.needed("topic"))
    answer = await read_entry(visit, topic, MessageId.parse(visit.needed("id")).position)
    index = visit.number("index", 0)
    opened = raw_messages_of(answer, None)
    if index >= len(opened):
        raise FormError("the entry has no such message")
    message, value = opened[index]
    origin = message.properties.get(REAL_TOPIC)
    if not origin:
        raise FormError(f"the property {REAL_TOPIC} doesn't tell where the message came from")
    kept = {name: text for name, text in message.properties.items() if name not in _MARKS}
    sent = await visit.admin.topics.publish(
        origin,
        base64.b64encode(value).decode(),
        key=message.key or None,
        properties=kept,
        encoding="base64",
    )
    told = f"{sent.ledger_id()}:{sent.entry_id()}"
    return Outcome(link("dead-letters"), f"A copy is stored in {origin} as {told}")


def _ids(visit: Visit) -> list[str] | None:
    chosen = visit.text("id")
    return [chosen] if chosen else None


async def retry(visit: Visit) -> Outcome:
    """Retry deletions of ledgers that were given up."""
    count = await visit.admin.ledgers.retry_dead(_ids(visit))
    return Outcome(link("dead-letters"), f"{count} deletions are retried")


async def forget(visit: Visit) -> Outcome:
    """Remove deletions of ledgers that were given up from the list."""
    count = await visit.admin.ledgers.forget_dead(_ids(visit))
    return Outcome(link("dead-letters"), f"{count} deletions are forgotten")


ROUTES = (
    ("GET", "/console/dead-letters", page(show)),
    ("POST", "/console/dead-letters/republish", change(republish)),
    ("POST", "/console/dead-letters/retry", change(retry)),
    ("POST", "/console/dead-letters/forget", change(forget)),
)

"""The message browser: entries of a partition by id, time, key or property."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiohttp import web

from velaray.admin.topic_reads import ID_AT_TIME
from velaray.client.admin.connection import parsed
from velaray.client.admin.errors import NotFound
from velaray.client.admin.paths import of_topic
from velaray.client.admin.topics import READ_ENTRY
from velaray.client.admin.transports import Answer
from velaray.console.entries import Shown, messages_of
from velaray.console.pages import page
from velaray.console.parts import Part, part
from velaray.console.times import time_of
from velaray.console.topics import full_name, partition_names
from velaray.console.visit import Visit, link
from velaray.events.ids import EARLIEST, LATEST, MessageId, Position, TopicName

SHOWN = 20
"""Entries on a page."""
SCANNED = 400
"""Entries that a search by key or property reads at most."""
_AT_ONCE = 20


class Ledger(NamedTuple):
    """A ledger of a partition: its id, and how many entries it holds."""

    id: int
    entries: int


class Found(NamedTuple):
    """Messages, and the ids where the page before and the next one begin; "" if there is none."""

    messages: list[Shown]
    before: str
    after: str
    scanned: int


def positions(ledgers: Sequence[Ledger], start: Position, most: int) -> list[Position]:
    """The positions of entries from ``start`` on; of the last ones for ``LATEST``."""
    every = [ledger for ledger in ledgers if ledger.entries]
    if start == LATEST:
        found: list[Position] = []
        for ledger in reversed(every):
            first = max(ledger.entries - (most - len(found)), 0)
            found = [Position(ledger.id, n) for n in range(first, ledger.entries)] + found
            if len(found) >= most:
                break
        return found
    found = []
    for ledger in every:
        if ledger.id < start.ledger_id:
            continue
        first = start.entry_id if ledger.id == start.ledger_id else 0
        end = min(ledger.entries, first + most - len(found))
        found += [Position(ledger.id, n) for n in range(max(first, 0), end)]
        if len(found) >= most:
            break
    return found


def before(ledgers: Sequence[Ledger], start: Position, most: int) -> Position | None:
    """The position ``most`` entries before ``start``; None at the beginning."""
    earlier = [ledger for ledger in ledgers if ledger.entries and ledger.id <= start.ledger_id]
    left, found = most, None
    for ledger in reversed(earlier):
        end = start.entry_id if ledger.id == start.ledger_id else ledger.entries
        if end:
            found = Position(ledger.id, max(end - left, 0))
            left -= min(left, end)
        if not left:
            break
    return found


async def ledgers_of(visit: Visit, partition: str) -> list[Ledger]:
    """The ledgers of a partition, oldest first. Raises `AdminError`."""
    found = await visit.admin.topics.internal_stats(partition)
    return [Ledger(each["ledgerId"], each["entries"]) for each in found["ledgers"]]


async def read_entry(visit: Visit, partition: str, at: Position) -> Answer:
    """An entry. Raises `AdminError`."""
    variables = {**of_topic(partition), "ledger": at.ledger_id, "entry": at.entry_id}
    return await visit.connection.send("GET", READ_ENTRY.target(variables))


class Schemas:
    """The versions of a topic's schema, each read once for a page."""

    def __init__(self, visit: Visit, topic: str) -> None:
        self._visit = visit
        self._topic = topic
        self._known: dict[str, Mapping[str, Any] | None] = {}

    async def of(self, answer: Answer) -> Mapping[str, Any] | None:
        """The schema of an entry; None if it has none or if it isn't known."""
        version = answer.headers.get("x-velaray-schema-version", "")
        if version not in self._known:
            found = None
            if len(version) == 16:
                asked = self._visit.admin.schemas.get(self._topic, int(version, 16))
                found = (await part(asked)).value
            self._known[version] = found
        return self._known[version]


def is_wanted(message: Shown, key: str, words: str) -> bool:
    """Whether a message has this key, and this text in a property's name or value."""
    if key and message.key != key:
        return False
    told = (f"{name}={value}".lower() for name, value in message.properties.items())
    return not words or any(words.lower() in each for each in told)


async def search(visit: Visit, partition: str, start: Position, key: str, words: str) -> Found:
    """The messages from ``start`` on that are wanted. Raises `AdminError`."""
    ledgers = await ledgers_of(visit, partition)
    filtered = bool(key or words)
    every = positions(ledgers, start, SCANNED if filtered else SHOWN)
    schemas, found, read = Schemas(visit, str(TopicName.parse(partition).topic)), [], 0
    for at in range(0, len(every), _AT_ONCE):
        some = every[at : at + _AT_ONCE]
        answers = await asyncio.gather(*(read_entry(visit, partition, each) for each in some))
        read += len(some)
        for answer in answers:
            opened = messages_of(answer, await schemas.of(answer))
            found += [each for each in opened if is_wanted(each, key, words)]
        if filtered and len(found) >= SHOWN:
            break
    if not every:
        return Found([], "", "", 0)
    last = every[read - 1]
    following = positions(ledgers, Position(last.ledger_id, last.entry_id + 1), 1)
    earlier = before(ledgers, every[0], SHOWN)
    return Found(found, _id(earlier), _id(following[0] if following else None), read)


def _id(position: Position | None) -> str:
    return "" if position is None else f"{position.ledger_id}:{position.entry_id}"


async def start_of(visit: Visit, partition: str) -> Position:
    """Where the page begins, by its query. Raises `AdminError`, `FormError`,
    `InvalidMessageIdError`."""
    text, at = visit.text("id"), visit.text("time")
    if text == "earliest":
        return EARLIEST
    if text and text != "latest":
        return MessageId.parse(text).position
    if at and not text:
        variables = {**of_topic(partition), "timestamp": time_of(at)}
        found = parsed(await visit.connection.send("GET", ID_AT_TIME.target(variables)))
        return Position(found["ledgerId"], max(found["entryId"], 0))
    return LATEST


async def show(visit: Visit) -> web.Response:
    """The browser of a partition; of partition 0 for a partitioned topic."""
    topic = full_name(visit.needed("topic"))
    name = TopicName.parse(topic)
    count = await visit.admin.topics.partitions(str(name.topic))
    names = partition_names(str(name.topic), count)
    partition = topic if topic in names else names[0]
    key, words = visit.text("key"), visit.text("property")
    found: Part[Found] = Part(None)
    try:
        start = await start_of(visit, partition)
        found = await part(search(visit, partition, start, key, words))
    except NotFound as error:
        found = Part(None, str(error))
    return visit.render(
        "messages.html",
        topic=str(name.topic),
        partition=partition,
        names=names,
        found=found,
        key=key,
        words=words,
        id=visit.text("id"),
        time=visit.text("time"),
        page_link=lambda at: link("messages", topic=partition, id=at, key=key, property=words),
    )


ROUTES = (("GET", "/console/messages", page(show)),)

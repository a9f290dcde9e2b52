"""One topic: its partitions with their hosts, its clients, its subscriptions, a test message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.admin.stats import partitioned_stats
from velaray.client.admin.errors import PreconditionFailed
from velaray.client.message_id import MessageId
from velaray.console.pages import Outcome, change, page
from velaray.console.parts import Part, part
from velaray.console.topics import actor_search, full_name, partition_names
from velaray.console.visit import FormError, Visit, link
from velaray.events.ids import ActorKey, ActorKind, TopicName

MOST_PARTITIONS = 64
"""Partitions on a page."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its statistics, its host ("" if it has a process of its own), and the bytes of
    entries that it has in memory (None: not known)."""

    name: str
    stats: Part[dict[str, Any]]
    host: str
    node: str
    cached: float | None


async def hosts_of(visit: Visit) -> dict[str, tuple[str, str]]:
    """By partition, the host that runs it and the host's node; none if actors share no hosts."""
    try:
        found = await visit.admin.hosts()
    except PreconditionFailed:
        return {}
    placed = {}
    for host in found:
        for text in host["actors"]:
            key = ActorKey.parse(text)
            if key.kind is ActorKind.PARTITION:
                placed[str(key.topic_name)] = (host["name"], host["node"])
    return placed


async def partitions_of(visit: Visit, names: list[str]) -> list[Partition]:
    """Partitions with their statistics; one that doesn't answer says so."""
    stats, placed, survey = await asyncio.gather(
        asyncio.gather(*(part(visit.admin.topics.stats(name)) for name in names)),
        part(hosts_of(visit)),
        part(visit.surveys.survey(visit.token, visit.admin)),
    )
    where, metrics = placed.value or {}, survey.value.topics if survey.value is not None else {}
    made = []
    for name, found in zip(names, stats, strict=True):
        host, node = where.get(name, ("", ""))
        cached = metrics.get(name, {}).get("velaray_cached_bytes")
        made.append(Partition(name, found, host, node, cached))
    return made


def whole(partitions: list[Partition]) -> Mapping[str, Any] | None:
    """The statistics of all partitions that answered; None if none did."""
    known = {each.name: each.stats.value for each in partitions if each.stats.value is not None}
    return partitioned_stats(known) if known else None


async def show(visit: Visit) -> web.Response:
    """The page of a topic or of one partition."""
    topic = full_name(visit.needed("topic"))
    count = await visit.admin.topics.partitions(topic)
    names = partition_names(topic, count)
    partitions, schema = await asyncio.gather(
        partitions_of(visit, names[:MOST_PARTITIONS]), part(visit.admin.schemas(topic))
    )
    return visit.render(
        "topic.html",
        topic=topic,
        of=str(TopicName.parse(topic).topic),
        count=count,
        more=max(len(names) - MOST_PARTITIONS, 0),
        partitions=partitions,
        stats=whole(partitions),
        versions=schema.value or [],
        actors=actor_search("partition", topic),
    )


def properties_of(text: str) -> dict[str, str]:
    """Properties, written as one ``name=value`` a line. Raises `FormError`."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not (separator and name.strip()):
            raise FormError(f"write each property as name=value, not {line[:40]!r}")
        found[name.strip()] = value.strip()
    return found


async def publish(visit: Visit) -> Outcome:
    """Publish a test message."""
    topic = full_name(visit.needed("topic"))
    sent = await visit.admin.topics.publish(
        topic,
        visit.form.get("data", ""),
        key=visit.text("key") or None,
        properties=properties_of(visit.text("properties")),
    )
    told = f"{sent.ledger_id()}:{sent.entry_id()}"
    name = TopicName.parse(topic)
    if sent.partition() >= 0:
        topic = str(name.of_partition(sent.partition()))
    return Outcome(link("messages", topic=topic, id=told), f"The message is stored as {told}")


async def subscribe(visit: Visit) -> Outcome:
    """Create a subscription."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    start = MessageId.earliest if visit.text("start") == "earliest" else MessageId.latest
    await visit.admin.subscriptions.create(topic, name, start)
    return Outcome(link("subscription", topic=topic, name=name), f"{name} is created")


async def unload(visit: Visit) -> Outcome:
    """Stop the partitions' actors; the next use starts them again."""
    topic = full_name(visit.needed("topic"))
    await visit.admin.topics.unload(topic)
    return Outcome(link("topics", q=topic), f"{topic} is unloaded; its next use loads it")


ROUTES = (
    ("GET", "/console/topic", page(show)),
    ("POST", "/console/topic/publish", change(publish)),
    ("POST", "/console/topic/subscribe", change(subscribe)),
    ("POST", "/console/topic/unload", change(unload)),
)

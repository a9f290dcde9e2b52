"""The moves of a subscription's cursor by command, as its journals have them."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiohttp import web

from velaray.console.pages import page
from velaray.console.parts import part
from velaray.console.topics import full_name
from velaray.console.visit import Visit
from velaray.events.ids import ActorKey, ActorKind, TopicName

MOST_EVENTS = 1000
"""The newest events of a journal among which moves are looked for."""
MOST_PARTITIONS = 16


class Moved(NamedTuple):
    """A move: the subscription's actor in a partition, the event and its time, the command and its
    reason."""

    actor: str
    partition: str
    event: int
    at_ms: int
    what: str


async def actors_of(visit: Visit, topic: str, name: str) -> list[ActorKey]:
    """The actors of a subscription that have journals, the newest of each partition."""
    wanted, found = TopicName.parse(topic), dict[str, ActorKey]()
    of_topic = ActorKey.of_partition(wanted, 1).text().split("/")[1:4]
    for text in await visit.admin.actors("/".join([ActorKind.SUBSCRIPTION.value, *of_topic])):
        key = ActorKey.parse(text)
        if key.subscription == name and wanted in (key.topic_name, key.topic_name.topic):
            before = found.get(str(key.topic_name))
            if before is None or _age(before) < _age(key):
                found[str(key.topic_name)] = key
    return [found[each] for each in sorted(found)]


def _age(key: ActorKey) -> tuple[int, int]:
    return key.topic_incarnation, key.subscription_incarnation


async def moves_of(visit: Visit, key: ActorKey) -> list[Moved]:
    """The moves among the newest events of an actor's journal."""
    actor = key.text()
    now = await visit.admin.actors.state(actor)
    first = max(now["lastEvent"] - MOST_EVENTS + 1, now["firstEvent"])
    return [
        Moved(actor, str(key.topic_name), each["event"], each["atMs"], each["move"])
        for each in await visit.admin.actors.events(actor, first, MOST_EVENTS)
        if each["move"]
    ]


async def show(visit: Visit) -> web.Response:
    """The moves, newest first."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    keys = await actors_of(visit, topic, name)
    asked = await asyncio.gather(*(part(moves_of(visit, key)) for key in keys[:MOST_PARTITIONS]))
    moves = [move for found in asked for move in found.value or ()]
    return visit.render(
        "moves.html",
        topic=topic,
        name=name,
        moves=sorted(moves, key=lambda move: (-move.at_ms, -move.event)),
        problems=[found.problem for found in asked if found.value is None],
        more=max(len(keys) - MOST_PARTITIONS, 0),
        most=MOST_EVENTS,
    )


ROUTES = (("GET", "/console/subscription/moves", page(show)),)

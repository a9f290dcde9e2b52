"""One subscription: its cursor, its consumers, and the moves of its cursor, each with a preview."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.client.admin.errors import NotFound
from velaray.console.formats import counted, short, when
from velaray.console.pages import Choice, Outcome, ask, change, page
from velaray.console.parts import Part, part
from velaray.console.previews import MOVES, Move, apply, preview
from velaray.console.topics import actor_search, full_name
from velaray.console.visit import FormError, Visit, link
from velaray.events.ids import TopicName

WIDTH = 1000
"""Units of a bar's width."""
_CONNECTED = Choice(
    "force",
    "Connected consumers",
    (("", "refuse if consumers are connected"), ("1", "disconnect them")),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar: where it begins, its width, and its class."""

    at: float
    width: float
    kind: str
    title: str


def bar(found: Mapping[str, Any]) -> list[Piece]:
    """The cursor of a partition: acknowledged entries, entries at consumers, delayed ones, and the
    rest.

    It begins a little before the first unacknowledged entry and ends at the newest one.
    """
    acked_before, end = found["acked_before"], found["end_offset"]
    begin = max(acked_before - max((end - acked_before) // 8, 1), 0)
    span = max(end - begin, 1)

    def piece(first: int, last: int, kind: str, title: str) -> Piece:
        first, last = max(first, begin), min(last, end)
        at = (first - begin) * WIDTH / span
        return Piece(round(at, 2), round(max((last - first) * WIDTH / span, 1), 2), kind, title)

    pieces = [piece(begin, acked_before, "acked", f"acknowledged up to {found['mark_delete']}")]
    for each in found["first_delayed"]:
        title = f"delayed: {each['first']} to {each['last']}"
        pieces.append(piece(each["first_offset"], each["end_offset"], "delayed", title))
    for each in found["first_holes"]:
        title = f"acknowledged: {each['first']} to {each['last']}"
        pieces.append(piece(each["first_offset"], each["end_offset"], "acked", title))
    for consumer in found["consumers"]:
        for each in consumer["held"]:
            title = f"at {consumer['name']}: {each['first']} to {each['last']}"
            pieces.append(piece(each["first_offset"], each["end_offset"], "pending", title))
    return pieces if end > begin else []


def delayed_text(found: Mapping[str, Any]) -> str:
    """How many entries of a partition are delayed; "" if none is."""
    ranges = found["first_delayed"]
    shown = sum(each["end_offset"] - each["first_offset"] for each in ranges)
    if not shown:
        return ""
    told = counted(max(shown, found["delayed"]), "entry", "entries")
    more = "at least " if found["more_delayed"] else ""
    return f"{more}{told}, the next is due at {when(found['next_due_ms'])}"


async def partitions_of(visit: Visit, topic: str, name: str) -> dict[str, Part[dict[str, Any]]]:
    """The descriptions of a subscription by partition; one that doesn't answer says so.

    Raises `NotFound` if no partition has it.
    """
    count = await visit.admin.topics.partitions(topic)
    names = [str(each) for each in TopicName.parse(topic).members(count)]

    async def ask(partition: str) -> Part[dict[str, Any]] | None:
        try:
            return await part(_described(visit, partition, name))
        except _Missing:
            return None

    asked = await asyncio.gather(*map(ask, names))
    found = {
        partition: each for partition, each in zip(names, asked, strict=True) if each is not None
    }
    if not found:
        raise NotFound(404, f"{topic} has no subscription {name!r}")
    return found


class _Missing(Exception):
    """A partition has no such subscription."""


async def _described(visit: Visit, partition: str, name: str) -> dict[str, Any]:
    try:
        found = await visit.admin.subscriptions.describe(partition, name)
    except NotFound:
        raise _Missing from None
    described: dict[str, Any] = found[partition]
    return described


async def show(visit: Visit) -> web.Response:
    """The page."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    found, stats = await asyncio.gather(
        partitions_of(visit, topic, name), part(visit.admin.topics.stats(topic))
    )
    known = (stats.value or {}).get("subscriptions", {}).get(name)
    bars = {key: bar(each.value) for key, each in found.items() if each.value is not None}
    delayed = {key: delayed_text(each.value) for key, each in found.items() if each.value}
    return visit.render(
        "subscription.html",
        topic=topic,
        name=name,
        partitions=found,
        bars=bars,
        delayed=delayed,
        stats=known,
        problem=stats.problem,
        width=WIDTH,
        plain=len(found) == 1,
        actors=actor_search("subscription", topic),
    )


# -- moves of the cursor ---------------------------------------------------------------


def _move(visit: Visit) -> Move:
    """The move that a query or a form describes. Raises `FormError`."""
    kind = visit.needed("move")
    if kind not in MOVES:
        raise FormError(f"there is no move {kind[:40]!r}")
    return Move(full_name(visit.needed("topic")), visit.needed("name"), kind, visit.text("to"))


async def show_preview(visit: Visit) -> web.Response:
    """What a move would change, and the form that confirms it."""
    move = _move(visit)
    return visit.render("preview.html", move=move, rows=await preview(visit, move))


async def confirm(visit: Visit) -> Outcome:
    """Apply a move that was previewed."""
    move = _move(visit)
    told = await apply(visit, move)
    return Outcome(link("subscription", topic=move.topic, name=move.name), told)


async def ask_to_delete(visit: Visit) -> web.Response:
    """What the deletion of a subscription would lose, and the form that confirms it."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    stats = await part(visit.admin.topics.stats(topic))
    if stats.value is None:
        now = f"What it holds isn't known now: {stats.problem}."
    elif (known := stats.value["subscriptions"].get(name)) is None:
        raise NotFound(404, f"{topic} has no subscription {name!r}")
    else:
        consumers = counted(len(known["consumers"]), "consumer")
        backlog = counted(known["msgBacklog"], "entry", "entries")
        now = f"It has not acknowledged {backlog}, and {consumers} use it now."
        if len(known["consumers"]) == 1:
            now = now.replace(" use ", " uses ")
    return ask(
        visit,
        f"Delete {name} of {short(topic)}",
        "Its position is lost, and messages that only it holds can be trimmed. This can't be "
        f"undone. {now}",
        {"topic": topic, "name": name},
        f"Delete {name}",
        link("subscription", topic=topic, name=name),
        _CONNECTED,
    )


async def delete(visit: Visit) -> Outcome:
    """Delete a subscription."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    await visit.admin.subscriptions.delete(topic, name, force=visit.text("force") == "1")
    return Outcome(link("topic", topic=topic), f"{name} is deleted")


ROUTES = (
    ("GET", "/console/subscription", page(show)),
    ("GET", "/console/subscription/preview", page(show_preview)),
    ("POST", "/console/subscription/move", change(confirm)),
    ("GET", "/console/subscription/delete", page(ask_to_delete)),
    ("POST", "/console/subscription/delete", change(delete)),
)

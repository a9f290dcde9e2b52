"""The time slider: the state of an actor at a moment of its journal, beside its state now."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiohttp import web

from velaray.console.pages import page
from velaray.console.parts import Part, part
from velaray.console.times import time_of
from velaray.console.visit import Visit
from velaray.events.ids import ActorKey, ActorKind

MOST_ROWS = 400
"""Rows of a comparison."""
MOST_ACTORS = 100
ACTORS_FRESH_S = 5.0
KINDS = {kind.value for kind in ActorKind}
AROUND = 12
"""Events before and after the moment."""


class Row(NamedTuple):
    """A value of a state: its place, its text then and now; "" where it isn't there."""

    place: str
    then: str
    now: str

    @property
    def differs(self) -> bool:
        """Whether the value changed."""
        return self.then != self.now


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The values in nested objects and lists, with their places."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{place}[{number}]")
    else:
        yield place, "none" if value in (None, {}, []) else str(value)


def compared(then: Any, now: Any) -> list[Row]:
    """The values of two states side by side, those that differ first."""
    before, after = dict(leaves(then)), dict(leaves(now))
    rows = [Row(each, before.get(each, ""), after.get(each, "")) for each in {**before, **after}]
    return sorted(rows, key=lambda row: not row.differs)


def command_of(key: ActorKey, event: int) -> str:
    """The command that shows the state after an event."""
    if key.kind is ActorKind.SUBSCRIPTION:
        topic, name = shlex.quote(str(key.topic_name)), shlex.quote(key.subscription)
        return f"velaray subscriptions state {topic} {name} --at {event}"
    return f"velaray journal replay {shlex.quote(key.text())} --to {event}"


async def show(visit: Visit) -> web.Response:
    """The search for an actor, or the comparison of the chosen one."""
    actor = visit.text("actor")
    if not actor:
        return await _search(visit)
    key = ActorKey.parse(actor)
    now = await visit.admin.actors.state(actor)
    event, at = visit.number("event", now["lastEvent"]), visit.text("time")
    if at:
        then = await part(visit.admin.actors.state(actor, time_ms=time_of(at)))
    elif event == now["lastEvent"]:
        then = Part(now)
    else:
        then = await part(visit.admin.actors.state(actor, event=event))
    shown = then.value["event"] if then.value is not None else event
    first = max(shown - AROUND, now["firstEvent"])
    events = await part(visit.admin.actors.events(actor, first, 2 * AROUND + 1))
    rows = compared(then.value["state"], now["state"]) if then.value is not None else []
    return visit.render(
        "moment.html",
        actor=actor,
        key=key,
        then=then,
        now=now,
        event=shown,
        rows=rows[:MOST_ROWS],
        total=len(rows),
        changed=sum(row.differs for row in rows),
        events=events,
        command=command_of(key, shown),
    )


async def _every_actor(visit: Visit) -> list[str]:
    """The keys of all actors with a journal, as `Surveys.recent`. Raises `AdminError`.

    A large cluster takes seconds to list its journals.
    """
    found: list[str] = await visit.surveys.recent(
        visit.token, "actors", ACTORS_FRESH_S, visit.admin.actors
    )
    return found


async def _search(visit: Visit) -> web.Response:
    wanted = visit.text("q")
    parts = wanted.rpartition("/")[0]
    if parts.count("/") >= 3 and parts.split("/")[0] in KINDS:  # kind/tenant/namespace/topic
        actors = await part(visit.admin.actors(parts))
    else:
        actors = await part(_every_actor(visit))
    found = [each for each in actors.value or () if wanted.lower() in each.lower()]
    return visit.render(
        "actors.html",
        q=wanted,
        found=found[:MOST_ACTORS],
        total=len(found),
        problem=actors.problem,
    )


ROUTES = (("GET", "/console/time", page(show)),)

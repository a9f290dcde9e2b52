"""The policies of the cluster, of a namespace or of a topic, with the level that sets each."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.actors.catalog.policies import POLICIES, TABLE, Level
from velaray.console.pages import Outcome, change, page
from velaray.console.visit import FormError, Visit, link
from velaray.events.ids import TopicName

CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in effect: its value, the level that sets it, and whether that is this level."""

    name: str
    value: Any
    level: str
    here: bool
    settable: bool
    about: str


def levels_of(where: str) -> list[tuple[str, str]]:
    """The levels that apply to a place, narrowest first: their names, and the places.

    Raises `InvalidNameError`, `FormError`.
    """
    if where == CLUSTER:
        return [(CLUSTER, CLUSTER)]
    if "://" in where:
        name = TopicName.parse(where).topic
        space = f"{name.tenant}/{name.namespace}"
        return [("topic", str(name)), ("namespace", space), (CLUSTER, CLUSTER)]
    if where.count("/") != 1:
        raise FormError(f"neither cluster, a namespace nor a topic: {where[:80]!r}")
    return [("namespace", where), (CLUSTER, CLUSTER)]


async def show(visit: Visit) -> web.Response:
    """The policies in effect."""
    where = visit.text("where", CLUSTER)
    levels = levels_of(where)
    applied, *own = await asyncio.gather(
        visit.admin.policies.get_all(where, applied=True),
        *(visit.admin.policies.get_all(place) for _, place in levels),
    )
    flag = {"topic": Level.TOPIC, "namespace": Level.NAMESPACE, CLUSTER: Level.CLUSTER}
    rows = []
    for name, value in sorted(applied.items()):
        setting = [level for (level, _), found in zip(levels, own, strict=True) if name in found]
        level, policy = setting[0] if setting else "default", TABLE[name]
        here = bool(setting) and level == levels[0][0]
        settable = flag[levels[0][0]] in policy.levels
        rows.append(Row(name, value, level, here, settable, policy.description))
    return visit.render("policies.html", where=where, levels=levels, rows=rows)


def _place(visit: Visit) -> tuple[str, str]:
    where, name = visit.needed("where"), visit.needed("name")
    if name not in POLICIES:
        raise FormError(f"there is no policy {name[:40]!r}")
    return where, name


async def set_policy(visit: Visit) -> Outcome:
    """Set a policy to the value of the form, which is JSON."""
    where, name = _place(visit)
    try:
        value = json.loads(visit.needed("value"))
    except (ValueError, RecursionError) as error:
        raise FormError(f"the value isn't JSON: {error}") from error
    await visit.admin.policies.set_on(where, name, value)
    return Outcome(link("policies", where=where), f"{name} is set")


async def remove_policy(visit: Visit) -> Outcome:
    """Remove a policy, so that the wider level applies."""
    where, name = _place(visit)
    await visit.admin.policies.remove_from(where, name)
    return Outcome(link("policies", where=where), f"{name} is removed here")


ROUTES = (
    ("GET", "/console/policies", page(show)),
    ("POST", "/console/policies/set", change(set_policy)),
    ("POST", "/console/policies/remove", change(remove_policy)),
)

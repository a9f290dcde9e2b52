"""The list of topics, and the forms that create, restore and delete them.

Names come from the catalog, numbers from the survey of running actors: no topic is asked by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.actors.catalog.machine import SYSTEM_NAMESPACE, SYSTEM_TENANT
from velaray.console.pages import Outcome, change, page
from velaray.console.parts import part
from velaray.console.survey import Metrics, Survey
from velaray.console.visit import Visit, link
from velaray.events.ids import TopicName

ROWS = 50
"""Topics on a page."""
NAMES_FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """A topic of the list. ``metrics`` is None if no partition runs."""

    name: str
    partitions: int
    running: int
    metrics: Metrics | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deleted topic that can be restored, unless a newer topic has its name."""

    name: str
    partitions: int
    deleted_ms: int | None
    until_ms: int
    is_replaced: bool


def is_users(topic: str) -> bool:
    """Whether a topic isn't the system's."""
    return not topic.startswith(f"persistent://{SYSTEM_TENANT}/")


async def topic_names(visit: Visit) -> dict[str, int]:
    """All topics with their numbers of partitions, at most `NAMES_FRESH_S` old.

    Raises `AdminError`.
    """

    async def ask() -> dict[str, int]:
        found: dict[str, int] = {}
        for namespace in await _namespaces(visit):
            found |= await visit.admin.topics(namespace)
        of_system = await part(visit.admin.topics(f"{SYSTEM_TENANT}/{SYSTEM_NAMESPACE}"))
        return dict(sorted({**found, **(of_system.value or {})}.items()))

    names: dict[str, int] = await visit.surveys.shared(visit.token, "names", NAMES_FRESH_S, ask)
    return names


async def _namespaces(visit: Visit) -> list[str]:
    async def ask() -> list[str]:
        tenants = await visit.admin.tenants()
        found = await asyncio.gather(*(visit.admin.namespaces(tenant) for tenant in tenants))
        return [name for names in found for name in names]

    names: list[str] = await visit.surveys.shared(visit.token, "namespaces", NAMES_FRESH_S, ask)
    return names


async def _deleted_topics(visit: Visit) -> list[dict[str, Any]]:
    """The deleted topics that can be restored, the newest first, at most `NAMES_FRESH_S` old.

    Raises `AdminError`.
    """

    async def ask() -> list[dict[str, Any]]:
        names = await _namespaces(visit)
        found = await asyncio.gather(*(visit.admin.topics.deleted(name) for name in names))
        topics = [topic for one in found for topic in one]
        return sorted(topics, key=lambda topic: -topic["restorableUntilMs"])

    found: list[dict[str, Any]] = await visit.surveys.shared(
        visit.token, "deleted topics", NAMES_FRESH_S, ask
    )
    return found


def partition_names(topic: str, partitions: int) -> list[str]:
    """The names under which the partitions of a topic run."""
    return [str(name) for name in TopicName.parse(topic).members(partitions)]


def actor_search(kind: str, topic: str) -> str:
    """The link to the actors of a topic, for their states at points in time."""
    name = TopicName.parse(topic)
    return link("time", q=f"{kind}/{name.tenant}/{name.namespace}/{name.local}/")


def _row(topic: str, partitions: int, survey: Survey | None) -> Row:
    if survey is None:
        return Row(topic, partitions, 0, None)
    names = partition_names(topic, partitions)
    running = sum(name in survey.topics for name in names)
    return Row(topic, partitions, running, survey.of_topic(names))


async def show(visit: Visit) -> web.Response:
    """The list: one page of the topics whose names contain the search."""
    wanted, with_system = visit.text("q"), visit.text("system") == "1"
    number = visit.number("page", 1, 1 << 20)
    names, deleted, survey = await asyncio.gather(
        topic_names(visit),
        part(_deleted_topics(visit)),
        part(visit.surveys.survey(visit.token, visit.admin)),
    )
    found = [
        name for name in names if wanted.lower() in name.lower() and (with_system or is_users(name))
    ]
    pages = max(-(-len(found) // ROWS), 1)
    number = min(max(number, 1), pages)
    rows = [
        _row(name, names[name], survey.value) for name in found[(number - 1) * ROWS : number * ROWS]
    ]
    restorable = [
        Deleted(
            topic["topic"],
            topic["partitions"],
            topic["deletedMs"],
            topic["restorableUntilMs"],
            topic["topic"] in names,
        )
        for topic in deleted.value or []
        if wanted.lower() in topic["topic"].lower()
    ]
    return visit.render(
        "topics.html",
        q=wanted,
        system="1" if with_system else "",
        rows=rows,
        total=len(found),
        page=number,
        pages=pages,
        problem=survey.problem,
        deleted=restorable[:ROWS],
        more_deleted=max(len(restorable) - ROWS, 0),
        deleted_problem=deleted.problem,
    )


# -- changes ---------------------------------------------------------------------------


def full_name(text: str) -> str:
    """The full name of a topic. Raises `InvalidNameError`."""
    return str(TopicName.parse(text))


async def create(visit: Visit) -> Outcome:
    """Create a topic."""
    topic = full_name(visit.needed("topic"))
    await visit.admin.topics.create(topic, partitions=visit.number("partitions", 0, 1 << 20))
    return Outcome(link("topic", topic=topic), f"{topic} is created")


async def undelete(visit: Visit) -> Outcome:
    """Restore a deleted topic."""
    topic = full_name(visit.needed("topic"))
    await visit.admin.topics.undelete(topic)
    return Outcome(link("topic", topic=topic), f"{topic} is restored")


async def ask_delete(visit: Visit) -> web.Response:
    """What a deletion would remove, and the form that confirms it."""
    topic = full_name(visit.needed("topic"))
    stats = await part(visit.admin.topics.stats(topic))
    return visit.render("topic_delete.html", topic=topic, stats=stats)


async def delete(visit: Visit) -> Outcome:
    """Delete a topic."""
    topic = full_name(visit.needed("topic"))
    await visit.admin.topics.delete(topic, force=visit.text("force") == "1")
    return Outcome(link("topics"), f"{topic} is deleted")


ROUTES = (
    ("GET", "/console/topics", page(show)),
    ("POST", "/console/topics/create", change(create)),
    ("POST", "/console/topics/undelete", change(undelete)),
    ("GET", "/console/topic/delete", page(ask_delete)),
    ("POST", "/console/topic/delete", change(delete)),
)

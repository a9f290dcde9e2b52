"""Pipelines: the retention marks of Spark queries, and all subscriptions with their lag."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from velaray.client.admin.errors import NotFound
from velaray.console.pages import Outcome, change, page
from velaray.console.parts import Part, part
from velaray.console.survey import Survey
from velaray.console.topics import full_name, is_users
from velaray.console.visit import Visit, link
from velaray.events.ids import TopicName

MOST_ROWS = 100
MOST_TOPICS = 50
"""Topics whose marks are asked for: those with the largest backlog."""
MARKS_FRESH_S = 10.0

Mark = dict[str, Any]


class Reader(NamedTuple):
    """A subscription, as the state of a pipeline: what it has still to read, and who reads."""

    topic: str
    name: str
    backlog: float
    consumers: float
    pending: float


class Marks(NamedTuple):
    """The retention marks that were found, abandoned ones first; the topics that didn't answer,
    with the reasons; and how many topics weren't asked."""

    rows: list[Mark]
    away: dict[str, str]
    left_out: int


def readers(survey: Survey) -> list[Reader]:
    """The subscriptions of running topics, those without readers first."""
    found = [
        Reader(
            topic,
            name,
            values.get("pulsar_subscription_back_log", 0),
            values.get("pulsar_subscription_consumers_count", 0),
            values.get("velaray_subscription_pending_entries", 0),
        )
        for (topic, name), values in survey.subscriptions.items()
        if is_users(topic)
    ]
    return sorted(found, key=lambda each: (each.consumers > 0, -each.backlog))


async def marks(visit: Visit, found: list[Reader]) -> Marks:
    """The retention marks of the topics of these subscriptions, at most `MARKS_FRESH_S` old."""
    backlogs: dict[str, float] = {}
    for each in found:
        topic = str(TopicName.parse(each.topic).topic)
        backlogs[topic] = backlogs.get(topic, 0) + each.backlog
    topics = sorted(backlogs, key=lambda topic: (-backlogs[topic], topic))

    async def ask() -> Marks:
        asked = topics[:MOST_TOPICS]
        answers: list[Part[list[Mark]]] = await asyncio.gather(
            *(part(visit.admin.pipelines.marks(topic)) for topic in asked)
        )
        every = zip(asked, answers, strict=True)
        away = {topic: each.problem for topic, each in every if each.value is None}
        rows = [mark for each in answers for mark in each.value or ()]
        rows.sort(key=lambda mark: (not mark["abandoned"], mark["connected"], -mark["entries"]))
        return Marks(rows, away, len(topics) - len(asked))

    known: Marks = await visit.surveys.recent(visit.token, "marks", MARKS_FRESH_S, ask)
    return known


async def show(visit: Visit) -> web.Response:
    """The page."""
    survey = await part(visit.surveys.survey(visit.token, visit.admin))
    found = readers(survey.value) if survey.value is not None else []
    wanted = visit.text("q").lower()
    rows = [each for each in found if wanted in f"{each.topic} {each.name}".lower()]
    kept = await part(marks(visit, found)) if survey.value is not None else Part(None, "")
    return visit.render(
        "pipelines.html",
        survey=survey,
        marks=kept,
        most=MOST_ROWS,
        rows=rows[:MOST_ROWS],
        total=len(rows),
        q=visit.text("q"),
    )


async def ask_to_release(visit: Visit) -> web.Response:
    """A mark on all partitions of its topic, and the form that confirms its release."""
    topic = str(TopicName.parse(full_name(visit.needed("topic"))).topic)
    name = visit.needed("name")
    found = await visit.admin.pipelines.marks(topic)
    rows = [mark for mark in found if mark["subscription"] == name]
    if not rows:
        raise NotFound(404, f"{topic} has no retention mark {name!r}")
    return visit.render("release.html", topic=topic, name=name, rows=rows)


async def release(visit: Visit) -> Outcome:
    """Delete a retention mark on all partitions of its topic."""
    topic, name = full_name(visit.needed("topic")), visit.needed("name")
    await visit.admin.pipelines.release(topic, name)
    return Outcome(link("pipelines"), f"The mark {name} of {topic} is released")


ROUTES = (
    ("GET", "/console/pipelines", page(show)),
    ("GET", "/console/pipelines/release", page(ask_to_release)),
    ("POST", "/console/pipelines/release", change(release)),
)

"""The start page: what is wrong in the cluster, why, and where to look; and its rates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from velaray.client.admin.errors import PreconditionFailed
from velaray.console.formats import age, counted, number, short, size
from velaray.console.pages import page
from velaray.console.parts import Part, part
from velaray.console.survey import Survey
from velaray.console.topics import is_users, topic_names
from velaray.console.visit import Visit, link

MOST_ROWS = 20
"""The most rows of a section."""
SUSPECTS_FRESH_S = 5.0
"""How old the descriptions of subscriptions with a backlog may be, each of which asks an actor."""
OLD_BACKLOG_S = 60
LONG_OPEN_MS = 60_000
REPLICATION_LAG_MS = 10_000
REPLICATION_FRESH_S = 5.0
LONG_RECOVERY_S = 10.0
LOOP_LAG_S = 1.0
LOW_DISK = 0.05
"""The part of the disk that is free when it is too little."""
RESTARTED_WITHIN_S = 900.0
DEAD_FRESH_S = 30.0
"""Dead letters are counted at most so often: a count asks topics that may be asleep."""

_HARMLESS = {"nothing-to-deliver", "delayed"}
DEAD_LETTERS = "-DLQ"


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that needs attention: what, where (a link), and why."""

    what: str
    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Section:
    """The troubles of one kind, or why they aren't known."""

    title: str
    found: Part[list[Trouble]]


# -- sections --------------------------------------------------------------------------


def suspects(survey: Survey) -> list[tuple[str, str]]:
    """The subscriptions with a backlog, largest first. Their descriptions tell which are stuck."""
    found = {
        key: values.get("pulsar_subscription_back_log", 0)
        for key, values in survey.subscriptions.items()
        if is_users(key[0]) and values.get("pulsar_subscription_back_log", 0)
    }
    return sorted(found, key=lambda key: -found[key])[:MOST_ROWS]


async def stuck(visit: Visit, survey: Survey) -> list[Trouble]:
    """The subscriptions whose backlog isn't delivered, with the reasons."""

    async def describe(topic: str, name: str) -> list[Trouble]:
        path = link("subscription", topic=topic, name=name)
        what = f"{short(topic)} · {name}"
        found = await part(visit.admin.subscriptions.describe(topic, name))
        if found.value is None:
            return [Trouble(what, path, found.problem)]
        holdups = [each for one in found.value.values() for each in one["holdups"]]
        if {each["reason"] for each in holdups} <= _HARMLESS:
            return []
        return [Trouble(what, path, "; ".join(each["text"] for each in holdups))]

    async def ask() -> list[Trouble]:
        rows = await asyncio.gather(*(describe(*key) for key in suspects(survey)))
        return [each for found in rows for each in found]

    found: list[Trouble] = await visit.surveys.recent(visit.token, "stuck", SUSPECTS_FRESH_S, ask)
    return found


async def oldest_backlogs(visit: Visit, survey: Survey) -> list[Trouble]:
    """The topics whose oldest unacknowledged entry is old."""
    topics = list(dict.fromkeys(topic for topic, _ in suspects(survey)))[: MOST_ROWS // 2]

    async def look(topic: str) -> Trouble | None:
        stats = await part(visit.admin.topics.stats(topic))
        if stats.value is None:
            return Trouble(short(topic), link("topic", topic=topic), stats.problem)
        seconds = stats.value["oldestBacklogMessageAgeSeconds"]
        if seconds < OLD_BACKLOG_S:
            return None
        why = f"the oldest unacknowledged entry is {age(seconds)} old"
        return Trouble(short(topic), link("topic", topic=topic), why)

    async def ask() -> list[Trouble]:
        return [each for each in await asyncio.gather(*map(look, topics)) if each is not None]

    found: list[Trouble] = await visit.surveys.recent(
        visit.token, "oldest backlog", SUSPECTS_FRESH_S, ask
    )
    return found


async def dead_letters(visit: Visit) -> list[Trouble]:
    """The dead-letter topics with entries, and the deletions that were given up."""

    async def count(topic: str) -> Trouble | None:
        stats = await part(visit.admin.topics.stats(topic))
        path = link("topic", topic=topic)
        if stats.value is None:
            return Trouble(short(topic), path, stats.problem)
        entries = _left_of(stats.value)
        return Trouble(short(topic), path, counted(entries, "dead letter")) if entries else None

    async def ask() -> list[Trouble]:
        names = [name for name in await topic_names(visit) if name.endswith(DEAD_LETTERS)]
        letters = await asyncio.gather(*map(count, names[:MOST_ROWS]))
        found = [each for each in letters if each is not None]
        if given_up := await visit.admin.ledgers.dead():
            why = f"{counted(len(given_up), 'deletion')} of ledgers were given up"
            found.append(Trouble("Deletions", link("dead-letters"), why))
        return found

    found: list[Trouble] = await visit.surveys.recent(
        visit.token, "dead letters", DEAD_FRESH_S, ask
    )
    return found


def _left_of(stats: dict[str, Any]) -> int:
    """How many dead letters the slowest durable subscription of their topic hasn't acknowledged;
    all of them without one."""
    durable = [each for each in stats["subscriptions"].values() if each["isDurable"]]
    backlogs = [each["msgBacklog"] for each in durable]
    return int(max(backlogs, default=stats["numberOfEntries"]))


async def old_transactions(visit: Visit) -> list[Trouble]:
    """The transactions that are open for long."""
    found = await visit.admin.transactions(older_than_ms=LONG_OPEN_MS, most=MOST_ROWS)
    return [
        Trouble(
            f"Transaction {each['txnId']}",
            link("transaction", id=each["txnId"]),
            f"{each['status'].lower()} for {age((each['age'] or 0) / 1000)}"
            + (f", begun by {each['client'] or each['owner']}" if each["owner"] else ""),
        )
        for each in found["transactions"]
    ]


async def replicators(visit: Visit) -> list[dict[str, Any]]:
    """The replicators of running partitions, at most `REPLICATION_FRESH_S` old."""
    asked = visit.admin.clusters.replication
    found: list[dict[str, Any]] = await visit.surveys.recent(
        visit.token, "replication", REPLICATION_FRESH_S, asked
    )
    return found


async def replication(visit: Visit) -> list[Trouble]:
    """The replicators that stopped or lag behind."""
    return [
        Trouble(
            f"{short(each['topic'])} to {each['cluster']}",
            link("topic", topic=each["topic"]),
            each["reason"] or f"{age(each['lag_ms'] / 1000)} behind",
        )
        for each in await replicators(visit)
        if each["reason"] or each["lag_ms"] >= REPLICATION_LAG_MS
    ][:MOST_ROWS]


def stores(survey: Survey) -> list[Trouble]:
    """What the metrics tell about disks and stored data."""
    found = []
    total = survey.cluster.get("velaray_disk_bytes", 0)
    free = survey.cluster.get("velaray_disk_free_bytes", 0)
    if free < LOW_DISK * total:
        why = f"only {size(free)} of {size(total)} are free on its disk"
        found.append(Trouble("Data directory", link("hosts"), why))
    for labels, values in survey.actors:
        if full := values.get("velaray_journal_refused_full_total"):
            why = f"{number(full)} commands were refused because the disk was full"
            found.append(Trouble(actor_name(labels), link("hosts"), why))
    for topic, values in survey.topics.items():
        if damaged := values.get("velaray_topic_failed_reads_total"):
            why = f"{number(damaged)} reads failed: a stored entry is damaged or missing"
            found.append(Trouble(short(topic), link("topic", topic=topic), why))
    return found[:MOST_ROWS]


def recoveries(survey: Survey) -> list[Trouble]:
    """The actors that don't answer, and those whose last recovery was long."""
    found = []
    if silent := survey.cluster.get("velaray_actors_silent"):
        why = f"{number(silent)} running actors didn't answer in time"
        found.append(Trouble("Actors", link("hosts"), why))
    for labels, values in survey.actors:
        if (seconds := values.get("velaray_recovery_seconds", 0)) >= LONG_RECOVERY_S:
            events = number(values.get("velaray_recovery_events", 0))
            why = f"the last recovery took {age(seconds)} and replayed {events} events"
            found.append(Trouble(actor_name(labels), link("hosts"), why))
    return found[:MOST_ROWS]


async def hosts(visit: Visit) -> list[Trouble]:
    """The hosts that don't answer, restarted lately, are drained, or whose event loop lags."""
    try:
        found, silent = await asyncio.gather(visit.admin.hosts(), visit.admin.hosts.silent())
    except PreconditionFailed:
        return []  # the actors share no hosts
    away = "it doesn't answer now: its process restarts, or is busy"
    rows = [Trouble(name, link("hosts"), away) for name in silent]
    rows += [
        Trouble(each["name"], link("hosts"), f"its event loop lagged {each['lag_s']:.1f} s")
        for each in found
        if each["lag_s"] >= LOOP_LAG_S
    ]
    rows += [
        Trouble(each["name"], link("hosts"), f"its process restarted {age(restarted)} ago")
        for each in found
        if (restarted := each["restarted_s"]) is not None and restarted < RESTARTED_WITHIN_S
    ]
    return rows + [
        Trouble(each["name"], link("hosts"), "it is drained: nothing more is placed in it")
        for each in found
        if each["drained"]
    ]


def actor_name(labels: dict[str, str]) -> str:
    """An actor for people, by the labels of its metrics."""
    place = short(labels.get("topic", ""))
    number_of_it = labels.get("coordinator_id", labels.get("deleter_id", ""))
    known = (labels["kind"], place, labels.get("subscription", ""), number_of_it)
    return " ".join(each for each in known if each)


# -- the page --------------------------------------------------------------------------


async def sections(visit: Visit, survey: Part[Survey]) -> list[Section]:
    """All sections, asked for at the same time."""
    asked = {
        "Dead letters": dead_letters(visit),
        "Transactions that are open for long": old_transactions(visit),
        "Replication": replication(visit),
        "Hosts": hosts(visit),
    }
    if survey.value is not None:
        asked = {
            "Stuck subscriptions": stuck(visit, survey.value),
            "Oldest backlog": oldest_backlogs(visit, survey.value),
        } | asked
    found = await asyncio.gather(*map(part, asked.values()))
    made = [Section(title, each) for title, each in zip(asked, found, strict=True)]
    if survey.value is None:
        return [Section("Running actors", Part(None, survey.problem)), *made]
    of_survey = {
        "Disk and store": stores(survey.value),
        "Recoveries and restarts": recoveries(survey.value),
    }
    return made + [Section(title, Part(rows)) for title, rows in of_survey.items()]


def totals(survey: Survey) -> list[tuple[str, str, float]]:
    """The rates on top: what, the filter that formats it, and the value."""
    users = [values for topic, values in survey.topics.items() if is_users(topic)]

    def total(metric: str) -> float:
        return sum(values.get(metric, 0) for values in users)

    return [
        ("Published", "rate", total("pulsar_rate_in")),
        ("Delivered", "rate", total("pulsar_rate_out")),
        ("Backlog, entries", "number", total("pulsar_msg_backlog")),
        ("Stored", "size", total("pulsar_storage_size")),
        ("Producers", "number", total("pulsar_producers_count")),
        ("Consumers", "number", total("pulsar_consumers_count")),
    ]


def is_quiet(found: Sequence[Section]) -> bool:
    """Whether everything is known and nothing needs attention."""
    return all(each.found.value == [] for each in found)


async def show(visit: Visit) -> web.Response:
    """The page."""
    survey = await part(visit.surveys.survey(visit.token, visit.admin))
    found = await sections(visit, survey)
    return visit.render(
        "attention.html",
        sections=found,
        quiet=is_quiet(found),
        survey=survey,
        totals=totals(survey.value) if survey.value is not None else [],
    )


ROUTES = (("GET", "/", page(show)),)

"""The cluster: other clusters, replication and migrations; hosts; settings."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, NamedTuple

from aiohttp import web

from velaray.client.admin.errors import PreconditionFailed
from velaray.console.attention import actor_name, replicators
from velaray.console.pages import Outcome, ask, change, page
from velaray.console.parts import part
from velaray.console.survey import Survey
from velaray.console.visit import Visit, link

MOST_ROWS = 100
SLOWEST = 10
"""Recoveries that are shown."""

# -- other clusters --------------------------------------------------------------------


async def _clusters(visit: Visit) -> dict[str, dict[str, Any]]:
    names = await visit.admin.clusters.names()
    found = await asyncio.gather(*(visit.admin.clusters.get(name) for name in names))
    return dict(zip(names, found, strict=True))


async def show_clusters(visit: Visit) -> web.Response:
    """The known clusters, the replicators of running partitions, the homes, the migrations."""
    clusters, rows, homes, migrations = await asyncio.gather(
        part(_clusters(visit)),
        part(replicators(visit)),
        part(visit.admin.request("GET", "homes")),
        part(visit.admin.migrations()),
    )
    return visit.render(
        "clusters.html",
        clusters=clusters,
        replicators=rows,
        homes=homes,
        migrations=migrations,
        most=MOST_ROWS,
    )


async def ask_to_roll_back(visit: Visit) -> web.Response:
    """What the roll-back of a migration would lose, and the form that confirms it."""
    tenant, why = visit.needed("tenant"), visit.text("why")
    found = await visit.admin.migrations.get(tenant)
    return ask(
        visit,
        f"Roll the migration of {tenant} back",
        f"It is in the phase {found['phase']}. The roll-back deletes the tenant's copy at "
        f"{found['target']}; the tenant stays here.",
        {"tenant": tenant, "why": why},
        "Roll back",
        link("clusters"),
    )


async def roll_back(visit: Visit) -> Outcome:
    """Roll a migration back."""
    tenant = visit.needed("tenant")
    await visit.admin.migrations.roll_back(tenant, why=visit.text("why") or "asked to")
    return Outcome(link("clusters"), f"The migration of {tenant} is rolled back")


# -- hosts -----------------------------------------------------------------------------


class Hosts(NamedTuple):
    """The hosts, the names of those that don't answer, and whether actors share any."""

    rows: list[dict[str, Any]]
    silent: list[str]
    shared: bool

    @property
    def names(self) -> list[str]:
        """The names of all hosts."""
        return sorted([*(each["name"] for each in self.rows), *self.silent])


async def _hosts(visit: Visit) -> Hosts:
    try:
        rows, silent = await asyncio.gather(visit.admin.hosts(), visit.admin.hosts.silent())
    except PreconditionFailed:
        return Hosts([], [], False)
    found = {each["name"] for each in rows}  # one may have begun to answer meanwhile
    return Hosts(rows, [name for name in silent if name not in found], True)


def recoveries(survey: Survey) -> list[tuple[str, float, float]]:
    """The actors whose last recoveries were the longest: name, seconds, replayed events."""
    found = [
        (
            actor_name(labels),
            values.get("velaray_recovery_seconds", 0.0),
            values.get("velaray_recovery_events", 0.0),
        )
        for labels, values in survey.actors
    ]
    return sorted(found, key=lambda row: -row[1])[:SLOWEST]


async def show_hosts(visit: Visit) -> web.Response:
    """The hosts with their actors, the running actors by kind, and the longest recoveries."""
    hosts, survey = await asyncio.gather(
        part(_hosts(visit)), part(visit.surveys.survey(visit.token, visit.admin))
    )
    kinds = Counter(labels["kind"] for labels, _ in survey.value.actors) if survey.value else {}
    return visit.render(
        "hosts.html",
        hosts=hosts,
        kinds=sorted(kinds.items()),
        survey=survey,
        recoveries=recoveries(survey.value) if survey.value is not None else [],
    )


async def show_log(visit: Visit) -> web.Response:
    """The last lines of a host's log."""
    host = visit.needed("host")
    lines = await part(visit.admin.hosts.log(host))
    return visit.render("host_log.html", host=host, lines=lines)


async def change_host(visit: Visit) -> Outcome:
    """Drain a host, resume it or restart it."""
    host, action = visit.needed("host"), visit.needed("action")
    if action == "drain":
        moved = await visit.admin.hosts.drain(host)
        told = f"{host} is drained: {moved} topics and other actors were moved"
    elif action == "restart":
        await visit.admin.hosts.restart(host)
        told = f"{host} has a new process"
    else:
        await visit.admin.hosts.resume(host)
        told = f"{host} takes actors again"
    return Outcome(link("hosts"), told)


async def move(visit: Visit) -> Outcome:
    """Move the actors of a topic to a host."""
    topic = visit.needed("topic")
    host = await visit.admin.hosts.move(topic, visit.text("host") or None)
    return Outcome(link("hosts"), f"{topic} is in {host} now")


# -- settings --------------------------------------------------------------------------


async def show_settings(visit: Visit) -> web.Response:
    """The settings of the start with their sources, those under Pulsar's names, and the version."""
    given, settings, version = await asyncio.gather(
        part(visit.admin.request("GET", "velaray/settings")),
        part(visit.admin.request("GET", "brokers/configuration/runtime")),
        part(visit.admin.request("GET", "brokers/version")),
    )
    return visit.render("settings.html", given=given, settings=settings, release=version)


ROUTES = (
    ("GET", "/console/clusters", page(show_clusters)),
    ("GET", "/console/clusters/roll-back", page(ask_to_roll_back)),
    ("POST", "/console/clusters/roll-back", change(roll_back)),
    ("GET", "/console/hosts", page(show_hosts)),
    ("GET", "/console/hosts/log", page(show_log)),
    ("POST", "/console/hosts/change", change(change_host)),
    ("POST", "/console/hosts/move", change(move)),
    ("GET", "/console/settings", page(show_settings)),
)

"""Routes of the admin interface for tenant migration.

Operators call the source cluster, and the source cluster calls the target cluster.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from aiohttp import web
from typing_extensions import TypedDict

from velaray.actors.catalog.state import Progress
from velaray.admin.binding import Route, body_of, given
from velaray.admin.clusters import read_progress
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
    ask_catalog,
    done,
)
from velaray.broker.catalog import messages as m
from velaray.client.admin import migrations as operations
from velaray.client.admin.operations import V2, AnyObject, Operation, Whole, reads
from velaray.events.ids import check_name
from velaray.geo.tenant_migration import migration_target_steps
from velaray.geo.tenant_migration.failover import fail_over, received
from velaray.geo.tenant_migration.migration_checks import begin, examine


def _tenant(request: web.Request) -> str:
    return check_name("tenant", request.match_info["tenant"])


# -- for operators ---------------------------------------------------------------------


async def begin_migration(request: web.Request) -> web.Response:
    """Start a tenant's migration or (``dryRun``) check it; the answer lists what migrates."""
    body = body_of(request)
    asked = m.MayBeginMigration(
        _tenant(request),
        body["target"],
        read_progress(body.get("progress", Progress.EXACT)),
        body.get("maxLag", m.MAX_LAG),
    )
    if body.get("dryRun", False):
        return answer((await examine(actor_system_of(request), asked)).as_json())
    await begin(actor_system_of(request), asked)
    return await get_migration(request)


async def get_migration(request: web.Request) -> web.Response:
    """The progress of a tenant's newest migration; 404 if it has none."""
    return answer(await ask_catalog(request, m.MigrationStatus(_tenant(request))))


async def list_migrations(request: web.Request) -> web.Response:
    """The newest migration of every tenant that this cluster has tried to migrate."""
    return answer(await ask_catalog(request, m.Migrations()))


async def roll_back_migration(request: web.Request) -> web.Response:
    """Roll a migration back; 409 once its move is decided."""
    why = given(request, operations.WHY)[:500]
    await ask_catalog(request, m.RollBackMigration(_tenant(request), why))
    return await get_migration(request)


async def fail_over_tenant(request: web.Request) -> web.Response:
    """Make this cluster the home of a tenant whose home is lost.

    The answer says what may be missing and what may be delivered again.
    """
    lost = body_of(request).get("lost") or None
    return answer(await fail_over(actor_system_of(request), _tenant(request), lost))


async def get_received(request: web.Request) -> web.Response:
    """The entries that a tenant's partition has received, by the other cluster's positions."""
    topic, cluster = given(request, operations.TOPIC), given(request, operations.CLUSTER)
    found = await received(actor_system_of(request), _tenant(request), topic, cluster)
    parts = {
        name: [base64.b64encode(part).decode() for part in each]
        for name, each in found["subscriptions"].items()
    }
    return answer({**found, "subscriptions": parts})


# -- for the source cluster ------------------------------------------------------------


async def look_at_incoming(request: web.Request) -> web.Response:
    """A tenant's data in this cluster, and this cluster's identity."""
    return answer(await migration_target_steps.look(actor_system_of(request), _tenant(request)))


async def take_step(request: web.Request) -> web.Response:
    """One step of a migration to this cluster; 409 if it isn't expected now."""
    args, step = dict(body_of(request)), request.match_info["step"]
    for name in _NEEDED.get(step, ()):
        if name not in args:
            raise AdminError(400, f"{name} is missing")
    if "parts" in args:
        args["parts"] = [_decoded(part) for part in args["parts"]]
    found = await migration_target_steps.take(
        actor_system_of(request), _tenant(request), step, args
    )
    return done() if found is None else answer(found)


_NEEDED: Mapping[str, Sequence[str]] = {
    "newest": ("topics",),
    "settle": ("topics",),
    "progress": ("topic", "parts"),
    "producers": ("topic", "rows"),
    "terminate": ("topic",),
    "end": ("stays", "found"),
}


def _decoded(part: Any) -> bytes:
    try:
        return base64.b64decode(part, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise AdminError(400, f"a part of progress isn't base64: {error}") from error


class MigrationStep(TypedDict):
    """A step of a migration; which fields it needs depends on the step."""

    source: str
    migration: Whole
    topic: NotRequired[str]
    topics: NotRequired[list[Any]]
    parts: NotRequired[list[Any]]
    rows: NotRequired[list[Any]]
    stays: NotRequired[bool]
    found: NotRequired[list[Any]]


_INCOMING = f"{V2}/velaray/arrivals/{{tenant}}"
_STEP_ANSWERS = {200: Any, 204: None}

ROUTES: tuple[Route, ...] = (
    Route(operations.LIST, list_migrations),
    Route(operations.START, begin_migration),
    Route(operations.GET, get_migration),
    Route(operations.ROLL_BACK, roll_back_migration),
    Route(operations.FAIL_OVER, fail_over_tenant),
    Route(operations.RECEIVED, get_received),
    Route(reads(_INCOMING, AnyObject), look_at_incoming),
    Route(
        Operation("POST", f"{_INCOMING}/{{step}}", body=MigrationStep, answers=_STEP_ANSWERS),
        take_step,
    ),
)

"""Routes of the admin interface for tenant migration.

Operators call the source cluster, and the source cluster calls the target cluster.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from velaray.actors.catalog.state import Progress
from velaray.admin.clusters import read_progress
from velaray.admin.http import (
    PREFIX,
    AdminError,
    Route,
    actor_system_of,
    answer,
    ask_catalog,
    done,
    object_body,
)
from velaray.broker.catalog import messages as m
from velaray.events.ids import INT64_MAX, check_name
from velaray.geo.tenant_migration import migration_target_steps
from velaray.geo.tenant_migration.failover import fail_over, received
from velaray.geo.tenant_migration.migration_checks import begin, examine


def _tenant(request: web.Request) -> str:
    return check_name("tenant", request.match_info["tenant"])


def _field(body: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A field of the body of this type. Raises `AdminError`."""
    value = body.get(name, default)
    in_range = not isinstance(value, int) or 0 <= value <= INT64_MAX
    if type(value) is not kind or not in_range:
        words = {str: "a text", int: "a whole number", bool: "true or false"}
        raise AdminError(400, f"{name} must be {words.get(kind, kind.__name__)}, not {value!r}")
    return value


# -- for operators ---------------------------------------------------------------------


async def begin_migration(request: web.Request) -> web.Response:
    """Start a tenant's migration or (``dryRun``) check it; the answer lists what migrates."""
    body = await object_body(request)
    asked = m.MayBeginMigration(
        _tenant(request),
        _field(body, "target", str),
        read_progress(_field(body, "progress", str, str(Progress.EXACT))),
        _field(body, "maxLag", int, m.MAX_LAG),
    )
    if _field(body, "dryRun", bool, False):
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
    why = request.query.get("why", "asked to")[:500]
    await ask_catalog(request, m.RollBackMigration(_tenant(request), why))
    return await get_migration(request)


async def fail_over_tenant(request: web.Request) -> web.Response:
    """Make this cluster the home of a tenant whose home is lost.

    The answer says what may be missing and what may be delivered again.
    """
    body = await object_body(request)
    lost = _field(body, "lost", str, "") or None
    return answer(await fail_over(actor_system_of(request), _tenant(request), lost))


async def get_received(request: web.Request) -> web.Response:
    """The entries that a tenant's partition has received, by the other cluster's positions."""
    topic = request.query.get("topic", "")
    found = await received(
        actor_system_of(request), _tenant(request), topic, request.query["cluster"]
    )
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
    body = await object_body(request)
    args = {**body, **{name: _field(body, name, kind) for name, kind in _WHO.items()}}
    for name, kind in _ARGUMENTS.get(request.match_info["step"], {}).items():
        args[name] = _field(body, name, kind)
    if "parts" in args:
        args["parts"] = [_decoded(part) for part in args["parts"]]
    step = request.match_info["step"]
    found = await migration_target_steps.take(
        actor_system_of(request), _tenant(request), step, args
    )
    return done() if found is None else answer(found)


_WHO: Mapping[str, type] = {"source": str, "migration": int}
_ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "newest": {"topics": list},
    "settle": {"topics": list},
    "progress": {"topic": str, "parts": list},
    "producers": {"topic": str, "rows": list},
    "terminate": {"topic": str},
    "end": {"stays": bool, "found": list},
}


def _decoded(part: Any) -> bytes:
    try:
        return base64.b64decode(part, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise AdminError(400, f"a part of progress isn't base64: {error}") from error


_MIGRATIONS = f"{PREFIX}/velaray/migrations"
_FAILOVER = f"{PREFIX}/velaray/failovers/{{tenant}}"
_INCOMING = f"{PREFIX}/velaray/arrivals/{{tenant}}"

ROUTES: tuple[Route, ...] = (
    ("GET", _MIGRATIONS, list_migrations),
    ("POST", f"{_MIGRATIONS}/{{tenant}}", begin_migration),
    ("GET", f"{_MIGRATIONS}/{{tenant}}", get_migration),
    ("DELETE", f"{_MIGRATIONS}/{{tenant}}", roll_back_migration),
    ("POST", _FAILOVER, fail_over_tenant),
    ("GET", f"{_FAILOVER}/received", get_received),
    ("GET", _INCOMING, look_at_incoming),
    ("POST", f"{_INCOMING}/{{step}}", take_step),
)

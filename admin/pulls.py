"""Routes of the admin interface for tenants that are taken over from another cluster by pulling."""

from __future__ import annotations

from aiohttp import web

from velaray.admin.http import (
    PREFIX,
    AdminError,
    Route,
    actor_system_of,
    answer,
    flag,
    object_body,
)
from velaray.events.ids import check_name
from velaray.geo.inbound.pulsar_import import finish, statuses, take_over


def _tenant(request: web.Request) -> str:
    return check_name("tenant", request.match_info["tenant"])


async def begin_pull(request: web.Request) -> web.Response:
    """Have here what a tenant has in ``cluster``, and pull its topics; ``dryRun``: say only what
    would be done."""
    body = await object_body(request)
    cluster, dry_run = body.get("cluster"), body.get("dryRun", False)
    if not isinstance(cluster, str) or not cluster:
        raise AdminError(400, "cluster must name a cluster")
    if not isinstance(dry_run, bool):
        raise AdminError(400, "dryRun must be true or false")
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    own = token.strip() if scheme.lower() == "bearer" else None
    actor_system = actor_system_of(request)
    report = await take_over(actor_system, _tenant(request), cluster, own, dry_run=dry_run)
    return answer(report.as_json())


async def show_pulls(request: web.Request) -> web.Response:
    """How far each partition of a tenant is that is pulled."""
    return answer(await statuses(actor_system_of(request), _tenant(request)))


async def end_pull(request: web.Request) -> web.Response:
    """Pull nothing more from ``cluster``; 409 while something isn't here yet, unless ``force``."""
    cluster = request.query.get("cluster", "")
    if not cluster:
        raise AdminError(400, "query parameter cluster must name a cluster")
    force = flag(request, "force")
    report = await finish(actor_system_of(request), _tenant(request), cluster, force=force)
    return answer(report.as_json())


_PULLS = f"{PREFIX}/velaray/pulls/{{tenant}}"

ROUTES: tuple[Route, ...] = (
    ("POST", _PULLS, begin_pull),
    ("GET", _PULLS, show_pulls),
    ("DELETE", _PULLS, end_pull),
)

"""Routes of the admin interface for tenants whose data is pulled from another cluster."""

from __future__ import annotations

from aiohttp import web

from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    actor_system_of,
    answer,
)
from velaray.client.admin import migrations as operations
from velaray.events.ids import check_name
from velaray.geo.inbound.pulsar_import import finish, statuses, take_over


def _tenant(request: web.Request) -> str:
    return check_name("tenant", request.match_info["tenant"])


async def begin_pull(request: web.Request) -> web.Response:
    """Create the metadata of a tenant of ``cluster`` here and start to pull its topics.

    With ``dryRun`` the answer lists what would be created, and nothing changes.
    """
    body = body_of(request)
    cluster, dry_run = body["cluster"], body.get("dryRun", False)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    own = token.strip() if scheme.lower() == "bearer" else None
    actor_system = actor_system_of(request)
    report = await take_over(actor_system, _tenant(request), cluster, own, dry_run=dry_run)
    return answer(report.as_json())


async def show_pulls(request: web.Request) -> web.Response:
    """Progress of each partition of a tenant that is pulled."""
    return answer(await statuses(actor_system_of(request), _tenant(request)))


async def end_pull(request: web.Request) -> web.Response:
    """Stop pulling from ``cluster``; 409 while entries are missing here, unless ``force``."""
    cluster = given(request, operations.CLUSTER)
    if not cluster:
        raise AdminError(400, "query parameter cluster must name a cluster")
    force = given(request, operations.UNFINISHED)
    report = await finish(actor_system_of(request), _tenant(request), cluster, force=force)
    return answer(report.as_json())


ROUTES: tuple[Route, ...] = (
    Route(operations.START_PULL, begin_pull),
    Route(operations.PULLS, show_pulls),
    Route(operations.FINISH_PULL, end_pull),
)

"""The admin interface: HTTP in the shape of Pulsar's, so Pulsar's tools work.

Each module lists its operations with their handlers in ``ROUTES``. If the cluster requires tokens,
every request needs one (``Authorization: Bearer``). Requests of web pages are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from velaray.admin import actors as admin_actors
from velaray.admin import audit as admin_audit
from velaray.admin import brokers as admin_brokers
from velaray.admin import clusters as admin_clusters
from velaray.admin import compaction as admin_compaction
from velaray.admin import dead_letters as admin_dead_letters
from velaray.admin import erasure as admin_erasure
from velaray.admin import hosts as admin_hosts
from velaray.admin import ledgers as admin_ledgers
from velaray.admin import levels as admin_levels
from velaray.admin import metrics as admin_metrics
from velaray.admin import migrations as admin_migrations
from velaray.admin import namespaces as admin_namespaces
from velaray.admin import offload as admin_offload
from velaray.admin import openapi as admin_openapi
from velaray.admin import permissions as admin_permissions
from velaray.admin import pipelines as admin_pipelines
from velaray.admin import policies as admin_policies
from velaray.admin import publishing as admin_publishing
from velaray.admin import pulls as admin_pulls
from velaray.admin import replication as admin_replication
from velaray.admin import schemas as admin_schemas
from velaray.admin import subscription_rates as admin_subscription_rates
from velaray.admin import subscriptions as admin_subscriptions
from velaray.admin import tenants as admin_tenants
from velaray.admin import topic_reads as admin_topic_reads
from velaray.admin import topics as admin_topics
from velaray.admin import transactions as admin_transactions
from velaray.admin import unsupported as admin_unsupported
from velaray.admin.auditing import AUDIT, audited, make_audit, stop_audit
from velaray.admin.authorisation import (
    GRANTS,
    check_of,
    make_grants,
    right_of,
    stop_grants,
)
from velaray.admin.binding import Route, bound
from velaray.admin.callers import refuse_foreign_callers
from velaray.admin.http import (
    ACTOR_SYSTEM,
    MAX_BODY,
    TURNS,
    answer_errors,
    check_token,
    take_turns,
)
from velaray.admin.metrics import LOOP_LAG, SCRAPE_LOCK
from velaray.admin.openapi import DESCRIPTION, Description, Group
from velaray.admin.policies import QUOTA_LOCK
from velaray.admin.unsupported import refuse_unsupported
from velaray.topology.actor_system import ActorSystem
from velaray.topology.loop_lag import LoopLag
from velaray.topology.tls import server_tls
from velaray.wire.turns import Turns

_MODULES = (
    admin_brokers,
    admin_clusters,
    admin_tenants,
    admin_namespaces,
    admin_erasure,
    admin_permissions,
    admin_levels,
    admin_policies,
    admin_replication,
    admin_topics,
    admin_topic_reads,
    admin_publishing,
    admin_dead_letters,
    admin_pipelines,
    admin_compaction,
    admin_offload,
    admin_subscriptions,
    admin_subscription_rates,  # its paths match those of `admin_subscriptions` as well
    admin_transactions,
    admin_schemas,
    admin_ledgers,
    admin_hosts,
    admin_actors,
    admin_audit,
    admin_metrics,
    admin_migrations,
    admin_pulls,
    admin_openapi,
    admin_unsupported,
)


def groups() -> list[Group]:
    """The operations that are served, by kind of resource."""
    return [
        Group(
            module.__name__.rpartition(".")[2].replace("_", " "),
            str(module.__doc__).partition("\n\n")[0],
            module.ROUTES,
        )
        for module in _MODULES
    ]


def routes_by_module() -> dict[str, tuple[Route, ...]]:
    """The routes that are served, by the name of the module that lists them."""
    return {module.__name__: module.ROUTES for module in _MODULES}


def admin_app(actor_system: ActorSystem) -> web.Application:
    """The application of the admin interface for the cluster of ``actor_system``."""
    checks = [take_turns, answer_errors, check_token, refuse_foreign_callers, refuse_unsupported]
    app = web.Application(middlewares=checks, client_max_size=MAX_BODY)
    app[ACTOR_SYSTEM] = actor_system
    app[TURNS] = Turns(actor_system.store.write_in_work)
    app[QUOTA_LOCK] = asyncio.Lock()
    app[SCRAPE_LOCK] = asyncio.Lock()
    app[LOOP_LAG] = LoopLag()
    app[GRANTS] = make_grants(app)
    app.on_cleanup.append(stop_grants)
    app[AUDIT] = make_audit(app)
    app.on_cleanup.append(stop_audit)
    app[DESCRIPTION] = Description(groups())
    for module, routes in routes_by_module().items():
        for route in routes:
            operation = route.operation
            check = check_of(right_of(operation, module), operation)
            handler = audited(operation, check, bound(route))
            app.router.add_route(operation.method, operation.path, handler)
    return app


async def serve_admin(
    actor_system: ActorSystem,
    host: str,
    port: int,
    make_app: Callable[[ActorSystem], web.Application] = admin_app,
) -> tuple[web.AppRunner, int]:
    """Listen on ``host``, and by TLS on the port of the settings; port 0 selects a free port.
    Returns the runner and the port, which is the one of TLS if there is no other.

    ``make_app`` makes the application that is served.
    ``await runner.cleanup()`` stops the server. Raises `OSError` if a port is in use.
    """
    config, tls = actor_system.config, server_tls(actor_system.config)
    runner = web.AppRunner(make_app(actor_system), access_log=None)
    await runner.setup()
    try:
        if config.speaks_plain:
            await web.TCPSite(runner, host, port).start()
        if config.tls is not None and tls is not None:
            site = web.TCPSite(runner, host, config.tls.admin_port, ssl_context=tls.context)
            await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])

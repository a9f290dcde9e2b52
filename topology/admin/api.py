"""The admin interface: HTTP in the shape of Pulsar's, so that its tools work.

Routes stand in the ``ROUTES`` of the modules that answer them. Where the cluster has tokens,
every request needs one (``Authorization: Bearer``).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from velaray.topology.admin import clusters as admin_clusters
from velaray.topology.admin import compaction as admin_compaction
from velaray.topology.admin import ledgers as admin_ledgers
from velaray.topology.admin import levels as admin_levels
from velaray.topology.admin import metrics as admin_metrics
from velaray.topology.admin import migrations as admin_migrations
from velaray.topology.admin import policies as admin_policies
from velaray.topology.admin import pulls as admin_pulls
from velaray.topology.admin import replication as admin_replication
from velaray.topology.admin import schemas as admin_schemas
from velaray.topology.admin import subscriptions as admin_subscriptions
from velaray.topology.admin import tenants as admin_tenants
from velaray.topology.admin import topics as admin_topics
from velaray.topology.admin import transactions as admin_transactions
from velaray.topology.admin.http import FABRIC, MAX_BODY, answer_errors, check_token
from velaray.topology.admin.metrics import SCRAPE_LOCK
from velaray.topology.admin.policies import QUOTA_LOCK
from velaray.topology.fabric import Fabric

_MODULES = (
    admin_clusters,
    admin_tenants,
    admin_levels,
    admin_policies,
    admin_replication,
    admin_topics,
    admin_compaction,
    admin_subscriptions,
    admin_transactions,
    admin_schemas,
    admin_ledgers,
    admin_metrics,
    admin_migrations,
    admin_pulls,
)


def admin_app(fabric: Fabric) -> web.Application:
    """The application that answers for ``fabric``'s cluster."""
    app = web.Application(middlewares=[answer_errors, check_token], client_max_size=MAX_BODY)
    app[FABRIC] = fabric
    app[QUOTA_LOCK] = asyncio.Lock()
    app[SCRAPE_LOCK] = asyncio.Lock()
    for module in _MODULES:
        for method, path, handler in module.ROUTES:
            app.router.add_route(method, path, handler)
    return app


async def serve_admin(fabric: Fabric, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen on ``host``; port 0 takes a free one. Returns the runner and the port.

    ``await runner.cleanup()`` ends it. Raises `OSError` if the port is taken.
    """
    runner = web.AppRunner(admin_app(fabric), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])

"""The admin interface: HTTP in the shape of Pulsar's, so that its tools work.

Routes stand in the ``ROUTES`` of the modules that answer them. Where the cluster has tokens,
every request needs one (``Authorization: Bearer``).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from velaray.topology import (
    admin_compaction,
    admin_ledgers,
    admin_levels,
    admin_metrics,
    admin_policies,
    admin_schemas,
    admin_subscriptions,
    admin_tenants,
    admin_topics,
    admin_transactions,
)
from velaray.topology.admin_http import FABRIC, MAX_BODY, answer_errors, check_token
from velaray.topology.admin_metrics import SCRAPE_LOCK
from velaray.topology.admin_policies import QUOTA_LOCK
from velaray.topology.fabric import Fabric

_MODULES = (
    admin_tenants,
    admin_levels,
    admin_policies,
    admin_topics,
    admin_compaction,
    admin_subscriptions,
    admin_transactions,
    admin_schemas,
    admin_ledgers,
    admin_metrics,
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

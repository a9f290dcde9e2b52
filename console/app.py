"""The console's application. It passes all paths but its own to the REST interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.resources import files

from aiohttp import web

from velaray.admin.api import admin_app
from velaray.admin.http import ACTOR_SYSTEM, MAX_BODY
from velaray.admin.metrics import measure_lag, push_metrics
from velaray.console import (
    attention,
    audit,
    cluster,
    dead_letters,
    login,
    message,
    messages,
    moments,
    moves,
    pipelines,
    policies,
    schemas,
    subscription,
    topic,
    topics,
    transactions,
)
from velaray.console.streams import STREAMS, Streams
from velaray.console.survey import SURVEYS, Surveys
from velaray.console.visit import SERVER, TEMPLATES, templates
from velaray.topology.actor_system import ActorSystem

PAGES = (
    attention,
    topics,
    topic,
    messages,
    message,
    subscription,
    moves,
    policies,
    schemas,
    dead_letters,
    transactions,
    cluster,
    pipelines,
    moments,
    audit,
    login,
)
"""The modules of the pages."""
_API = web.AppKey("api", web.Application)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def console_app(actor_system: ActorSystem) -> web.Application:
    """The application for the cluster of ``actor_system``."""
    app = web.Application(client_max_size=MAX_BODY)
    app[ACTOR_SYSTEM] = actor_system
    app[TEMPLATES] = templates()
    app[SURVEYS] = Surveys()
    app[STREAMS] = Streams()
    app.on_shutdown.append(app[STREAMS].end)
    app[_API] = admin_app(actor_system)
    # Here, and not for every REST interface: simulated processes have no such timer.
    app[_API].cleanup_ctx.append(measure_lag)
    app[_API].cleanup_ctx.append(push_metrics)
    app.cleanup_ctx.append(_api)
    for module in PAGES:
        for method, path, handler in module.ROUTES:
            app.router.add_route(method, path, handler)
    app.router.add_get("/console/static/{file}", static_file)
    app.router.add_route("*", "/{path:.*}", pass_to_api)
    return app


async def _api(app: web.Application) -> AsyncIterator[None]:
    """Run the REST interface without a port of its own."""
    runner = web.AppRunner(app[_API], access_log=None)
    await runner.setup()
    assert runner.server is not None
    app[SERVER] = runner.server
    yield
    await runner.cleanup()


async def pass_to_api(request: web.Request) -> web.StreamResponse:
    """The answer of the REST interface."""
    answer: web.StreamResponse = await request.app[SERVER].request_handler(request)
    return answer


async def static_file(request: web.Request) -> web.StreamResponse:
    """A file of the console: scripts and styles. Anybody may read them."""
    name = request.match_info["file"]
    known = {each.name: each for each in files("velaray.console").joinpath("static").iterdir()}
    kind = _TYPES.get(name[name.rfind(".") :])
    if name not in known or kind is None:
        raise web.HTTPNotFound
    headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=known[name].read_bytes(), content_type=kind, headers=headers)

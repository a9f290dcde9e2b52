"""Routes of the admin interface for compaction, in Pulsar's shape."""

from __future__ import annotations

from aiohttp import web

from velaray.admin.binding import Route
from velaray.admin.http import answer, ask_each, done, find_target
from velaray.broker.partition.messages import Compact, CompactionStatus
from velaray.client.admin import topics as operations

_WORST_FIRST = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")


async def compact(request: web.Request) -> web.Response:
    """Start the compaction of a topic (all partitions); 409 while it is being compacted."""
    await ask_each(request, await find_target(request), Compact())
    return done()


async def status(request: web.Request) -> web.Response:
    """The status of the last compaction; for several partitions, the worst one."""
    found = await ask_each(request, await find_target(request), CompactionStatus())
    return answer(min(found, key=lambda each: _WORST_FIRST.index(each["status"])))


ROUTES: tuple[Route, ...] = (
    Route(operations.COMPACT, compact),
    Route(operations.COMPACTION, status),
)

"""Routes of the admin interface for retention marks of Spark's queries: list and release them.

All of them are velaray's own.
"""

from __future__ import annotations

from aiohttp import web

from velaray.admin import subscriptions
from velaray.admin.binding import Route, given
from velaray.admin.http import AdminError, actor_system_of, answer, ask_each, find_target
from velaray.broker.history import last_active_ms
from velaray.broker.partition import messages as m
from velaray.client.admin import pipelines as operations
from velaray.client.admin.pipelines import Mark
from velaray.client.retention_marks import is_mark
from velaray.events.ids import ActorKey


async def list_marks(request: web.Request) -> web.Response:
    """The retention marks of a topic, by partition, with what each holds.

    A mark is a durable subscription of a query of Spark's. It is abandoned if no driver is
    connected for ``idleSeconds`` while it holds messages.
    """
    target, idle_s = await find_target(request), given(request, operations.IDLE)
    asked = await ask_each(request, target, m.Marks())
    found = [
        await _mark(request, key, str(name), each, idle_s)
        for name, key, marks in zip(target.members(), target.keys(), asked, strict=True)
        for each in marks
    ]
    return answer(found)


async def _mark(
    request: web.Request, partition: ActorKey, topic: str, found: m.Mark, idle_s: int
) -> Mark:
    actor_system = actor_system_of(request)
    active_ms, idle = None, 0.0
    if not found["readers"]:
        active_ms = found["last_left_ms"]
        if active_ms is None:
            key = partition.of_subscription(found["subscription"], found["incarnation"])
            active_ms = await last_active_ms(actor_system.store, key)
        since_ms = actor_system.clock_ms() - (active_ms or 0)
        idle = max(since_ms if active_ms else found["oldest_ms"], 0) / 1000
    return {
        "topic": topic,
        "subscription": found["subscription"],
        "connected": found["readers"] > 0,
        "entries": found["entries"],
        "bytes": found["bytes"],
        "oldestSeconds": found["oldest_ms"] / 1000,
        "lastActiveMs": active_ms,
        "idleSeconds": idle,
        "abandoned": not found["readers"] and found["entries"] > 0 and idle >= idle_s,
    }


async def release(request: web.Request) -> web.Response:
    """Delete a retention mark on every partition of the topic that has it.

    412 while a driver is connected, or if the subscription isn't a retention mark.
    """
    name = request.match_info["subscription"]
    found = await ask_each(request, await find_target(request), m.SubscriptionProperties())
    known = [properties[name] for properties in found if name in properties]
    if known and not all(is_mark(name, properties) for properties in known):
        raise AdminError(
            412,
            f"{name!r} isn't a retention mark of a query of Spark's: nothing is released; delete "
            "it as a subscription if it isn't needed",
        )
    return await subscriptions.delete(request)


ROUTES: tuple[Route, ...] = (
    Route(operations.MARKS, list_marks),
    Route(operations.RELEASE, release),
)

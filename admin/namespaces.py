"""Routes of the admin interface for namespaces: all topics at once, bundles, properties.

Every namespace has one bundle; routes of bundles accept only its range.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from aiohttp import web
from typing_extensions import TypedDict

from velaray.admin.binding import Route, body_of
from velaray.admin.body_limits import fault_in_value
from velaray.admin.http import (
    AdminError,
    Handler,
    actor_system_of,
    answer,
    ask_catalog,
    done,
    namespace_of,
    users_namespace_of,
)
from velaray.admin.policies import QUOTA_LOCK
from velaray.admin.topic_reads import WHOLE_RANGE
from velaray.broker.catalog import messages as m
from velaray.broker.partition.messages import DeleteSubscription, SkipTo, Subscriptions
from velaray.client.admin import namespaces as operations
from velaray.client.admin.operations import TEXT, Operation, Texts, reads
from velaray.events.ids import ActorKey, TopicName, check_local_name
from velaray.topology.fan_out import each
from velaray.wire.replication import REPLICATOR_PREFIX

_PROPERTIES = "properties"


async def bundles(request: web.Request) -> web.Response:
    """The one bundle of the namespace."""
    await _policies(request)
    return answer({"boundaries": WHOLE_RANGE.split("_"), "numBundles": 1})


async def _policies(request: web.Request) -> Any:
    """The policies that are set on the namespace of the path. Raises `RemoteError` (NOT_FOUND)."""
    return await ask_catalog(request, m.Policies(namespace=namespace_of(request)))


def _of_bundle(handler: Handler) -> Handler:
    async def check(request: web.Request) -> web.StreamResponse:
        bundle = request.match_info["bundle"]
        if bundle.lower() != WHOLE_RANGE:
            raise AdminError(404, f"no bundle {bundle[:40]!r}; the only one is {WHOLE_RANGE}")
        return await handler(request)

    return check


async def _partitions(request: web.Request) -> list[ActorKey]:
    """The partition actors of all topics of the namespace."""
    found = await ask_catalog(request, m.Topics(users_namespace_of(request)))
    names = [(TopicName.parse(topic["topic"]), topic) for topic in found]
    return [
        key
        for name, topic in names
        for key in ActorKey.of_partitions(name, topic["incarnation"], topic["partitions"])
    ]


async def unload(request: web.Request) -> web.Response:
    """Stop the partition actors of all topics gracefully; the next use starts them again."""
    await each(await _partitions(request), actor_system_of(request).dismiss)
    return done()


async def _each_subscription(
    request: web.Request, work: Callable[[ActorKey, str], Awaitable[Any]]
) -> None:
    """Apply ``work`` to the subscription of the path, or to all, in every partition that has it."""
    wanted = request.match_info.get("subscription")
    if wanted is not None:
        check_local_name("subscription", wanted)
    actor_system = actor_system_of(request)

    async def on_partition(key: ActorKey) -> None:
        for name in await actor_system.request(key, Subscriptions()):
            if wanted in (None, name) and not name.startswith(REPLICATOR_PREFIX):
                await work(key, name)

    await each(await _partitions(request), on_partition)


async def clear_backlog(request: web.Request) -> web.Response:
    """Acknowledge the whole backlog of one subscription, or of all, in every topic."""
    actor_system = actor_system_of(request)
    await _each_subscription(request, lambda key, name: actor_system.request(key, SkipTo(name)))
    return done()


async def unsubscribe(request: web.Request) -> web.Response:
    """Delete a subscription in every topic; 412 if consumers are connected."""
    actor_system = actor_system_of(request)
    await _each_subscription(
        request, lambda key, name: actor_system.request(key, DeleteSubscription(name))
    )
    return done()


# -- properties --------------------------------------------------------------------


async def _change_properties(
    request: web.Request, change: Callable[[dict[str, str]], Any]
) -> web.Response:
    namespace = users_namespace_of(request)
    async with request.app[QUOTA_LOCK]:
        own = dict((await _policies(request)).get(_PROPERTIES, {}))
        removed = change(own)
        if fault := fault_in_value(own):
            raise AdminError(412, f"the properties are refused: {fault}")
        if own:
            text = json.dumps(own).encode()
            await ask_catalog(request, m.SetPolicy(_PROPERTIES, text, namespace=namespace))
        else:
            await ask_catalog(request, m.RemovePolicy(_PROPERTIES, namespace=namespace))
    return web.Response(text=removed) if isinstance(removed, str) else done()


async def get_properties(request: web.Request) -> web.Response:
    """All properties of a namespace."""
    return answer((await _policies(request)).get(_PROPERTIES, {}))


async def add_properties(request: web.Request) -> web.Response:
    """Set the properties of the body; the others stay."""
    given = body_of(request)
    return await _change_properties(request, lambda own: own.update(given))


async def clear_properties(request: web.Request) -> web.Response:
    """Remove all properties."""
    return await _change_properties(request, lambda own: own.clear())


async def get_property(request: web.Request) -> web.Response:
    """One property; 204 if it isn't set."""
    found = (await _policies(request)).get(_PROPERTIES, {}).get(request.match_info["key"])
    return done() if found is None else web.Response(text=found)


async def set_property(request: web.Request) -> web.Response:
    """Set one property."""
    key, value = request.match_info["key"], request.match_info["value"]
    return await _change_properties(request, lambda own: own.update({key: value}))


async def remove_property(request: web.Request) -> web.Response:
    """Remove one property; the answer is its value."""
    key = request.match_info["key"]
    return await _change_properties(request, lambda own: own.pop(key, None))


class Bundles(TypedDict):
    """The bundles of a namespace."""

    boundaries: list[str]
    numBundles: int


_NAMESPACE = operations.NAMESPACE
_BUNDLE = f"{_NAMESPACE}/{{bundle}}"
_ACTIONS: tuple[tuple[str, str, Handler], ...] = (
    ("PUT", "unload", unload),
    ("POST", "clearBacklog", clear_backlog),
    ("POST", "clearBacklog/{subscription}", clear_backlog),
    ("POST", "unsubscribe/{subscription}", unsubscribe),
)
_PROPERTIES_PATH = f"{_NAMESPACE}/properties"
_PROPERTY = f"{_NAMESPACE}/property/{{key}}"
_ONE_TEXT = {200: str, 204: None}


def _actions() -> Iterator[Route]:
    for method, path, handler in _ACTIONS:
        yield Route(Operation(method, f"{_NAMESPACE}/{path}"), handler)
        of_bundle = Operation(method, f"{_BUNDLE}/{path}")
        yield Route(of_bundle, _of_bundle(handler), handler.__doc__ or "")


ROUTES: tuple[Route, ...] = (
    Route(reads(f"{_NAMESPACE}/bundles", Bundles), bundles),
    *_actions(),
    Route(reads(_PROPERTIES_PATH, Texts), get_properties),
    Route(Operation("PUT", _PROPERTIES_PATH, body=Texts), add_properties),
    Route(Operation("DELETE", _PROPERTIES_PATH), clear_properties),
    Route(Operation("GET", _PROPERTY, answers=_ONE_TEXT, content=TEXT), get_property),
    Route(Operation("PUT", f"{_PROPERTY}/{{value}}"), set_property),
    Route(Operation("DELETE", _PROPERTY, answers=_ONE_TEXT, content=TEXT), remove_property),
)

"""Routes of the admin interface for policies of namespaces and topics.

Every policy is a sub-resource under Pulsar's name. GET reads the value that is set there (204 if
none is; ``?applied=true``: the effective value). PUT or POST sets it. DELETE removes it, and the
wider level's value applies.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from velaray.actors.catalog.policies import POLICIES, SUBSCRIPTION_RATES, Level
from velaray.admin.http import (
    PREFIX,
    AdminError,
    Handler,
    Route,
    answer,
    ask_catalog,
    done,
    flag,
    json_body,
    users_namespace_of,
    whole_topic_of,
)
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.pulsar_policies import QUOTA, TOPIC_PATHS
from velaray.broker.schema_registry.schema_calls import STRATEGY

QUOTA_LOCK = web.AppKey("quota_lock", asyncio.Lock)
"""Held while one entry of a policy that has several is changed."""
_BY_ENTRY = (QUOTA, SUBSCRIPTION_RATES, "properties")

# -- sub-resources -----------------------------------------------------------------


def _scope(request: web.Request) -> tuple[str | None, str | None]:
    """The topic or the namespace in the path."""
    if "topic" in request.match_info:
        return str(whole_topic_of(request)), None
    return None, users_namespace_of(request)


async def _own(request: web.Request, name: str) -> Any:
    return (await ask_catalog(request, m.Policies(*_scope(request)))).get(name)


async def _read(request: web.Request, name: str) -> Any:
    if not flag(request, "applied"):
        return await _own(request, name)
    found = await ask_catalog(request, m.Policies(*_scope(request), [name]))
    return found[name]


async def _set(request: web.Request, name: str, value: Any) -> None:
    text = json.dumps(value).encode()
    await ask_catalog(request, m.SetPolicy(name, text, *_scope(request)))


def _handlers(name: str) -> tuple[Handler, Handler, Handler]:
    async def read(request: web.Request) -> web.Response:
        value = await _read(request, name)
        if value is None and name == STRATEGY and "topic" not in request.match_info:
            value = "UNDEFINED"  # Pulsar's tools have no value for an unset strategy
        return done() if value is None else answer(value)

    async def change(request: web.Request) -> web.Response:
        value = await json_body(request)
        if value is None and not (await request.text()).strip():
            value = _in_query(request, name)
        if value in (None, "", "UNDEFINED"):  # not set here: the wider level applies
            return await remove(request)
        await _set(request, name, value)
        return done()

    async def remove(request: web.Request) -> web.Response:
        await ask_catalog(request, m.RemovePolicy(name, *_scope(request)))
        return done()

    return read, change, remove


def _in_query(request: web.Request, name: str) -> Any:
    """A value from a query parameter: Pulsar's tools send a topic's messageTTL this way."""
    text = request.query.get(name)
    if text is None:
        raise AdminError(400, f"give the value of {name} as the body")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdminError(400, f"{name} isn't JSON: {error}") from error


# -- the older paths of the schema strategy -----------------------------------------

_STRATEGY = "schemaCompatibilityStrategy"
_OLDER_NAMES = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


async def _older_name(request: web.Request) -> web.Response:
    """The effective schema strategy of a namespace, by its older path."""
    wanted = m.Policies(namespace=users_namespace_of(request), effective=[_STRATEGY])
    found = await ask_catalog(request, wanted)
    return answer({new: old for old, new in _OLDER_NAMES.items()}.get(found[_STRATEGY]))


async def _set_by_older_name(request: web.Request) -> web.Response:
    """Set the schema strategy of a namespace by its older path."""
    given = await json_body(request)
    if not isinstance(given, str) or given not in _OLDER_NAMES:
        names = ", ".join(_OLDER_NAMES)
        raise AdminError(422, f"the strategy must be one of {names}, not {str(given)[:40]!r}")
    await _set(request, _STRATEGY, _OLDER_NAMES[given])
    return done()


# -- backlog quotas: one policy with an entry for each type ------------------------


async def _quotas(request: web.Request) -> web.Response:
    return answer(await _read(request, QUOTA) or {})


async def _set_quota(request: web.Request) -> web.Response:
    quota = await json_body(request)
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        await _set(request, QUOTA, {**quotas, _quota_type(request): quota})
    return done()


async def _remove_quota(request: web.Request) -> web.Response:
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        quotas.pop(_quota_type(request), None)
        if quotas:
            await _set(request, QUOTA, quotas)
        else:
            await ask_catalog(request, m.RemovePolicy(QUOTA, *_scope(request)))
    return done()


def _quota_type(request: web.Request) -> str:
    return request.query.get("backlogQuotaType", "destination_storage")


def _routes() -> list[Route]:
    routes: list[Route] = []
    for level, base in (
        (Level.NAMESPACE, f"{PREFIX}/namespaces/{{tenant}}/{{namespace}}"),
        (Level.TOPIC, f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/{{topic}}"),
    ):
        routes += [
            ("GET", f"{base}/backlogQuotaMap", _quotas),
            ("POST", f"{base}/backlogQuota", _set_quota),
            ("DELETE", f"{base}/backlogQuota", _remove_quota),
        ]
        for name, policy in POLICIES.items():
            if level not in policy.levels or name in _BY_ENTRY:
                continue
            path = f"{base}/{TOPIC_PATHS.get(name, name) if level is Level.TOPIC else name}"
            read, change, remove = _handlers(name)
            routes += [("GET", path, read), ("PUT", path, change), ("POST", path, change)]
            routes.append(("DELETE", path, remove))
    return routes


_OLDER = f"{PREFIX}/namespaces/{{tenant}}/{{namespace}}/schemaAutoUpdateCompatibilityStrategy"

ROUTES: tuple[Route, ...] = (
    *_routes(),
    ("GET", _OLDER, _older_name),
    ("PUT", _OLDER, _set_by_older_name),
)

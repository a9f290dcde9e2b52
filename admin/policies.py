"""Routes of the admin interface for policies of namespaces and topics.

Every policy is a sub-resource under Pulsar's name. GET reads the value that is set there (204 if
none is; ``?applied=true``: the effective value). PUT or POST sets it. DELETE removes it, and the
wider level's value applies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from aiohttp import web
from pydantic import WithJsonSchema

from velaray.actors.catalog.policies import (
    ENCRYPTION_REQUIRED,
    OFFLOAD_BYTES,
    OFFLOAD_SECONDS,
    PERMISSIONS,
    SUBSCRIPTION_PERMISSIONS,
    SUBSCRIPTION_RATES,
    TABLE,
    Level,
    Policy,
)
from velaray.admin import policies_not_applied
from velaray.admin.binding import Route, body_of, given
from velaray.admin.http import (
    AdminError,
    Handler,
    answer,
    ask_catalog,
    done,
    json_body,
    users_namespace_of,
    whole_topic_of,
)
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.pulsar_policies import NAMESPACE_PATHS, QUOTA, TOPIC_PATHS
from velaray.broker.schema_registry.schema_calls import STRATEGY
from velaray.client.admin.namespaces import (
    NAMESPACE,
    TOPIC,
    get_policy,
    remove_policy,
    set_policy,
)
from velaray.client.admin.operations import APPLIED, AnyObject, Operation, Parameter, reads

QUOTA_LOCK = web.AppKey("quota_lock", asyncio.Lock)
"""Held while one entry of a policy that has several is changed."""
_UNSET = {
    STRATEGY: "UNDEFINED",
    OFFLOAD_BYTES: -1,
    OFFLOAD_SECONDS: -1,
    ENCRYPTION_REQUIRED: False,
}
"""What a namespace without a policy answers, where Pulsar's tools need a value."""
_BY_ENTRY = (QUOTA, SUBSCRIPTION_RATES, PERMISSIONS, SUBSCRIPTION_PERMISSIONS, "properties")
QUOTA_TYPE = Parameter(
    "backlogQuotaType", str, "destination_storage", "destination_storage or message_age."
)


def described(policy: Policy) -> Any:
    """The type of a policy's value in the description. The catalog checks values."""
    return Annotated[Any, WithJsonSchema(policy.type.schema())]


# -- sub-resources -----------------------------------------------------------------


def _scope(request: web.Request) -> tuple[str | None, str | None]:
    """The topic or the namespace in the path."""
    if "topic" in request.match_info:
        return str(whole_topic_of(request)), None
    return None, users_namespace_of(request)


async def _own(request: web.Request, name: str) -> Any:
    return (await ask_catalog(request, m.Policies(*_scope(request)))).get(name)


async def _read(request: web.Request, name: str) -> Any:
    if not given(request, APPLIED):
        return await _own(request, name)
    found = await ask_catalog(request, m.Policies(*_scope(request), [name]))
    return found[name]


async def _set(request: web.Request, name: str, value: Any) -> None:
    text = json.dumps(value).encode()
    await ask_catalog(request, m.SetPolicy(name, text, *_scope(request)))


def _handlers(name: str) -> tuple[Handler, Handler, Handler]:
    async def read(request: web.Request) -> web.Response:
        value = await _read(request, name)
        if value is None and "topic" not in request.match_info:
            value = _UNSET.get(name)
        return done() if value is None else answer(value)

    async def change(request: web.Request) -> web.Response:
        value = await json_body(request)
        if value is None and not (await request.text()).strip():
            value = _from_query(request, name)
        if value in (None, "", "UNDEFINED"):  # not set here: the wider level applies
            return await remove(request)
        await _set(request, name, value)
        return done()

    async def remove(request: web.Request) -> web.Response:
        await ask_catalog(request, m.RemovePolicy(name, *_scope(request)))
        return done()

    return read, change, remove


def _in_query(name: str) -> Parameter[str | None]:
    """A policy's value as a query parameter: Pulsar's tools send a topic's messageTTL this way."""
    return Parameter(name, str, None, "The value, if there is no body.")


def _from_query(request: web.Request, name: str) -> Any:
    text = given(request, _in_query(name))
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
    name = body_of(request)
    if name not in _OLDER_NAMES:
        names = ", ".join(_OLDER_NAMES)
        raise AdminError(422, f"the strategy must be one of {names}, not {name[:40]!r}")
    await _set(request, _STRATEGY, _OLDER_NAMES[name])
    return done()


# -- backlog quotas: one policy with an entry for each type ------------------------


async def _quotas(request: web.Request) -> web.Response:
    """The backlog quotas by type."""
    return answer(await _read(request, QUOTA) or {})


async def _set_quota(request: web.Request) -> web.Response:
    """Set the backlog quota of one type."""
    quota = body_of(request)
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        await _set(request, QUOTA, {**quotas, _quota_type(request): quota})
    return done()


async def _remove_quota(request: web.Request) -> web.Response:
    """Remove the backlog quota of one type."""
    async with request.app[QUOTA_LOCK]:
        quotas = await _own(request, QUOTA) or {}
        quotas.pop(_quota_type(request), None)
        if quotas:
            await _set(request, QUOTA, quotas)
        else:
            await ask_catalog(request, m.RemovePolicy(QUOTA, *_scope(request)))
    return done()


def _quota_type(request: web.Request) -> str:
    return given(request, QUOTA_TYPE)


def _routes() -> Iterator[Route]:
    for level, base in ((Level.NAMESPACE, NAMESPACE), (Level.TOPIC, TOPIC)):
        quota = f"{base}/backlogQuota"
        yield Route(reads(f"{base}/backlogQuotaMap", AnyObject, APPLIED), _quotas)
        yield Route(Operation("POST", quota, (QUOTA_TYPE,), body=AnyObject), _set_quota)
        yield Route(Operation("DELETE", quota, (QUOTA_TYPE,)), _remove_quota)
        paths = TOPIC_PATHS if level is Level.TOPIC else NAMESPACE_PATHS
        for name, policy in TABLE.items():
            if level not in policy.levels or name in _BY_ENTRY:
                continue
            path = paths.get(name, name)
            about = f"the policy {name} of a {str(level.name).lower()}: {policy.description}"
            if policy.not_applied:
                yield from _not_applied(policy, base, path, about)
                continue
            read, change, remove = _handlers(name)
            value, kind = _in_query(name), described(policy)
            found = str if name == STRATEGY else kind  # or UNDEFINED
            getting = replace(get_policy(base, path), answers={200: found, 204: None})
            yield Route(getting, read, f"Read {about}")
            for method in ("PUT", "POST"):
                setting = replace(set_policy(base, path, method), query=(value,), body=kind)
                yield Route(setting, change, f"Set {about}")
            yield Route(remove_policy(base, path), remove, f"Remove {about}")


def _not_applied(policy: Policy, base: str, path: str, about: str) -> Iterator[Route]:
    read, change, remove = policies_not_applied.handlers(policy)
    about = f"{about} It isn't applied: {policy.not_applied}."
    yield Route(get_policy(base, path), read, f"Read {about}")
    for method in ("PUT", "POST"):
        setting = replace(set_policy(base, path, method), body=described(policy))
        yield Route(setting, change, f"Set {about}")
    removing = [path]
    if base == NAMESPACE and path == "offloadPolicies":
        removing.append("removeOffloadPolicies")
    for each in removing:
        yield Route(remove_policy(base, each), remove, f"Remove {about}")


_OLDER = f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy"

ROUTES: tuple[Route, ...] = (
    *_routes(),
    Route(reads(_OLDER, str | None), _older_name),
    Route(Operation("PUT", _OLDER, body=str), _set_by_older_name),
)

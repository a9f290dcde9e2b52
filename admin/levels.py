"""Routes of the admin interface for policies of every level, by their own names.

Pulsar gives every policy of a namespace or topic a path of its own (`velaray.admin.policies`). Its
widest level is the brokers' configuration. Here every level has ``policies``, which lists the
policies that are set there by name; ``?applied=true`` lists the effective ones. ``policies/{name}``
supports GET (204 if the policy isn't set), PUT or POST, and DELETE. The cluster's policies are
``/admin/v2/policies``; those of a namespace or topic are below its path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from aiohttp import web

from velaray.actors.catalog.policies import POLICIES, TABLE, Level, Policy, policy_at
from velaray.admin import policies_not_applied
from velaray.admin.binding import Route, given
from velaray.admin.http import (
    answer,
    ask_catalog,
    done,
    json_body,
    users_namespace_of,
    whole_topic_of,
)
from velaray.broker.catalog import messages as m
from velaray.client.admin import namespaces as operations
from velaray.client.admin.operations import APPLIED, Operation

Scope = tuple[str | None, str | None]
"""A topic or a namespace; neither: the cluster."""


def _scope(request: web.Request) -> Scope:
    """The level in the path."""
    if "topic" in request.match_info:
        return str(whole_topic_of(request)), None
    return None, users_namespace_of(request) if "namespace" in request.match_info else None


def _policy(request: web.Request, scope: Scope) -> Policy:
    """The policy of the path. Raises `InvalidPolicyError` if this level has no such policy."""
    topic, namespace = scope
    level = Level.TOPIC if topic else Level.NAMESPACE if namespace else Level.CLUSTER
    name = request.match_info["policy"]
    known = TABLE.get(name)
    if known is not None and known.not_applied and level in known.levels:
        return known
    return policy_at(name, level)


async def read_all(request: web.Request) -> web.Response:
    """Every policy that is set at this level; with ``applied`` every effective one."""
    scope = _scope(request)
    if given(request, APPLIED):
        return answer(await ask_catalog(request, m.Policies(*scope, list(POLICIES))))
    return answer(await ask_catalog(request, m.Policies(*scope)))


async def read(request: web.Request) -> web.Response:
    """One policy that is set at this level."""
    scope = _scope(request)
    policy = _policy(request, scope)
    if policy.not_applied:
        return await policies_not_applied.read(policy, request)
    own = await ask_catalog(request, m.Policies(*scope))
    return answer(own[policy.name]) if policy.name in own else done()


async def change(request: web.Request) -> web.Response:
    """Set a policy to the value in the body. Running topics apply it at once."""
    scope = _scope(request)
    policy = _policy(request, scope)
    if policy.not_applied:
        return await policies_not_applied.change(policy, request)
    text = json.dumps(await json_body(request)).encode()
    await ask_catalog(request, m.SetPolicy(policy.name, text, *scope))
    return done()


async def remove(request: web.Request) -> web.Response:
    """Remove a policy; the wider level's value applies again."""
    scope = _scope(request)
    policy = _policy(request, scope)
    if policy.not_applied:
        return await policies_not_applied.remove(policy, request)
    await ask_catalog(request, m.RemovePolicy(policy.name, *scope))
    return done()


async def remove_all(request: web.Request) -> web.Response:
    """Remove every policy of the topic. After a failure, repeat the call."""
    scope = _scope(request)
    for name in await ask_catalog(request, m.Policies(*scope)):
        await ask_catalog(request, m.RemovePolicy(name, *scope))
    return done()


def _routes() -> Iterator[Route]:
    for at in operations.LEVELS.values():
        yield Route(at.all, read_all)
        yield Route(at.get, read)
        yield Route(at.set(), change)
        yield Route(at.set("POST"), change)
        yield Route(at.remove, remove)


ROUTES: tuple[Route, ...] = (
    *_routes(),
    Route(Operation("DELETE", f"{operations.TOPIC}/policies"), remove_all),
)

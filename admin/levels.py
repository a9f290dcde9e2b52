"""Routes of the admin interface for policies of every level, by their own names.

Pulsar gives every policy of a namespace or topic a path of its own
(`velaray.admin.policies`), and has the widest level in its brokers' configuration.
Here every level has ``policies``: what is set there by name, with ``?applied=true`` what holds
there; and ``policies/{name}`` with GET (204 if it isn't set), PUT or POST, DELETE. The
cluster's are ``/admin/v2/policies``, the others are below the path of the namespace or topic.
"""

from __future__ import annotations

import json

from aiohttp import web

from velaray.actors.catalog.policies import POLICIES, Level, policy_at
from velaray.admin.http import (
    PREFIX,
    Route,
    answer,
    ask_catalog,
    done,
    flag,
    json_body,
    users_namespace_of,
    whole_topic_of,
)


def _scope(request: web.Request) -> dict[str, str]:
    """What is meant, as the catalog takes it; the cluster if the path names nothing."""
    if "topic" in request.match_info:
        return {"topic": str(whole_topic_of(request))}
    return {"namespace": users_namespace_of(request)} if "namespace" in request.match_info else {}


def _name(request: web.Request, scope: dict[str, str]) -> str:
    """The policy of the path. Raises `InvalidPolicyError` if there is none at this level."""
    levels = {"topic": Level.TOPIC, "namespace": Level.NAMESPACE}
    level = levels[next(iter(scope))] if scope else Level.CLUSTER
    return policy_at(request.match_info["policy"], level).name


async def read_all(request: web.Request) -> web.Response:
    """Every policy that is set here; with ``applied`` every one that holds here."""
    scope = _scope(request)
    if flag(request, "applied"):
        return answer(await ask_catalog(request, "policies", effective=list(POLICIES), **scope))
    return answer(await ask_catalog(request, "policies", **scope))


async def read(request: web.Request) -> web.Response:
    """One policy that is set here."""
    scope = _scope(request)
    name = _name(request, scope)
    own = await ask_catalog(request, "policies", **scope)
    return answer(own[name]) if name in own else done()


async def change(request: web.Request) -> web.Response:
    """Set a policy to the value in the body. Running topics apply it at once."""
    scope = _scope(request)
    text = json.dumps(await json_body(request)).encode()
    await ask_catalog(request, "set_policy", name=_name(request, scope), value=text, **scope)
    return done()


async def remove(request: web.Request) -> web.Response:
    """Let the wider level say what the policy is."""
    scope = _scope(request)
    await ask_catalog(request, "remove_policy", name=_name(request, scope), **scope)
    return done()


async def remove_all(request: web.Request) -> web.Response:
    """Remove every policy of the topic. After a failure, repeat the call."""
    scope = _scope(request)
    for name in await ask_catalog(request, "policies", **scope):
        await ask_catalog(request, "remove_policy", name=name, **scope)
    return done()


_TOPICS = f"{PREFIX}/persistent/{{tenant}}/{{namespace}}/{{topic}}/policies"


def _routes() -> list[Route]:
    routes: list[Route] = []
    for base in (
        f"{PREFIX}/policies",
        f"{PREFIX}/namespaces/{{tenant}}/{{namespace}}/policies",
        _TOPICS,
    ):
        one = f"{base}/{{policy}}"
        routes += [("GET", base, read_all), ("GET", one, read), ("DELETE", one, remove)]
        routes += [("PUT", one, change), ("POST", one, change)]
    return routes


ROUTES: tuple[Route, ...] = (*_routes(), ("DELETE", _TOPICS, remove_all))

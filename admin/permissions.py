"""Routes of the admin interface for what roles may do, with Pulsar's paths."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from velaray.actors.catalog.policies import PERMISSIONS, SUBSCRIPTION_PERMISSIONS
from velaray.admin.binding import Route, body_of
from velaray.admin.http import (
    AdminError,
    answer,
    ask_catalog,
    done,
    namespace_of,
    users_namespace_of,
    whole_topic_of,
)
from velaray.broker.catalog import messages as m
from velaray.client.admin import permissions as operations


async def _own(request: web.Request, name: str) -> dict[str, Any]:
    """A policy of the namespace in the path."""
    own = await ask_catalog(request, m.Policies(namespace=namespace_of(request)))
    return own.get(name) or {}


async def of_namespace(request: web.Request) -> web.Response:
    """The actions that roles may take in every topic of a namespace, by role."""
    return answer(await _own(request, PERMISSIONS))


async def of_topic(request: web.Request) -> web.Response:
    """The actions that roles may take on a topic, by role, with those of its namespace."""
    topic = str(whole_topic_of(request))
    here = (await ask_catalog(request, m.Policies(topic))).get(PERMISSIONS) or {}
    found = await _own(request, PERMISSIONS)
    roles = [*found, *(role for role in here if role not in found)]
    return answer(
        {
            role: [*dict.fromkeys([*found.get(role, ()), *here.get(role, ())])]
            for role in sorted(roles)
        }
    )


async def grant_on_namespace(request: web.Request) -> web.Response:
    """Let a role take the actions of the body, and no others, in every topic of a namespace."""
    namespace, actions = users_namespace_of(request), tuple(body_of(request))
    grant = m.GrantActions(request.match_info["role"], actions, namespace=namespace)
    await ask_catalog(request, grant)
    return done()


async def revoke_on_namespace(request: web.Request) -> web.Response:
    """Let a role take no action in a namespace as a whole."""
    namespace = users_namespace_of(request)
    await ask_catalog(request, m.RevokeActions(request.match_info["role"], namespace=namespace))
    return done()


async def grant_on_topic(request: web.Request) -> web.Response:
    """Let a role take the actions of the body on a topic, besides those of its namespace."""
    topic, actions = str(whole_topic_of(request)), tuple(body_of(request))
    await ask_catalog(request, m.GrantActions(request.match_info["role"], actions, topic=topic))
    return done()


async def revoke_on_topic(request: web.Request) -> web.Response:
    """Take back what was granted to a role on a topic itself; 412 if nothing was."""
    topic, role = str(whole_topic_of(request)), request.match_info["role"]
    reply = await ask_catalog(request, m.RevokeActions(role, topic=topic))
    if not reply["changed"]:
        raise AdminError(412, f"nothing is granted to role {role[:200]!r} on {topic} itself")
    return done()


async def of_subscriptions(request: web.Request) -> web.Response:
    """The only roles that may use a subscription, by subscription."""
    return answer(await _own(request, SUBSCRIPTION_PERMISSIONS))


async def grant_on_subscription(request: web.Request) -> web.Response:
    """Let only the roles of the body, and those of earlier grants, use a subscription."""
    namespace, subscription = users_namespace_of(request), request.match_info["subscription"]
    roles = tuple(body_of(request))
    await ask_catalog(request, m.GrantSubscription(namespace, subscription, roles))
    return done()


async def revoke_on_subscription(request: web.Request) -> web.Response:
    """Take a role off the list of a subscription. The last one ends the list."""
    namespace, subscription = users_namespace_of(request), request.match_info["subscription"]
    role = request.match_info["role"]
    await ask_catalog(request, m.RevokeSubscription(namespace, subscription, role))
    return done()


ROUTES: tuple[Route, ...] = (
    Route(operations.OF_NAMESPACE, of_namespace),
    Route(operations.OF_SUBSCRIPTIONS, of_subscriptions),
    Route(operations.GRANT_ON_SUBSCRIPTION, grant_on_subscription),
    Route(operations.REVOKE_ON_SUBSCRIPTION, revoke_on_subscription),
    Route(operations.GRANT_ON_NAMESPACE, grant_on_namespace),
    Route(operations.REVOKE_ON_NAMESPACE, revoke_on_namespace),
    Route(operations.OF_TOPIC, of_topic),
    Route(operations.GRANT_ON_TOPIC, grant_on_topic),
    Route(operations.REVOKE_ON_TOPIC, revoke_on_topic),
)

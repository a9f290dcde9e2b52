"""Handlers for policies of Pulsar's that velaray doesn't apply (`Policy.not_applied`).

Such a policy is never stored. It reads as not set. Values without effect are accepted, and every
other value is refused by name with status 501.
"""

from __future__ import annotations

from aiohttp import web

from velaray.actors.catalog.policies import Policy
from velaray.admin.http import (
    NOT_SUPPORTED,
    AdminError,
    Handler,
    answer,
    ask_catalog,
    done,
    find_target,
    json_or_text,
    namespace_of,
)
from velaray.broker.catalog.messages import Policies


async def _check_place(request: web.Request) -> None:
    """Raise `RemoteError` if the topic or namespace of the path doesn't exist."""
    if "topic" in request.match_info:
        await find_target(request)
    else:
        await ask_catalog(request, Policies(namespace=namespace_of(request)))


async def read(policy: Policy, request: web.Request) -> web.Response:
    """Answer that the policy isn't set, or its neutral value."""
    await _check_place(request)
    return done() if policy.default is None else answer(policy.default)


async def change(policy: Policy, request: web.Request) -> web.Response:
    """Accept a value without effect. Raises `AdminError` for any other."""
    await _check_place(request)
    try:
        policy.type.parse(await json_or_text(request))
    except ValueError as error:
        raise AdminError(NOT_SUPPORTED, policy.refusal) from error
    return done()


async def remove(policy: Policy, request: web.Request) -> web.Response:
    """Change nothing: the policy is never set."""
    await _check_place(request)
    return done()


def handlers(policy: Policy) -> tuple[Handler, Handler, Handler]:
    """The handlers that read, set and remove the policy by Pulsar's path for it."""

    async def read_it(request: web.Request) -> web.Response:
        return await read(policy, request)

    async def change_it(request: web.Request) -> web.Response:
        return await change(policy, request)

    async def remove_it(request: web.Request) -> web.Response:
        return await remove(policy, request)

    return read_it, change_it, remove_it

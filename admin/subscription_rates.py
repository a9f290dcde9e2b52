"""Routes of the admin interface for the dispatch rates of single subscriptions.

They are entries of one policy of the topic. POST sets the rate of a subscription, GET reads it (204
if it has none; ``?applied=true``: the effective one), DELETE removes it.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from velaray.actors.catalog.policies import POLICIES, SUBSCRIPTION_RATES
from velaray.admin.binding import Route, given
from velaray.admin.http import (
    answer,
    ask_catalog,
    done,
    json_body,
    whole_topic_of,
)
from velaray.admin.policies import QUOTA_LOCK, described
from velaray.broker.catalog.messages import Policies, RemovePolicy, SetPolicy
from velaray.client.admin.namespaces import TOPIC
from velaray.client.admin.operations import APPLIED, Operation


async def _rates(request: web.Request) -> dict[str, Any]:
    own = await ask_catalog(request, Policies(str(whole_topic_of(request))))
    return own.get(SUBSCRIPTION_RATES) or {}


async def _set(request: web.Request, rates: dict[str, Any]) -> None:
    topic = str(whole_topic_of(request))
    if rates:
        value = json.dumps(rates).encode()
        await ask_catalog(request, SetPolicy(SUBSCRIPTION_RATES, value, topic))
    else:
        await ask_catalog(request, RemovePolicy(SUBSCRIPTION_RATES, topic))


async def read(request: web.Request) -> web.Response:
    """The subscription's own rate; with ``applied`` the topic's if it has none."""
    found = (await _rates(request)).get(request.match_info["subscription"])
    if found is None and given(request, APPLIED):
        every = "subscriptionDispatchRate"
        asked = Policies(str(whole_topic_of(request)), None, [every])
        found = (await ask_catalog(request, asked))[every]
    return done() if found is None else answer(found)


async def change(request: web.Request) -> web.Response:
    """Set the rate of a subscription, which need not exist yet."""
    rate = await json_body(request)
    async with request.app[QUOTA_LOCK]:
        rates = await _rates(request)
        await _set(request, {**rates, request.match_info["subscription"]: rate})
    return done()


async def remove(request: web.Request) -> web.Response:
    """Remove the rate of a subscription; that of all the topic's subscriptions applies again."""
    async with request.app[QUOTA_LOCK]:
        rates = await _rates(request)
        if rates.pop(request.match_info["subscription"], None) is not None:
            await _set(request, rates)
    return done()


_RATE = f"{TOPIC}/{{subscription}}/dispatchRate"
_Rate = described(POLICIES["subscriptionDispatchRate"])

ROUTES: tuple[Route, ...] = (
    Route(Operation("GET", _RATE, (APPLIED,), answers={200: _Rate, 204: None}), read),
    Route(Operation("POST", _RATE, body=_Rate), change),
    Route(Operation("DELETE", _RATE), remove),
)

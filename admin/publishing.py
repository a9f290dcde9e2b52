"""Route of the admin interface that publishes a message, for tests by hand.

A client publishes it, with the token of the caller: every rule for producers applies.
"""

from __future__ import annotations

import base64
from typing import Any

from aiohttp import web

from velaray.admin.binding import Route, body_of
from velaray.admin.http import AdminError, actor_system_of, answer, ask_catalog, find_target
from velaray.admin.stats import message_id
from velaray.broker.catalog.messages import Clusters
from velaray.client.admin import topics as operations
from velaray.client.auth import AuthenticationToken
from velaray.client.client import Client
from velaray.client.exceptions import ConnectError, Timeout, VelarayError
from velaray.client.options import ClientOptions
from velaray.client.schema import AutoProduceBytesSchema
from velaray.topology.tls import outgoing_tls

PUBLISH_S = 10
"""The time limit of publishing."""


async def publish(request: web.Request) -> web.Response:
    """Publish one message: a text, or bytes in base64. They must fit the topic's schema."""
    target, body = await find_target(request), body_of(request)
    _, _, token = request.headers.get("Authorization", "").partition(" ")
    config = actor_system_of(request).config
    own, tls = (await ask_catalog(request, Clusters()))[config.name], outgoing_tls(config)
    options = ClientOptions(
        own["service_url"] or own["service_url_tls"],
        authentication=AuthenticationToken(token.strip()) if token else None,
        operation_timeout_seconds=PUBLISH_S,
        tls_trust_certs_file_path=tls.trust_certs_file_path,
    )
    try:
        async with Client.with_options(options) as client:
            producer = await client.create_producer(
                str(target.name),
                batching_enabled=False,
                send_timeout_millis=PUBLISH_S * 1000,
                schema=AutoProduceBytesSchema(),
            )
            sent = await producer.send(_data(body), body.get("properties"), body.get("key"))
    except (Timeout, ConnectError) as error:
        raise AdminError(503, f"{error}; whether the message is stored is unknown") from error
    except VelarayError as error:
        raise AdminError(412, str(error)) from error
    return answer(message_id((sent.ledger_id(), sent.entry_id(), sent.partition())))


def _data(body: dict[str, Any]) -> bytes:
    """The data of the message. Raises `AdminError` if it isn't base64 as it says."""
    if body.get("encoding") != "base64":
        return str(body["data"]).encode()
    try:
        return base64.b64decode(body["data"], validate=True)
    except ValueError as error:
        raise AdminError(400, f"data isn't base64: {error}") from error


ROUTES: tuple[Route, ...] = (Route(operations.PUBLISH, publish),)

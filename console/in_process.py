"""Calls of admin operations without a connection: handlers, checks and errors are those of HTTP."""

from __future__ import annotations

import asyncio

from aiohttp import EMPTY_PAYLOAD, StreamReader, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from velaray.client.admin.errors import Unavailable
from velaray.client.admin.transports import Answer, Sending

BASE = "http://console"
"""The address of the operations of this process."""
USER_AGENT = "velaray-console"
"""The client that the audit log names."""


class InProcessTransport:
    """Sends the requests of an admin client to the application that serves the REST interface.

    It runs all checks of that application, with the token of the visitor and the host of the
    visitor's request. So a page can read and change no more than the visitor can over HTTP.
    """

    def __init__(self, server: web.Server, visit: web.Request) -> None:
        """``visit`` is the request for the page."""
        self._server = server
        self._visit = visit

    async def send(self, sending: Sending) -> Answer:
        """As `velaray.client.admin.transports.Transport.send`.

        Raises `Unavailable` for a redirect to another cluster.
        """
        if not sending.url.startswith(BASE):
            home = URL(sending.url).origin()
            raise Unavailable(0, f"another cluster is the home of this tenant: open {home}")
        response = await self._server.request_handler(self._request(sending))
        body = response.body if isinstance(response, web.Response) else None
        headers = {name.lower(): value for name, value in response.headers.items()}
        if isinstance(response, web.Response) and response.body is not None:
            headers.setdefault("content-type", response.content_type)
        return Answer(response.status, headers, body if isinstance(body, bytes) else b"")

    def _request(self, sending: Sending) -> web.BaseRequest:
        visit, url = self._visit, URL(sending.url, encoded=True)
        headers = CIMultiDict(sending.headers)
        headers["Host"] = visit.host
        headers["User-Agent"] = USER_AGENT
        message = RawRequestMessage(
            sending.method,
            url.raw_path_qs,
            visit.version,
            CIMultiDictProxy(headers),
            (),
            should_close=False,
            compression=None,
            upgrade=False,
            chunked=False,
            url=url.relative(),
        )
        task = asyncio.current_task()
        assert task is not None
        payload = EMPTY_PAYLOAD
        if sending.body is not None:
            payload = StreamReader(visit.protocol, 1 << 16, loop=asyncio.get_running_loop())
            payload.feed_data(sending.body)
            payload.feed_eof()
        return self._server.request_factory(message, payload, visit.protocol, visit.writer, task)

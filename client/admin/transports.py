"""How requests of the administration clients travel: over pools of connections."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from urllib3 import PoolManager
from urllib3.exceptions import HTTPError, ProtocolError

from velaray.client.admin.errors import Unavailable
from velaray.client.tls import Security, TlsOptions, http_arguments

_MOST_IDLE = 8
"""The most unused connections to an address that are kept."""


class Answer(NamedTuple):
    """The answer to a request; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Sending(NamedTuple):
    """A request: method, URL, headers and body. Its text shows no headers: one holds the token."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.method} {self.url})"


class Transport(Protocol):
    """Sends requests."""

    async def send(self, sending: Sending) -> Answer:
        """Return the answer, whatever its status. Raises `Unavailable` if there is none."""
        ...


class BlockingTransport:
    """Sends requests from any thread. Its coroutines never suspend: they block.

    Requests of several threads use several connections. An unused one is kept for the next request.
    """

    def __init__(self, timeout_s: float, tls: Security | None = None) -> None:
        """``tls`` is how to connect to https URLs; None: as options without any value say."""
        self._timeout_s = timeout_s
        self._tls = tls or TlsOptions()
        self._process, self._pool = os.getpid(), PoolManager(maxsize=_MOST_IDLE)
        self._context: ssl.SSLContext | None = None
        """The context of the connections in the pool."""

    async def send(self, sending: Sending) -> Answer:
        """As `Transport.send`."""
        try:
            try:
                return self._exchange(sending)
            except ProtocolError:
                # The server may have closed a kept connection just now. Nothing else is repeated:
                # the request may have taken effect.
                if sending.method != "GET":
                    raise
                return self._exchange(sending)
        except (HTTPError, OSError) as error:
            raise _unavailable(sending.url, error.__cause__ or error) from error

    def close(self) -> None:
        """Close the unused connections. The transport can still be used."""
        self._pool.clear()

    def _exchange(self, sending: Sending) -> Answer:
        self._refresh(sending.url)
        response = self._pool.request(
            sending.method,
            sending.url,
            body=sending.body,
            headers=sending.headers,
            timeout=self._timeout_s,
            retries=False,
            redirect=False,
        )
        headers = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, headers, response.data)

    def _refresh(self, url: str) -> None:
        """Begin a new pool in a child process, whose parent uses the connections of its own, and
        when the files of TLS have changed."""
        where = urlsplit(url)
        context = self._tls.context() if where.scheme == "https" else self._context
        if self._process == os.getpid() and self._context is context:
            return
        self._process, self._context = os.getpid(), context
        if context is None:
            self._pool = PoolManager(maxsize=_MOST_IDLE)
        else:
            host = where.hostname or ""
            name = self._tls.server_name(host)
            self._pool = PoolManager(
                maxsize=_MOST_IDLE,
                ssl_context=context,
                server_hostname=None if name == host else name,
                # None leaves the check to the context. Other values turn it off there.
                assert_hostname=None if context.check_hostname else False,
            )


class AsyncioTransport:
    """Sends requests on the event loop of the first one.

    If a connection ends without an answer, aiohttp repeats GET once.
    """

    def __init__(self, timeout_s: float, tls: Security | None = None) -> None:
        """``tls`` is how to connect to https URLs; None: as options without any value say."""
        self._timeout_s = timeout_s
        self._tls = tls or TlsOptions()
        self._session: Any = None

    async def send(self, sending: Sending) -> Answer:
        """As `Transport.send`."""
        # Loaded here: it is large, and most programs of the asyncio client don't administer.
        import aiohttp

        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=limit, middlewares=(_change_once,))
        method, url, headers, body = sending
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                **http_arguments(self._tls, url),
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise _unavailable(url, error) from error
        named = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, named, content)

    async def close(self) -> None:
        """Close the connections. The transport can still be used."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def _change_once(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """Send a request of an aiohttp session. aiohttp also repeats PUT and DELETE after some errors,
    and the first one may have taken effect: raise another error in their place."""
    import aiohttp

    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET" or isinstance(error, aiohttp.ClientConnectorError):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error


def _unavailable(url: str, error: BaseException) -> Unavailable:
    where = urlsplit(url)
    if where.scheme == "https" and "WRONG_VERSION_NUMBER" in str(error):
        remedy = "is it the plain port? Its URL begins with http://"
    elif where.scheme == "http" and not isinstance(error, OSError):
        remedy = "is it the admin port? The URL of a port for TLS begins with https://"
    else:
        remedy = "is velaray running there? Start it with `velaray start`"
    text = f"no answer from {where.scheme}://{where.netloc} ({error or type(error).__name__})"
    return Unavailable(0, f"{text}: {remedy}")

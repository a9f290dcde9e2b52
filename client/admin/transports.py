"""How requests of the administration clients travel: over pools of connections."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from velaray.client.admin.errors import Unavailable

IDLE_S = 30.0
"""How long an unused connection may be used again; servers keep it for more than a minute."""
_MOST_IDLE = 8


class Answer(NamedTuple):
    """The answer to a request; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Sending(NamedTuple):
    """A request: method, URL, headers and body."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None


class Transport(Protocol):
    """Sends requests."""

    async def send(self, sending: Sending) -> Answer:
        """Return the answer, whatever its status. Raises `Unavailable` if there is none."""
        ...


class BlockingTransport:
    """Sends requests from any thread. Its coroutines never suspend: they block.

    Requests of several threads use several connections. An unused one is kept for the next request.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._idle = _Idle()
        weakref.finalize(self, self._idle.close)

    async def send(self, sending: Sending) -> Answer:
        """As `Transport.send`."""
        where = urlsplit(sending.url)[:2]
        kept = self._idle.take(where)
        if kept is not None:
            try:
                return self._exchange(where, kept, sending)
            except (OSError, HTTPException) as error:
                # The server may have closed the connection just now. Nothing else is repeated: the
                # request may have taken effect.
                if sending.method != "GET" or isinstance(error, TimeoutError):
                    raise _unavailable(sending.url, error) from error
        try:
            return self._exchange(where, self._connection(where), sending)
        except (OSError, HTTPException) as error:
            raise _unavailable(sending.url, error) from error

    def close(self) -> None:
        """Close the unused connections. The transport can still be used."""
        self._idle.close()

    def _connection(self, where: tuple[str, str]) -> HTTPConnection:
        scheme, place = where
        kind = HTTPSConnection if scheme == "https" else HTTPConnection
        return kind(place.rpartition("@")[2], timeout=self._timeout_s)

    def _exchange(
        self, where: tuple[str, str], connection: HTTPConnection, sending: Sending
    ) -> Answer:
        kept = False
        try:
            target = urlunsplit(("", "", *urlsplit(sending.url)[2:]))
            connection.request(sending.method, target, sending.body, dict(sending.headers))
            response = connection.getresponse()
            content = response.read()
            kept = not response.will_close
        finally:
            if not kept:
                connection.close()
        if kept:
            self._idle.put(where, connection)
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, headers, content)


class _Idle:
    """Connections that no request uses, by scheme and address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._kept: dict[tuple[str, str], list[tuple[float, HTTPConnection]]] = {}

    def take(self, where: tuple[str, str]) -> HTTPConnection | None:
        """The connection that was used last; None if there is none that is still open."""
        with self._lock:
            if self._process != os.getpid():  # the parent process uses these connections
                self._kept, self._process = {}, os.getpid()
            kept = self._kept.get(where, [])
            while kept:
                since, connection = kept.pop()
                if time.monotonic() - since < IDLE_S and not _is_readable(connection):
                    return connection
                connection.close()
        return None

    def put(self, where: tuple[str, str], connection: HTTPConnection) -> None:
        """Keep a connection for the next request."""
        with self._lock:
            kept = self._kept.setdefault(where, [])
            if len(kept) < _MOST_IDLE:
                kept.append((time.monotonic(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            kept = [connection for each in self._kept.values() for _, connection in each]
            self._kept.clear()
        for connection in kept:
            connection.close()


def _is_readable(connection: HTTPConnection) -> bool:
    """Whether the server has closed the connection, or has sent something unasked."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


class AsyncioTransport:
    """Sends requests on the event loop of the first one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session: Any = None

    async def send(self, sending: Sending) -> Answer:
        """As `Transport.send`."""
        # Loaded here: it is large, and most programs of the asyncio client don't administer.
        import aiohttp

        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=limit)
        method, url, headers, body = sending
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
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


def _unavailable(url: str, error: Exception) -> Unavailable:
    where = urlsplit(url)
    return Unavailable(
        0,
        f"no answer from {where.scheme}://{where.netloc} ({error or type(error).__name__}): is "
        "velaray running there? Start it with `velaray start`",
    )

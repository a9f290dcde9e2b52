"""Connections to servers, one per address, shared by all that talk to it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from velaray.aio.connection import Connection
from velaray.exceptions import AlreadyClosed, ConnectError, InvalidUrl
from velaray.options import ClientOptions

DEFAULT_PORT = 6650


def parse_service_url(url: str) -> list[str]:
    """The addresses in ``pulsar://host:port[,host:port…]``, as ``host:port``.

    Raises `InvalidUrl`.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"service_url must be a str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme != "pulsar":
        raise InvalidUrl(
            f"service URL {url!r}: write pulsar://host:port; look-up over http and TLS"
            " (pulsar+ssl) are not supported"
        )
    addresses = []
    for part in rest.rstrip("/").split(","):
        try:
            split = urlsplit(f"//{part}")
            port = split.port or DEFAULT_PORT
        except ValueError as error:
            raise InvalidUrl(f"service URL {url!r}: {error}") from error
        if not split.hostname or split.path or split.query or split.username:
            raise InvalidUrl(f"service URL {url!r}: {part!r} is not host:port")
        host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
        addresses.append(f"{host}:{port}")
    return addresses


class ConnectionPool:
    """Opens connections when they're needed and gives out the open ones."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._open: dict[tuple[str, str | None], Connection] = {}
        self._opening: dict[tuple[str, str | None], asyncio.Task[Connection]] = {}
        self._closed = False

    async def get(self, address: str, proxy_to: str | None = None) -> Connection:
        """The connection to ``address`` (a tunnel to ``proxy_to`` behind it, if given).

        Raises `ConnectError` if none can be made within the connection timeout, or the
        server's error, such as `AuthenticationError`.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed")
        key = (address, proxy_to)
        connection = self._open.get(key)
        if connection is not None and not connection.closed:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._connect(address, proxy_to))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def _opened(self, key: tuple[str, str | None], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        # Actors come back at other addresses: nobody asks for the old ones again.
        for gone in [known for known, old in self._open.items() if old.closed]:
            del self._open[gone]
        if task.cancelled() or task.exception() is not None:
            return
        if self._closed:
            task.result().abort(AlreadyClosed("the client is closed"))
        else:
            self._open[key] = task.result()

    async def _connect(self, address: str, proxy_to: str | None) -> Connection:
        options = self._options
        connection = Connection(
            address, options.authentication, options.keep_alive_interval_seconds, proxy_to
        )
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(options.connection_timeout_ms / 1000):
                await connection.open(host.strip("[]"), int(port))
        except TimeoutError as error:
            failure = ConnectError(f"{address} didn't answer in {options.connection_timeout_ms} ms")
            connection.abort(failure)
            raise failure from error
        except OSError as error:
            if isinstance(error, ConnectError):
                raise
            raise ConnectError(f"no connection to {address}: {error}") from error
        except asyncio.CancelledError:
            connection.abort(AlreadyClosed("the client is closed"))
            raise
        return connection

    def abort(self) -> None:
        """Cut all connections, unsent data with them; nothing can be opened any more."""
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in self._open.values():
            connection.abort(AlreadyClosed("the client is closed"))
        self._open.clear()

    async def close(self) -> None:
        """Close all connections; nothing can be opened any more."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()

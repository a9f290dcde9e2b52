"""Connections to servers: one per address, shared by all users."""

from __future__ import annotations

import asyncio
import ssl

from velaray.client.connection import Connection
from velaray.client.exceptions import AlreadyClosed, ConnectError, NotConnected, VelarayError
from velaray.client.options import ClientOptions
from velaray.client.tls import TlsFilesError


class ConnectionPool:
    """Opens connections when they are needed, and shares the open ones."""

    def __init__(self, options: ClientOptions, client_version: str | None = None) -> None:
        """``client_version`` is the version that the client announces; None: this library's."""
        self._options = options
        self._client_version = client_version
        self._tls = options.security()
        self._open: dict[tuple[str, str | None], Connection] = {}
        self._opening: dict[tuple[str, str | None], asyncio.Task[Connection]] = {}
        self._closed: VelarayError | None = None  # the connection for all callers

    @property
    def connecting(self) -> str | None:
        """The address of the current connection attempts."""
        return next((address for address, _ in self._opening), None)

    async def get(self, address: str, proxy_to: str | None = None) -> Connection:
        """Return the connection to ``address`` (a tunnel to ``proxy_to`` behind it, if given).

        Raises `ConnectError` if the connection can't be made within the connection timeout, or the
        server's error, such as `AuthenticationError`.
        """
        if self._closed is not None:
            raise self._closed
        key = (address, proxy_to)
        connection = self._open.get(key)
        if connection is not None and not connection.closed:
            return connection
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._connect(address, proxy_to))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            asking = asyncio.current_task()
            if self._closed is None or (asking is not None and asking.cancelling()):
                raise
            raise self._closed from None

    def _opened(self, key: tuple[str, str | None], task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        # Restarted actors have new addresses, so the old ones are not requested again.
        for gone in [known for known, old in self._open.items() if old.closed]:
            del self._open[gone]
        if task.cancelled() or task.exception() is not None:
            return
        if self._closed is not None:
            task.result().abort(self._closed)
        else:
            self._open[key] = task.result()

    async def _connect(self, address: str, proxy_to: str | None) -> Connection:
        options = self._options
        connection = Connection(
            address,
            options.authentication,
            options.keep_alive_interval_seconds,
            proxy_to,
            self._client_version,
        )
        host, _, port = address.rpartition(":")
        try:
            timeout_s = options.connection_timeout_ms / 1000
            await connection.open(host.strip("[]"), int(port), self._tls, timeout_s)
        except TimeoutError as error:
            failure = ConnectError(f"{address} didn't answer in {options.connection_timeout_ms} ms")
            connection.abort(failure)
            raise failure from error
        except OSError as error:
            if isinstance(error, ConnectError):
                raise
            if isinstance(error, ssl.SSLError | TlsFilesError):
                raise ConnectError(f"no TLS connection to {address}: {error}") from error
            if self._tls is not None and isinstance(error, ConnectionResetError):
                problem = "is it the plain port? Its URL begins with pulsar://"
                raise ConnectError(f"no TLS connection to {address}: {problem}") from error
            raise ConnectError(
                f"no connection to {address} ({error}): is velaray running there? Start it with "
                "`velaray start`"
            ) from error
        except asyncio.CancelledError:
            connection.abort(AlreadyClosed("the client is closed"))
            raise
        return connection

    def abort(self) -> None:
        """Cut all connections and discard unsent data; no connection can be opened any more."""
        self._close()
        for connection in self._open.values():
            connection.abort(AlreadyClosed("the client is closed"))
        self._open.clear()

    def _close(self, problem: VelarayError | None = None) -> None:
        self._closed = self._closed or problem or AlreadyClosed("the client is closed")
        for task in self._opening.values():
            task.cancel()

    async def close(self) -> None:
        """Close all connections; no connection can be opened any more."""
        self._close()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()

    async def leave(self) -> None:
        """Close all connections for a switch to another cluster.

        Written data is sent if the connection timeout suffices. Callers that wait for a connection
        get `NotConnected` at once.
        """
        self._close(NotConnected("the client has switched to another cluster"))
        try:
            async with asyncio.timeout(self._options.connection_timeout_ms / 1000):
                await self.close()
        except TimeoutError:
            pass  # it doesn't read the written data
        finally:
            self.abort()

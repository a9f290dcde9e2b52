"""The ports of a proxy, reserved before it starts, and those of hosts, chosen from a range."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

from velaray.topology.logs import with_facts
from velaray.topology.open_connections import stop_accepting

HANDSHAKE_S = 10.0
"""The time within which a client must end its TLS handshake."""
PATIENCE_S = 1.0
"""The time for which a killed cluster may still hold its ports."""
ACCEPTED_AT_ONCE = 10
"""The connections that a listener accepts in one iteration of the loop."""
WAITING_CONNECTIONS = 1024
"""The connections that the system keeps until they are accepted."""


class PortUnavailable(OSError):
    """A port isn't available; the text has the reason and a remedy."""


def hold_ports(host: str, options: dict[str, int]) -> ExitStack:
    """Bind the ports, by the names of their options, until the result is closed.

    No client is served meanwhile. Raises `PortUnavailable`.
    """
    with ExitStack() as held:
        for option, port in options.items():
            held.enter_context(_bound(host, port, option))
        return held.pop_all()


Accept = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol of an accepted connection."""


async def serve(
    accept: Accept, host: str, port: int, tls: ssl.SSLContext | None = None
) -> asyncio.Server:
    """Listen on a port; 0: a free one. With ``tls`` connections are made by TLS.

    Raises `OSError` if the port is in use or the host can't be listened on.
    """
    loop = asyncio.get_running_loop()
    with with_facts({}):  # the connections aren't only those of the actor that listens first
        # asyncio accepts as many at once as it lets wait, so the latter is set again afterwards.
        server = await loop.create_server(
            accept,
            host,
            port,
            backlog=ACCEPTED_AT_ONCE,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
        )
    for each in server.sockets:
        if isinstance(each, TransportSocket):  # not a simulated one
            with socket.socket(fileno=os.dup(each.fileno())) as listening:
                listening.listen(WAITING_CONNECTIONS)
    return server


async def listen(
    accept: Accept,
    host: str,
    ports: tuple[int, int] | None,
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Listen on the first free port from ``ports``, the first and the last one; None: on any port.

    Raises `PortUnavailable` if all of them are in use, `OSError` if the host can't be listened on.
    """
    if ports is None:
        return await serve(accept, host, 0, tls)
    first, last = ports
    for port in range(first, last + 1):
        try:
            return await serve(accept, host, port, tls)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise PortUnavailable(
        f"the ports {first} to {last} of {host} are all in use: give a wider --port-range"
    )


class Listener:
    """A listener that opens at its first use."""

    def __init__(
        self, accept: Accept, ports: tuple[int, int] | None, tls: ssl.SSLContext | None = None
    ) -> None:
        """The port is a free one of ``ports``, the first and the last; None: any."""
        self._accept = accept
        self._ports = ports
        self._tls = tls
        self._opening: asyncio.Task[asyncio.Server] | None = None

    async def open(self, host: str) -> int:
        """Listen on ``host``, once; returns the port. Raises `OSError`."""
        if self._opening is None or (self._opening.done() and self._opening.exception()):
            self._opening = asyncio.ensure_future(
                listen(self._accept, host, self._ports, self._tls)
            )
        server = await asyncio.shield(self._opening)
        return int(server.sockets[0].getsockname()[1])

    @property
    def port(self) -> int:
        """The port; 0 if it doesn't listen."""
        server = self._server()
        return 0 if server is None else int(server.sockets[0].getsockname()[1])

    def _server(self) -> asyncio.Server | None:
        opening = self._opening
        if opening is None or not opening.done() or opening.cancelled() or opening.exception():
            return None
        return opening.result()

    def end(self) -> None:
        """Stop listening."""
        server = self._server()
        if server is not None:
            stop_accepting(server)
        elif self._opening is not None:
            self._opening.cancel()


def _bound(host: str, port: int, option: str) -> socket.socket:
    deadline = monotonic() + PATIENCE_S
    pause = threading.Event()
    while True:
        try:
            return _bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or monotonic() >= deadline:
                raise PortUnavailable(_complaint(host, port, option, error)) from error
        pause.wait(0.1)


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _complaint(host: str, port: int, option: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is in use: stop what listens there, or choose another {option}"
        )
    if error.errno == errno.EACCES:
        return f"port {port} may not be used by this user: choose another {option}, above 1023"
    return (
        f"{host} can't be listened on ({error.strerror}): give an address of this machine (--host)"
    )

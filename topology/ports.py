"""The ports of a proxy, reserved before it starts, and those of hosts, chosen from a range."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic

PATIENCE_S = 1.0
"""The time for which a killed cluster may still hold its ports."""


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


async def listen(
    accept: Callable[[], asyncio.BaseProtocol], host: str, ports: tuple[int, int] | None
) -> asyncio.Server:
    """Listen on the first free port from ``ports``, the first and the last one; None: on any port.

    Raises `PortUnavailable` if all of them are in use, `OSError` if the host can't be listened on.
    """
    loop = asyncio.get_running_loop()
    if ports is None:
        return await loop.create_server(accept, host, 0)
    first, last = ports
    for port in range(first, last + 1):
        try:
            return await loop.create_server(accept, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise PortUnavailable(
        f"the ports {first} to {last} of {host} are all in use: give a wider --port-range"
    )


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

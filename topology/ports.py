"""The ports of a front door, before there is one."""

from __future__ import annotations

import errno
import socket
import threading
from contextlib import ExitStack
from time import monotonic

PATIENCE_S = 1.0
"""A cluster that was killed a moment ago may still hold its ports so long."""


class PortUnavailable(OSError):
    """A port can't be had; the text says why and what to do."""


def hold_ports(host: str, options: dict[str, int]) -> ExitStack:
    """Bind the ports, each by the name of its option, until what is returned is closed.

    Nobody is served meanwhile. Raises `PortUnavailable`.
    """
    with ExitStack() as held:
        for option, port in options.items():
            held.enter_context(_bound(host, port, option))
        return held.pop_all()


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

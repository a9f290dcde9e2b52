"""The open connections of a server."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


class OpenConnections(set[T]):
    """The open connections of a server, or their sessions.

    asyncio calls ``connection_made`` some turns of the event loop after it has accepted a
    connection, even if the server is closed in between. The server doesn't know the connection at
    that time and can't close it. So ``connection_made`` aborts the connection if `ended` is set.
    """

    ended = False
    """Whether the server has closed its connections."""


def stop_accepting(server: asyncio.Server) -> None:
    """Close a server in two turns of the event loop.

    asyncio accepts a connection in one turn and creates its transport in the next one. If the
    server is closed in between, that fails: the connection stays open, and nothing ever reads from
    it. So the server stops to accept first, and closes when the transports exist.
    """
    loop = asyncio.get_running_loop()
    for socket in server.sockets:
        loop.remove_reader(socket.fileno())
    loop.call_soon(loop.call_soon, server.close)

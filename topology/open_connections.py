"""The open connections of a server."""

from __future__ import annotations

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

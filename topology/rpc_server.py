"""The accepting side of RPC connections: one listener for all actors of a host."""

from __future__ import annotations

import ssl
from typing import Any

from velaray.topology.open_connections import OpenConnections
from velaray.topology.ports import Listener
from velaray.topology.rpc import RpcConnection, RpcPeer


class RpcListener:
    """Accepts connections on one port, and passes each to the actor that it names.

    A connection that names an actor that isn't served here is closed, so a stale address is an
    error and never leads to another actor.
    """

    def __init__(
        self,
        key: bytes,
        ports: tuple[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``key`` is the cluster's RPC key. The port is a free one of ``ports``, the first and the
        last; None: any."""
        self._key = key
        self._listener = Listener(self._accept, ports, tls)
        self._servers: dict[str, RpcServer] = {}
        self.connections: OpenConnections[RpcConnection] = OpenConnections()

    async def open(self, host: str) -> int:
        """Listen on ``host``, once; returns the port. Raises `OSError`."""
        return await self._listener.open(host)

    @property
    def port(self) -> int:
        """The port; 0 if it doesn't listen."""
        return self._listener.port

    def _accept(self) -> RpcConnection:
        return RpcConnection(self._key, acceptor=self)

    def add(self, actor: str, server: RpcServer) -> None:
        """Serve an actor, in place of an earlier activation."""
        self._servers[actor] = server

    def remove(self, actor: str, server: RpcServer) -> None:
        """Serve an activation no longer. Idempotent; its connections stay open."""
        if self._servers.get(actor) is server:
            del self._servers[actor]

    def find(self, actor: str) -> RpcServer | None:
        """Return an actor; None if it isn't served here."""
        return self._servers.get(actor)

    def abort(self) -> None:
        """Stop listening and cut every connection, as a crash would."""
        self._end()
        for rpc_connection in list(self.connections):
            rpc_connection.abort()

    def stop(self) -> None:
        """Stop listening and close every connection."""
        self._end()
        for rpc_connection in list(self.connections):
            rpc_connection.close()

    def _end(self) -> None:
        self.connections.ended = True
        self._listener.end()


class RpcServer:
    """The callers' way to one actor of a host."""

    def __init__(self, peer: RpcPeer, actor: str, listener: RpcListener) -> None:
        """``peer`` handles the messages for ``actor``."""
        self.peer = peer
        self.connections: OpenConnections[RpcConnection] = OpenConnections()
        self.log_facts: dict[str, Any] = {"actor": actor}
        """The facts that log lines of the actor carry. It adds those that it learns."""
        self._actor = actor
        self._listener = listener

    async def open(self, host: str) -> int:
        """Return the port that callers connect to. Raises `OSError`."""
        return await self._listener.open(host)

    def serve(self) -> None:
        """Accept connections from now on."""
        self._listener.add(self._actor, self)

    def abort(self) -> None:
        """Accept no connections any more, and cut every one, as a crash would."""
        self._end()
        for rpc_connection in list(self.connections):
            rpc_connection.abort()

    def stop(self) -> None:
        """Accept no connections any more, and close every one."""
        self._end()
        for rpc_connection in list(self.connections):
            rpc_connection.close()

    def _end(self) -> None:
        self.connections.ended = True
        self._listener.remove(self._actor, self)

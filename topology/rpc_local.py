"""RPC connections between two actors of one process, without a socket.

Everything else is as over a socket: the hello, the order of messages, batching by turns of the
event loop, and what happens to requests when either end closes.
"""

from __future__ import annotations

import asyncio

from velaray.topology.rpc import RpcConnection, RpcPeer
from velaray.topology.rpc_server import RpcListener


class _Pipe(asyncio.Transport):
    """One end's transport: what it writes, the other end receives in a later turn of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self._lost = False
        self.other: _Pipe

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if not self._closing:
            self._loop.call_soon(self.other._receive, bytes(data))

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._closing

    def close(self) -> None:
        """Close both ends; the other one receives first what was written before.

        As with a socket, this end drops at once what it would write or receive.
        """
        self._closing = True
        for end in (self, self.other):
            self._loop.call_soon(end._lose)

    def abort(self) -> None:
        """As `close`."""
        self.close()

    def _receive(self, data: bytes) -> None:
        if not self._closing:
            self._protocol.data_received(data)

    def _lose(self) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(None)


def connect_here(listener: RpcListener, actor: str, peer: RpcPeer, key: bytes) -> RpcConnection:
    """Open a connection to an actor of this process.

    If the listener doesn't serve the actor, the connection is closed, as by `velaray.topology.rpc.
    connect`.
    """
    loop = asyncio.get_running_loop()
    near = RpcConnection(key, actor, peer, keeps_alive=False)
    far = RpcConnection(key, acceptor=listener, keeps_alive=False)
    ends = _Pipe(loop, near), _Pipe(loop, far)
    ends[0].other, ends[1].other = ends[1], ends[0]
    far.connection_made(ends[1])
    near.connection_made(ends[0])
    return near

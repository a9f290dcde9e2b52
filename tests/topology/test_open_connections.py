"""A client's connection that is accepted while its server ends is cut."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from velaray.broker.client_session import ClientSession
from velaray.broker.proxy.proxy import ProxySession
from velaray.topology.config import ClusterConfig
from velaray.topology.open_connections import OpenConnections, stop_accepting
from velaray.wire.turns import Turns


class Connection:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("kind", [ClientSession, ProxySession])
@pytest.mark.parametrize("ended", [False, True])
def test_a_session_of_a_server_that_has_ended_is_cut(kind: Any, ended: bool) -> None:
    config = ClusterConfig("d", 1, b"key")
    system = SimpleNamespace(config=config)
    sessions: OpenConnections[Any] = OpenConnections()
    sessions.ended = ended
    server = SimpleNamespace(
        config=config,
        sessions=sessions,
        actor_system=system,
        number=0,
        grants=None,
        admission=SimpleNamespace(turns=Turns()),
    )
    session, connection = kind(server), Connection()
    session.on_connected(connection)
    assert connection.aborted == ended
    assert set(sessions) == (set() if ended else {session})


@pytest.mark.parametrize("turns", range(6))
def test_a_server_that_stops_leaves_no_accepted_connection_open(turns: int) -> None:
    """The connection is accepted some turns of the loop before or after the stop."""

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Accepted, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname(), 10) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            stop_accepting(server)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""

    asyncio.run(scenario())

"""A client's connection that is accepted while its server ends is cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from velaray.broker.client_session import ClientSession
from velaray.broker.proxy.proxy import ProxySession
from velaray.topology.config import ClusterConfig
from velaray.topology.open_connections import OpenConnections


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
    server = SimpleNamespace(config=config, sessions=sessions, actor_system=system, number=0)
    session, connection = kind(server), Connection()
    session.on_connected(connection)
    assert connection.aborted == ended
    assert set(sessions) == (set() if ended else {session})

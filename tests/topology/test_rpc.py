"""Silent RPC connections: the other end's machine may be lost without a reset."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from velaray.topology import rpc
from velaray.topology.rpc import RpcConnection, RpcConnectionClosed, RpcServer, connect

HOST, KEY = "127.0.0.1", b"key"


class Peer:
    """Answers every request with its arguments, and records closed connections."""

    def __init__(self) -> None:
        self.closed: list[RpcConnection] = []

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        return args

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        raise AssertionError(f"nobody sends notices: {method}")

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        self.closed.append(rpc_connection)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 0.02)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_an_unused_connection_stays_open() -> None:
    async def scenario() -> None:
        server, peer = RpcServer(Peer(), KEY), Peer()
        rpc_connection = await connect(HOST, await server.start(HOST), peer, KEY)
        await asyncio.sleep(0.02 * (rpc.SILENT_TURNS + 7))
        assert await rpc_connection.request("say", "hello") == "hello"
        server.stop()
        await until(lambda: peer.closed == [rpc_connection])

    asyncio.run(scenario())


def test_a_connection_to_a_silent_peer_is_cut() -> None:
    async def scenario() -> None:
        loop, peer = asyncio.get_running_loop(), Peer()
        mute = await loop.create_server(asyncio.Protocol, HOST, 0)
        rpc_connection = await connect(HOST, mute.sockets[0].getsockname()[1], peer, KEY)
        with pytest.raises(RpcConnectionClosed):
            await rpc_connection.request("say", "hello", timeout=5.0)
        assert peer.closed == [rpc_connection]
        mute.close()

    asyncio.run(scenario())


def test_a_client_that_connects_and_stays_silent_is_disconnected() -> None:
    async def scenario() -> None:
        server = RpcServer(Peer(), KEY)
        reader, writer = await asyncio.open_connection(HOST, await server.start(HOST))
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        server.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [RpcServer.abort, RpcServer.stop])
def test_a_connection_that_is_accepted_while_the_server_ends_is_cut(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[RpcServer], None]
) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 10.0)
    begin = RpcConnection.__init__

    def begin_and_end(self: RpcConnection, *how: Any) -> None:
        begin(self, *how)
        if len(how) == 3:  # the one that the server accepted; `connection_made` comes next
            asyncio.get_running_loop().call_soon(end, server)

    async def scenario() -> None:
        await connect(HOST, await server.start(HOST), peer, KEY)
        await until(lambda: peer.closed)
        assert not server.connections

    server, peer = RpcServer(Peer(), KEY), Peer()
    monkeypatch.setattr(RpcConnection, "__init__", begin_and_end)
    asyncio.run(scenario())


def test_a_closed_connection_keeps_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 10.0)
    size = 8 << 20
    unfinished = b"\xc6" + size.to_bytes(4, "big") + bytes(size - 1)

    async def scenario() -> None:
        server = RpcServer(Peer(), KEY)
        port = await server.start(HOST)
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(unfinished)
        await until(lambda: not writer.transport.get_write_buffer_size())
        (rpc_connection,) = server.connections
        held, _ = tracemalloc.get_traced_memory()
        writer.transport.abort()
        await until(lambda: rpc_connection.closed)
        left, _ = tracemalloc.get_traced_memory()
        assert held - left > size // 2
        server.stop()

    tracemalloc.start()
    gc.disable()  # the connection is in a cycle of references
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
        tracemalloc.stop()

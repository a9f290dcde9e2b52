"""Silent RPC connections: the other end's machine may be lost without a reset."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from velaray.topology import rpc
from velaray.topology.frames import frame
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RpcConnection, RpcConnectionClosed, connect
from velaray.topology.rpc_local import connect_here
from velaray.topology.rpc_server import RpcListener, RpcServer

HOST, KEY, ACTOR = "127.0.0.1", b"key", "an actor"


class Say(Request[str]):
    text: str


class Note(Message):
    text: str


class Peer:
    """Answers with what was said, and records closed connections."""

    def __init__(self) -> None:
        self.closed: list[RpcConnection] = []

    accepts = Codec(Say)

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        assert isinstance(request, Say)
        return request.text

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        raise AssertionError(f"nobody sends notices: {notice}")

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        self.closed.append(rpc_connection)


def serve(peer: Peer, actor: str = ACTOR, listener: RpcListener | None = None) -> RpcServer:
    """Serve an actor at a listener, of its own by default."""
    server = RpcServer(peer, actor, listener or RpcListener(KEY))
    server.serve()
    return server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 0.02)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def test_an_unused_connection_stays_open() -> None:
    async def scenario() -> None:
        server, peer = serve(Peer()), Peer()
        rpc_connection = await connect(HOST, await server.open(HOST), ACTOR, peer, KEY)
        await asyncio.sleep(0.02 * (rpc.SILENT_TURNS + 7))
        assert await rpc_connection.ask(Say("hello")) == "hello"
        server.stop()
        await until(lambda: peer.closed == [rpc_connection])

    asyncio.run(scenario())


def test_a_connection_to_a_silent_peer_is_cut() -> None:
    async def scenario() -> None:
        loop, peer = asyncio.get_running_loop(), Peer()
        mute = await loop.create_server(asyncio.Protocol, HOST, 0)
        rpc_connection = await connect(HOST, mute.sockets[0].getsockname()[1], ACTOR, peer, KEY)
        with pytest.raises(RpcConnectionClosed):
            await rpc_connection.ask(Say("hello"), timeout=5.0)
        assert peer.closed == [rpc_connection]
        mute.close()

    asyncio.run(scenario())


def test_a_client_that_connects_and_stays_silent_is_disconnected() -> None:
    async def scenario() -> None:
        listener = RpcListener(KEY)
        reader, writer = await asyncio.open_connection(HOST, await listener.open(HOST))
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        listener.stop()

    asyncio.run(scenario())


def test_a_listener_passes_connections_to_the_actors_that_they_name() -> None:
    async def scenario() -> None:
        listener = RpcListener(KEY)
        servers = {name: serve(Peer(), name, listener) for name in ("first", "second")}
        port = await listener.open(HOST)
        connections = {name: await connect(HOST, port, name, Peer(), KEY) for name in servers}
        for name, rpc_connection in connections.items():
            assert await rpc_connection.ask(Say(name)) == name
            assert len(servers[name].connections) == 1
        servers["first"].abort()
        await until(lambda: connections["first"].closed)
        assert await connections["second"].ask(Say("still here")) == "still here"
        listener.stop()
        await until(lambda: connections["second"].closed)

    asyncio.run(scenario())


@pytest.mark.parametrize("here", [False, True], ids=["by a socket", "in one process"])
def test_an_actor_that_was_cut_off_sends_nothing_more(here: bool) -> None:
    class Told(Peer):
        accepts = Codec(Note)

        def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
            raise AssertionError(f"sent after the end: {notice}")

    async def scenario() -> None:
        peer, listener = Told(), RpcListener(KEY)
        server = serve(Peer(), listener=listener)
        port = await listener.open(HOST)
        if here:
            rpc_connection = connect_here(listener, ACTOR, peer, KEY)
        else:
            rpc_connection = await connect(HOST, port, ACTOR, peer, KEY)
        await until(lambda: server.connections)
        [accepted] = server.connections
        server.abort()
        assert accepted._transport is not None and accepted._transport.is_closing()
        accepted.tell(Note("too late"))
        accepted.close()  # which sends what is outstanding
        await until(lambda: rpc_connection.closed and accepted.closed)
        assert peer.closed == [rpc_connection]
        listener.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("state", ["never", "before", "ended"])
def test_a_connection_to_an_actor_that_is_not_served_is_closed(state: str) -> None:
    async def scenario() -> None:
        listener = RpcListener(KEY)
        served = RpcServer(Peer(), ACTOR, listener)
        port = await served.open(HOST)
        if state == "ended":
            served.serve()
            served.stop()
        actor = "another actor" if state == "never" else ACTOR
        peer = Peer()
        rpc_connection = await connect(HOST, port, actor, peer, KEY)
        with pytest.raises(RpcConnectionClosed):
            await rpc_connection.ask(Say("hello"), timeout=5.0)
        assert peer.closed == [rpc_connection]
        assert not served.connections
        listener.stop()

    asyncio.run(scenario())


def test_the_newer_activation_gets_the_connections() -> None:
    async def scenario() -> None:
        listener = RpcListener(KEY)
        older, newer = serve(Peer(), ACTOR, listener), serve(Peer(), ACTOR, listener)
        older.stop()
        rpc_connection = await connect(HOST, await newer.open(HOST), ACTOR, Peer(), KEY)
        assert await rpc_connection.ask(Say("hello")) == "hello"
        assert len(newer.connections) == 1
        listener.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [RpcListener.abort, RpcListener.stop])
def test_a_connection_that_is_accepted_while_the_listener_ends_is_cut(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[RpcListener], None]
) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 10.0)
    begin = RpcConnection.__init__

    def begin_and_end(self: RpcConnection, *args: Any, **how: Any) -> None:
        begin(self, *args, **how)
        if how:  # the one that the listener accepted; `connection_made` comes next
            asyncio.get_running_loop().call_soon(end, listener)

    async def scenario() -> None:
        await connect(HOST, await listener.open(HOST), ACTOR, peer, KEY)
        await until(lambda: peer.closed)
        assert not listener.connections

    listener, peer = RpcListener(KEY), Peer()
    monkeypatch.setattr(RpcConnection, "__init__", begin_and_end)
    asyncio.run(scenario())


def test_a_closed_connection_keeps_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "KEEP_ALIVE_S", 10.0)
    size = 8 << 20
    unfinished = size.to_bytes(4, "big") + bytes(size - 1)

    async def scenario() -> None:
        listener = serve(Peer())._listener
        port = await listener.open(HOST)
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(frame([rpc._HELLO, KEY, ACTOR, rpc.PROTOCOL]) + unfinished)
        await until(lambda: listener.connections)
        (rpc_connection,) = listener.connections
        await until(lambda: len(rpc_connection._incoming._rest) == len(unfinished))
        held, _ = tracemalloc.get_traced_memory()
        writer.transport.abort()
        await until(lambda: rpc_connection.closed)
        left, _ = tracemalloc.get_traced_memory()
        assert held - left > size // 2
        listener.stop()

    tracemalloc.start()
    gc.disable()  # the connection is in a cycle of references
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
        tracemalloc.stop()


def test_strangers_can_send_little() -> None:
    async def scenario() -> None:
        listener = serve(Peer())._listener
        port = await listener.open(HOST)
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write((rpc.MAX_HELLO + 1).to_bytes(4, "big"))
        assert await reader.read() == b""
        listener.stop()

    asyncio.run(scenario())

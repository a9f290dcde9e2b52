"""Typed messages: what the codec accepts, what it refuses, and how RPC connections carry them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypedDict

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.by_name import call_as_ray
from tests.support.local_cluster import LocalCluster
from velaray.actors.machine import Reason
from velaray.events.ids import ActorKey
from velaray.topology.messages import Codec, Message, MessageError, Request, decode_reply, encode
from velaray.topology.rpc import RemoteError, RpcConnection, connect
from velaray.topology.rpc_server import RpcListener, RpcServer

HOST, KEY, ACTOR = "127.0.0.1", b"key", "an actor"


class Flow(Message):
    number: int
    permits: int


class Ack(Message):
    number: int
    ranges: list[int]
    partial: list[tuple[int, list[int]]] = []  # noqa: RUF012 (msgspec copies it)


class Nothing(Message):
    """Has no fields."""


class Where(TypedDict):
    offset: int
    held: dict[int, str]


class Locate(Request[Where]):
    name: str
    strict: bool = False


class Count(Request[int]):
    first: int


class Wrong(Request[int]):
    """Answered with text, which is a bug of the peer."""


class Unknown(Request[int]):
    """No peer of these tests accepts it."""


CODEC = Codec(Flow, Ack, Nothing, Locate, Count, Wrong)

OFFSETS = st.integers(0, (1 << 63) - 1)
WORDS = st.lists(st.integers(0, (1 << 64) - 1), max_size=3)
MESSAGES = st.one_of(
    st.builds(Flow, OFFSETS, OFFSETS),
    st.builds(Ack, OFFSETS, st.lists(OFFSETS), st.lists(st.tuples(OFFSETS, WORDS))),
    st.builds(Nothing),
    st.builds(Locate, st.text(), st.booleans()),
)


@given(MESSAGES)
def test_a_message_survives_the_wire(message: Message) -> None:
    assert CODEC.decode(encode(message)) == message


@given(
    st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.sampled_from(["Flow", "Ack"]),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=6,
    )
)
def test_any_other_value_is_refused_with_a_message_error(value: Any) -> None:
    try:
        message = CODEC.decode(msgpack.packb(value))
    except MessageError:
        return
    assert msgpack.unpackb(encode(message)) == msgpack.unpackb(msgpack.packb(value)) or isinstance(
        message, Ack
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (["Flow", 1, "many"], "message Flow, field permits: Expected `int`, got `str`"),
        (["Ack", 1, [2, None]], "message Ack, field ranges[1]: Expected `int`, got `None`"),
        (["Ack", 1, [], [[3, 4]]], "message Ack, field partial[0][1]: Expected `array`, got `int`"),
        (["Flow", 1], "message Flow: it has the fields number, permits"),
        (["Flow", 1, 2, 3], "message Flow: it has the fields number, permits"),
        (["Nothing", 1], "message Nothing: it has the fields (none)"),
        (["Grant", 1], "unknown message 'Grant'; known: Ack, Count, Flow, Locate, Nothing, Wrong"),
        ([5], "unknown message 5"),
        ("Flow", "message Flow: it has the fields number, permits"),
        ([], "unknown message []"),
    ],
)
def test_a_refusal_names_the_message_and_the_field(value: Any, told: str) -> None:
    with pytest.raises(MessageError) as refused:
        CODEC.decode(msgpack.packb(value))
    assert str(refused.value).startswith(told)


def test_damaged_bytes_are_refused() -> None:
    with pytest.raises(MessageError, match="damaged"):
        CODEC.decode(encode(Ack(1, [2]))[:-1])


def test_a_reply_is_checked_against_the_type_that_its_request_names() -> None:
    where: Where = {"offset": 7, "held": {3: "c"}}
    assert decode_reply(Locate("c"), encode(where)) == where
    with pytest.raises(MessageError, match=r"reply to Locate: .*offset"):
        decode_reply(Locate("c"), encode({"held": {}}))


class Peer:
    """Takes typed messages; keeps notices."""

    accepts = CODEC

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.closed = 0

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        match request:
            case Count(first):
                return first + 1
            case Locate(name) if name == "":
                raise RemoteError(Reason.NOT_FOUND, "no name")
            case Locate(name):
                return {"offset": 1, "held": {2: name}}
        return "text"

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        self.heard.append(notice)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        self.closed += 1


def run(scenario: Callable[[RpcConnection, Peer], Awaitable[None]], faults: int = 0) -> None:
    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: reported.append(fault))
        peer = Peer()
        listener = RpcListener(KEY)
        RpcServer(peer, ACTOR, listener).serve()
        rpc_connection = await connect(HOST, await listener.open(HOST), ACTOR, Peer(), KEY)
        async with asyncio.timeout(10):
            await scenario(rpc_connection, peer)
        listener.stop()
        assert len(reported) == faults, reported

    asyncio.run(main())


def test_a_connection_carries_messages_in_order() -> None:
    async def scenario(rpc_connection: RpcConnection, peer: Peer) -> None:
        rpc_connection.tell(Flow(1, 5))
        rpc_connection.tell(Nothing())
        assert await rpc_connection.ask(Count(4)) == 5
        assert await rpc_connection.ask(Locate("c")) == {"offset": 1, "held": {2: "c"}}
        assert peer.heard == [Flow(1, 5), Nothing()]
        with pytest.raises(RemoteError, match="no name"):
            await rpc_connection.ask(Locate(""))

    run(scenario)


def test_a_malformed_request_is_refused_and_the_connection_continues() -> None:
    async def scenario(rpc_connection: RpcConnection, peer: Peer) -> None:
        for request, told in (
            (Count("x"), "message Count, field first: Expected `int`, got `str`"),  # type: ignore[arg-type]
            (Unknown(), "unknown message 'Unknown'"),
        ):
            with pytest.raises(RemoteError) as refused:
                await rpc_connection.ask(request)
            assert refused.value.kind == Reason.INVALID
            assert str(refused.value).startswith(told)
        with pytest.raises(MessageError, match="reply to Wrong"):
            await rpc_connection.ask(Wrong())
        assert await rpc_connection.ask(Count(1)) == 2

    run(scenario)


def test_a_malformed_notice_closes_the_connection() -> None:
    async def scenario(rpc_connection: RpcConnection, peer: Peer) -> None:
        rpc_connection.tell(Flow("x", 1))  # type: ignore[arg-type]
        while not (rpc_connection.closed and peer.closed):
            await asyncio.sleep(0.001)
        assert peer.heard == []

    run(scenario, faults=1)


def test_an_end_that_accepts_no_messages_refuses_them() -> None:
    async def main() -> None:
        listener, calling = RpcListener(KEY), Peer()
        server = RpcServer(Peer(), ACTOR, listener)
        server.serve()
        calling.accepts = Codec()
        rpc_connection = await connect(HOST, await listener.open(HOST), ACTOR, calling, KEY)
        assert await rpc_connection.ask(Count(1)) == 2
        (answering,) = server.connections
        with pytest.raises(
            RemoteError, match=r"unknown message 'Count'; known: \(none\)"
        ) as refused:
            await answering.ask(Count(1))
        assert refused.value.kind == Reason.INVALID
        listener.stop()

    asyncio.run(main())


class Move(Request[None]):
    topic: str
    to: list[str]
    force: bool = False


def test_a_call_by_name_becomes_a_message() -> None:
    calls = Codec(Move)
    assert calls.knows("move") and not calls.knows("stay")
    assert calls.from_call("move", {"topic": "t", "to": ["a"]}) == Move("t", ["a"])


@pytest.mark.parametrize(
    ("method", "args", "fault"),
    [
        ("stay", {}, "unknown call 'stay'"),
        ("move", {"topic": "t"}, "message Move: field 'to' is missing"),
        ("move", {"topic": "t", "to": [], "now": 1}, "message Move: unknown field 'now'"),
        ("move", {"topic": 1, "to": []}, "message Move, field topic: Expected `str`, got `int`"),
        ("move", {"topic": "t", "to": [1]}, "message Move, field to"),
    ],
)
def test_a_malformed_call_is_refused_by_name(method: str, args: dict[str, Any], fault: str) -> None:
    with pytest.raises(MessageError, match=re.escape(fault)):
        Codec(Move).from_call(method, args)


@pytest.mark.parametrize(
    ("method", "args", "fault"),
    [
        ("topic", {}, "message Topic: field 'topic' is missing"),
        ("grow_partitions", {"topic": "t", "partitions": "3"}, "field partitions: Expected `int`"),
        ("set_home", {"tenant": "a", "cluster": "b", "now": True}, "unknown field 'now'"),
    ],
)
def test_the_catalog_refuses_malformed_calls(
    tmp_path: Path, method: str, args: dict[str, Any], fault: str
) -> None:
    with LocalCluster(tmp_path) as cluster:
        with pytest.raises(RemoteError, match=re.escape(fault)) as refused:
            cluster.run(call_as_ray(cluster.actor_system, ActorKey.catalog(), method, args))
        assert refused.value.kind == Reason.INVALID

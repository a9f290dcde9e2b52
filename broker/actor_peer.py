"""The end of RPC connections at an actor."""

from __future__ import annotations

from typing import Any, Protocol

from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RpcConnection


class Actor(Protocol):
    """What the connections of an actor need of it."""

    accepts: Codec
    """The requests that it answers."""

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a request that came over a connection."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """A connection is closed."""


class ActorPeer:
    """Handles the messages at an actor's end: requests, and no notices."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.answer = actor.answer

    @property
    def accepts(self) -> Codec:
        """The requests that the actor answers."""
        return self._actor.accepts

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Ignore a request that was sent as a notice."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Pass it to the actor."""
        self._actor.on_rpc_closed(rpc_connection)

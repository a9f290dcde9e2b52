"""Distribution of policies: the catalog notifies its watchers of changes.

A partition keeps a connection to the catalog. Over it the partition asks for the policies of its
topic, the clusters that the topic is replicated to, and the home cluster of its tenant. The catalog
remembers the connection and sends `PoliciesChanged` after each change that may concern the
partition, which then asks again. If the connection breaks, for example because the catalog
restarted, the partition opens a new one and asks again. Notifications are hints: the next request
repairs any loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from velaray.actors.catalog.state import Scope
from velaray.broker.catalog.messages import PoliciesChanged, Watch
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT

ASK_AGAIN_S = 60.0
"""The period after which the policies are read again without a notice."""
TRY_AGAIN_S = 1.0


class Watchers:
    """The catalog's side: the partitions to notify of changes."""

    def __init__(self) -> None:
        self._topics: dict[RpcConnection, Scope] = {}
        self._names: dict[RpcConnection, TopicName] = {}

    def add(self, rpc_connection: RpcConnection, topic: TopicName) -> None:
        """Add the partition at the other end of ``link``, which applies the policies of
        ``topic``."""
        self._topics[rpc_connection] = Scope.of_topic(topic)
        self._names[rpc_connection] = topic

    def remove(self, rpc_connection: RpcConnection) -> None:
        """Remove the partition: its connection is closed."""
        self._topics.pop(rpc_connection, None)
        self._names.pop(rpc_connection, None)

    def partitions(self) -> set[TopicName]:
        """The partitions that watch."""
        return set(self._names.values())

    def tell(self, changed: Scope) -> None:
        """Notify the partitions that a policy of ``changed`` has durably changed."""
        self._tell_of(lambda topic: changed in topic.upwards())

    def tell_tenant(self, tenant: str) -> None:
        """Notify the partitions of a tenant that something that holds for the whole tenant has
        durably changed."""
        self._tell_of(lambda topic: topic.tenant == tenant)

    def _tell_of(self, concerned: Callable[[Scope], bool]) -> None:
        for rpc_connection, topic in self._topics.items():
            if concerned(topic):
                rpc_connection.tell(PoliciesChanged())


class Follower:
    """A partition's side: keeps the catalog's answers about its topic."""

    accepts = Codec(PoliciesChanged)

    def __init__(
        self,
        actor_system: ActorSystem,
        watch: Watch,
        apply: Callable[[dict[str, Any]], None],
    ) -> None:
        """``watch`` is the request; ``apply`` gets each answer."""
        self._actor_system = actor_system
        self._watch = watch
        self._apply = apply
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Follow the policies; never returns. While the catalog doesn't answer, the last answer
        applies."""
        backoff = self._actor_system.backoff(TRY_AGAIN_S, TRY_AGAIN_S)
        while True:
            try:
                await self._ask_over_one_connection()
            except TRANSIENT:
                await backoff.wait()

    async def _ask_over_one_connection(self) -> None:
        rpc_connection = await self._actor_system.open_rpc(ActorKey.catalog(), self)
        try:
            while not rpc_connection.closed:
                self._changed.clear()
                self._apply(await rpc_connection.ask(self._watch))
                await self._wait()
        finally:
            rpc_connection.close()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            return  # a notice may be lost with a dead connection that still looks alive

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> None:
        """The catalog sends no requests."""
        raise RemoteError("not allowed", "a follower answers no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """A policy changed: ask again."""
        self._changed.set()

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Continue over a new connection."""
        self._changed.set()

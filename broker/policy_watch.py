"""How policies reach who applies them: the catalog tells its watchers that some changed.

A partition holds a link to the catalog and asks over it for the policies of its topic, and where
it is to be replicated, and where its tenant is at home. The
catalog remembers who asked, and says ``policies_changed`` after each change that may concern
them; they ask again. A link that breaks (the catalog restarted, say) is opened anew, and what
changed meanwhile is asked for then. So no notice need be kept, and none that is lost matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from velaray.actors.catalog.state import Scope
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT

ASK_AGAIN_S = 60.0
"""After so long without a notice the policies are asked for all the same."""
TRY_AGAIN_S = 1.0


class Watchers:
    """The catalog's side: who is to be told of changes."""

    def __init__(self) -> None:
        self._topics: dict[RpcConnection, Scope] = {}
        self._names: dict[RpcConnection, TopicName] = {}

    def add(self, rpc_connection: RpcConnection, topic: TopicName) -> None:
        """Whoever is behind ``link`` applies the policies of ``topic``."""
        self._topics[rpc_connection] = Scope.of_topic(topic)
        self._names[rpc_connection] = topic

    def remove(self, rpc_connection: RpcConnection) -> None:
        """The link is gone."""
        self._topics.pop(rpc_connection, None)
        self._names.pop(rpc_connection, None)

    def partitions(self) -> set[TopicName]:
        """The partitions that watch."""
        return set(self._names.values())

    def tell(self, changed: Scope) -> None:
        """A policy of ``changed`` is another one, durably."""
        self._tell_of(lambda topic: changed in topic.upwards())

    def tell_tenant(self, tenant: str) -> None:
        """What holds for a whole tenant is something else, durably."""
        self._tell_of(lambda topic: topic.tenant == tenant)

    def _tell_of(self, concerned: Callable[[Scope], bool]) -> None:
        for rpc_connection, topic in self._topics.items():
            if concerned(topic):
                rpc_connection.notify("policies_changed", None)


class Follower:
    """A partition's side: keeps what the catalog says about its topic."""

    def __init__(
        self,
        actor_system: ActorSystem,
        serving: dict[str, Any],
        apply: Callable[[dict[str, Any]], None],
    ) -> None:
        """``serving`` says which topic; ``apply`` is given each answer."""
        self._actor_system = actor_system
        self._serving = serving
        self._apply = apply
        self._changed = asyncio.Event()

    async def follow(self) -> None:
        """Never returns. While the catalog doesn't answer, the last answer applies."""
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
                self._apply(await rpc_connection.request("watch", self._serving))
                await self._wait()
        finally:
            rpc_connection.close()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await self._changed.wait()
        except TimeoutError:
            return  # a notice may be lost with a link that is only said to be alive

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        """The catalog asks nothing."""
        raise RemoteError("not allowed", "a follower answers no requests")

    def on_notice(self, rpc_connection: RpcConnection, method: str, args: Any) -> None:
        """Something changed: ask again."""
        self._changed.set()

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Go on over a new link."""
        self._changed.set()

"""Distribution of policies: the catalog notifies its watchers of changes.

A host keeps one connection to the catalog. Over it each partition of the host asks for the policies
of its topic, the clusters that the topic is replicated to, and the home cluster of its tenant. The
catalog remembers who asked and sends `PoliciesChanged` after each change that may concern the
partition, which then asks again. If the connection breaks, for example because the catalog
restarted, the partitions open a new one and ask again. Notifications are hints: the next request
repairs any loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from velaray.actors.catalog.state import Scope
from velaray.broker.actor_peer import Actor, ActorPeer
from velaray.broker.catalog.messages import EndWatch, GrantsChanged, PoliciesChanged, Watch
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT

ASK_AGAIN_S = 60.0
"""The period after which the policies are read again without a notice."""
TRY_AGAIN_S = 1.0


class Watchers:
    """The catalog's side: the partitions to notify of changes."""

    def __init__(self) -> None:
        self._topics: dict[RpcConnection, dict[TopicName, Scope]] = {}
        self._of_grants: dict[RpcConnection, None] = {}

    def add_of_grants(self, rpc_connection: RpcConnection) -> None:
        """Add a process, at the other end, that checks the rights of clients."""
        self._of_grants[rpc_connection] = None

    def tell_grants(self, changed: Scope) -> None:
        """Notify the processes that check rights of a durable change of grants."""
        notice = GrantsChanged(changed.tenant, changed.namespace, changed.topic)
        for rpc_connection in self._of_grants:
            rpc_connection.tell(notice)

    def add(self, rpc_connection: RpcConnection, topic: TopicName) -> None:
        """Add a partition of the host at the other end, which applies the policies of ``topic``."""
        self._topics.setdefault(rpc_connection, {})[topic] = Scope.of_topic(topic)

    def discard(self, rpc_connection: RpcConnection, topic: TopicName) -> None:
        """Remove a partition that has ended."""
        self._topics.get(rpc_connection, {}).pop(topic, None)

    def remove(self, rpc_connection: RpcConnection) -> None:
        """Remove all that watch over a connection, which is closed."""
        self._topics.pop(rpc_connection, None)
        self._of_grants.pop(rpc_connection, None)

    def partitions(self) -> set[TopicName]:
        """The partitions that watch."""
        return set().union(*self._topics.values())

    def tell(self, changed: Scope) -> None:
        """Notify the partitions that a policy of ``changed`` has durably changed."""
        self._tell_of(lambda topic: changed in topic.upwards())

    def tell_tenant(self, tenant: str) -> None:
        """Notify the partitions of a tenant that something that holds for the whole tenant has
        durably changed."""
        self._tell_of(lambda topic: topic.tenant == tenant)

    def _tell_of(self, concerned: Callable[[Scope], bool]) -> None:
        for rpc_connection, topics in self._topics.items():
            for topic, scope in topics.items():
                if concerned(scope):
                    rpc_connection.tell(PoliciesChanged(str(topic)))


class CatalogPeer(ActorPeer):
    """The catalog's end of connections."""

    def __init__(self, catalog: Actor, watchers: Watchers) -> None:
        super().__init__(catalog)
        self._watchers = watchers

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Remove the watcher of one topic."""
        if isinstance(notice, EndWatch):
            self._watchers.discard(rpc_connection, TopicName.parse(notice.topic))

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Remove the watchers; they watch again over a new connection."""
        self._watchers.remove(rpc_connection)


class PolicyWatch:
    """The connection of a host to the catalog, and the partitions that ask over it."""

    accepts = Codec(PoliciesChanged)

    def __init__(self, config: ClusterConfig) -> None:
        """Made by `ActorHost.part`."""
        self._followers: dict[str, Follower] = {}
        self._rpc_connection: RpcConnection | None = None
        self._dialling = asyncio.Lock()

    async def connection(self, actor_system: ActorSystem) -> RpcConnection:
        """The connection, which is opened if there is none. Raises what `ActorSystem.open_rpc`
        raises."""
        async with self._dialling:
            if self._rpc_connection is None or self._rpc_connection.closed:
                self._rpc_connection = await actor_system.open_rpc(ActorKey.catalog(), self)
            return self._rpc_connection

    def add(self, follower: Follower) -> None:
        """Pass notices about its topic to a follower, in place of an earlier one."""
        self._followers[follower.topic] = follower

    def remove(self, follower: Follower) -> None:
        """Pass it no more; the last one closes the connection. Idempotent."""
        if self._followers.get(follower.topic) is not follower:
            return
        del self._followers[follower.topic]
        if self._followers and self._rpc_connection is not None:
            self._rpc_connection.tell(EndWatch(follower.topic))
        elif not self._followers:
            self.stop()

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> None:
        """The catalog sends no requests."""
        raise RemoteError("not allowed", "followers of policies answer no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Policies changed: the partition asks again."""
        if isinstance(notice, PoliciesChanged) and notice.topic in self._followers:
            self._followers[notice.topic].changed.set()

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """The partitions continue over a new connection."""
        for follower in self._followers.values():
            follower.changed.set()

    def stop(self) -> None:
        """Close the connection."""
        if self._rpc_connection is not None:
            self._rpc_connection.close()
            self._rpc_connection = None

    def abort(self) -> None:
        """Cut the connection."""
        if self._rpc_connection is not None:
            self._rpc_connection.abort()


class Follower:
    """A partition's side: keeps the catalog's answers about its topic."""

    def __init__(
        self,
        actor_system: ActorSystem,
        policy_watch: PolicyWatch,
        watch: Watch,
        apply: Callable[[dict[str, Any]], None],
    ) -> None:
        """``watch`` is the request; ``apply`` gets each answer."""
        self.topic = watch.topic
        self.changed = asyncio.Event()
        """Set when the answer may have changed."""
        self._actor_system = actor_system
        self._policy_watch = policy_watch
        self._watch = watch
        self._apply = apply

    async def follow(self) -> None:
        """Follow the policies; never returns. While the catalog doesn't answer, the last answer
        applies."""
        self._policy_watch.add(self)
        backoff = self._actor_system.backoff(TRY_AGAIN_S, TRY_AGAIN_S)
        while True:
            try:
                await self._ask_over(await self._policy_watch.connection(self._actor_system))
            except TRANSIENT:
                await backoff.wait()

    async def _ask_over(self, rpc_connection: RpcConnection) -> None:
        while not rpc_connection.closed:
            self.changed.clear()
            self._apply(await rpc_connection.ask(self._watch))
            await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await self.changed.wait()
        except TimeoutError:
            return  # a notice may be lost with a dead connection that still looks alive

    def close(self) -> None:
        """Have the catalog send no more notices. The task of `follow` is cancelled by its owner."""
        self._policy_watch.remove(self)

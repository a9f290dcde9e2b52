"""A process's copy of what the catalog has granted to roles.

Each answer of the catalog is kept until the catalog says that it may have changed
(`GrantsChanged`), or until the connection to it ends: RPC connections notice a lost peer within 40
seconds. So a decision needs no call as long as nothing changes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from velaray.actors.catalog.state import Scope
from velaray.broker.authorisation.grants import Demand, Grants, needs_grants
from velaray.broker.catalog.messages import GrantsChanged, WatchGrants
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import AuthorisationSettings
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection

KEPT = 10_000
"""The number of scopes whose grants are kept, the last used ones."""


class GrantWatch:
    """Decides whether roles may do something, by what the catalog has granted."""

    accepts = Codec(GrantsChanged)

    def __init__(self, settings: AuthorisationSettings) -> None:
        self.settings = settings
        self.on_change: Callable[[], None] = _nothing
        """Called when grants may have changed."""
        self._actor_system: ActorSystem | None = None
        self._known: OrderedDict[Scope, Grants] = OrderedDict()
        self._changes = 0
        self._rpc_connection: RpcConnection | None = None
        self._dialling = asyncio.Lock()

    def ask_by(self, actor_system: ActorSystem) -> None:
        """Ask the catalog by way of this actor system, from now on."""
        self._actor_system = actor_system

    # -- decisions -----------------------------------------------------------------

    def decide(self, roles: tuple[str, ...], demand: Demand) -> bool | None:
        """Whether all roles meet a demand; None if the catalog must be asked (`ask`)."""
        depends = needs_grants(self.settings, roles, demand)
        if not depends:
            return True
        if not demand.scope.tenant:
            return False  # only superusers act on the cluster as a whole
        grants = self._known.get(demand.scope)
        if grants is None:
            return None
        self._known.move_to_end(demand.scope)
        return all(grants.allow(role, demand.right, demand.subscription) for role in depends)

    async def ask(self, roles: tuple[str, ...], demand: Demand) -> bool:
        """`decide`, after asking the catalog if necessary. Raises what calls of actors raise."""
        decision = self.decide(roles, demand)
        while decision is None:
            await self._fetch(demand.scope)
            decision = self.decide(roles, demand)
        return decision

    async def _fetch(self, scope: Scope) -> None:
        connection = await self._connection()
        changes = self._changes
        found = await connection.ask(WatchGrants(scope.tenant, scope.namespace, scope.topic))
        if changes != self._changes:
            return  # the answer may be older than the change
        self._known[scope] = Grants.of(found)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    async def _connection(self) -> RpcConnection:
        assert self._actor_system is not None
        async with self._dialling:
            if self._rpc_connection is None or self._rpc_connection.closed:
                self._rpc_connection = await self._actor_system.open_rpc(ActorKey.catalog(), self)
            return self._rpc_connection

    # -- the connection to the catalog ---------------------------------------------

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> None:
        """The catalog sends no requests."""
        raise RemoteError("not allowed", "watchers of grants answer no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Grants changed: forget what may be outdated."""
        if isinstance(notice, GrantsChanged):
            self._forget(Scope(notice.tenant, notice.namespace, notice.topic))

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Notices may have been lost: forget everything."""
        if rpc_connection is self._rpc_connection:
            self._rpc_connection = None
        self._forget(Scope())

    def _forget(self, changed: Scope) -> None:
        self._changes += 1
        for scope in [each for each in self._known if _concerned(each, changed)]:
            del self._known[scope]
        self.on_change()

    def stop(self) -> None:
        """Close the connection."""
        self.on_change = _nothing
        if self._rpc_connection is not None:
            self._rpc_connection.close()
            self._rpc_connection = None


def _concerned(scope: Scope, changed: Scope) -> bool:
    """Whether the grants at ``scope`` depend on those at ``changed``, or lie below them."""
    if not changed.tenant:
        return True
    return (
        scope.tenant == changed.tenant
        and changed.namespace in ("", scope.namespace)
        and changed.topic in ("", scope.topic)
    )


def _nothing() -> None:
    """Nobody is told of changes."""

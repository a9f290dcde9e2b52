"""A partition's access to its topic's schema registry, with a cache.

A version never changes, so it is cached without limit of time. The version of a producer's schema
is valid until versions are deleted. The registry invalidates it before it answers a deletion. A
partition that can't be reached stops using it when its lease ends, and the deletion waits for that
(decision 0037).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.schema_registry.messages import (
    TO_FOLLOWER,
    Attach,
    Follow,
    Register,
    Schema,
)
from velaray.broker.schema_registry.schema_calls import (
    ENFORCED,
    LEASE_S,
    STRATEGY,
    has_registry,
    no_schema,
    schema_policies,
)
from velaray.events.ids import ActorKey
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.compatibility import Strategy
from velaray.schemas.validation import UNSTORED
from velaray.topology.actor_system import REACH_TIMEOUT_S, ActorSystem, persist
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError, RpcConnection, RpcConnectionClosed

KEPT = 1000
"""The number of cached answers of each kind; a full cache is cleared."""

_NO_SCHEMA = "Producers cannot connect or send message without a schema to topics with a schema"
_Schema = tuple[str, bytes, tuple[tuple[str, str], ...]]


class TopicSchemas:
    """The schemas of the topic that a partition belongs to."""

    accepts = TO_FOLLOWER

    def __init__(
        self, key: ActorKey, actor_system: ActorSystem, policies: Callable[[], Mapping[str, Any]]
    ) -> None:
        """``key`` is the partition's; ``policies`` are those that hold now."""
        self._key = ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation)
        self._actor_system = actor_system
        self._policies = policies
        self._rpc_connection: RpcConnection | None = None
        self._linking = asyncio.Lock()
        self._made = False
        self._forgotten = 0
        # Versions of producers' schemas, each with the end of its lease.
        self._registered: dict[_Schema, tuple[int, float]] = {}
        self._versions: dict[int, dict[str, Any]] = {}

    async def of_producer(self, info: SchemaInfo | None, role: str) -> int | None:
        """The version of a producer's schema, registered if need be; None: it has none.

        Raises `RemoteError` (INCOMPATIBLE_SCHEMA, INVALID_SCHEMA) and what `persist` raises.
        """
        policies = self._policies()
        if info is None or info.type in UNSTORED:
            foreign = info is not None and info.type is SchemaType.EXTERNAL
            compatible = policies[STRATEGY] == Strategy.ALWAYS_COMPATIBLE
            if (policies[ENFORCED] or (foreign and not compatible)) and await self._has_schema():
                raise RemoteError(Reason.INCOMPATIBLE_SCHEMA, _NO_SCHEMA)
            return None
        name = (str(info.type), info.data, tuple(sorted(info.properties.items())))
        now = asyncio.get_running_loop().time()
        known, lease_end = self._registered.get(name, (0, now))
        if now < lease_end:
            return known
        forgotten = self._forgotten
        found = await self._ask(Register(info, schema_policies(policies), role))
        version = found["version"]
        assert version is not None
        if forgotten == self._forgotten:
            _keep(self._registered, name, (version, now + LEASE_S))
        return version

    async def of_consumer(self, info: SchemaInfo | None, *, active: bool, role: str) -> None:
        """Check a consumer's schema; register it if the topic has none and isn't ``active``. Raises
        as `of_producer`."""
        if info is None or info.type in UNSTORED:
            return
        await self._ask(Attach(info, active, schema_policies(self._policies()), role))

    async def find(self, version: int | None) -> dict[str, Any]:
        """A version, deleted or not; None: the latest live one. Raises `RemoteError` with NOT_FOUND
        if there is none, and what `persist` raises."""
        if version is not None and version in self._versions:
            return self._versions[version]
        if not await self._is_made():
            raise no_schema(self._key, version)
        found = await self._ask(Schema(version))
        _keep(self._versions, found["version"], found)
        return found

    async def _has_schema(self) -> bool:
        try:
            await self.find(None)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                return False
            raise
        return True

    async def _is_made(self) -> bool:
        """Whether the registry was ever used; an unused one isn't activated for the answer."""
        self._made = self._made or await has_registry(self._actor_system, self._key)
        return self._made

    async def _ask(self, request: Request[ReplyT]) -> ReplyT:
        return await persist(
            lambda: self._ask_once(request),
            REACH_TIMEOUT_S,
            f"ask {self._key}",
            self._actor_system.call_backoff(),
        )

    async def _ask_once(self, request: Request[ReplyT]) -> ReplyT:
        async with self._linking:
            if self._rpc_connection is None:
                rpc_connection = await self._actor_system.open_rpc(self._key, self)
                await rpc_connection.ask(Follow())
                if rpc_connection.closed:
                    raise RpcConnectionClosed("the schema registry closed the connection")
                self._rpc_connection = rpc_connection
        return await self._rpc_connection.ask(request)

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> None:
        """`DropVersions`: drop the cached versions of producers' schemas."""
        self._forget()

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """The registry sends no notices."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Drop the cached versions: without a connection they aren't invalidated."""
        if self._rpc_connection is rpc_connection:
            self._rpc_connection = None
        self._forget()

    def _forget(self) -> None:
        self._forgotten += 1
        self._registered.clear()

    def close(self) -> None:
        """Close the connection to the registry."""
        if self._rpc_connection is not None:
            self._rpc_connection.close()


def _keep(kept: dict[Any, Any], name: Any, value: Any) -> None:
    if len(kept) >= KEPT:
        kept.clear()
    kept[name] = value

"""The actor of a schema registry. Partitions, proxies and the admin interface call it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from velaray.actors.machine import Reason, Refusal
from velaray.actors.runtime import Runtime
from velaray.actors.schema_registry.machine import (
    Attach,
    Delete,
    Register,
    RegistryState,
    SchemaRegistryMachine,
    Version,
)
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.schema_registry.followers import Followers
from velaray.broker.schema_registry.schema_calls import info_fields, info_of, no_schema
from velaray.events.ids import ActorKey
from velaray.schemas import InvalidSchemaError
from velaray.schemas.compatibility import Rules, Strategy, producer_problems
from velaray.schemas.validation import UNSTORED, identity, validate
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.rpc import RemoteError, RpcConnection

QUIET_S = 2.0
"""A registry that answered within this many seconds isn't idle."""


def _rules(args: dict[str, Any]) -> Rules:
    return Rules(Strategy(args["strategy"]), args["native_fields"])


def described(version: Version) -> dict[str, Any]:
    """A version as calls return it; a deletion has no fields of a schema."""
    told = {
        "version": version.number,
        "at_ms": version.at_ms,
        "role": version.role,
        "deleted": version.info is None,
        "forced": version.forced,
        "strategy": version.strategy,
        "predecessor": version.predecessor,
        "identity": version.identity,
    }
    return told if version.info is None else {**told, **info_fields(version.info)}


class SchemaRegistryActor(JournaledActor):
    """Serves the versions of one topic's schema."""

    runtime: Runtime[RegistryState]

    def __init__(self, key: ActorKey, actor_system: ActorSystem) -> None:
        super().__init__(key, actor_system, SchemaRegistryMachine())
        self._followers = Followers()
        self._busy = 0
        self._used_s = -math.inf

    async def start(self) -> Address:
        """Recover and listen; an earlier activation can't answer any more."""
        address = await super().start()
        self._followers.recovered()
        return address

    async def ask_whether_it_exists(self) -> None:
        """Ask the catalog for the topic."""
        mine = {"topic": str(self.key.topic_name), "incarnation": self.key.topic_incarnation}
        try:
            await self.actor_system.call(ActorKey.catalog(), "serving", mine)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(error.kind, error.message) from error
            raise

    async def on_request(self, rpc_connection: RpcConnection, method: str, args: Any) -> Any:
        """Answer a call; ``follow`` subscribes the connection to invalidations of cached
        answers."""
        if method == "follow":
            self._followers.add(rpc_connection)
            return None
        if method == "register":
            self._followers.grant(rpc_connection)
        return await self.call(method, args)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Remove the follower."""
        self._followers.lost(rpc_connection)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a call: ``register``, ``attach`` and ``delete`` change something; ``schema``,
        ``schemas``, ``find`` and ``check`` don't. Raises `RemoteError`."""
        calls: dict[str, Callable[[dict[str, Any]], Any]] = {
            "register": self._register,
            "attach": self._attach,
            "delete": self._delete,
            "schema": self._schema,
            "schemas": self._schemas,
            "find": self._find,
            "check": self._check,
        }
        if method not in calls:
            return await super().call(method, args)
        self._busy += 1
        try:
            return await calls[method](args)
        finally:
            self._busy -= 1
            self._used_s = asyncio.get_running_loop().time()

    async def _ask(self, command: Any) -> Any:
        """The machine's reply. It is the newest activation's, even if nothing was written."""
        reply = await self.runtime.ask(command)
        if isinstance(reply, Refusal) or not getattr(reply, "new", True):
            await self.read_certain(lambda state: None)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        return reply

    async def _register(self, args: dict[str, Any]) -> dict[str, Any]:
        """The version of a producer's schema, which is registered if it is new."""
        found = await self._ask(
            Register(
                info_of(args["info"]),
                _rules(args),
                args["auto_update"],
                args["legacy_json"],
                args["role"],
            )
        )
        return {"version": found.version, "new": found.new}

    async def _attach(self, args: dict[str, Any]) -> dict[str, Any]:
        """Check a consumer's schema."""
        found = await self._ask(
            Attach(
                info_of(args["info"]),
                args["active"],
                _rules(args),
                args["auto_update"],
                args["legacy_json"],
                args["role"],
            )
        )
        return {"version": found.version, "new": found.new}

    async def _delete(self, args: dict[str, Any]) -> int:
        """Delete all versions up to ``through``; returns the number of the deletion. When it
        returns, no partition uses a deleted schema from its cache."""
        found = await self._ask(Delete(args["through"], args["forced"], args["role"]))
        await self._followers.drop_caches()
        return int(found.version)

    async def _schema(self, args: dict[str, Any]) -> dict[str, Any]:
        """One version, deleted or not; None: the latest live one."""
        version = args["version"]

        def look(state: RegistryState) -> Version | None:
            return state.latest if version is None else state.find(version)

        found = await self.read_certain(look)
        if found is None:
            raise no_schema(self.key, version)
        return described(found)

    async def _schemas(self, args: dict[str, Any]) -> list[dict[str, Any]]:
        """All live versions; with ``all`` also deleted ones and the deletions."""

        def look(state: RegistryState) -> list[Version]:
            return state.versions[0 if args["all"] else state.live_from :]

        return [described(each) for each in await self.read_certain(look)]

    async def _find(self, args: dict[str, Any]) -> int | None:
        """The live version that equals a schema; None if there is none."""
        info = info_of(args["info"])
        try:
            if info.type in UNSTORED:
                return None
            validate(info, legacy_json=args["legacy_json"])
            digest = identity(info)
        except InvalidSchemaError as error:
            raise RemoteError(Reason.INVALID_SCHEMA, str(error)) from error
        return await self.read_certain(lambda state: state.live.get(digest))

    async def _check(self, args: dict[str, Any]) -> list[dict[str, Any]]:
        """The reason why a schema can't be registered now; empty if it can, or is registered.
        ``all`` compares the schema with deleted versions, too."""
        if await self._find(args) is not None:
            return []
        every, rules = args["all"], _rules(args)
        known = await self.read_certain(lambda state: state.known(gone=every))
        problems = producer_problems(
            info_of(args["info"]), known, rules.transitive() if every else rules
        )
        return [
            {
                "version": each.version,
                "reads": each.reads,
                "path": each.path,
                "text": each.text,
                "message": str(each),
            }
            for each in problems
        ]

    def idle(self) -> bool:
        """Whether there was no request for a while; connections of followers don't count."""
        quiet_s = asyncio.get_running_loop().time() - self._used_s
        return not self._busy and quiet_s > QUIET_S

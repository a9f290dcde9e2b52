"""The actor of a schema registry. Partitions, proxies and the admin interface call it."""

from __future__ import annotations

import asyncio
import math
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
from velaray.broker.actor_messages import ACTOR_REQUESTS
from velaray.broker.catalog.messages import Serving
from velaray.broker.journaled_actor import JournaledActor, WasDeleted
from velaray.broker.schema_registry import messages as m
from velaray.broker.schema_registry.followers import Followers
from velaray.broker.schema_registry.schema_calls import info_fields, no_schema
from velaray.events.ids import ActorKey
from velaray.schemas import InvalidSchemaError
from velaray.schemas.compatibility import Rules, producer_problems
from velaray.schemas.validation import UNSTORED, identity, validate
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection

QUIET_S = 2.0
"""A registry that answered within this many seconds isn't idle."""


def _policies(request: m.Register | m.Attach | m.Check) -> tuple[Rules, bool, bool]:
    """The machine's arguments: rules of comparison, ``auto_update`` and ``legacy_json``."""
    given = request.policies
    rules = Rules(given.strategy, given.native_fields)
    return rules, given.auto_update, given.legacy_json


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

    accepts = m.TO_REGISTRY
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
        mine = Serving(str(self.key.topic_name), self.key.topic_incarnation)
        try:
            await self.actor_system.request(ActorKey.catalog(), mine)
        except RemoteError as error:
            if error.kind == Reason.NOT_FOUND:
                raise WasDeleted(error.kind, error.message) from error
            raise

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a request. `Follow` subscribes the connection to invalidations of cached
        answers."""
        if isinstance(request, m.Follow):
            self._followers.add(rpc_connection)
            return None
        if isinstance(request, m.Register):
            self._followers.grant(rpc_connection)
        return await self.handle(request)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Remove the follower."""
        self._followers.lost(rpc_connection)

    async def handle(self, request: Message) -> Any:
        """Answer a request of `velaray.broker.schema_registry.messages`. Raises `RemoteError`."""
        if isinstance(request, ACTOR_REQUESTS):
            return await super().handle(request)
        self._busy += 1
        try:
            return await self._answer(request)
        finally:
            self._busy -= 1
            self._used_s = asyncio.get_running_loop().time()

    async def _answer(self, request: Message) -> Any:
        match request:
            case m.Register():
                return await self._register(request)
            case m.Attach():
                return await self._attach(request)
            case m.Delete():
                return await self._delete(request)
            case m.Schema():
                return await self._schema(request.version)
            case m.Schemas():
                return await self._schemas(gone=request.all)
            case m.Find():
                return await self._find(request)
            case m.Check():
                return await self._check(request)
        return await super().handle(request)

    async def _ask(self, command: Any) -> Any:
        """The machine's reply. It is the newest activation's, even if nothing was written."""
        reply = await self.runtime.ask(command)
        if isinstance(reply, Refusal) or not getattr(reply, "new", True):
            await self.read_certain(lambda state: None)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        return reply

    async def _register(self, request: m.Register) -> m.Registration:
        """The version of a producer's schema, which is registered if it is new."""
        found = await self._ask(Register(request.info, *_policies(request), request.role))
        return {"version": found.version, "new": found.new}

    async def _attach(self, request: m.Attach) -> m.Registration:
        """Check a consumer's schema."""
        found = await self._ask(
            Attach(request.info, request.active, *_policies(request), request.role)
        )
        return {"version": found.version, "new": found.new}

    async def _delete(self, request: m.Delete) -> int:
        """Delete all versions up to ``through``; returns the number of the deletion. When it
        returns, no partition uses a deleted schema from its cache."""
        found = await self._ask(Delete(request.through, request.forced, request.role))
        await self._followers.drop_caches()
        return int(found.version)

    async def _schema(self, version: int | None) -> m.Row:
        """One version, deleted or not; None: the latest live one."""

        def look(state: RegistryState) -> Version | None:
            return state.latest if version is None else state.find(version)

        found = await self.read_certain(look)
        if found is None:
            raise no_schema(self.key, version)
        return described(found)

    async def _schemas(self, *, gone: bool) -> list[m.Row]:
        """All live versions; ``gone``: also deleted ones and the deletions."""

        def look(state: RegistryState) -> list[Version]:
            return state.versions[0 if gone else state.live_from :]

        return [described(each) for each in await self.read_certain(look)]

    async def _find(self, request: m.Find | m.Check) -> int | None:
        """The live version that equals a schema; None if there is none."""
        info = request.info
        try:
            if info.type in UNSTORED:
                return None
            validate(info, legacy_json=request.policies.legacy_json)
            digest = identity(info)
        except InvalidSchemaError as error:
            raise RemoteError(Reason.INVALID_SCHEMA, str(error)) from error
        return await self.read_certain(lambda state: state.live.get(digest))

    async def _check(self, request: m.Check) -> list[m.Row]:
        """The reason why a schema can't be registered now; empty if it can, or is registered.
        ``all`` compares the schema with deleted versions, too."""
        if await self._find(request) is not None:
            return []
        every, rules = request.all, _policies(request)[0]
        known = await self.read_certain(lambda state: state.known(gone=every))
        problems = producer_problems(request.info, known, rules.transitive() if every else rules)
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

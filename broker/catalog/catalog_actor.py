"""The catalog's actor: its machine behind an RPC server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

from velaray.actors.catalog.clusters import replicated_partitions
from velaray.actors.catalog.inbound_replication import pulled_partitions
from velaray.actors.catalog.machine import CatalogMachine, Done, Ensured
from velaray.actors.catalog.policies import DEDICATED, ERASABLE, ISOLATION, NOT_ERASABLE
from velaray.actors.catalog.state import (
    CLUSTER,
    Catalog,
    Scope,
    effective_policies,
    topics_where,
)
from velaray.actors.machine import Reason, Refusal
from velaray.broker.actor_messages import ACTOR_REQUESTS, Describe
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.commands import changed_grants, command_of, scope_of
from velaray.broker.catalog.migrations import MakeMigrations
from velaray.broker.catalog.queries import CERTAIN, QUERIES, TIMED_QUERIES, describe
from velaray.broker.catalog.scheduled_activation import ScheduledActivation
from velaray.broker.garbage_collection.topic_deletion import sweep_topic
from velaray.broker.journaled_actor import CONFIRM_S, JournaledActor
from velaray.broker.policy_watch import CatalogPeer, Watchers
from velaray.broker.topic_policies import AGES, TopicPolicies
from velaray.events.ids import ActorKey, InvalidNameError, TopicName
from velaray.journal.errors import StorageFull
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.messages import Codec, Message, Request, requests_of
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import TRANSIENT_OR_STORE


def _partitions(state: Catalog) -> list[tuple[ActorKey, TopicPolicies]]:
    """The partitions whose data expires by its age, with their effective policies."""

    @cache
    def policies(scope: Scope) -> TopicPolicies:
        return TopicPolicies.of(effective_policies(state, scope))

    return [
        (key, policies(scope if scope in state.policies else scope.wider()))
        for topic in topics_where(state, AGES, lambda scope: policies(scope).ages)
        for scope in [Scope.of_topic(topic.name)]
        for key in topic.actors()
    ]


ResultT = TypeVar("ResultT")
PULL_WAKE_S = 2.0
_NOT_ERASABLE = json.dumps(NOT_ERASABLE).encode()
_DEDICATED = json.dumps(DEDICATED).encode()
FIRST_BACKOFF_S = 0.5


class CatalogActor(JournaledActor):
    """Serves the catalog's commands and queries to the cluster's other actors."""

    accepts = Codec(*ACTOR_REQUESTS, *requests_of(m), m.EndWatch)

    def __init__(
        self, key: ActorKey, actor_system: ActorSystem, make_migrations: MakeMigrations
    ) -> None:
        super().__init__(key, actor_system, CatalogMachine())
        self._watchers = Watchers()
        self.rpc_server.peer = CatalogPeer(self, self._watchers)
        self.waker = ScheduledActivation(actor_system)
        self.migrations = make_migrations(actor_system, self.handle)

    async def start(self) -> Address:
        """Recover, listen, and continue purges and migrations of earlier activations."""
        address = await super().start()
        self.spawn(self._purge())
        self.spawn(self._wake())
        self.spawn(self._keep_pulling())
        self.spawn(self._resume_replication())
        await self.migrations.start()
        return address

    async def _resume_replication(self) -> None:
        """Activate every replicated partition once: it may have a backlog for other clusters.

        Partitions without a backlog become idle again.
        """
        await asyncio.sleep(PULL_WAKE_S)
        backoff = self.actor_system.backoff(FIRST_BACKOFF_S)
        while (left := await self._unless_full(replicated_partitions)) is None:
            await backoff.wait()
        while left:
            watching, failed = self._watchers.partitions(), []
            for key in left:
                try:
                    if key.topic_name not in watching:
                        await self._describe_if_used(key)
                except TRANSIENT_OR_STORE:
                    failed.append(key)
            left = failed
            await backoff.wait()

    async def _unless_full(self, query: Callable[[Catalog], ResultT]) -> ResultT | None:
        """The result of ``query``, or None if a full disk dropped the state that it saw."""
        try:
            return await self.runtime.read(query)
        except StorageFull:
            return None

    async def _describe_if_used(self, key: ActorKey) -> None:
        if await self.actor_system.store.list_ledgers(key.text()):
            await self.actor_system.ask(key, Describe())

    async def _keep_pulling(self) -> None:
        """Keep the partitions active that pull from another cluster, since no client activates
        them.

        An active partition watches its policies.
        """
        while True:
            await asyncio.sleep(PULL_WAKE_S)
            watching = self._watchers.partitions()
            for key in await self._unless_full(pulled_partitions) or ():
                if key.topic_name not in watching:
                    with contextlib.suppress(*TRANSIENT_OR_STORE):  # the next round tries again
                        await self.actor_system.ask(key, Describe())

    async def stop(self) -> None:
        """Leave migrations to the next activation, then stop."""
        self.migrations.stop()
        await super().stop()

    def abort(self) -> None:
        """Stop as a crash would."""
        self.migrations.stop()
        super().abort()

    async def _wake(self) -> None:
        while True:
            await asyncio.sleep(self.config.wake_s)
            partitions = await self._unless_full(_partitions)
            if partitions is not None:
                await self.waker.once(partitions)

    async def _purge(self) -> None:
        backoff = self.actor_system.backoff(FIRST_BACKOFF_S)
        while True:
            try:
                deleted_topics = await self._query(m.DeletedTopics())
                for name in sorted(
                    {
                        deleted_topic["topic"]
                        for deleted_topic in deleted_topics
                        if deleted_topic["due"]
                    }
                ):
                    await sweep_topic(self.actor_system, TopicName.parse(name))
            except TRANSIENT_OR_STORE:
                await backoff.wait()
            else:
                backoff.reset()
                await asyncio.sleep(self.config.maintenance_s)

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a request; `Watch` and `WatchGrants` also subscribe the connection to changes."""
        if isinstance(request, m.Watch):
            self._watchers.add(rpc_connection, TopicName.parse(request.topic))
            # Each partition asks once a minute, so no answer may cost a look at an object store. A
            # superseded catalog ends by itself, and then its watchers ask the next one.
            serving = m.Serving(request.topic, request.incarnation)
            return await self._query(serving, within_s=CONFIRM_S)
        if isinstance(request, m.WatchGrants):
            self._watchers.add_of_grants(rpc_connection)
        return await self.handle(request)

    async def handle(self, request: Message) -> Any:
        """Answer a request of `velaray.broker.catalog.messages`. Raises `RemoteError`."""
        if isinstance(request, (*ACTOR_REQUESTS, m.Watch)):
            return await super().handle(request)
        if isinstance(request, m.SetPolicy):
            _check_isolation(request, self.actor_system)
            _check_keys(request, self.actor_system)
        try:
            if isinstance(request, m.MigrationStatus):
                return await self.migrations.status(request.tenant)
            command = command_of(request)
            if command is None:
                return await self._query(request)
            reply = await self.runtime.ask(command)
        except InvalidNameError as error:
            raise RemoteError(Reason.INVALID, str(error)) from error
        match reply:
            case Refusal(reason, message):
                raise RemoteError(reason, message)
            case Ensured(topic, created):
                self._notify_of_grants(request)
                return {**describe(topic), "created": created}
            case Done(changed):
                if changed:
                    self._notify(request)
                    self._notify_of_grants(request)
                return {"changed": changed}
        raise TypeError(f"unexpected reply {reply!r} to {request!r}")

    async def _query(self, request: Message, within_s: float = 0.0) -> Any:
        certain = type(request) in CERTAIN
        read = partial(self.read_certain, within_s=within_s) if certain else self.runtime.read
        timed = TIMED_QUERIES.get(type(request))
        if timed is not None:
            now_ms = self.actor_system.clock_ms()
            return await read(lambda state: timed(state, request, now_ms))
        query = QUERIES[type(request)]
        return await read(lambda state: query(state, request))

    def _notify(self, request: Message) -> None:
        """Notify the watchers that apply what the request changed."""
        match request:
            case m.SetPolicy() | m.RemovePolicy():
                self._watchers.tell(scope_of(request.topic, request.namespace))
            case m.UpdateCluster():
                self._watchers.tell(CLUSTER)
            case m.UpdateTenant() | m.SetHome() | m.ExpectTenant() | m.EndArrival():
                self._watchers.tell_tenant(request.tenant)
            case m.BeginMigration() | m.AdvanceMigration() | m.RollBackMigration():
                self._watchers.tell_tenant(request.tenant)
                self.migrations.changed(request.tenant)

    def _notify_of_grants(self, request: Message) -> None:
        changed = changed_grants(request)
        if changed is not None:
            self._watchers.tell_grants(changed)

    def idle(self) -> bool:
        """Never: look-ups need the catalog at once."""
        return False


def _check_isolation(request: m.SetPolicy, actor_system: ActorSystem) -> None:
    """Refuse a policy that this placement doesn't apply. Raises `RemoteError`."""
    isolates = request.name == ISOLATION and request.value.strip() == _DEDICATED
    if isolates and not actor_system.isolates:
        raise RemoteError(
            Reason.NOT_ALLOWED,
            f"policy {ISOLATION}: topics have no processes of their own in this cluster; start it "
            "with --placement auto or dedicated",
        )


def _check_keys(request: m.SetPolicy, actor_system: ActorSystem) -> None:
    """Refuse erasable namespaces in a cluster without encryption keys. Raises `RemoteError`."""
    if request.name == ERASABLE and request.value.strip() != _NOT_ERASABLE:
        actor_system.needed_keyring()

"""The base of actors with a journal: a runtime over the journal, and an RPC server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any, TypeVar

from velaray.actors.machine import Machine, Reason
from velaray.actors.runtime import Runtime, Stopped
from velaray.broker.actor_messages import (
    ACTOR_REQUESTS,
    Describe,
    Ledgers,
    Metrics,
    request_named,
)
from velaray.broker.actor_peer import ActorPeer
from velaray.broker.actor_tasks import ActorTasks
from velaray.broker.garbage_collection.ledger_keeper import (
    HISTORY_BYTES,
    LedgerKeeper,
    beyond_history,
)
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError, NotStored, Purged
from velaray.journal.journal import Journal, JournalSettings
from velaray.journal.replay import load_manifest
from velaray.topology.actor_system import ActorBase, ActorSystem, Address
from velaray.topology.messages import Codec, Message, Request
from velaray.topology.metrics import Labels, Sample, runtime_samples
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.rpc_server import RpcServer

CONFIRM_S = 10.0
"""The period of the check whether a newer activation owns the journal."""
_CERTAIN_TRIES = 100
_ROLL_OVER_S = 0.01

ResultT = TypeVar("ResultT")


class WasDeleted(RemoteError):
    """This actor was deleted: the incarnation in its key is never used again."""


class JournaledActor(ActorBase):
    """An actor around one machine. Subclasses add what they serve."""

    accepts = Codec(*ACTOR_REQUESTS)
    """The requests that the actor answers. A subclass adds its own."""
    deleted = Reason.NOT_FOUND
    """The reason of the refusal to start an actor that was deleted."""

    def __init__(self, key: ActorKey, actor_system: ActorSystem, machine: Machine[Any]) -> None:
        self.key = key
        self.actor_system = actor_system
        self.config = actor_system.config
        self._machine = machine
        self.runtime: Runtime[Any]
        self.recovery_ms = 0, 0
        """When the last recovery began and ended."""
        self.host = actor_system.host_of(key)
        self.rpc_server = RpcServer(ActorPeer(self), key.text(), self.host.rpc)
        self.keeper = LedgerKeeper(self)
        self._tasks = ActorTasks(self, actor_system)
        self.spawn = self._tasks.spawn

    async def start(self) -> Address:
        """Recover from the journal, and open the listener of the host.

        Raises what `ask_whether_it_exists` raises; then no journal is left behind.
        """
        began_ms = self.actor_system.clock_ms()
        try:
            self.runtime = await Runtime.recover(
                self._machine,
                self.actor_system.store,
                self.key,
                self.actor_system.clock_ms,
                self.journal_settings(),
                lambda error: self.actor_system.fatal(self, error),
                self._admit,
            )
        except Purged as error:
            raise WasDeleted(self.deleted, str(error)) from error
        self.recovery_ms = began_ms, self.actor_system.clock_ms()
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        self.rpc_server.log_facts["epoch"] = journal.epoch
        rpc_port = await self.rpc_server.open(self.config.listen_host)
        self.spawn(self._stay_the_owner())
        self.spawn(self.keeper.run())
        return Address(self.config.listen_host, 0, rpc_port)

    def journal_settings(self) -> JournalSettings:
        """The settings of this actor's journal: it is synced before any reply or effect leaves."""
        return self.actor_system.journal_settings

    async def needless_ledgers(self) -> set[int]:
        """The listed ledgers that only recovery may still need."""
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        return beyond_history(journal.ledgers, HISTORY_BYTES)

    async def ledgers_dropped(self, ledger_ids: Collection[int]) -> None:
        """Note that these needless ledgers aren't listed any more; calls may be repeated."""

    async def ask_whether_it_exists(self) -> None:
        """Ask the actor that decides on this actor's existence; for the catalog there is none.

        Raises `WasDeleted`, or `RemoteError` and `Unreachable` if that can't be known now.
        """

    async def _admit(self) -> None:
        """Keep a new journal only if this actor wasn't deleted meanwhile.

        A deletion first records its decision and then looks for journals. This method first creates
        the journal and then asks for the decision. So one of the two always sees the other. A
        journal with a ledger was admitted earlier and isn't checked again.
        """
        try:
            await self.ask_whether_it_exists()
        except WasDeleted:
            # The incarnation of a deleted actor is never reused, so this deletes no other actor's
            # journal.
            await self.actor_system.store.delete_journal(self.key.text())
            raise

    async def discard_unadmitted(self) -> None:
        """Delete the journal that an activation of this deleted actor made before it crashed."""
        with contextlib.suppress(NotStored):
            manifest = await load_manifest(self.actor_system.store, self.key.text())
            if not manifest.ledgers and not manifest.dead:
                await self.actor_system.store.delete_journal(self.key.text())

    async def read_certain(self, query: Callable[[Any], ResultT], within_s: float = 0.0) -> ResultT:
        """`Runtime.read`, of the newest activation's state at a time after the call, or at most
        ``within_s`` before it.

        A superseded activation ends instead of answering. Raises what `Runtime.read` raises, and
        `Stopped` if it can't be known: ask again.
        """
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        for _ in range(_CERTAIN_TRIES):
            found = await self.runtime.read(query)
            try:
                if await journal.confirm(within_s):
                    return found
            except JournalError as error:
                self.actor_system.fatal(self, error)
                raise Stopped(self.key.text(), error) from error
            await asyncio.sleep(_ROLL_OVER_S)
        raise Stopped(self.key.text(), journal.failure)

    async def _stay_the_owner(self) -> None:
        """End this actor once another activation has taken over its journal.

        An activation that only serves readers never writes, so it wouldn't notice. Its clients
        would wait for messages that are published to its successor.
        """
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        while True:
            await asyncio.sleep(CONFIRM_S)
            # Actors of a process share a look at an object store, although they look in turn.
            await journal.confirm(within_s=CONFIRM_S / 2)

    def work(self) -> int:
        """The number of commands since the start."""
        return self.runtime.decided

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a request by name. Raises what `request_named` and `handle` raise."""
        return await self.handle(request_named(self.key, self.accepts, method, args))

    async def handle(self, request: Message) -> Any:
        """Answer a request of `accepts`. Raises `RemoteError` to refuse it."""
        match request:
            case Ledgers():
                return await self.runtime.read(lambda state: self._ledgers())
            case Describe():
                return {"key": self.key.text(), "runtime": asdict(self.runtime.stats)}
            case Metrics():
                return [list(sample) for sample in await self.metrics()]
        name = type(request).__name__
        raise RemoteError(Reason.NOT_FOUND, f"a {self.key.kind} answers no {name} here")

    def _ledgers(self) -> list[dict[str, Any]]:
        journal = self.runtime.journal
        assert isinstance(journal, Journal)
        return [
            {"ledger_id": each.ledger_id, "records": each.records, "bytes": each.bytes}
            for each in journal.ledgers
        ]

    async def metrics(self) -> list[Sample]:
        """The actor's metrics, as they are now."""
        return runtime_samples(Labels(self.config.name, self.key).of_actor(), self.runtime.stats)

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        """Answer a request that came over a connection."""
        return await self.handle(request)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Nothing depends on a connection."""

    async def stop(self) -> None:
        """Close connections, finish what is under way, close the journal."""
        self.rpc_server.stop()
        self._tasks.cancel()
        if hasattr(self, "runtime"):  # else it never started
            await self.runtime.close()

    def abort(self) -> None:
        """Stop as a crash would."""
        self.rpc_server.abort()
        self._tasks.cancel()
        if hasattr(self, "runtime"):
            self.runtime.abort()

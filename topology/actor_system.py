"""The actor system: it resolves an actor's key to an address, and connects actors by RPC.

Through `ActorSystem` an actor calls another one without knowing where it runs. Under Ray, resolving
creates or finds the Ray actor. `InProcessActorSystem` keeps all actors in one process and one event
loop, for tests and simulation. Both run the same actors.
"""

from __future__ import annotations

import abc
import asyncio
import time
import weakref
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from velaray.actors.machine import Reason
from velaray.events.backoff import Backoff, RandomSource
from velaray.events.ids import ActorKey
from velaray.journal.encryption.keyring import Keyring
from velaray.journal.store import LedgerStore
from velaray.topology.config import ClusterConfig
from velaray.topology.host import ActorHost
from velaray.topology.host_control import HostControl
from velaray.topology.keyrings import keyring_of
from velaray.topology.logs import facts_of, with_facts
from velaray.topology.messages import Codec, Message, ReplyT, Request
from velaray.topology.rpc import (
    RemoteError,
    RpcConnection,
    RpcPeer,
    connect,
    reason_of,
)
from velaray.topology.rpc_local import connect_here
from velaray.topology.rpc_server import RpcListener, RpcServer
from velaray.topology.stores import journal_settings_of
from velaray.topology.tls import actors_tls

SURVEYS = ("metrics", "replication", "stats", "upkeep")
"""The requests of surveys, which are sent by name. Nothing else can be called over Ray."""
REACH_TIMEOUT_S = 30.0
RPC_KEPT_S = 10.0
"""The time after which an unused shared connection is closed: an actor with a connection is never
idle."""
FIRST_CALL_DELAY_S = 0.02
LONGEST_CALL_DELAY_S = 1.0
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 30.0

ResultT = TypeVar("ResultT")


class Unreachable(ConnectionError):
    """An actor could not be reached within the time allowed."""


class Address(NamedTuple):
    """The address of an actor. ``service_port`` speaks Pulsar's protocol, ``tls_port`` the same by
    TLS (0: none)."""

    host: str
    service_port: int
    rpc_port: int
    tls_port: int = 0

    def urls(self) -> tuple[str, str]:
        """Where clients connect without TLS and by TLS; "": they can't."""
        plain = f"pulsar://{self.host}:{self.service_port}" if self.service_port else ""
        return plain, f"pulsar+ssl://{self.host}:{self.tls_port}" if self.tls_port else ""


class Activation(Protocol):
    """One activation of an actor, known by its identity."""

    @property
    def key(self) -> ActorKey:
        """The actor."""
        ...


class ActorBase(abc.ABC):
    """An actor in the care of Ray or of an `InProcessActorSystem`: its sockets and its runtime."""

    key: ActorKey
    rpc_server: RpcServer

    @abc.abstractmethod
    async def start(self) -> Address:
        """Recover, and open the host's listeners. Callers reach the actor when `start_actor`
        returns."""

    @abc.abstractmethod
    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Answer a request by name, such as ``last_message_id``, for surveys; actors send typed
        requests over RPC connections. Raises `RemoteError` to refuse."""

    @abc.abstractmethod
    def idle(self) -> bool:
        """Whether no client is connected and nothing is under way."""

    def work(self) -> int:
        """A measure of the work done so far, comparable among the actors of a process."""
        return 0

    def isolated(self) -> bool:
        """Whether its topic should have a process of its own."""
        return False

    @abc.abstractmethod
    async def stop(self) -> None:
        """Finish what is under way, close the sockets and the journal."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Stop at once, as a crash would: nothing more is written or answered."""


async def start_actor(actor: ActorBase) -> Address:
    """Start an actor and serve its callers. Raises what its start raised; it is aborted then."""
    started = False
    try:
        facts = actor.rpc_server.log_facts
        facts.update(facts_of(actor.key))
        with with_facts(facts):
            address = await actor.start()
        actor.rpc_server.serve()
        started = True
    finally:
        if not started:
            actor.abort()
    return address


class _Caller:
    """The calling end of a shared connection."""

    accepts = Codec()

    def __init__(self, key: ActorKey, rpc_connections: dict[ActorKey, RpcConnection]) -> None:
        self._key = key
        self._rpc_connections = rpc_connections

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise RemoteError("not allowed", "this end of the connection accepts no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """The called actor sends no notices."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """The connection is closed: the next call resolves the actor anew."""
        if self._rpc_connections.get(self._key) is rpc_connection:
            del self._rpc_connections[self._key]


def whole(answer: ReplyT) -> ReplyT:
    """The whole answer to a survey."""
    return answer


def check_survey(method: str) -> None:
    """Raise `RemoteError` (NOT_ALLOWED) unless ``method`` is one of `SURVEYS`."""
    if method not in SURVEYS:
        problem = f"over Ray actors answer {', '.join(SURVEYS)}, not {method!r}"
        raise RemoteError(Reason.NOT_ALLOWED, problem)


class ActorSystem(abc.ABC):
    """Finds and calls the actors of one cluster."""

    def __init__(self, config: ClusterConfig, store: LedgerStore) -> None:
        self.config = config
        self.store = store
        self.journal_settings = journal_settings_of(config)
        self.random: RandomSource = Random()
        self.host_control: HostControl | None = None
        """The hosts, if actors share processes that can be told apart."""
        self.isolates = True
        """Whether a topic can have a process of its own."""
        self.actors_tls = actors_tls(config)
        """How actors connect to each other; None: without TLS."""
        self._keyring: Keyring | None = None
        self._host = ActorHost(config)
        self._rpc_connections: dict[ActorKey, RpcConnection] = {}
        self._dialling: weakref.WeakValueDictionary[ActorKey, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def needed_keyring(self) -> Keyring:
        """The keyring of the cluster; this process has one.

        Raises `RemoteError` (NOT_ALLOWED) if the cluster has no encryption keys.
        """
        if self._keyring is None:
            self._keyring = keyring_of(self.store, self.random)
        if self._keyring is None:
            raise RemoteError(
                Reason.NOT_ALLOWED,
                "erasable namespaces need a cluster with encryption keys: start it with "
                "--encryption-keys",
            )
        return self._keyring

    @abc.abstractmethod
    async def address(self, key: ActorKey) -> Address:
        """Activate the actor if needed and return its address.

        Raises `Unreachable` if the actor can't be activated now, `RemoteError` (STORAGE_FULL) if
        there is no room for its journal.
        """

    @abc.abstractmethod
    async def dismiss(self, key: ActorKey) -> None:
        """Stop the actor in good order if it runs; the next call activates it again."""

    @abc.abstractmethod
    async def survey(
        self,
        request: type[Request[ReplyT]],
        timeout_s: float,
        keep: Callable[[ReplyT], ReplyT] = whole,
    ) -> dict[ActorKey, ReplyT | None]:
        """Send a request without fields to every actor that has started; starts no actor.

        A few actors are asked at a time. The result is None for an actor that hasn't started,
        refused, or didn't answer within ``timeout_s`` seconds. ``keep`` gives the part of an answer
        that is kept until all have answered: thousands of whole answers are large.
        """

    @abc.abstractmethod
    def fatal(self, actor: Activation, error: BaseException) -> None:
        """End an actor of this process that can't continue (fenced, failed sync, divergence).

        Only this activation ends: its successor may run already.
        """

    def host_of(self, key: ActorKey) -> ActorHost:
        """Return the host that runs this actor of the process: its only host, by default."""
        return self._host

    def listener_at(self, address: Address) -> RpcListener | None:
        """Return the RPC listener of this process at an address; None if another process has it."""
        here = self._host.rpc
        return here if address.rpc_port == here.port and here.port else None

    def clock_ms(self) -> int:
        """Wall-clock milliseconds."""
        return time.time_ns() // 1_000_000

    def backoff(
        self, first: float = FIRST_BACKOFF_S, longest: float = LONGEST_BACKOFF_S
    ) -> Backoff:
        """A back-off whose jitter comes from this actor system's random source."""
        return Backoff(first, longest, self.random)

    def call_backoff(self) -> Backoff:
        """The back-off between the attempts of a call."""
        return self.backoff(FIRST_CALL_DELAY_S, LONGEST_CALL_DELAY_S)

    async def reach(self, key: ActorKey, timeout: float = REACH_TIMEOUT_S) -> Address:
        """`address`, repeated while the actor is restarting; `Unreachable` after ``timeout``."""
        return await persist(
            lambda: self.address(key), timeout, f"reach {key}", self.call_backoff()
        )

    async def open_rpc(
        self, key: ActorKey, peer: RpcPeer, timeout: float = REACH_TIMEOUT_S
    ) -> RpcConnection:
        """A new connection to the actor, which is activated if needed.

        Retries with growing delays while the actor is restarting; raises `Unreachable` after
        ``timeout`` seconds.
        """
        return await persist(
            lambda: self._dial(key, peer), timeout, f"reach {key}", self.call_backoff()
        )

    async def _dial(self, key: ActorKey, peer: RpcPeer) -> RpcConnection:
        address = await self.address(key)
        here = self.listener_at(address)
        if here is not None:
            return connect_here(here, key.text(), peer, self.config.rpc_key)
        return await connect(
            address.host, address.rpc_port, key.text(), peer, self.config.rpc_key, self.actors_tls
        )

    async def request(
        self, key: ActorKey, request: Request[ReplyT], timeout: float = REACH_TIMEOUT_S
    ) -> ReplyT:
        """Send a request to an actor over a shared connection and return the answer.

        It is repeated when the connection breaks, so it must be idempotent. Raises `RemoteError` if
        the actor refuses, `Unreachable` if it can't be reached in time, and `MessageError` if the
        answer has the wrong shape.
        """
        return await persist(
            lambda: self._request_once(key, request),
            timeout,
            f"call {key}",
            self.call_backoff(),
        )

    async def _request_once(self, key: ActorKey, request: Request[ReplyT]) -> ReplyT:
        return await (await self._open_shared_link(key)).ask(request)

    async def _open_shared_link(self, key: ActorKey) -> RpcConnection:
        async with self._dialling.setdefault(key, asyncio.Lock()):
            rpc_connection = self.shared_rpc(key)
            if rpc_connection is None:
                rpc_connection = self._rpc_connections[key] = await self._dial(
                    key, _Caller(key, self._rpc_connections)
                )
                self._close_when_unused(rpc_connection, seen=-1)
        return rpc_connection

    def shared_rpc(self, key: ActorKey) -> RpcConnection | None:
        """The connection that `request` would use, if there is one now."""
        rpc_connection = self._rpc_connections.get(key)
        return None if rpc_connection is None or rpc_connection.closed else rpc_connection

    async def ask(
        self, key: ActorKey, request: Request[ReplyT], timeout: float = REACH_TIMEOUT_S
    ) -> ReplyT:
        """`request` over a connection of its own, which is closed at once: the actor may be idle
        soon after."""
        return await persist(
            lambda: self._ask_once(key, request), timeout, f"ask {key}", self.call_backoff()
        )

    async def _ask_once(self, key: ActorKey, request: Request[ReplyT]) -> ReplyT:
        rpc_connection = await self._dial(key, _Caller(key, {}))
        try:
            return await rpc_connection.ask(request)
        finally:
            rpc_connection.close()

    def _close_when_unused(self, rpc_connection: RpcConnection, seen: int) -> None:
        """Close the connection if it wasn't used for `RPC_KEPT_S`; ``seen`` is its number of
        requests so far."""
        if rpc_connection.closed:
            return
        if rpc_connection.requested == seen and not rpc_connection.waiting:
            rpc_connection.close()
            return
        loop = asyncio.get_running_loop()
        loop.call_later(
            RPC_KEPT_S, self._close_when_unused, rpc_connection, rpc_connection.requested
        )

    def drop_rpc(self) -> None:
        """Close the shared connections."""
        for rpc_connection in list(self._rpc_connections.values()):
            rpc_connection.close()
        self._rpc_connections.clear()


async def persist(
    attempt: Callable[[], Awaitable[ResultT]], timeout: float, what: str, backoff: Backoff
) -> ResultT:
    """Repeat ``attempt`` while it fails with an `OSError`; return its result.

    Raises `Unreachable`, which names ``what``, after ``timeout`` seconds.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except OSError as error:  # connection errors and TimeoutError are OSErrors
            if not await backoff.wait(until=deadline):
                problem = reason_of(error)
                raise Unreachable(f"could not {what} within {timeout:g} s: {problem}") from error


MakeActor = Callable[[ActorKey, ActorSystem], ActorBase]
"""Makes the actor for a key: placement doesn't know the kinds of actors."""

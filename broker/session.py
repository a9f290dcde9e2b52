"""The base of all sessions with clients: CONNECT, authentication, and tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from velaray.actors.runtime import Stopped
from velaray.broker.admission import LIMITED, Admission
from velaray.broker.authorisation.gate import Gate, roles_of
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.credential_expiry import CredentialExpiry
from velaray.broker.refusals import refusal_of
from velaray.topology.auth import (
    HANDLES_METHOD,
    HANDLES_ROLE,
    SYSTEM_METHOD,
    TLS_METHOD,
    TUNNEL_METHOD,
    AuthenticationFailed,
    Credentials,
    Identity,
    authenticate,
    before,
    certificate_role,
    check_own_proof,
    check_tunnel_proof,
)
from velaray.topology.config import ClusterConfig
from velaray.topology.logs import with_facts
from velaray.topology.oidc import KeySet
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION, Command
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.limits import Fault, fault_in
from velaray.wire.replication import CLIENT_VERSION, server_version
from velaray.wire.turns import REQUEST, TRANSACTION

SERVER_VERSION = f"velaray-{version('velaray')}"

MAX_REQUESTS = 1000
"""The requests of a connection that may be in work. While there are as many, nothing is read from
it."""

_WORK: dict[type, int] = {
    pb.CommandAck: 0,
    pb.CommandFlow: 0,
    pb.CommandRedeliverUnacknowledgedMessages: 0,
    pb.CommandNewTxn: TRANSACTION,
    pb.CommandAddPartitionToTxn: TRANSACTION,
    pb.CommandAddSubscriptionToTxn: TRANSACTION,
    pb.CommandEndTxn: TRANSACTION,
}
"""The work for commands, in units of `Turns`, unless it is that of a request."""

_WITHOUT_END_OF_TOPIC = ("Pulsar-CPP", "Pulsar-Go")
"""Clients, by the beginning of their versions, that close the connection on REACHED_END_OF_TOPIC.
They connect again, so the command would close their connections again and again. The clients for
Python and Node are built on the C++ client."""


@dataclass(slots=True)
class ClientInfo:
    """The properties of a session's client."""

    version: str = ""
    """The name and version of the client's program."""
    role: str = ""
    """The role that the client's token or certificate proves, or that a proxy has named; "" without
    authentication."""
    certified: bool = False
    """Whether the certificate names the role."""
    is_system: bool = False
    """Whether the client is an actor of this cluster."""
    means_this_cluster: bool = False
    """Whether the client's version asks for this very cluster, even if the tenant's home is another
    one. The version is no proof."""
    knows_end_of_topic: bool = True
    """Whether the client understands REACHED_END_OF_TOPIC."""
    restarts_ids: bool = False
    """Whether the client restarts its sequence ids from the reported one at each reconnect, until
    its first receipt."""
    subscribes_again_if_closed: bool = False
    """Whether the client tries to subscribe again after a retriable error only if the consumer, or
    the connection, is closed. Without that it waits until its operation timeout."""
    sends_out_of_order: bool = False
    """Whether messages of several threads may arrive out of the order of their sequence ids."""

    @property
    def limited_role(self) -> str:
        """The role whose limits count; "": none, or the client belongs to the cluster."""
        return "" if self.is_system or self.role == HANDLES_ROLE else self.role

    def read_version(self, text: str) -> None:
        """Set the properties that follow from the client's version."""
        self.version = text
        self.means_this_cluster = text.startswith(CLIENT_VERSION)
        self.restarts_ids = self.subscribes_again_if_closed = text.startswith("Pulsar-CPP")
        self.sends_out_of_order = text.startswith("Pulsar-Go")
        self.knows_end_of_topic = not text.startswith(_WITHOUT_END_OF_TOPIC)


def credentials_of(command: pb.CommandConnect) -> Credentials:
    """What a client presents."""
    data = command.auth_data.decode("utf-8", errors="replace")
    return Credentials(command.auth_method_name, data)


async def _after_fetch(
    keys: KeySet, connect: Callable[[], None], connection: WireConnection
) -> None:
    """Connect the client with the provider's keys; no other command is read meanwhile."""
    await keys.fetch()
    connect()
    connection.resume_reading(keys)


class Session:
    """One client connection. Subclasses fill ``handlers``, a table from command to handler.

    A handler never blocks: it runs work that waits as a task of the session (`spawn`).
    """

    max_requests = MAX_REQUESTS

    def __init__(
        self, config: ClusterConfig, admission: Admission, grants: GrantWatch | None = None
    ) -> None:
        """``grants`` decides on rights; it is needed if the cluster has authorisation."""
        self.config = config
        self._admission = admission
        self._entered: str | None = None
        """The role with which the connection is counted."""
        self._grants = grants
        self.gate: Gate | None = None
        """Checks the client's rights; None: it may do everything."""
        self.turns = admission.turns
        self.connection: WireConnection
        self.info = ClientInfo()
        self._connected = False
        self._expiry: CredentialExpiry | None = None
        self.handlers: dict[type, Callable[[Command], object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._full = False

    def on_connected(self, connection: WireConnection) -> None:
        """Keep the connection, which is open now."""
        self.connection = connection

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        """Pass a frame to its handler. The first must be CONNECT. A command without a handler is
        refused; one that can't be answered closes the connection."""
        self.turns.spend(_WORK.get(type(command), REQUEST))
        if not self._connected:
            self._connect(command)
            return
        handler = self.handlers.get(type(command))
        fault = fault_in(command) if handler is not None else None
        if handler is not None and fault is not None:
            self._refuse(command, fault)
        elif (
            type(command) in LIMITED
            and not self.info.is_system
            and (refusal := self._admission.refusal(self.info.limited_role, command)) is not None
        ):
            connection.send(refusal)
        elif handler is not None and self.gate is not None:
            self.gate.pass_on(command, handler)
        elif handler is not None:
            handler(command)
        elif isinstance(command, pb.CommandAuthResponse) and self._expiry is not None:
            self._expiry.refresh(command)
        elif hasattr(command, "request_id"):
            name = type(command).__name__
            self.error(command.request_id, pb.NotAllowedError, f"{name} is not served here")
        else:
            connection.close()

    def _connect(self, command: Command) -> None:
        if not isinstance(command, pb.CommandConnect):
            self.connection.close()
            return
        fault = fault_in(command)
        if fault is not None:
            self._refuse(command, fault)
            return
        keys = before(self.config.auth, credentials_of(command))
        if keys is not None:
            self.connection.pause_reading(keys)
            self.spawn(_after_fetch(keys, partial(self._connect, command), self.connection))
            return
        try:
            identity = self._authenticate(command)
        except AuthenticationFailed as error:
            self.error(0, pb.AuthenticationError, str(error))
            self.connection.close(error)
            return
        if not command.proxy_to_broker_url:  # a tunnelled connection is counted at its end
            role = self.info.limited_role
            problem = self._admission.enter(role)
            if problem:
                self.error(0, pb.TooManyRequests, problem)
                self.connection.close()
                return
            self._entered = role
        if self.info.limited_role:
            self.connection.group = self.info.limited_role
        self._connected = True
        self.connection.establish()
        self.info.read_version(command.client_version)
        if command.proxy_to_broker_url:
            self.on_tunnel(command)
            return
        self._expiry = CredentialExpiry(self.config.auth, self.connection, identity, command)
        self.connection.send(
            pb.CommandConnected(
                server_version=server_version(SERVER_VERSION, self.config.data_id),
                protocol_version=min(PROTOCOL_VERSION, command.protocol_version),
                max_message_size=self.config.max_message_size,
                feature_flags=pb.FeatureFlags(
                    supports_get_partitioned_metadata_without_auto_creation=True
                ),
            )
        )

    def _refuse(self, command: Command, fault: Fault) -> None:
        """Answer a command that is out of its limits, or close the connection."""
        answer = refusal_of(command, fault)
        if answer is not None:
            self.connection.send(answer)
        if answer is None or isinstance(command, pb.CommandConnect):
            self.connection.close()

    def _authenticate(self, command: pb.CommandConnect) -> Identity:
        """Raises `AuthenticationFailed`."""
        data, method = credentials_of(command).data, command.auth_method_name
        if method in (SYSTEM_METHOD, HANDLES_METHOD):
            check_own_proof(self.config.rpc_key, method, data)
            self.info.is_system = method == SYSTEM_METHOD
            self.info.role = "" if self.info.is_system else HANDLES_ROLE
            return Identity(self.info.role)
        original = command.original_principal
        if method == TUNNEL_METHOD:
            check_tunnel_proof(self.config.rpc_key, original, data)
            identity, original = Identity(original), ""
        elif method == TLS_METHOD or self.config.auth is None:
            tls, presented = self.config.tls, None
            if tls is not None:
                presented = self.connection.transport_info("peercert")
            identity = Identity(certificate_role(presented))
            self.info.certified = bool(identity.role)
            if self.config.auth is not None and not self.info.certified:
                raise AuthenticationFailed(
                    "no valid certificate with a common name was presented on this connection"
                )
        else:
            identity = authenticate(self.config.auth, credentials_of(command))
        if self._grants is not None:
            roles = roles_of(self._grants.settings, identity.role, original)
            self.gate = Gate(self, self._grants, roles)
        self.info.role = identity.role if self.gate is None else self.gate.roles[-1]
        return identity

    def on_tunnel(self, command: pb.CommandConnect) -> None:
        """Refuse to connect the client to another address: only a proxy does that."""
        self.error(0, pb.NotAllowedError, "this is not a proxy; connect to the service URL")
        self.connection.close()

    def error(self, request_id: int, code: pb.ServerError, message: str) -> None:
        """Answer a request with an error."""
        self.connection.send(pb.CommandError(request_id=request_id, error=code, message=message))

    def succeed(self, request_id: int) -> None:
        """Answer a request that has no other answer."""
        self.connection.send(pb.CommandSuccess(request_id=request_id))

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Close the connection: no command of this session delivers entries."""
        connection.close(error)

    def on_writable(self, connection: WireConnection) -> None:
        """The socket can be written again: nothing waits for it here."""

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Cancel the tasks: the connection is closed, so their answers can't be sent."""
        if self._expiry is not None:
            self._expiry.stop()
        if self._entered is not None:
            self._admission.leave(self._entered)
            self._entered = None
        for task in list(self._tasks):
            task.cancel()
        self.handlers = {}  # they refer to the session

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the connection is closed.

        An error of the work is reported to the event loop and ends the connection. `Stopped` isn't
        reported: the actor stops, and its clients look up the next one.
        """
        with with_facts({"connection": self.connection.peer}):
            task = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(self._task_ended)
        self._tasks.add(task)
        role = self.info.limited_role
        self._admission.begin(role)
        task.add_done_callback(lambda _: self._admission.end(role))
        if len(self._tasks) >= self.max_requests and not self._full:
            self._full = True
            self.connection.pause_reading(MAX_REQUESTS)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._full and len(self._tasks) <= self.max_requests // 2:
            self._full = False
            self.connection.resume_reading(MAX_REQUESTS)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, Stopped):
            text = f"a request of {self.connection.peer} failed"
            task.get_loop().call_exception_handler({"message": text, "exception": error})
        self.connection.abort()

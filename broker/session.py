"""What every wire connection begins with, whoever serves it: CONNECT and authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from velaray.actors.runtime import Stopped
from velaray.topology.auth import (
    SYSTEM_METHOD,
    AuthenticationFailed,
    authenticate,
    check_system_proof,
)
from velaray.topology.config import ClusterConfig
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import PROTOCOL_VERSION, Command
from velaray.wire.connection import WireConnection
from velaray.wire.errors import CorruptEntryError
from velaray.wire.replication import CLIENT_VERSION, server_version

SERVER_VERSION = f"velaray-{version('velaray')}"

_WITHOUT_END_OF_TOPIC = ("Pulsar-CPP", "Pulsar-Go")
"""Clients, by their versions' beginnings, that drop the connection on REACHED_END_OF_TOPIC. They
come back, and would be told again, for ever. Python's and Node's are built on the C++ client."""


class Session:
    """One client connection. Subclasses name their commands in ``handlers``.

    Handlers never block: what has to wait goes on in a task of the session (`spawn`).
    """

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        self.connection: WireConnection
        self.role = ""
        #: Whether the client is an actor of this cluster.
        self.is_system = False
        #: Whether the client version asks for this very cluster, also where the tenant's home is
        #: another one. It proves nothing.
        self.means_this_cluster = False
        self.knows_end_of_topic = True
        #: Whether it restarts its sequence ids from the reported one at each reconnect, until its
        #: first receipt.
        self.restarts_ids = False
        #: Whether messages of several threads may arrive out of the order of their sequence ids.
        self.sends_out_of_order = False
        #: How the client presents itself.
        self.client_version = ""
        self._connected = False
        self.handlers: dict[type, Callable[[Command], object]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_connected(self, connection: WireConnection) -> None:
        """The socket is open."""
        self.connection = connection

    def on_frame(self, connection: WireConnection, command: Command, entry: bytes | None) -> None:
        """A frame arrived; the first must be CONNECT, anything not served here ends it."""
        if not self._connected:
            self._connect(command)
            return
        handler = self.handlers.get(type(command))
        if handler is not None:
            handler(command)
        elif hasattr(command, "request_id"):
            name = type(command).__name__
            self.error(command.request_id, pb.NotAllowedError, f"{name} is not served here")
        else:
            connection.close()

    def _connect(self, command: Command) -> None:
        if not isinstance(command, pb.CommandConnect):
            self.connection.close()
            return
        try:
            self._authenticate(command)
        except AuthenticationFailed as error:
            self.error(0, pb.AuthenticationError, str(error))
            self.connection.close()
            return
        self._connected = True
        self.means_this_cluster = command.client_version.startswith(CLIENT_VERSION)
        self.restarts_ids = command.client_version.startswith("Pulsar-CPP")
        self.sends_out_of_order = command.client_version.startswith("Pulsar-Go")
        self.client_version = command.client_version
        self.knows_end_of_topic = not command.client_version.startswith(_WITHOUT_END_OF_TOPIC)
        if command.proxy_to_broker_url:
            self.on_tunnel(command)
            return
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

    def _authenticate(self, command: pb.CommandConnect) -> None:
        """Raises `AuthenticationFailed`."""
        data = command.auth_data.decode("utf-8", errors="replace")
        if command.auth_method_name == SYSTEM_METHOD:
            check_system_proof(self.config.link_key, data)
            self.is_system = True
        else:
            self.role = authenticate(self.config.auth, data)

    def on_tunnel(self, command: pb.CommandConnect) -> None:
        """The client asks to be connected through; only a front door does that."""
        self.error(0, pb.NotAllowedError, "this is not a proxy; connect to the service URL")
        self.connection.close()

    def error(self, request_id: int, code: pb.ServerError, message: str) -> None:
        """Answer a request with an error."""
        self.connection.send(pb.CommandError(request_id=request_id, error=code, message=message))

    def succeed(self, request_id: int) -> None:
        """Answer a request that has no other answer."""
        self.connection.send(pb.CommandSuccess(request_id=request_id))

    def on_corrupt_entry(self, connection: WireConnection, error: CorruptEntryError) -> None:
        """Nothing that is served here takes entries."""
        connection.close(error)

    def on_writable(self, connection: WireConnection) -> None:
        """The socket takes more again."""

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """The socket is gone: nobody waits for what the tasks would answer."""
        for task in list(self._tasks):
            task.cancel()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what has to wait; it's cancelled when the connection is gone.

        An error that it lets out is reported to the event loop and ends this connection. `Stopped`
        only ends it: the actor is leaving, and its clients find the next one.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, Stopped):
            text = f"a request of {self.connection.peer} failed"
            task.get_loop().call_exception_handler({"message": text, "exception": error})
        self.connection.abort()

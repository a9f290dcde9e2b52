"""Connections of a replicator to a partition of this cluster or of another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from velaray.client.auth import AuthenticationToken
from velaray.client.connection import Connection
from velaray.client.exceptions import NotConnected
from velaray.client.lookup import Lookup
from velaray.client.options import ClientOptions
from velaray.client.pool import ConnectionPool
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.replication.replicator_settings import Remote
from velaray.topology.actor_system import ActorSystem
from velaray.topology.system_credentials import SystemCredentials
from velaray.wire.replication import CLIENT_VERSION

KEEP_ALIVE_S = 30.0
OPERATION_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_MS = 5_000

Prepare = Callable[[Lookup], Awaitable[None]]
"""Ensures that the other cluster has the topic with the right shape."""


class Way(Protocol):
    """A way to one partition, for one connection."""

    async def connect(self) -> Connection:
        """Connect to the owner of the partition.

        Raises `VelarayError`, `OSError`, `TimeoutError` and the errors of the implementation.
        """

    def abort(self) -> None:
        """Cut the connection."""

    async def close(self) -> None:
        """Close, after everything is written out."""


class OwnWay:
    """To a partition of this cluster."""

    def __init__(self, actor_system: ActorSystem, partition: ActorKey) -> None:
        self._actor_system = actor_system
        self._partition = partition
        self._connection: Connection | None = None

    async def connect(self) -> Connection:
        """See `Way`. Raises what `ActorSystem.reach` raises as well."""
        address = await self._actor_system.reach(self._partition)
        proof = SystemCredentials(self._actor_system.config.rpc_key)
        actors = self._actor_system.actors_tls
        host, port = address.host, address.tls_port or address.service_port
        connection = Connection(
            f"{host}:{port}", proof, KEEP_ALIVE_S, client_version=CLIENT_VERSION
        )
        self._connection = connection
        await connection.open(host, port, actors)
        return connection

    def abort(self) -> None:
        """See `Way`."""
        if self._connection is not None:
            self._connection.abort(NotConnected("the replicator is stopping"))

    async def close(self) -> None:
        """See `Way`."""
        if self._connection is not None:
            await self._connection.close()


class RemoteWay:
    """To a partition of another cluster."""

    def __init__(self, remote: Remote, topic: TopicName, prepare: Prepare) -> None:
        """``topic`` is the partition's."""
        self._topic = topic
        self._prepare = prepare
        token = None if remote.token is None else AuthenticationToken(remote.token)
        options = ClientOptions(
            remote.service_url,
            authentication=token,
            operation_timeout_seconds=OPERATION_TIMEOUT_S,
            connection_timeout_ms=CONNECT_TIMEOUT_MS,
            **remote.tls.arguments(),
        )
        self._pool = ConnectionPool(options, CLIENT_VERSION)
        self._lookup = Lookup(options, self._pool)

    async def connect(self) -> Connection:
        """See `Way`. Raises what preparing raises as well."""
        await self._prepare(self._lookup)
        return await self._lookup.server_of(str(self._topic))

    def abort(self) -> None:
        """See `Way`."""
        self._pool.abort()

    async def close(self) -> None:
        """See `Way`."""
        try:
            await self._pool.close()
        finally:
            self._pool.abort()  # even without a caller: else the consumer would stay

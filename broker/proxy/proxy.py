"""The proxy at a cluster's service URL: lookups, metadata, topic lists, schemas and tunnels.

A tunnel connects a client to a partition that it can't reach directly. For a tenant whose home is
another cluster, the proxy of that cluster is asked. A proxy has no state, so any number may run.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from velaray.actors.machine import Reason
from velaray.broker.admission import Admission
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.catalog import messages as m
from velaray.broker.connection_limits import connection_limits
from velaray.broker.coordinator.coordinators import check_not_systems, coordinator_of, is_systems
from velaray.broker.garbage_collection.deletion import is_deletion_topic
from velaray.broker.proxy.remote_lookup import RemoteLookup
from velaray.broker.proxy.request_limits import (
    MAX_ENSURED,
    MAX_REQUESTS,
    Creations,
    Lists,
    Places,
)
from velaray.broker.proxy.topic_lists import Listed, TopicLists
from velaray.broker.schema_registry.schema_calls import find_schema
from velaray.broker.schema_registry.schema_session import get_schema
from velaray.broker.session import Session
from velaray.broker.wire_errors import TooManyRequestsError, code_of
from velaray.client.service_info import urls_by_scheme
from velaray.client.tls import tls_arguments
from velaray.events.ids import ActorKey, InvalidNameError, TopicName
from velaray.topology.actor_system import REACH_TIMEOUT_S, ActorSystem, Address, Unreachable
from velaray.topology.auth import TUNNEL_METHOD, tunnel_proof
from velaray.topology.messages import ReplyT, Request
from velaray.topology.open_connections import OpenConnections, stop_accepting
from velaray.topology.ports import serve
from velaray.topology.rpc import RemoteError, reason_of
from velaray.topology.tls import outgoing_tls, server_tls
from velaray.topology.transient import TRANSIENT
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import command as encode_frame
from velaray.wire.connection import WireConnection
from velaray.wire.guard import ConnectionGuard, Entrance
from velaray.wire.turns import BYTES_PER_UNIT

ACTIVATION_TIMEOUT_S = 60.0
LOCATED_KEPT = 100_000
"""How many addresses of partitions are kept, the newest. Tunnels lead to these only."""


_ERRORS: tuple[type[Exception], ...] = (InvalidNameError, TooManyRequestsError, *TRANSIENT)


class Proxy:
    """Serves the service URL of a cluster on this node."""

    def __init__(self, actor_system: ActorSystem) -> None:
        self.actor_system = actor_system
        self.sessions: OpenConnections[ProxySession] = OpenConnections()
        self.tunnels: set[_Tunnel] = set()
        self.guard = ConnectionGuard(connection_limits(actor_system.config))
        self.guard.turns.write_in_work = actor_system.store.write_in_work
        self.admission = Admission(actor_system.config, self.guard)
        self.others = RemoteLookup(outgoing_tls(actor_system.config))
        self.lists = TopicLists(self._ask_topics)
        self._ensuring = Places(MAX_ENSURED)
        settings = actor_system.config.roles
        self.grants = None if settings is None else GrantWatch(settings)
        if self.grants is not None:
            self.grants.ask_by(actor_system)
        self.located: OrderedDict[tuple[str, int], int] = OrderedDict()
        """The ports of partitions that tunnels lead to, by the addresses that lookups gave."""
        self._servers: list[asyncio.Server] = []
        self.port = self.tls_port = 0

    async def start(self, port: int) -> None:
        """Listen on the port for clients without TLS, and on the TLS port of the settings; 0 takes
        a free one.

        Raises `OSError` if a port is taken.
        """
        config = self.actor_system.config
        self.sessions.ended = False  # it may start again after a stop
        tls = server_tls(config)
        if config.speaks_plain:
            self.port = await self._listen(port)
        if config.tls is not None and tls is not None:
            self.tls_port = await self._listen(config.tls.service_port, tls.context)

    async def _listen(self, port: int, tls: ssl.SSLContext | None = None) -> int:
        server = await serve(self._accept, self.actor_system.config.listen_host, port, tls)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _accept(self) -> Entrance:
        return Entrance(self.guard, self._connection)

    def _connection(self) -> WireConnection:
        size, session = self.actor_system.config.max_message_size, ProxySession(self)
        return WireConnection(session, max_message_size=size, guard=self.guard)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        self.sessions.ended = True
        for server in self._servers:
            stop_accepting(server)
        self._servers.clear()
        for session in list(self.sessions):
            session.connection.close()
        for tunnel in list(self.tunnels):
            tunnel.close()
        self.others.close()
        self.lists.close()
        if self.grants is not None:
            self.grants.stop()

    async def locate(
        self,
        topic: TopicName,
        for_system: bool = False,
        *,
        at_home: bool = False,
        created: Callable[[], None] = lambda: None,
        group: Hashable = None,
    ) -> Address:
        """Return the address of a topic partition. Create it if policy allows, and activate it.

        ``for_system`` says that an actor of the cluster asks; ``created`` is called if the topic is
        new; ``group`` is that of the connection. Raises `RemoteError` if the partition
        may not exist or belongs to the system, or, with ``at_home``, if the tenant's home is
        another cluster. Raises `Unreachable` if the partition can't be activated now.
        """
        coordinator = coordinator_of(topic)
        if coordinator is None and not (for_system and is_deletion_topic(topic)):
            check_not_systems(topic)
        found = await self.ensured(topic, at_home, group, ACTIVATION_TIMEOUT_S)
        if found["created"]:
            created()
        key = coordinator or ActorKey.of_partition(topic, found["incarnation"])
        address = await self.actor_system.reach(key, ACTIVATION_TIMEOUT_S)
        leads_to = address.tls_port or address.service_port
        for port in filter(None, (address.service_port, address.tls_port)):
            self.located[address.host, port] = leads_to
            self.located.move_to_end((address.host, port))
        while len(self.located) > LOCATED_KEPT:
            self.located.popitem(last=False)
        return address

    async def ensured(
        self, topic: TopicName, at_home: bool, group: Hashable, within_s: float
    ) -> m.Row:
        """Return a topic, which is created if need be. Raises `RemoteError`, and `Unreachable` if
        it waits for its turn for longer than ``within_s``, or for the catalog."""
        wanted = m.EnsureTopic(str(topic), at_home)
        try:
            async with self._ensuring.place(group, within_s):
                return await self.actor_system.request(ActorKey.catalog(), wanted, within_s)
        except TimeoutError as error:
            problem = f"the catalog was busy with other topics for {within_s:.0f} s"
            raise Unreachable(problem) from error

    async def _ask_topics(self, namespace: str, at_home: bool) -> list[str]:
        wanted = m.Topics(namespace, partitions=True, at_home=at_home)
        return await self.actor_system.request(ActorKey.catalog(), wanted)

    async def ask_elsewhere(self, tenant: str, command: Any) -> Any:
        """Return the answer of the proxy of a tenant's home cluster.

        Raises `RemoteError`, `Unreachable`.
        """
        home = await self.actor_system.request(ActorKey.catalog(), m.Home(tenant))
        if home is None:
            problem = f"this cluster has become the home of tenant {tenant}; ask again"
            raise RemoteError(Reason.UNAVAILABLE, problem)
        return await self.others.ask(home, command)


class ProxySession(Session):
    """One client connection of a proxy."""

    max_requests = MAX_REQUESTS

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy.actor_system.config, proxy.admission, proxy.grants)
        self._proxy = proxy
        self._creations = Creations(self.turns)
        self._lists: Lists
        self.handlers = {
            pb.CommandPartitionedTopicMetadata: self._spawning(self._answer_metadata),
            pb.CommandLookupTopic: self._spawning(self._answer_lookup),
            pb.CommandGetTopicsOfNamespace: self._spawning(self._answer_topics),
            pb.CommandGetSchema: self._spawning(self._answer_schema),
        }

    def on_connected(self, connection: WireConnection) -> None:
        """Remember the connection, so that stopping closes it."""
        super().on_connected(connection)
        self._lists = Lists(connection)
        if self._proxy.sessions.ended:
            connection.abort()
        else:
            self._proxy.sessions.add(self)

    def on_closed(self, connection: WireConnection, error: Exception | None) -> None:
        """Drop the connection and its pending requests."""
        super().on_closed(connection, error)
        self._proxy.sessions.discard(self)

    def on_writable(self, connection: WireConnection) -> None:
        """Continue lists that waited for the socket."""
        self._lists.written()

    def _spawning(
        self, answer: Callable[[Any], Coroutine[Any, Any, None]]
    ) -> Callable[[Any], object]:
        """A handler of a request whose answer is made by a task."""
        return lambda command: self.spawn(answer(command))

    @property
    def _at_home(self) -> bool:
        """Whether the client asks for the tenant's home cluster, not for this very one."""
        return not (self.info.is_system or self.info.means_this_cluster)

    async def _ask(self, request: Request[ReplyT]) -> ReplyT:
        return await self._proxy.actor_system.request(ActorKey.catalog(), request)

    async def _routed(self, tenant: str, command: Any, here: Awaitable[Any]) -> Any:
        """Return the answer of ``here``, or that of the tenant's home cluster."""
        try:
            return await here
        except RemoteError as error:
            if error.kind != Reason.ELSEWHERE:
                raise
            return await self._proxy.ask_elsewhere(tenant, command)

    # -- partition metadata --------------------------------------------------------

    async def _answer_metadata(self, command: pb.CommandPartitionedTopicMetadata) -> None:
        answer = pb.CommandPartitionedTopicMetadataResponse(request_id=command.request_id)
        try:
            topic = TopicName.parse(command.topic)
            answer = await self._routed(topic.tenant, command, self._metadata(topic, command))
        except _ERRORS as error:
            answer.response = pb.CommandPartitionedTopicMetadataResponse.Failed
            answer.error = code_of(error)
            answer.message = str(error)
        self.connection.send(answer)

    async def _metadata(
        self, topic: TopicName, command: pb.CommandPartitionedTopicMetadata
    ) -> pb.CommandPartitionedTopicMetadataResponse:
        if command.metadata_auto_creation_enabled and not is_systems(topic):
            found = await self._ensured(topic)
        else:
            found = await self._ask(m.Topic(str(topic), self._at_home))
        return pb.CommandPartitionedTopicMetadataResponse(
            request_id=command.request_id,
            response=pb.CommandPartitionedTopicMetadataResponse.Success,
            partitions=found["partitions"] if topic.partition < 0 else 0,
        )

    async def _ensured(self, topic: TopicName) -> Any:
        """Return a topic, which is created if need be. Raises `TooManyRequestsError` if this
        connection created too many, and what `_ask` raises."""
        await self._check_creation(topic)
        found = await self._proxy.ensured(
            topic, self._at_home, self.connection.group, REACH_TIMEOUT_S
        )
        if found["created"]:
            self._creations.created()
        return found

    async def _check_creation(self, topic: TopicName) -> None:
        """Raise `TooManyRequestsError` if the topic would be one too many, `RemoteError`."""
        if not self._creations.exhausted(asyncio.get_running_loop().time()):
            return
        try:
            await self._ask(m.Topic(str(topic), self._at_home))
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
            problem = f"this connection creates too many topics: create {topic} later"
            raise TooManyRequestsError(problem) from error

    # -- lookup --------------------------------------------------------------------

    async def _answer_lookup(self, command: pb.CommandLookupTopic) -> None:
        answer = pb.CommandLookupTopicResponse(request_id=command.request_id, authoritative=True)
        try:
            topic = TopicName.parse(command.topic)
            answer = await self._routed(topic.tenant, command, self._look_up(topic, command))
        except _ERRORS as error:
            answer.response = pb.CommandLookupTopicResponse.Failed
            answer.error = code_of(error)
            # On this very text, clients keep the connection and look up again.
            retry = answer.error == pb.ServiceNotReady
            answer.message = f"Failed to acquire ownership: {error}" if retry else str(error)
        self.connection.send(answer)

    async def _look_up(
        self, topic: TopicName, command: pb.CommandLookupTopic
    ) -> pb.CommandLookupTopicResponse:
        network = await self._network(topic, command.advertised_listener_name)
        await self._check_creation(topic)
        located = self._proxy.locate(
            topic,
            self.info.is_system,
            at_home=self._at_home,
            created=self._creations.created,
            group=self.connection.group,
        )
        address = await located
        if network is not None and self.info.means_this_cluster:
            # A proxy of another cluster asks: its client must connect by way of that network.
            answer = pb.CommandLookupTopicResponse(
                request_id=command.request_id,
                response=pb.CommandLookupTopicResponse.Redirect,
            )
            _set_urls(answer, *urls_by_scheme(network))
            return answer
        tunnelled = self.config.tunnel or network is not None
        urls = address.urls()
        if not (tunnelled or self.info.is_system):
            urls = self.config.seen_by_clients(urls[0]), self.config.seen_by_clients(urls[1])
        answer = pb.CommandLookupTopicResponse(
            request_id=command.request_id,
            response=pb.CommandLookupTopicResponse.Connect,
            authoritative=True,
            proxy_through_service_url=tunnelled,
        )
        _set_urls(answer, *urls)
        return answer

    async def _network(self, topic: TopicName, listener: str) -> str | None:
        """Return the URL of the proxy in the network that a client names. None: the client reaches
        partitions directly, or the tenant's home cluster decides.

        Raises `RemoteError` (INVALID) if there is no network of this name.
        """
        listeners = self.config.listeners
        if not listener or listener in listeners:
            return listeners.get(listener)
        if self._at_home and await self._ask(m.Home(topic.tenant)) is not None:
            return None
        known = ", ".join(sorted(listeners)) or "none: start velaray with --listener"
        raise RemoteError(Reason.INVALID, f"no listener {listener[:100]!r}; there are {known}")

    # -- topic lists ---------------------------------------------------------------

    async def _answer_topics(self, command: pb.CommandGetTopicsOfNamespace) -> None:
        tenant = command.namespace.partition("/")[0]
        try:
            async with self._lists.turn():
                answer = await self._routed(tenant, command, self._topics(command))
                if isinstance(answer, Listed):
                    frames = answer.answer(command, self.config.max_message_size)
                    units = 1 + sum(map(len, frames)) // BYTES_PER_UNIT
                    await self.turns.take(self.connection.group, units)
                    self.connection.writelines(frames)
                else:
                    self.connection.send(answer)
        except _ERRORS as error:
            self.error(command.request_id, code_of(error), str(error))

    async def _topics(self, command: pb.CommandGetTopicsOfNamespace) -> Listed:
        if command.mode == pb.CommandGetTopicsOfNamespace.NON_PERSISTENT:
            return Listed([])
        try:
            found = await self._proxy.lists.of(command.namespace, self._at_home)
        except RemoteError as error:
            if error.kind != Reason.NOT_FOUND:
                raise
            return Listed([])  # the namespace may be created later
        return found.narrowed(command.topics_pattern)

    # -- schemas -------------------------------------------------------------------

    async def _answer_schema(self, command: pb.CommandGetSchema) -> None:
        answer = pb.CommandGetSchemaResponse(request_id=command.request_id)
        try:
            topic = TopicName.parse(command.topic).topic
            answer = await self._routed(topic.tenant, command, self._schema(topic, command))
        except _ERRORS as error:
            answer.error_code, answer.error_message = code_of(error), reason_of(error)
        self.connection.send(answer)

    async def _schema(
        self, topic: TopicName, command: pb.CommandGetSchema
    ) -> pb.CommandGetSchemaResponse:
        found = await self._ask(m.Topic(str(topic), self._at_home))
        key = ActorKey.of_schema_registry(topic, found["incarnation"])
        return await get_schema(command, partial(find_schema, self._proxy.actor_system, key))

    # -- tunnel --------------------------------------------------------------------

    def on_tunnel(self, command: pb.CommandConnect) -> None:
        """Connect the client to the partition that it names."""
        if not (self.config.tunnel or self.config.listeners):
            self.error(0, pb.NotAllowedError, "tunnels are off; start velaray with --tunnel")
            self.connection.close()
            return
        self.connection.pause_reading()
        self.spawn(self._open_tunnel(command))

    async def _open_tunnel(self, command: pb.CommandConnect) -> None:
        target = command.proxy_to_broker_url
        host, asked = _split_address(target)
        port = self._proxy.located.get((host, asked))
        if port is None:
            # Tunnels don't lead to other ports of the machine. The error is a retriable one,
            # because another proxy may have answered the lookup; clients then look up again.
            self.error(
                0, pb.ServiceNotReady, f"this service has given no lookup the address {target}"
            )
            self.connection.close()
            return
        command.ClearField("proxy_to_broker_url")
        if self.info.certified:  # the partition sees only the proxy's certificate
            command.auth_method_name, command.original_principal = TUNNEL_METHOD, self.info.role
            command.auth_data = tunnel_proof(self.config.rpc_key, self.info.role).encode()
        loop = asyncio.get_running_loop()
        actors = self._proxy.actor_system.actors_tls
        try:
            _, tunnel = await loop.create_connection(
                lambda: _Tunnel(self.connection, self._proxy.tunnels),
                host,
                port,
                **tls_arguments(actors, host),
            )
        except OSError as error:
            self.error(0, pb.ServiceNotReady, f"{target} can't be reached: {error}")
            self.connection.close()
            return
        self._proxy.sessions.discard(self)
        tunnel.begin(encode_frame(command))


def _set_urls(answer: pb.CommandLookupTopicResponse, plain: str, tls: str) -> None:
    """Set where the client connects without TLS and by TLS; "": it can't."""
    if plain:
        answer.brokerServiceUrl = plain
    if tls:
        answer.brokerServiceUrlTls = tls


def _split_address(target: str) -> tuple[str, int]:
    """Return host and port of "host:port", with or without a scheme; ("", 0) if it isn't valid."""
    try:
        url = urlsplit(target if "//" in target else f"//{target}")
        return url.hostname or "", url.port or 0
    except ValueError:
        return "", 0


class _Tunnel(asyncio.Protocol):
    """The partition's half of a tunnel. Bytes pass unread, with back-pressure both ways."""

    def __init__(self, near: WireConnection, registry: set[_Tunnel]) -> None:
        self._near = near
        self._registry = registry
        self._far: asyncio.Transport
        self._near_transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._far = transport
        self._registry.add(self)

    def begin(self, first: bytes) -> None:
        """Send the handshake to the partition and take over the client's socket."""
        if self._near.closed:
            self._far.close()
            return
        self._far.write(first)
        half = _NearHalf(self._far, self._near.release)
        self._near_transport = self._near.detach(half)
        self._near_transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self._near_transport is not None  # the partition sends nothing before the handshake
        self._near_transport.write(data)

    def pause_writing(self) -> None:
        assert self._near_transport is not None
        self._near_transport.pause_reading()

    def resume_writing(self) -> None:
        assert self._near_transport is not None
        self._near_transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.discard(self)
        if self._near_transport is not None:
            self._near_transport.close()
        else:
            self._near.close()

    def close(self) -> None:
        """Close both halves."""
        self._far.close()


class _NearHalf(asyncio.Protocol):
    """The client's half of a tunnel, after the handshake."""

    def __init__(self, far: asyncio.Transport, ended: Callable[[], None]) -> None:
        self._far = far
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._far.write(data)

    def pause_writing(self) -> None:
        self._far.pause_reading()

    def resume_writing(self) -> None:
        self._far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        self._far.close()

"""The listeners of a host for clients: one port for all partitions and coordinators of the host,
and another one for TLS.

A client's connection carries producers and consumers of any of these partitions, and transactions
of any of these coordinators. When an actor ends, its producers and consumers are closed; the
connection stays open for the others.
"""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.broker.admission import Admission
from velaray.broker.authorisation.grant_watch import GrantWatch
from velaray.broker.authorisation.revocation import Revocation
from velaray.broker.client_session import ClientSession
from velaray.broker.connection_limits import connection_limits
from velaray.broker.coordinator.coordinator_handlers import Coordinator
from velaray.broker.partition.session.protocols import HostedPartition
from velaray.events.ids import TopicName
from velaray.topology.actor_system import ActorSystem, Address
from velaray.topology.config import ClusterConfig
from velaray.topology.open_connections import OpenConnections
from velaray.topology.ports import Listener
from velaray.topology.rpc import RemoteError
from velaray.topology.tls import server_tls
from velaray.wire.connection import WireConnection
from velaray.wire.guard import ConnectionGuard, Entrance


class ClientListener:
    """Accepts clients, and knows the actors that serve them. It is a part of the host."""

    def __init__(self, config: ClusterConfig) -> None:
        self.config = config
        settings = config.roles
        self.grants = None if settings is None else GrantWatch(settings)
        self._revocation = Revocation(self._close_revoked)
        self.sessions: OpenConnections[ClientSession] = OpenConnections()
        self.guard = ConnectionGuard(connection_limits(config))
        self.admission = Admission(config, self.guard)
        self._partitions: dict[TopicName, HostedPartition] = {}
        self._topics: dict[TopicName, dict[TopicName, None]] = {}
        self._coordinators: dict[int, Coordinator] = {}
        self._plain = Listener(self._accept, config.port_range)
        tls = server_tls(config)
        self._tls = None if tls is None else Listener(self._accept, config.port_range, tls.context)

    async def open(self, address: Address) -> Address:
        """Listen, once; returns the address of an actor of the host with the ports for clients.

        Raises `OSError`.
        """
        host = self.config.listen_host
        if self.config.speaks_plain:
            address = address._replace(service_port=await self._plain.open(host))
        if self._tls is not None:
            address = address._replace(tls_port=await self._tls.open(host))
        return address

    def _accept(self) -> Entrance:
        return Entrance(self.guard, self._connection)

    def _connection(self) -> WireConnection:
        size = self.config.max_message_size
        return WireConnection(ClientSession(self), max_message_size=size, guard=self.guard)

    # -- actors --------------------------------------------------------------------

    def add_partition(self, partition: HostedPartition) -> None:
        """Serve a partition, in place of an earlier activation."""
        self._use(partition.actor_system)
        name = partition.key.topic_name
        self._partitions[name] = partition
        self._topics.setdefault(name.topic, {})[name] = None

    def remove_partition(self, partition: HostedPartition) -> None:
        """Serve a partition no longer. Idempotent."""
        name = partition.key.topic_name
        if self._partitions.get(name) is not partition:
            return
        del self._partitions[name]
        siblings = self._topics[name.topic]
        del siblings[name]
        if not siblings:
            del self._topics[name.topic]

    def add_coordinator(self, coordinator: Coordinator) -> None:
        """Serve a coordinator, in place of an earlier activation."""
        self._use(coordinator.actor_system)
        self._coordinators[coordinator.number] = coordinator

    def remove_coordinator(self, coordinator: Coordinator) -> None:
        """Serve a coordinator no longer. Idempotent."""
        if self._coordinators.get(coordinator.number) is coordinator:
            del self._coordinators[coordinator.number]

    def _use(self, actor_system: ActorSystem) -> None:
        self.guard.turns.write_in_work = actor_system.store.write_in_work
        if self.grants is not None:
            self.grants.ask_by(actor_system)
            self.grants.on_change = self._revocation.changed
            self._revocation.start()

    async def _close_revoked(self) -> None:
        for session in list(self.sessions):
            await session.close_revoked()

    # -- what sessions need --------------------------------------------------------

    def find(self, topic: TopicName) -> HostedPartition:
        """Return a partition. Raises `RemoteError` (UNAVAILABLE) if it isn't served here."""
        found = self._partitions.get(topic)
        if found is None:
            raise _elsewhere(topic)
        return found

    def find_sibling(self, topic: TopicName) -> HostedPartition:
        """Return a partition of the same topic, which has the same schemas. Raises as `find`."""
        siblings = self._topics.get(topic.topic)
        if siblings is None:
            raise _elsewhere(topic)
        return self._partitions[next(iter(siblings))]

    def find_coordinator(self, number: int) -> Coordinator | None:
        """Return a coordinator; None if it isn't served here."""
        return self._coordinators.get(number)

    # -- the end -------------------------------------------------------------------

    def stop(self) -> None:
        """Stop listening, and close every connection."""
        self._end()
        for session in list(self.sessions):
            session.connection.close()

    def abort(self) -> None:
        """Stop listening, and cut every connection, as a crash would."""
        self._end()
        for session in list(self.sessions):
            session.connection.abort()

    def _end(self) -> None:
        self.sessions.ended = True
        self._revocation.stop()
        if self.grants is not None:
            self.grants.stop()
        self._plain.end()
        if self._tls is not None:
            self._tls.end()


def _elsewhere(topic: TopicName) -> RemoteError:
    return RemoteError(Reason.UNAVAILABLE, f"{topic} is not served here; look it up again")

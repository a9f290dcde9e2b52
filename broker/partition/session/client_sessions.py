"""The sessions of the clients of one partition."""

from __future__ import annotations

from velaray.actors.machine import Reason
from velaray.broker.partition.session.protocols import ClientSession, HostedPartition
from velaray.events.ids import TopicName
from velaray.topology.open_connections import OpenConnections
from velaray.topology.rpc import RemoteError
from velaray.wire.connection import WireConnection


class ClientSessions:
    """The connected clients of a listener that serves one partition.

    It implements `LocalPartitions`. A listener that serves several partitions needs another
    implementation, and nothing else of the sessions changes.
    """

    def __init__(self, partition: HostedPartition) -> None:
        self.config = partition.log.config
        self.sessions: OpenConnections[ClientSession] = OpenConnections()
        self._partition = partition

    def find(self, topic: TopicName) -> HostedPartition:
        """Return the partition. Raises `RemoteError` (UNAVAILABLE) for any other one."""
        if topic != self._partition.key.topic_name:
            raise RemoteError(Reason.UNAVAILABLE, f"{topic} is not served here; look it up again")
        return self._partition

    def find_sibling(self, topic: TopicName) -> HostedPartition:
        """Return the partition if it belongs to the same topic. Raises as `find`."""
        if topic.topic != self._partition.key.topic_name.topic:
            raise RemoteError(Reason.UNAVAILABLE, f"{topic} is not served here; look it up again")
        return self._partition

    def forget_connection(self, connection: WireConnection) -> None:
        """Note that a connection is closed."""
        self._partition.publishing.forget_connection(connection)

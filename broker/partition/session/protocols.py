"""What the handlers of a session need of partitions and of the client's connection.

A session finds a partition by the topic that a command names, and every producer and consumer keeps
the partition that it is connected to. So handlers depend on no particular partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from velaray.actors.machine import Refusal
from velaray.actors.partition.machine import DeleteSubscription, Publish, StartAt
from velaray.actors.partition.producers import Accepted, ProducerRegistry, ProducerSpec, Waiting
from velaray.actors.partition.state import SubscriptionRef
from velaray.broker.partition import remote_ids
from velaray.broker.partition.compacted_view import CompactedView
from velaray.broker.partition.entries import EntryCache
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.session import ClientInfo
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, MessageId, Position, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.flow import Flow
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send
from velaray.wire.connection import WireConnection
from velaray.wire.send_runs import SendRun


class Publisher(Protocol):
    """A producer, as the publish path of its partition sees it."""

    name: str
    source: str | None
    """The cluster whose replicator it is; None for any other producer."""
    exact: bool
    """Whether an entry is a duplicate only if its very sequence id was stored."""
    traffic: Flow
    connection: WireConnection

    def stored(self, send: Send, position: Position) -> None:
        """Send the receipt of a durable entry; `NOWHERE` is the position of a duplicate."""
        ...

    def stored_run(self, run: SendRun, first: Position) -> None:
        """Send the receipts of durable entries with consecutive positions from ``first`` on."""
        ...

    def refuse(self, send: Send, refusal: Refusal) -> None:
        """Answer an entry that the partition refused."""
        ...


class PublishPath(Protocol):
    """The part of a partition that admits producers and stores their entries."""

    registry: ProducerRegistry
    admission: TransactionAdmission
    published: Flow
    """The traffic of all producers."""
    pending_bytes: int
    """The size of the entries that were received and aren't durable yet."""
    policies: TopicPolicies
    """The topic's policies now."""

    def producer_name(self) -> str:
        """Return a name that was never used before."""
        ...

    def connect_producer(self, spec: ProducerSpec) -> Accepted | Waiting | Refusal:
        """Add a producer to the registry, within the topic's limits."""
        ...

    def publish(self, producer: Publisher, send: Send, entry: bytes) -> None:
        """Append an entry, and answer it when it is durable."""
        ...

    def submit(
        self, producer: Publisher, send: Send, command: Publish, entry: bytes, deliver_at: int
    ) -> None:
        """Append an entry by a given command. ``deliver_at`` is in milliseconds; 0: at once."""
        ...

    def forget_connection(self, connection: WireConnection) -> None:
        """Note that a connection is closed, so that it isn't paused or resumed any more."""
        ...


class RunPath(Protocol):
    """The part of a partition that stores entries by the run."""

    def publish_run(self, producer: Publisher, run: SendRun) -> bool:
        """Append entries as `publish` would one by one; false, and nothing happens, if they must be
        published one by one."""
        ...


class SubscriptionTable(Protocol):
    """The subscriptions of a partition, by name."""

    def check_consumers(self, subscription: str) -> None:
        """Raise `RemoteError` (BUSY) if a limit allows no further consumer."""
        ...

    async def create_subscription(
        self, name: str, start: StartAt | int, properties: dict[str, str]
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists."""
        ...

    async def durable_channel(
        self,
        name: str,
        start: StartAt | int,
        properties: dict[str, str],
        *,
        compacted: bool = False,
    ) -> SubscriptionChannel:
        """Return the channel of a durable subscription, which is created if it doesn't exist.

        Raises `RemoteError`, and `Unreachable` if the subscription's actor can't be reached.
        """
        ...

    async def volatile_channel(
        self, name: str, start: int, *, compacted: bool = False
    ) -> SubscriptionChannel:
        """Return the channel of a subscription for readers, which isn't stored.

        Raises `RemoteError` if a durable subscription has this name.
        """
        ...

    async def set_property(self, name: str, key: str, value: str | None) -> None:
        """Set a property of a durable subscription, durably, or remove it (None)."""
        ...

    async def set_replicated(self, name: str, *, replicated: bool) -> None:
        """Set whether a durable subscription's progress goes to other clusters, durably."""
        ...

    def drop_if_unused(self, channel: SubscriptionChannel) -> None:
        """Close a channel that has no consumers."""
        ...


class Deletion(Protocol):
    """Deletes subscriptions of a partition."""

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription. Raises `RemoteError` if it doesn't exist."""
        ...


class CursorMoves(Protocol):
    """Moves cursors of a partition's subscriptions."""

    async def reset_subscription(self, name: str, offset: int, reason: str) -> None:
        """Move a subscription's cursor, durably, and close its consumers.

        Raises `RemoteError` if it doesn't exist, and `Unreachable`.
        """
        ...


class PartitionLog(remote_ids.Log, Protocol):
    """The log of a partition."""

    cache: EntryCache
    terminated_at: int | None
    """The offset at which the topic was terminated; None while it isn't."""
    sealing: Sealing | None
    """Seals entries before they are published; None if messages can't be erased."""

    @property
    def synced_offset(self) -> int:
        """The offset after the newest entry that survives a loss of power."""
        ...

    def kept_from(self, offset: int) -> int:
        """Return the first offset at or after ``offset`` that isn't trimmed away."""
        ...

    async def sync(self) -> None:
        """Return when every entry that there is now survives a loss of power."""
        ...

    async def offset_at_time(self, publish_ms: int) -> int:
        """Return the first offset whose publish time isn't before ``publish_ms``."""
        ...


class CompactedReads(Protocol):
    """The compacted view of a partition."""

    async def open_view(self) -> CompactedView | None:
        """Open the current view; None if the partition was never compacted."""
        ...

    async def offset_at_time(self, publish_ms: int) -> int:
        """Return what `PartitionLog.offset_at_time` does, for the view and the log behind it."""
        ...

    async def last_message_id(self, horizon: int | None) -> MessageId:
        """Return the newest message's id; ``horizon``: the end of a consumer's compacted view."""
        ...


class Availability(Protocol):
    """The clients and entries that a partition accepts at present."""

    home: str | None
    """The other cluster that serves the tenant's clients; None if it is this one."""

    @property
    def active_for_schemas(self) -> bool:
        """Whether the topic is in use, so that a consumer's schema can't become its first."""
        ...


Refuse = Callable[[pb.ServerError, str], None]
"""Answers a request with an error and its text."""

FindSpan = Callable[[str, int, pb.SpanRequest], Awaitable[pb.Span]]
"""Finds the bounds of a reader's next step, given the subscription, its mark and the request."""


class PartitionClients(Protocol):
    """The producers, consumers and requests of a partition's clients."""

    def add_producer(self, producer: Any) -> None:
        """Note a connected producer."""
        ...

    def remove_producer(self, producer: Any) -> None:
        """Forget a producer. Idempotent."""
        ...

    def add_consumer(self, consumer: Any) -> None:
        """Note a connected consumer."""
        ...

    def remove_consumer(self, consumer: Any) -> None:
        """Forget a consumer. Idempotent."""
        ...

    def request(self, refuse: Refuse) -> AbstractContextManager[None]:
        """A request that the current task carries out. The end of the partition ends the task and
        calls ``refuse``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostedPartition:
    """A partition that this process hosts, by its parts."""

    key: ActorKey
    actor_system: ActorSystem
    availability: Availability
    log: PartitionLog
    publishing: PublishPath
    runs: RunPath
    subscriptions: SubscriptionTable
    deletion: Deletion
    cursors: CursorMoves
    compacted: CompactedReads
    schemas: TopicSchemas
    geo: GeoReplication
    find_span: FindSpan
    clients: PartitionClients


class LocalPartitions(Protocol):
    """The partitions that a session can use."""

    config: ClusterConfig

    def find(self, topic: TopicName) -> HostedPartition:
        """Return the partition. Raises `RemoteError` (UNAVAILABLE) if it isn't served here."""
        ...

    def find_sibling(self, topic: TopicName) -> HostedPartition:
        """Return a partition of the same topic, which has the same schemas. Raises as `find`."""
        ...


class Client(Protocol):
    """The client at the other end, and how handlers answer it."""

    connection: WireConnection
    info: ClientInfo

    def succeed(self, request_id: int) -> None:
        """Answer a request that has no other answer."""
        ...

    def error(self, request_id: int, code: pb.ServerError, message: str) -> None:
        """Answer a request with an error."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until it ends or the connection is closed."""
        ...

    def spawn_request(self, work: Coroutine[Any, Any, None], refuse: Refuse) -> asyncio.Task[None]:
        """Run work that answers a request; ``refuse`` answers a failed call with its error."""
        ...

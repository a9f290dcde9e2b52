"""What a partition needs of its replication to and from other clusters.

The partition knows these protocols only. The layer above implements them
(`velaray.geo.partition_geo`) and passes the factory to the partition's constructor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from velaray.actors.partition.state import SubscriptionRef
from velaray.topology.messages import Message, Request
from velaray.topology.metrics import Sample

if TYPE_CHECKING:
    from velaray.broker.partition.subscription_channel import SubscriptionChannel

Handler = Callable[[Any], Awaitable[Any]]
"""Answers one kind of request."""
MarkerHandler = Callable[[str, bytes], Awaitable[None]]
"""Handles a marker, given the cluster that sent it and its payload. What the marker says is durable
when it returns."""


class OutgoingReplication(Protocol):
    """The replicators that send this partition's entries to other clusters."""

    @property
    def active(self) -> bool:
        """Whether the topic is replicated to any cluster."""

    @property
    def quiet(self) -> bool:
        """Whether no replicator has anything to do."""

    async def begin(self, replication: Mapping[str, Any]) -> None:
        """Create the replicators' subscriptions before anything is published, then `apply`.

        Raises `RemoteError` if one can't be created.
        """

    def apply(self, replication: Mapping[str, Any]) -> None:
        """Replicate to these clusters: their settings, by name."""

    def tell_transactions(self) -> None:
        """Notify the replicators of news about transactions that go to other clusters."""

    def count_received(self, name: str, messages: int, size: int) -> None:
        """Count an entry that came from cluster ``name``."""

    def rest(self) -> None:
        """Prepare for an orderly stop: idle replicators don't activate the partition again."""


class InboundReplication(Protocol):
    """The actors that copy this topic's entries from other clusters to this one."""

    @property
    def active(self) -> bool:
        """Whether the partition reads from any cluster."""

    def apply(self, pull: Mapping[str, Any]) -> None:
        """Read from these clusters: their settings, by name."""

    def close(self) -> None:
        """Stop reading: the partition is about to stop."""


class RemoteSubscriptionProgress(Protocol):
    """Applies the acknowledgements of other clusters' subscriptions to those here."""

    def came(self) -> None:
        """Note that replicated entries may have become durable."""

    def unread(self, name: str, waits: Collection[str] | None) -> None:
        """Note that a subscription whose channel is closed has pending progress of the clusters
        ``waits`` (None: the clusters are unknown)."""

    async def settle_channel(self, channel: SubscriptionChannel) -> None:
        """Apply pending progress to a subscription that has a channel."""

    async def settle_at_rest(self, name: str, ref: SubscriptionRef) -> None:
        """Apply pending progress to a subscription without consumers."""


class Fence(Protocol):
    """The fence that stops clients while the tenant moves to another cluster."""

    up: int
    """The number of the migration that the fence is up for; 0 if it is down."""

    def check(self, subscription: str = "") -> None:
        """Raise `RemoteError` (UNAVAILABLE) if it is up, except for replicators' subscriptions."""

    def passing(self, request: type[Message]) -> AbstractContextManager[None]:
        """Guard a request: one that changes something is refused while the fence is up, and a
        fence that goes up waits for its end."""


class ProgressChanges(Protocol):
    """Counts the changes of each subscription, for clusters that follow its progress."""

    def note(self, name: str) -> None:
        """Note that the subscription may have changed."""

    def called(self, name: str, request: Request[Any]) -> None:
        """Note that the subscription answered this call."""


class GeoReplication(Protocol):
    """Everything that connects one partition with other clusters."""

    @property
    def replication(self) -> OutgoingReplication:
        """Replication to other clusters."""

    @property
    def inbound(self) -> InboundReplication:
        """Replication from clusters that don't push to this one."""

    @property
    def progress(self) -> RemoteSubscriptionProgress:
        """Progress of subscriptions in other clusters."""

    @property
    def fence(self) -> Fence:
        """The fence of the tenant's migration."""

    @property
    def changes(self) -> ProgressChanges:
        """Changes of this cluster's subscriptions."""

    @property
    def handlers(self) -> Mapping[type[Message], Handler]:
        """The requests that the partition answers in addition to its own."""

    def begin(self) -> None:
        """Start the tasks that run as long as the partition."""

    def marker_handler(self, kind: int) -> MarkerHandler:
        """Return the handler of a kind of markers. Raises `RemoteError` (NOT_ALLOWED) for an
        unknown kind."""

    async def described(self) -> dict[str, dict[str, Any]]:
        """Return the state of each replicator, by cluster."""

    async def samples(self) -> list[Sample]:
        """Return what the replicators measure."""

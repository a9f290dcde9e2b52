"""The subscriptions of one partition and their open channels."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.delayed import DelayedEntry, ReleaseDelayed
from velaray.actors.partition.machine import CreateSubscription, StartAt
from velaray.actors.partition.state import SubscriptionRef
from velaray.actors.partition.subscription_properties import SetProperty
from velaray.actors.partition.trimming import NoteActivity
from velaray.actors.runtime import Stopped
from velaray.broker.partition import channel_opening
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.log import PartitionLog
from velaray.broker.partition.channel_opening import ChannelOpener, StoredLog
from velaray.broker.partition.fencing import superseded_if_fenced
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import GetMark, SetPolicies, TopicTerminated, call_of
from velaray.topology.messages import ReplyT, Request, decode_reply
from velaray.topology.rpc import RemoteError, RpcConnectionClosed
from velaray.topology.transient import TRANSIENT
from velaray.wire.replication import REPLICATED_SUBSCRIPTION


class Partition(channel_opening.Partition, Protocol):
    """What the table of subscriptions needs of its partition."""

    maintenance: Maintenance
    meter: PartitionMetrics


class Subscriptions:
    """Creates subscriptions, opens and closes their channels, and calls their dispatchers."""

    def __init__(self, partition: Partition, log: PartitionLog, stored: StoredLog) -> None:
        """``log`` and ``stored`` are the partition's log."""
        self._partition = partition
        self._topic = str(partition.key.topic_name)
        self.channels: dict[str, SubscriptionChannel] = {}
        self._opener = ChannelOpener(
            partition, log, stored, self.channels, self._channel_closed, self.drop_if_unused
        )
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._stored = stored
        self._feed_scheduled = False

    def lock(self, name: str) -> asyncio.Lock:
        """Hold it to open, close, reset or delete the subscription of this name."""
        return self._locks.setdefault(name, asyncio.Lock())

    # -- all channels --------------------------------------------------------------

    def schedule_feed(self) -> None:
        """Offer newly readable entries to all consumers, once in this turn of the event loop."""
        if not self._feed_scheduled:
            self._feed_scheduled = True
            asyncio.get_running_loop().call_soon(self._feed)

    def _feed(self) -> None:
        self._feed_scheduled = False
        for channel in self.channels.values():
            channel.feed.run()
        self._partition.geo.progress.came()

    def log_synced(self) -> None:
        """Note that the log was synced."""
        for channel in list(self.channels.values()):
            channel.link.log_synced()

    def entries_due(self, entries: list[DelayedEntry], until_ms: int) -> None:
        """Offer delayed entries whose delivery time came.

        ``until_ms``: the delivery times up to which no entry waits; 0 if that hasn't changed.
        """
        offsets = sorted(entry.offset for entry in entries)
        for channel in list(self.channels.values()):
            channel.feed.due(offsets)
        if until_ms:
            with contextlib.suppress(Stopped):  # the next activation looks at the entries again
                self._partition.runtime.submit(
                    ReleaseDelayed(until_ms), lambda reply, effects: None
                )

    def notify_policies(self) -> None:
        """Send the changed policies to all dispatchers."""
        for channel in list(self.channels.values()):
            channel.tell(SetPolicies(self._opener.policies(channel.durable)))

    def limit_rates(self) -> None:
        """Apply the changed limits of the rate of deliveries."""
        partition = self._partition
        partition.dispatch_rates.apply(partition.policies, self.channels.values())

    def notify_terminated(self, end_offset: int) -> None:
        """Send the offset at which the topic ended to all dispatchers."""
        for channel in self.channels.values():
            channel.tell(TopicTerminated(end_offset))

    def tell_trimmed(self) -> None:
        """Drop trimmed entries from all channels."""
        gone = self._stored.gone()
        for channel in list(self.channels.values()):
            consumers = len(channel.consumers)
            channel.trimmed(gone)
            if len(channel.consumers) < consumers:
                self.drop_if_unused(channel)

    def check_consumers(self, subscription: str) -> None:
        """Raise `RemoteError` (BUSY) if the subscription, or the topic, may have no more."""
        channel = self.channels.get(subscription)
        policies = self._partition.policies
        here = 0 if channel is None else len(channel.consumers)
        everywhere = sum(len(other.consumers) for other in self.channels.values())
        for what, count, limit in (
            ("subscription", here, policies.max_consumers_per_subscription),
            ("topic", everywhere, policies.max_consumers),
        ):
            if 0 < limit <= count:
                problem = f"the {what} has reached its limit of {limit} consumers"
                raise RemoteError(Reason.BUSY, problem)

    # -- creating ------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return name in self._partition.runtime.state.subscriptions

    async def create_subscription(
        self,
        name: str,
        start: StartAt | int,
        properties: dict[str, str],
        *,
        compacted: bool = False,
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists; its actor starts when it's needed."""
        limit = self._partition.policies.max_subscriptions
        create = CreateSubscription(name, start, properties, limit, compacted)
        reply = await self._partition.runtime.ask(create)
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        assert isinstance(reply, SubscriptionRef)
        return reply

    async def set_replicated(self, name: str, *, replicated: bool) -> None:
        """Set durably whether a subscription's progress is replicated to other clusters.

        Raises `RemoteError` (NOT_FOUND) if there is no such subscription.
        """
        await self.set_property(name, REPLICATED_SUBSCRIPTION, "true" if replicated else None)

    async def set_property(self, name: str, key: str, value: str | None) -> None:
        """Set a property of a subscription durably, or remove it (None).

        Raises `RemoteError` (NOT_FOUND) if there is no such subscription.
        """
        reply = await self._partition.runtime.ask(SetProperty(name, key, value))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)

    async def _note_use(self, ref: SubscriptionRef) -> None:
        """Stop counting a subscription as unused."""
        runtime = self._partition.runtime
        known = runtime.state.subscriptions.get(ref.name)
        if known is not None and known.idle_since_ms:
            await runtime.ask(NoteActivity(ref.name, ref.incarnation, active=True))

    # -- opening -------------------------------------------------------------------

    async def durable_channel(
        self,
        name: str,
        start: StartAt | int,
        properties: dict[str, str],
        *,
        compacted: bool = False,
    ) -> SubscriptionChannel:
        """The channel of a durable subscription; creates and connects it if necessary.

        Raises `RemoteError` if the subscription is refused, `Unreachable` if its dispatcher can't
        be reached.
        """
        async with self.lock(name):
            self._partition.geo.fence.check(name)
            channel = await self._connected(name, compacted=compacted)
            if channel is not None:
                if not channel.durable:
                    raise RemoteError(Reason.BUSY, f"a reader is connected as {name!r}")
                return channel
            if not (self._partition.policies.create_subscriptions or self._has(name)):
                raise RemoteError(Reason.NO_SUBSCRIPTION, f"no subscription {name!r}")
            ref = await self.create_subscription(name, start, properties, compacted=compacted)
            self._partition.maintenance.touched(name)
            await self._note_use(ref)
            return await self._opener.connect(ref, compacted=compacted)

    async def volatile_channel(
        self, name: str, start: int, *, compacted: bool = False
    ) -> SubscriptionChannel:
        """The channel of a subscription without a journal, for readers.

        Raises `RemoteError` if a durable subscription has this name.
        """
        async with self.lock(name):
            self._partition.geo.fence.check(name)
            if self._has(name):
                raise RemoteError(Reason.NOT_ALLOWED, f"subscription {name!r} is durable")
            channel = await self._connected(name, compacted=compacted)
            return channel or await self._opener.open_volatile(name, start, compacted=compacted)

    async def _connected(self, name: str, *, compacted: bool) -> SubscriptionChannel | None:
        """The open channel, if it serves such consumers.

        Raises `RemoteError` (NOT_ALLOWED) if it has consumers of the other kind.
        """
        channel = self.channels.get(name)
        if channel is None or channel.compacted == compacted:
            return channel
        if channel.consumers:
            problem = f"the consumers of {name!r} must all read compacted, or none of them"
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        await self._drain(channel)
        channel.close()
        return None

    async def resume_dead_letters(self, name: str, incarnation: int) -> None:
        """Connect a subscription that was moving dead letters before a crash."""
        async with self.lock(name):
            found = self._partition.runtime.state.subscriptions.get(name)
            if found is None or found.ref.incarnation != incarnation:
                raise RemoteError(Reason.NOT_FOUND, f"no subscription {name!r}")
            if name not in self.channels:
                self.drop_if_unused(await self._opener.connect(found.ref, compacted=False))

    # -- closing -------------------------------------------------------------------

    async def _drain(self, channel: SubscriptionChannel) -> None:
        """Return when the dispatcher has handled everything that was sent to it, or is gone.

        Otherwise the next channel's connection could overtake acknowledgements on this one.
        """
        with contextlib.suppress(*TRANSIENT):
            await channel.ask(GetMark())

    def drop_if_unused(self, channel: SubscriptionChannel) -> None:
        """Close a channel that has no consumers and moves no dead letters."""
        moving = channel.mover is not None and channel.mover.busy
        if channel.consumers or channel.closed or moving:
            return
        if channel.durable:
            self._partition.spawn(self._retire(channel))
        else:
            channel.close()

    async def _retire(self, channel: SubscriptionChannel) -> None:
        async with self.lock(channel.name):
            if channel.consumers or channel.closed or channel.link.port is None:
                return
            await self._drain(channel)
            if not channel.consumers and not (channel.mover and channel.mover.busy):
                channel.close()

    async def empty_channel(self, name: str) -> None:
        """Close a channel and its consumers, which reconnect, after its dispatcher has handled
        everything that was sent to it."""
        async with self.lock(name):
            channel = self.channels.get(name)
            if channel is None:
                return
            await self._drain(channel)
            channel.retire()

    def _channel_closed(
        self, channel: SubscriptionChannel, consumers: list[ChannelConsumer]
    ) -> None:
        partition = self._partition
        partition.meter.closed(channel)
        partition.dispatch_rates.forget(channel)
        partition.geo.changes.note(channel.name)
        partition.maintenance.channel_closed(channel.name)
        if self.channels.get(channel.name) is channel:
            del self.channels[channel.name]
            partition.geo.progress.unread(channel.name, channel.origins.waiting)
        for consumer in consumers:
            consumer.session.consumer_closed(consumer)

    # -- calling -------------------------------------------------------------------

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not; the method must be idempotent.

        Raises `RemoteError` if there is no such subscription, `Unreachable` if its dispatcher
        can't be reached.
        """
        channel = self.channels.get(name)
        if channel is not None:
            with contextlib.suppress(RpcConnectionClosed):
                return await channel.ask(request)
        async with self.lock(name):
            return await self.call_dispatcher(name, request)

    async def call_dispatcher(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call the dispatcher of a subscription without a channel. The caller holds its lock.

        Raises as `ask_subscription` does.
        """
        partition = self._partition
        found = await partition.runtime.read(lambda state: state.subscriptions.get(name))
        if found is None:
            raise RemoteError(Reason.NOT_FOUND, f"{self._topic} has no subscription {name!r}")
        key = partition.key.of_subscription(name, found.ref.incarnation)
        # A dispatcher without a cursor begins at ``start``.
        call = call_of(partition.runtime.journal.epoch, found.ref.start_offset, request)
        try:
            with superseded_if_fenced(partition):
                encoded = await partition.actor_system.request(key, call)
        finally:
            partition.geo.changes.called(name, request)
        answer = decode_reply(request, encoded)
        partition.meter.told(name, request, answer)
        return answer

"""Opens the channels of a partition's subscriptions: connects each to its dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from velaray.actors.machine import Reason
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.runtime import Runtime
from velaray.actors.subscription.machine import SubscriptionMachine
from velaray.broker.partition.channel.consumer import ChannelConsumer
from velaray.broker.partition.channel.log import PartitionLog
from velaray.broker.partition.channel.throttle import DispatchRates
from velaray.broker.partition.compacted_channel import CompactedChannel
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.dead_letters import DeadLetterMover, is_for_dead_letters
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.fencing import superseded_if_fenced
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.sealed_channel import SealedChannel
from velaray.broker.partition.sealing import Sealing, refuse_sealed
from velaray.broker.partition.subscription_channel import LogServices, SubscriptionChannel
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.broker.subscription.dispatcher import LocalPort, SubscriptionDispatcher
from velaray.broker.subscription.messages import (
    TO_PARTITION,
    OpenDispatcher,
    SetPolicies,
    TopicTerminated,
)
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, Position
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection, RpcConnectionClosed
from velaray.topology.telemetry import delivery_spans

OnClosed = Callable[[SubscriptionChannel, list[ChannelConsumer]], None]
"""Handles a closed channel and the consumers that it had."""


class StoredLog(LogServices, Protocol):
    """What opening a channel needs of the partition's log besides `PartitionLog`."""

    def gone(self) -> list[int]:
        """Return the offsets of trimmed entries: first, last + 1, first, ..."""
        ...

    async def durably_gone(self, *, compacted: bool) -> list[int]:
        """Return the offsets that are durably trimmed for a subscription."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...


class Partition(Protocol):
    """What opening a channel needs of its partition."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    policies: TopicPolicies
    dispatch_rates: DispatchRates
    schemas: TopicSchemas
    compactor: Compactor
    geo: GeoReplication
    sealing: Sealing | None

    def spawn(self, work: Any) -> Any:
        """Run a coroutine that is cancelled with the partition."""


class _DispatcherConnection:
    """The partition's end of the connection to a durable subscription's dispatcher."""

    accepts = TO_PARTITION

    def __init__(self, channel: SubscriptionChannel) -> None:
        self._channel = channel

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "a channel answers no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        self._channel.on_notice(notice)

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        self._channel.close()


class ChannelOpener:
    """Opens channels and adds them to ``channels``, by subscription name."""

    def __init__(
        self,
        partition: Partition,
        log: PartitionLog,
        stored: StoredLog,
        channels: dict[str, SubscriptionChannel],
        on_closed: OnClosed,
        on_unused: Callable[[SubscriptionChannel], None],
    ) -> None:
        """``log`` and ``stored`` are the partition's log. ``on_unused`` is called when a channel
        has moved its dead letters."""
        self._partition = partition
        self._log = log
        self._stored = stored
        self._channels = channels
        self._on_closed = on_closed
        self._on_unused = on_unused

    def policies(self, durable: bool = True) -> dict[str, Any]:
        """The topic's policies that concern a dispatcher."""
        found = self._partition.policies.for_dispatchers()
        if not durable or is_for_dead_letters(self._partition.key.topic_name):
            found["deadLetter"] = None
        return found

    def _channel_for(self, name: str, *, durable: bool, compacted: bool) -> SubscriptionChannel:
        """A new channel. Raises `RemoteError` for compacted reads of an erasable topic."""
        partition = self._partition
        if compacted:
            refuse_sealed(partition.sealing, "it has no compacted view")
        channel = self._new_channel(name, durable=durable, compacted=compacted)
        config, topic = partition.actor_system.config, str(partition.key.topic_name)
        channel.delivery.spans = delivery_spans(config, topic, name)
        return channel

    async def connect(self, ref: SubscriptionRef, *, compacted: bool) -> SubscriptionChannel:
        """Open the channel of a durable subscription.

        Raises `RemoteError`, `Unreachable` or `RpcConnectionClosed` if its dispatcher can't be
        reached; no channel is left then.
        """
        partition, log = self._partition, self._log
        channel = self._channel_for(ref.name, durable=True, compacted=compacted)
        key = partition.key.of_subscription(ref.name, ref.incarnation)
        moved = partial(self._on_unused, channel)
        channel.mover = DeadLetterMover(partition, self._stored, channel, key, moved)
        channel.on_progress = partial(partition.geo.changes.note, ref.name)
        with superseded_if_fenced(partition):
            channel.link.port = await partition.actor_system.open_rpc(
                key, _DispatcherConnection(channel)
            )
        terminated_at = log.terminated_at
        epoch = partition.runtime.journal.epoch
        try:
            with superseded_if_fenced(partition):
                gone = await self._stored.durably_gone(compacted=compacted)
                start, end = ref.start_offset, log.end_offset
                await channel.link.port.ask(OpenDispatcher(start, terminated_at, end, gone, epoch))
                channel.tell(SetPolicies(self.policies()))  # as they are after the request
            if channel.closed:
                raise RpcConnectionClosed(f"the connection to subscription {ref.name!r} broke")
            self._partition.dispatch_rates.limit(channel, self._partition.policies)
            self._channels[ref.name] = channel
        finally:
            if self._channels.get(ref.name) is not channel:
                channel.close()
        if log.terminated_at != terminated_at:
            channel.tell(TopicTerminated(log.terminated_at))
        channel.feed.run()
        return channel

    async def open_volatile(self, name: str, start: int, *, compacted: bool) -> SubscriptionChannel:
        """Open the channel of a subscription without a journal; its dispatcher runs here."""
        partition, log = self._partition, self._log
        channel = self._channel_for(name, durable=False, compacted=compacted)
        runtime = await Runtime.volatile(
            SubscriptionMachine(), name, partition.actor_system.clock_ms, self._reader_failed
        )
        dispatcher = SubscriptionDispatcher(runtime, partition.key.partition, channel.on_notice)
        channel.link.port = LocalPort(dispatcher, runtime.abort)
        gone = await self._stored.durably_gone(compacted=compacted)
        await channel.link.port.ask(OpenDispatcher(start, log.terminated_at, log.end_offset, gone))
        channel.tell(SetPolicies(self.policies(durable=False)))
        self._partition.dispatch_rates.limit(channel, self._partition.policies)
        self._channels[name] = channel
        if gone := self._stored.gone():
            channel.trimmed(gone)  # more may have been trimmed since the request
        return channel

    def _new_channel(self, name: str, *, durable: bool, compacted: bool) -> SubscriptionChannel:
        partition = self._partition
        log, stored, on_closed = self._log, self._stored, self._on_closed
        if partition.sealing is not None:
            sealing = partition.sealing
            return SealedChannel(name, log, stored, sealing, on_closed, durable=durable)
        if compacted:
            compactor = partition.compactor
            return CompactedChannel(name, log, stored, compactor, on_closed, durable=durable)
        return SubscriptionChannel(name, log, stored, on_closed, durable=durable)

    def _reader_failed(self, error: BaseException) -> None:
        self._partition.actor_system.fatal(self._partition, error)

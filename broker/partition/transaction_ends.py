"""Applies the verdicts of coordinators to a partition and its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.state import PartitionState, SubscriptionRef
from velaray.actors.partition.transactions import EndTransaction
from velaray.actors.runtime import Runtime
from velaray.broker.partition.fencing import superseded_if_fenced
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.partition.transaction_admission import TransactionAdmission
from velaray.broker.subscription.messages import TO_PARTITION, EndPendingAcks, OpenDispatcher
from velaray.events.ids import ActorKey, TransactionId
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message, Request
from velaray.topology.rpc import RemoteError, RpcConnection
from velaray.topology.transient import NO_ANSWER


class Partition(Protocol):
    """What ending a transaction needs of the partition."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    geo: GeoReplication
    meter: PartitionMetrics

    async def read_certain(self, query: Callable[[PartitionState], None]) -> None:
        """Run a query on the newest activation's state, or raise."""


class Log(Protocol):
    """What ending a transaction needs of the partition's log."""

    terminated_at: int | None

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class Subscriptions(Protocol):
    """What ending a transaction needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of the subscription of this name."""
        ...


class _NoConsumers:
    """The partition's end of a connection to a dispatcher that is asked once."""

    accepts = TO_PARTITION

    async def answer(self, rpc_connection: RpcConnection, request: Request[Any]) -> Any:
        raise RemoteError(Reason.NOT_ALLOWED, "this end of the connection answers no requests")

    def receive(self, rpc_connection: RpcConnection, notice: Message) -> None:
        """Ignore notices: they concern consumers."""

    def on_rpc_closed(self, rpc_connection: RpcConnection) -> None:
        """Do nothing: the request fails."""


class TransactionEnds:
    """Ends transactions in one partition."""

    def __init__(
        self,
        partition: Partition,
        log: Log,
        subscriptions: Subscriptions,
        admission: TransactionAdmission,
        more_readable: Callable[[], None],
    ) -> None:
        """``more_readable`` is called when more entries may be readable."""
        self._partition = partition
        self._log = log
        self._subscriptions = subscriptions
        self._gate = admission
        self._more_readable = more_readable

    async def end_transaction(
        self,
        transaction: TransactionId,
        subscription: str | None,
        *,
        commit: bool,
        alone: bool = False,
    ) -> tuple[str, ...]:
        """Apply a verdict durably; idempotent.

        ``alone``: no other partition is a participant. Returns the clusters that receive the
        transaction from here, which need its participants. Raises `RemoteError`; the coordinator
        retries.
        """
        partition = self._partition
        await self._gate.end(transaction, subscription)
        if subscription is not None:
            await self._end_acks(transaction, subscription, commit=commit)
            return ()
        reply = await partition.runtime.ask(EndTransaction(transaction, commit, alone))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)
        if reply.ranges:
            partition.meter.transaction_ended(commit=commit)
        else:
            await self._confirm()
        self._more_readable()
        if commit and alone and partition.runtime.state.outgoing:
            partition.geo.replication.tell_transactions()
        clusters: tuple[str, ...] = reply.clusters
        return clusters

    async def _confirm(self) -> None:
        """Return if this is the partition's newest activation.

        A verdict that writes nothing here might concern entries of a newer activation.
        """
        await self._partition.read_certain(lambda state: None)

    async def _end_acks(
        self, transaction: TransactionId, subscription: str, *, commit: bool
    ) -> None:
        ended = EndPendingAcks(*transaction, commit)
        try:
            async with self._subscriptions.lock(subscription):
                found = self._partition.runtime.state.subscriptions.get(subscription)
                if found is None:
                    await self._confirm()
                    return  # the subscription was deleted, and its acknowledgements with it
                channel = self._subscriptions.channels.get(subscription)
                if channel is None:
                    await self._end_acks_alone(found.ref, ended)
                    return
            # Without the lock, the dispatcher syncs concurrent verdicts together. If the channel
            # closes meanwhile, the coordinator retries.
            await channel.ask(ended)
        except NO_ANSWER as error:
            problem = f"subscription {subscription!r} doesn't answer: {error}"
            raise RemoteError(Reason.UNAVAILABLE, problem) from error

    async def _end_acks_alone(self, ref: SubscriptionRef, ended: EndPendingAcks) -> None:
        """Open a connection to a subscription without consumers for one verdict.

        A call doesn't do: acknowledgements may still be under way on the connection of the last
        channel. The dispatcher gets no trimmed offsets, since its next readers may read compacted.
        """
        partition = self._partition
        key = partition.key.of_subscription(ref.name, ref.incarnation)
        with superseded_if_fenced(partition):
            rpc_connection = await partition.actor_system.open_rpc(key, _NoConsumers())
            try:
                epoch, log = partition.runtime.journal.epoch, self._log
                start, end = ref.start_offset, log.end_offset
                await rpc_connection.ask(OpenDispatcher(start, log.terminated_at, end, (), epoch))
                await rpc_connection.ask(ended)
            finally:
                rpc_connection.close()
                partition.meter.changed(ref.name)
                partition.geo.changes.note(ref.name)

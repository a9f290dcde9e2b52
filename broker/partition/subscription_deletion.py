"""Deletes durable subscriptions: first the name, then the actor and its journal."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.machine import ConfirmSwept, DeleteSubscription
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.garbage_collection.deletion import purge_journal
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT_OR_STORE


class Partition(Protocol):
    """What deletion needs of the partition."""

    key: ActorKey
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]

    def spawn(self, work: Any) -> Any:
        """Run a coroutine that is cancelled with the partition."""


class Subscriptions(Protocol):
    """What deletion needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of the subscription of this name."""
        ...


class SubscriptionDeletion:
    """Deletes subscriptions of one partition, and finishes deletions that crashes interrupted."""

    def __init__(self, partition: Partition, subscriptions: Subscriptions) -> None:
        self._partition = partition
        self._subscriptions = subscriptions
        self._deletions: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel the deletions under way; the next activation finishes them."""
        for deletion in self._deletions:
            deletion.cancel()

    def resume(self) -> None:
        """Finish the deletions that a former activation began."""
        for incarnation, name in self._partition.runtime.state.deleted.items():
            self._partition.spawn(self._finish(name, incarnation))

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription and purge its journal.

        A deletion that has begun goes on, even if the caller is cancelled. Raises `RemoteError` if
        there is no such subscription.
        """
        deletion = asyncio.ensure_future(self._delete(command))
        self._deletions.add(deletion)
        deletion.add_done_callback(self._deletions.discard)
        await asyncio.shield(deletion)

    async def _delete(self, command: DeleteSubscription) -> None:
        async with self._subscriptions.lock(command.name):
            channel = self._subscriptions.channels.get(command.name)
            if command.idle_before_ms and channel is not None and channel.consumers:
                raise RemoteError(Reason.BUSY, f"{command.name!r} has connected consumers")
            reply = await self._partition.runtime.ask(command)
            if isinstance(reply, Refusal):
                raise RemoteError(reply.reason, reply.message)
            channel = self._subscriptions.channels.get(command.name)
            if channel is not None and channel.durable:
                channel.close()
            try:
                await self._sweep(reply.name, reply.incarnation)
            except TRANSIENT_OR_STORE:  # the decision is durable, so the caller gets success
                self._partition.spawn(self._finish(reply.name, reply.incarnation))

    async def _sweep(self, name: str, incarnation: int) -> None:
        partition = self._partition
        key = partition.key.of_subscription(name, incarnation)
        await partition.actor_system.dismiss(key)
        await purge_journal(partition.actor_system, key)
        await partition.runtime.ask(ConfirmSwept(incarnation))

    async def _finish(self, name: str, incarnation: int) -> None:
        """Repeat the sweep until it succeeds."""
        backoff = self._partition.actor_system.backoff()
        while True:
            try:
                await self._sweep(name, incarnation)
            except TRANSIENT_OR_STORE:
                await backoff.wait()
            else:
                return

"""Moves the cursors of a partition's subscriptions: resets, and undoing earlier moves."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import PlanUndo, ResetCursor, UndoMoves
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import RpcConnectionClosed


class Partition(Protocol):
    """What moving a cursor needs of the partition."""

    runtime: Runtime[PartitionState]
    maintenance: Maintenance
    geo: GeoReplication


class Log(Protocol):
    """What moving a cursor needs of the partition's log."""

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""

    async def durably_gone(self, *, compacted: bool) -> list[int]:
        """Return the offsets that are durably trimmed for a subscription."""
        ...


class Subscriptions(Protocol):
    """What moving a cursor needs of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    def lock(self, name: str) -> asyncio.Lock:
        """Return the lock of the subscription of this name."""
        ...

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""

    async def call_dispatcher(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call the dispatcher of a subscription without a channel."""


class CursorMoves:
    """Moves cursors of one partition's durable subscriptions."""

    def __init__(self, partition: Partition, log: Log, subscriptions: Subscriptions) -> None:
        self._partition = partition
        self._log = log
        self._subscriptions = subscriptions

    @property
    def shares_progress(self) -> bool:
        """Whether the progress of subscriptions may be replicated from or to other clusters."""
        partition = self._partition
        return bool(partition.runtime.state.origins) or partition.geo.replication.active

    async def reset_subscription(self, name: str, offset: int, reason: str) -> None:
        """Move a subscription's cursor durably; its consumers are closed and reconnect.

        The move is repeated if the dispatcher restarts meanwhile. Raises `RemoteError` if there is
        no such subscription, `Unreachable` if its dispatcher can't be reached.
        """
        table = self._subscriptions
        async with table.lock(name), self._partition.maintenance.moving(name):
            self._partition.geo.fence.check()
            await self._log.sync()
            # Durably trimmed entries only: a trimming that isn't durable may be undone by a crash.
            channel = table.channels.get(name)
            # Without a channel the kind of its readers is unknown: opening one sends the rest.
            compacted = channel is None or channel.compacted
            gone = await self._log.durably_gone(compacted=compacted)
            if channel is not None:
                with contextlib.suppress(RpcConnectionClosed):
                    await channel.reset(offset, reason, gone, shared=self.shares_progress)
                    return
            request = ResetCursor(offset, reason, gone, self.shares_progress)
            await table.call_dispatcher(name, request)

    async def plan_undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any] | None:
        """What `undo` would change; None if the cursor hasn't moved since. Raises as `undo`
        does."""
        await self._log.sync()
        channel = self._subscriptions.channels.get(name)
        compacted = channel is not None and channel.compacted
        gone = await self._log.durably_gone(compacted=compacted)
        sequence, at_ms = point_in_time
        return await self._subscriptions.ask_subscription(name, PlanUndo(sequence, at_ms, gone))

    async def undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any]:
        """Restore a subscription's cursor as it was at ``moment``; consumers reconnect.

        ``moment`` is an event number and a time in milliseconds; without both, the cursor is
        restored as it was before its last move. Such a call isn't idempotent. Returns what changed.
        Raises as `reset_subscription` does, and `RemoteError` if there is nothing to undo, or it
        can't be undone.
        """
        table = self._subscriptions
        async with table.lock(name), self._partition.maintenance.moving(name):
            await self._log.sync()
            channel = table.channels.get(name)
            # Without a channel the kind of its readers is unknown: no trimmed entry may return.
            compacted = channel is not None and channel.compacted
            gone = await self._log.durably_gone(compacted=compacted)
            if channel is not None:
                return await channel.undo(point_in_time, gone, shared=self.shares_progress)
            sequence, at_ms = point_in_time
            request = UndoMoves(sequence, at_ms, gone, self.shares_progress)
            return await table.call_dispatcher(name, request)

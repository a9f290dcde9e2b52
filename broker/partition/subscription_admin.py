"""The calls that read and change the subscriptions of a partition."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.machine import DeleteSubscription, StartAt
from velaray.actors.partition.state import PartitionState, Subscription, SubscriptionRef
from velaray.actors.partition.subscription_properties import SetProperty
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition import remote_ids, transaction_view
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_reads import Entries, described_entry
from velaray.broker.partition.sealing import SHOWN_BY_CONSUMERS, refuse_sealed
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import FindUnacked, GetUnacked, LocateEntry, SkipTo
from velaray.events.ids import EARLIEST, LATEST, Position
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.rpc import RemoteError
from velaray.wire.messages import split_entry
from velaray.wire.replication import REPLICATED_SUBSCRIPTION, REPLICATOR_PREFIX


class Log(remote_ids.Log, Entries, Protocol):
    """What these calls need of the partition's log."""

    async def offset_at_time(self, publish_ms: int) -> int:
        """Return the first offset whose publish time isn't before ``publish_ms``."""
        ...

    async def sync(self) -> None:
        """Return when all present entries survive a loss of power."""


class Subscriptions(Protocol):
    """What these calls need of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""

    async def create_subscription(
        self, name: str, start: StartAt | int, properties: dict[str, str]
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists."""
        ...

    async def set_replicated(self, name: str, *, replicated: bool) -> None:
        """Set durably whether a subscription's progress is replicated."""

    async def resume_dead_letters(self, name: str, incarnation: int) -> None:
        """Connect a subscription that was moving dead letters before a crash."""


class Deletion(Protocol):
    """Deletes subscriptions."""

    async def delete_subscription(self, command: DeleteSubscription) -> None:
        """Delete a durable subscription."""


class Cursors(Protocol):
    """Moves cursors."""

    async def reset_subscription(self, name: str, offset: int, reason: str) -> None:
        """Move a subscription's cursor durably."""

    async def plan_undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any] | None:
        """Return what `undo` would change."""

    async def undo(self, name: str, point_in_time: list[int | None]) -> dict[str, Any]:
        """Restore a subscription's cursor as it was at ``moment``."""
        ...


class Partition(Protocol):
    """What these calls need of a partition."""

    topic: str
    runtime: Runtime[PartitionState]
    recovery_ms: tuple[int, int]
    maintenance: Maintenance

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...

    @property
    def deletion(self) -> Deletion:
        """Deletes subscriptions."""
        ...

    @property
    def cursors(self) -> Cursors:
        """Moves cursors."""
        ...

    async def read_certain(
        self, query: Callable[[PartitionState], Subscription | None]
    ) -> Subscription | None:
        """Run a query on the newest activation's state, or raise."""


async def _subscription(partition: Partition, name: str) -> Subscription:
    found = await partition.runtime.read(lambda state: state.subscriptions.get(name))
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} has no subscription {name!r}")
    return found


def _at_or_after(partition: Partition, position: Sequence[int]) -> int:
    return remote_ids.at_or_after(partition.log, Position(position[0], position[1]))


def _id(partition: Partition, position: Position) -> m.Id:
    return [position.ledger_id, position.entry_id, partition.log.partition_index]


async def subscriptions(partition: Partition, request: m.Subscriptions) -> list[str]:
    """The names of the durable subscriptions."""
    return await partition.runtime.read(lambda state: sorted(state.subscriptions))


async def subscription_properties(
    partition: Partition, request: m.SubscriptionProperties
) -> dict[str, dict[str, str]]:
    """The properties of the durable subscriptions, by name; no subscription is activated."""
    return await partition.runtime.read(
        lambda state: {
            name: dict(found.properties) for name, found in sorted(state.subscriptions.items())
        }
    )


async def subscription(partition: Partition, request: m.Subscription) -> m.Ref:
    """The incarnation of a durable subscription, and the offset of its creation."""
    ref = (await _subscription(partition, request.name)).ref
    return {"incarnation": ref.incarnation, "start_offset": ref.start_offset}


async def create_subscription(partition: Partition, request: m.CreateSubscription) -> None:
    """Create a durable subscription at ``position``, "earliest" or "latest"."""
    at = request.position
    start = at if isinstance(at, StartAt) else _at_or_after(partition, at)
    await partition.subscriptions.create_subscription(request.name, start, request.properties)


async def delete_subscription(partition: Partition, request: m.DeleteSubscription) -> None:
    """Delete a durable subscription; refused while consumers are connected unless ``force``."""
    name = request.name
    _check_no_replicator(name, "deleted")
    await _subscription(partition, name)
    channel = partition.subscriptions.channels.get(name)
    if channel is not None and channel.consumers and not request.force:
        raise RemoteError(Reason.BUSY, f"subscription {name!r} has connected consumers")
    await partition.deletion.delete_subscription(DeleteSubscription(name))


async def set_replicated(partition: Partition, request: m.SetReplicated) -> None:
    """Set whether a subscription's progress is replicated to other clusters."""
    _check_no_replicator(request.name, "replicated")
    await partition.subscriptions.set_replicated(request.name, replicated=request.replicated)


async def set_properties(partition: Partition, request: m.SetProperties) -> None:
    """Replace the ``properties`` of a subscription.

    The property that says whether it is replicated stays as it is.
    """
    name, wanted = request.name, request.properties
    _check_no_replicator(name, "changed")
    known = (await _subscription(partition, name)).properties
    for key in sorted({*known, *wanted} - {REPLICATED_SUBSCRIPTION}):
        reply = await partition.runtime.ask(SetProperty(name, key, wanted.get(key)))
        if isinstance(reply, Refusal):
            raise RemoteError(reply.reason, reply.message)


def _check_no_replicator(name: str, what: str) -> None:
    if name.startswith(REPLICATOR_PREFIX):
        problem = (
            f"{name!r} is a replicator: it can't be {what}; take its cluster out of the policy"
        )
        raise RemoteError(Reason.NOT_ALLOWED, f"{problem} 'replication'")


async def _reset(partition: Partition, name: str, offset: int, reason: str) -> None:
    _check_no_replicator(name, "moved")
    await _subscription(partition, name)
    await partition.cursors.reset_subscription(name, offset, reason)


async def seek(partition: Partition, request: m.Seek) -> m.Id:
    """Move a subscription to ``position`` or to publish time ``time_ms``; return the new
    position."""
    if request.time_ms is not None:
        offset = await partition.log.offset_at_time(request.time_ms)
    elif request.position is not None:
        offset = _at_or_after(partition, request.position)
    else:
        raise RemoteError(Reason.INVALID, "give a position or time_ms")
    await _reset(partition, request.name, offset, "seek by an administrator")
    return _id(partition, partition.runtime.state.table.position_before(offset))


async def find_unacked(partition: Partition, request: m.FindUnacked) -> int | None:
    """The offset of a subscription's ``number``-th (from 1) un-acknowledged entry, or None."""
    await _subscription(partition, request.name)
    wanted = FindUnacked(request.number, partition.log.end_offset)
    return await partition.subscriptions.ask_subscription(request.name, wanted)


async def message_status(partition: Partition, request: m.Whereabouts) -> dict[str, Any]:
    """The status of the entry at ``position`` in a subscription, and its position. Facts about
    deliveries so far are durable on return.

    Raises `RemoteError` (NOT_FOUND) if there is no such entry.
    """
    await _subscription(partition, request.name)
    position = _entry_at(partition, Position(*request.position))
    try:
        offset = partition.runtime.state.table.offset_of(position)
    except NoSuchEntryError as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error
    found = await partition.subscriptions.ask_subscription(request.name, LocateEntry(offset))
    status = await transaction_view.unsettled(partition, offset) or found
    return {**status, "position": list(position)}


def _entry_at(partition: Partition, position: Position) -> Position:
    """The position of the first stored entry for ``EARLIEST``, of the last one for ``LATEST``.

    Raises `RemoteError` (NOT_FOUND) for these if the partition holds no entries.
    """
    if position not in (EARLIEST, LATEST):
        return position
    table = partition.runtime.state.table
    if table.first_offset == table.end_offset:
        raise RemoteError(Reason.NOT_FOUND, f"{partition.topic} holds no messages")
    if position == EARLIEST:
        return table.position_of(table.first_offset)
    return table.position_before(table.end_offset)


async def skip_to(partition: Partition, request: m.SkipTo) -> None:
    """Acknowledge everything before ``offset`` or ``position`` (without either: the whole backlog),
    durably."""
    await _subscription(partition, request.name)
    end = partition.log.end_offset
    if request.position is not None:
        offset = _at_or_after(partition, request.position)
    else:
        offset = end if request.offset is None else min(request.offset, end)
    await partition.log.sync()
    await partition.subscriptions.ask_subscription(request.name, SkipTo(end, offset))
    partition.maintenance.touched(request.name)


async def plan_undo(partition: Partition, request: m.PlanUndo) -> dict[str, Any] | None:
    """What `undo` would change: back to after event ``sequence``, to time ``at_ms`` or, without
    either, to before the last move. None if the cursor hasn't moved since."""
    name = request.name
    await _subscription(partition, name)
    plan = await partition.cursors.plan_undo(name, [request.sequence, request.at_ms])
    return None if plan is None else {"topic": partition.topic, **plan}


async def undo(partition: Partition, request: m.Undo) -> dict[str, Any]:
    """Undo moves of a subscription's cursor, back to after event ``sequence``.

    An undo is a move itself, so repeating it without an event would undo it.
    """
    name = request.name
    await _subscription(partition, name)
    found = await partition.cursors.undo(name, [request.sequence, None])
    partition.maintenance.touched(name)
    return {"topic": partition.topic, **found}


async def expire(partition: Partition, request: m.Expire) -> None:
    """Expire a subscription's messages that are older than ``age_ms``."""
    await partition.maintenance.expire(request.name, request.age_ms)


async def peek(partition: Partition, request: m.Peek) -> m.Entry | None:
    """The ``number``-th (from 1) un-acknowledged entry of a subscription, or None."""
    offset = await find_unacked(partition, m.FindUnacked(request.name, request.number))
    if offset is None:
        return None
    return await described_entry(partition.log, offset)


async def unacked_entries(partition: Partition, request: m.UnackedEntries) -> m.Unacked:
    """The first ``most`` entries from offset ``first`` on that a subscription hasn't acknowledged.

    ``next`` is the offset to continue at; None at the end. Delayed and delivered entries are
    included.
    """
    refuse_sealed(partition.log.sealing, SHOWN_BY_CONSUMERS)
    name, first, most = request.name, request.first, request.most
    await _subscription(partition, name)
    end = partition.log.end_offset
    flat = await partition.subscriptions.ask_subscription(name, GetUnacked(first, most, end))
    ranges = map(range, flat[::2], flat[1::2])
    offsets = [offset for each in ranges for offset in each]
    entries: list[tuple[m.Id, bytes, bytes]] = []
    for offset in offsets:
        with contextlib.suppress(NoSuchEntryError):  # it was acknowledged meanwhile, and trimmed
            metadata, payload = split_entry((await partition.log.entry(offset)).data)
            found = _id(partition, partition.log.position_of(offset))
            entries.append((found, metadata.SerializeToString(), bytes(payload)))
    return {"entries": entries, "next": offsets[-1] + 1 if len(offsets) >= most else None}


async def has_subscription(partition: Partition, request: m.HasSubscription) -> None:
    """Raise `RemoteError` (NOT_FOUND) if the subscription of this name and incarnation was deleted.

    A superseded activation never answers it.
    """
    found = await partition.read_certain(lambda state: state.subscriptions.get(request.name))
    if found is None or found.ref.incarnation != request.incarnation:
        raise RemoteError(
            Reason.NOT_FOUND, f"subscription {request.name!r} of {partition.topic} was deleted"
        )


async def resume_dead_letters(partition: Partition, request: m.ResumeDeadLetters) -> None:
    """Resume publishing the dead letters that a subscription decided on before a crash."""
    await partition.subscriptions.resume_dead_letters(request.name, request.incarnation)


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.Subscriptions: subscriptions,
    m.SubscriptionProperties: subscription_properties,
    m.Subscription: subscription,
    m.CreateSubscription: create_subscription,
    m.DeleteSubscription: delete_subscription,
    m.SetReplicated: set_replicated,
    m.SetProperties: set_properties,
    m.Seek: seek,
    m.FindUnacked: find_unacked,
    m.Whereabouts: message_status,
    m.SkipTo: skip_to,
    m.PlanUndo: plan_undo,
    m.Undo: undo,
    m.Expire: expire,
    m.Peek: peek,
    m.UnackedEntries: unacked_entries,
    m.HasSubscription: has_subscription,
    m.ResumeDeadLetters: resume_dead_letters,
}

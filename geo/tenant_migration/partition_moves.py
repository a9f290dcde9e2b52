"""Requests of a migration to partitions of its source and of its target."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from velaray.actors.partition.remote_transactions import is_remote
from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import Runtime
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.geo_replication import Handler
from velaray.broker.subscription.messages import GetPendingTransactions, GetStats
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import Position, TransactionId
from velaray.geo.tenant_migration import messages as m
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message, ReplyT, Request
from velaray.wire.replication import REPLICATOR_PREFIX, replicator_subscription
from velaray.wire.stamping import PassedOver, judge


class Subscriptions(Protocol):
    """What a migration needs of the table of subscriptions."""

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""


class Log(Protocol):
    """What a migration needs of the partition's log."""

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...

    async def entry(self, offset: int) -> CachedEntry:
        """Read an entry."""
        ...


class Partition(Protocol):
    """What a migration needs of the partition."""

    actor_system: ActorSystem
    policies: TopicPolicies
    runtime: Runtime[PartitionState]

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


class Fence(Protocol):
    """What a migration needs of the partition's fence."""

    async def be_quiet(self) -> None:
        """Pause delivery, and wait for acknowledgements in transit."""

    async def put_up(self, migration: int) -> None:
        """Put up the fence, and wait until everything before it is durable."""

    async def take_down(self, migration: int) -> None:
        """Take the fence down after a rollback."""


class Progress(Protocol):
    """What a migration needs of the progress of other clusters' subscriptions."""

    async def take(self, source: str, raw: bytes) -> None:
        """Apply a part of the progress of a subscription of ``source``, durably."""


class Transactions(Protocol):
    """What a migration needs of the transactions of other clusters."""

    async def settle(self) -> dict[str, str]:
        """Report all complete transactions; return the errors, by transaction."""
        ...


def _durable(state: PartitionState) -> dict[str, dict[str, str]]:
    return {
        name: dict(known.properties)
        for name, known in sorted(state.subscriptions.items())
        if not name.startswith(REPLICATOR_PREFIX)
    }


async def extent(partition: Partition, request: m.Extent) -> m.Moving:
    """Answer `Extent`."""

    def look(state: PartitionState) -> m.Moving:
        covered = state.compactions.current is not None
        return {
            "entries": state.end_offset,
            "subscriptions": _durable(state),
            "terminated": state.terminated,
            "replicators": sorted(
                name for name in state.subscriptions if name.startswith(REPLICATOR_PREFIX)
            ),
            "only_compacted": covered and bool(state.table.gone_ranges()),
        }

    return await partition.runtime.read(look)


async def remaining(partition: Partition, request: m.Remaining) -> int:
    """Answer `Remaining`."""
    cluster = request.cluster
    name = replicator_subscription(cluster)
    stats = await partition.subscriptions.ask_subscription(name, GetStats(partition.log.end_offset))
    untold = await partition.runtime.read(
        lambda state: sum(cluster in each.waiting for each in state.outgoing.by_number.values())
    )
    backlog: int = stats["backlog"]
    return backlog + untold


def _is_hidden(offset: int, state: PartitionState) -> bool:
    return offset in state.transactions.hidden


async def tail(partition: Partition, request: m.Tail) -> Position | None:
    """Answer `Tail`."""
    target, ttl_ms = request.cluster, partition.policies.ttl_ms
    too_old_ms = partition.actor_system.clock_ms() - ttl_ms if ttl_ms else 0
    state = partition.runtime.state
    at = state.end_offset
    while (at := state.table.kept_before(at)) >= state.first_offset:
        if await partition.runtime.look(partial(_is_hidden, at)):
            continue
        judged = judge(
            bytes((await partition.log.entry(at)).data), target, too_old_ms, everything=True
        )
        if judged is PassedOver.EXPIRED:
            return None  # earlier entries are older still
        if not isinstance(judged, PassedOver):
            return partition.log.position_of(at)
    return None


async def open_transactions(
    partition: Partition, request: m.OpenTransactions
) -> list[TransactionId]:
    """Answer `OpenTransactions`."""
    found = await partition.runtime.read(lambda state: set(state.transactions.ongoing))
    for name in await partition.runtime.read(_durable):
        pending = await partition.subscriptions.ask_subscription(name, GetPendingTransactions())
        found |= {TransactionId(*each) for each in pending}
    return sorted(found)


async def settle_transactions(
    partition: Partition, transactions: Transactions, request: m.SettleTransactions
) -> str:
    """Answer `SettleTransactions`."""
    untold = await transactions.settle()
    if untold:
        return "; ".join(sorted(set(untold.values())))
    open_ones = await partition.runtime.read(
        lambda state: [each for each in state.transactions.ongoing if is_remote(each)]
    )
    return f"{len(open_ones)} transactions aren't complete" if open_ones else ""


async def be_quiet(fence: Fence, request: m.BeQuiet) -> None:
    """Answer `BeQuiet`."""
    await fence.be_quiet()


async def put_up(fence: Fence, request: m.Fence) -> None:
    """Answer `Fence`."""
    await fence.put_up(request.migration)


async def take_down(fence: Fence, request: m.Unfence) -> None:
    """Answer `Unfence`."""
    await fence.take_down(request.migration)


async def take_progress(progress: Progress, request: m.TakeProgress) -> None:
    """Answer `TakeProgress`."""
    for part in request.parts:
        await progress.take(request.source, part)


def handlers(
    partition: Partition,
    fence: Fence,
    progress: Progress,
    transactions: Transactions,
) -> dict[type[Message], Handler]:
    """The requests of a migration."""
    return {
        m.BeQuiet: partial(be_quiet, fence),
        m.Fence: partial(put_up, fence),
        m.Unfence: partial(take_down, fence),
        m.Extent: partial(extent, partition),
        m.Remaining: partial(remaining, partition),
        m.Tail: partial(tail, partition),
        m.OpenTransactions: partial(open_transactions, partition),
        m.SettleTransactions: partial(settle_transactions, partition, transactions),
        m.TakeProgress: partial(take_progress, progress),
    }

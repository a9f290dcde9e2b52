"""The statistics of a partition, its producers and its subscriptions."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from typing import Any, Protocol

from velaray.actors.partition.state import PartitionState, Subscription
from velaray.actors.runtime import Runtime
from velaray.broker.partition import messages as m
from velaray.broker.partition.compactor import Compactor
from velaray.broker.partition.entries import EntryCache
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.partition.partition_clients import (
    DescribedProducer,
    producer_stats,
    with_clients,
)
from velaray.broker.partition.partition_metrics import PartitionMetrics
from velaray.broker.partition.sealing import Sealing
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.messages import GetStats, GetUnacked, Stats
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import Position
from velaray.topology.messages import Message, ReplyT, Request


class Log(Protocol):
    """What the statistics need of the partition's log."""

    cache: EntryCache
    failed_reads: int
    partition_index: int
    sealing: Sealing | None

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...

    def clock_ms(self) -> int:
        """Return wall-clock milliseconds."""
        ...


class Subscriptions(Protocol):
    """What the statistics need of the table of subscriptions."""

    channels: dict[str, SubscriptionChannel]

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher."""


class Clients(Protocol):
    """What the statistics need of the partition's clients."""

    def producers(self) -> Collection[DescribedProducer]:
        """Return the connected producers."""
        ...


class Partition(Protocol):
    """What the statistics need of a partition."""

    topic: str
    runtime: Runtime[PartitionState]
    policies: TopicPolicies
    maintenance: Maintenance
    compactor: Compactor
    meter: PartitionMetrics
    geo: GeoReplication

    @property
    def clients(self) -> Clients:
        """The clients."""
        ...

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


async def _cursor_stats(partition: Partition, subscription: Subscription) -> dict[str, Any]:
    name, end = subscription.ref.name, partition.log.end_offset
    stats = await partition.subscriptions.ask_subscription(name, GetStats(end))
    mark = partition.runtime.state.table.position_before(stats["acked_before"])
    return {
        **_with_clients(partition, name, stats),
        "backlog_bytes": partition.maintenance.backlog.bytes_from(stats["acked_before"]),
        "mark_delete": [mark.ledger_id, mark.entry_id, partition.log.partition_index],
        "properties": subscription.properties,
        "durable": True,
    }


def _with_clients(partition: Partition, name: str, stats: Stats) -> dict[str, Any]:
    channel = partition.subscriptions.channels.get(name)
    delivered = partition.meter.delivered(name)
    return with_clients(channel, delivered, stats, partition.log.clock_ms())


def _log_stats(state: PartitionState, end_offset: int) -> dict[str, Any]:
    return {
        "entries": sum(run.entries for run in state.table.runs(0, end_offset)),
        "first_offset": state.first_offset,
        "first_position": list(_first_position(state)),
        "trimmed": dict(state.trimmed),
        "end_offset": end_offset,
        "terminated": state.terminated,
        "topic_epoch": state.topic_epoch,
        "skipped": state.skipped.size(),
        "ongoing": len(state.transactions.ongoing),
        "ledgers": [
            {"ledger_id": run.ledger_id, "entries": run.entries}
            for run in state.table.runs(state.first_offset, end_offset)
        ],
    }


def _first_position(state: PartitionState) -> Position:
    """The position of the first entry; of the next one to be stored if the log is empty."""
    if state.first_offset < state.end_offset:
        return state.table.position_of(state.first_offset)
    return state.table.next_position() or Position(-1, -1)


async def _backlog_stats(partition: Partition, marks: list[int]) -> dict[str, Any]:
    """The backlog of the slowest durable subscription, and the quota that applies to it."""
    maintenance, slowest = partition.maintenance, min(marks, default=partition.log.end_offset)
    return {
        "retained_bytes": maintenance.backlog.bytes_from(0),
        "backlog_bytes": maintenance.backlog.bytes_from(slowest),
        "oldest_backlog_ms": await maintenance.backlog.age_ms(slowest),
        "held_back": None if maintenance.held_back is None else str(maintenance.held_back),
        "policies": dict(partition.policies.raw),
    }


async def stats(partition: Partition, request: m.Stats) -> dict[str, Any]:
    """Counters of the log, its producers and its subscriptions."""
    end_offset = partition.log.end_offset
    log = await partition.runtime.read(lambda state: _log_stats(state, end_offset))
    durable = await partition.runtime.read(lambda state: sorted(state.subscriptions.items()))
    subscriptions = {name: await _cursor_stats(partition, found) for name, found in durable}
    marks = [found["acked_before"] for found in subscriptions.values()]
    published, now_ms = partition.meter.published, partition.log.clock_ms()
    for name, channel in list(partition.subscriptions.channels.items()):
        if not channel.durable:
            stats = await channel.ask(GetStats(partition.log.end_offset))
            subscriptions[name] = {**_with_clients(partition, name, stats), "durable": False}
    return {
        "topic": partition.topic,
        **log,
        **await _backlog_stats(partition, marks),
        "producers": [
            producer_stats(producer, now_ms) for producer in partition.clients.producers()
        ],
        **published.speed(now_ms).told("in"),
        "messages_in": published.messages,
        "bytes_in": published.bytes,
        "published_ms": published.last_ms,
        "deduplicate": partition.policies.deduplicate,
        "subscriptions": subscriptions,
        "replication": await partition.geo.described(),
        "committed": partition.meter.committed,
        "aborted": partition.meter.aborted,
        "failed_reads": partition.log.failed_reads,
        "unreadable": {
            name: found
            for name, channel in partition.subscriptions.channels.items()
            if (found := channel.unreadable.described())
        },
        "cached_bytes": partition.log.cache.bytes_held,
        "compaction": await partition.compactor.stats(),
        **_erased(partition.log.sealing),
        "runtime": asdict(partition.runtime.stats),
    }


def _erased(sealing: Sealing | None) -> dict[str, int]:
    return {} if sealing is None else {"erased_messages": sealing.erased}


async def individually_acked(
    partition: Partition, request: m.IndividuallyAcked
) -> dict[str, list[tuple[int, int, int]]]:
    """The entries acknowledged beyond each durable subscription's mark-delete, as runs
    (ledger, first, last) within one ledger."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for name in await partition.runtime.read(lambda state: sorted(state.subscriptions)):
        end = partition.log.end_offset
        stats = await partition.subscriptions.ask_subscription(name, GetStats(end))
        if not stats["holes"]:
            found[name] = []
            continue
        mark = stats["acked_before"]
        unacked = await partition.subscriptions.ask_subscription(name, GetUnacked(mark, end, end))
        acked = itertools.pairwise([mark, *unacked, end])
        table = partition.runtime.state.table
        found[name] = [
            (run.ledger_id, run.first_entry, run.first_entry + run.entries - 1)
            for first, behind in itertools.islice(acked, 0, None, 2)
            for run in table.runs(first, behind)
        ]
    return found


HANDLERS: dict[type[Message], Callable[[Partition, Any], Awaitable[Any]]] = {
    m.Stats: stats,
    m.IndividuallyAcked: individually_acked,
}

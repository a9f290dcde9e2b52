"""Replication status and metrics of a partition: one row for each other cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from velaray.broker.partition.maintenance import Maintenance
from velaray.broker.subscription.messages import GetStats
from velaray.events.ids import ActorKey
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.messages import ReplyT, Request
from velaray.topology.metrics import Labels, Sample
from velaray.topology.transient import TRANSIENT
from velaray.wire.replication import replicator_subscription

UNKNOWN: dict[str, Any] = {
    "state": "starting",
    "connected": False,
    "reason": "",
    "oldest_ms": 0,
    "in_flight": 0,
    "entries": 0,
    "messages": 0,
    "bytes": 0,
    "duplicates": 0,
    "passed_over": {},
    "rate_out": 0.0,
    "throughput_out": 0.0,
    "markers": 0,
    "progress_pending_since_ms": 0,
    "progress_reason": "",
}
"""The status of a replicator that doesn't answer."""


class Subscriptions(Protocol):
    """What the status needs of the table of subscriptions."""

    async def ask_subscription(self, name: str, request: Request[ReplyT]) -> ReplyT:
        """Call a subscription's dispatcher, connected or not."""


class Log(Protocol):
    """What the status needs of the partition's log."""

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class Replicators(Protocol):
    """What the status needs of the partition's replicators."""

    @property
    def remotes(self) -> list[str]:
        """The clusters that the topic is replicated to."""
        ...

    async def status(self, name: str) -> dict[str, Any] | None:
        """The status of a replicator; None if it doesn't answer."""

    def received(self, name: str) -> dict[str, float]:
        """The rate of entries from another cluster."""
        ...


class Partition(Protocol):
    """What the status needs of the partition."""

    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    maintenance: Maintenance

    @property
    def log(self) -> Log:
        """The log."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


async def replication(partition: Partition, replicators: Replicators) -> dict[str, dict[str, Any]]:
    """By the name of the other cluster: the replicator's state and, if it is blocked, the reason;
    its backlog; the age of the oldest entry that isn't confirmed there, and of the oldest
    subscription progress that isn't."""
    return {
        name: await _described(partition, replicators, name) for name in sorted(replicators.remotes)
    }


async def _described(partition: Partition, replicators: Replicators, name: str) -> dict[str, Any]:
    now_ms = partition.actor_system.clock_ms()
    found = {**UNKNOWN, **(await replicators.status(name) or {})}
    mark, entries = 0, 0
    with suppress(*TRANSIENT):
        end = partition.log.end_offset
        stats = await partition.subscriptions.ask_subscription(
            replicator_subscription(name), GetStats(end)
        )
        mark, entries = stats["acked_before"], stats["backlog"]
    if not entries:
        lag_ms = 0
    elif found["oldest_ms"]:
        lag_ms = now_ms - found["oldest_ms"]
    elif found["connected"]:
        lag_ms = 0  # everything is confirmed and about to be acknowledged
    else:
        lag_ms = await partition.maintenance.backlog.age_ms(mark)
    since_ms = found.pop("progress_pending_since_ms")
    del found["oldest_ms"]
    return {
        **found,
        **replicators.received(name),
        "backlog": entries,
        "backlog_bytes": partition.maintenance.backlog.bytes_from(mark) if entries else 0,
        "lag_ms": max(lag_ms, 0),
        "progress_lag_ms": max(now_ms - since_ms, 0) if since_ms else 0,
    }


async def replication_samples(partition: Partition, replicators: Replicators) -> list[Sample]:
    """Metrics of replicators, with Pulsar's names where it has them."""
    labels = Labels(partition.config.name, partition.key)
    samples = []
    for name, found in (await replication(partition, replicators)).items():
        values = {
            "pulsar_replication_rate_in": found["rate_in"],
            "pulsar_replication_rate_out": found["rate_out"],
            "pulsar_replication_throughput_in": found["throughput_in"],
            "pulsar_replication_throughput_out": found["throughput_out"],
            "pulsar_replication_backlog": found["backlog"],
            "pulsar_replication_connected_count": int(found["connected"]),
            "pulsar_replication_delay_in_seconds": found["lag_ms"] / 1000,
            "velaray_replication_backlog_bytes": found["backlog_bytes"],
            "velaray_replication_entries_total": found["entries"],
            "velaray_replication_duplicates_total": found["duplicates"],
            "velaray_replication_passed_over_total": sum(found["passed_over"].values()),
            "velaray_replication_progress_lag_seconds": found["progress_lag_ms"] / 1000,
        }
        labelled = {**labels.of_topic(), "remote_cluster": name}
        samples += [Sample(metric, labelled, value) for metric, value in values.items()]
    return samples

"""The metrics of a partition: its traffic, its log, and its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from velaray.actors.partition.state import PartitionState
from velaray.actors.runtime import LATENCY_CLASSES_S, Runtime
from velaray.broker.history import PointInTime, state_at
from velaray.broker.partition.backlog import Backlog
from velaray.broker.partition.entries import EntryCache
from velaray.broker.partition.geo_replication import GeoReplication
from velaray.broker.partition.subscription_channel import SubscriptionChannel
from velaray.broker.subscription.dispatcher_details import pending_stats
from velaray.broker.subscription.messages import (
    ExpireEntries,
    ForgetMessages,
    GetStats,
    ResetCursor,
    SkipTo,
    UndoMoves,
)
from velaray.events.ids import ActorKey
from velaray.journal.errors import JournalError, NotStored
from velaray.journal.journal import Journal
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import ClusterConfig
from velaray.topology.flow import Activity, Flow, Speed
from velaray.topology.histograms import ClassRates, histogram
from velaray.topology.messages import Request
from velaray.topology.metrics import (
    LATENCY_NAMES,
    LATENCY_STEPS_MS,
    WRITE_LATENCY,
    Labels,
    Rates,
    Sample,
    Traffic,
)
from velaray.topology.transient import TRANSIENT

_TOPIC_RATES = ("in", "in bytes", "out", "out bytes", "entries", *LATENCY_NAMES)
_SUBSCRIPTION_RATES = ("again", "out", "out bytes", "expired")
READ_AT_ONCE = 4
"""The number of subscriptions without consumers that are read from disk at the same time."""
DISPATCHER_S = 1.0
"""The time limit of a subscription's answer; after that its last known values are used."""


class Clients(Protocol):
    """The part of the partition's clients that the metrics read."""

    def producers(self) -> Collection[object]:
        """Return the connected producers."""
        ...


class Partition(Protocol):
    """The part of a partition that the metrics read."""

    key: ActorKey
    config: ClusterConfig
    actor_system: ActorSystem
    runtime: Runtime[PartitionState]
    geo: GeoReplication

    @property
    def clients(self) -> Clients:
        """The clients."""
        ...


class Log(Protocol):
    """What the metrics read of the partition's log."""

    backlog: Backlog
    cache: EntryCache
    failed_reads: int

    @property
    def end_offset(self) -> int:
        """The offset after the newest durable entry."""
        ...


class PartitionMetrics:
    """Counts for one activation of a partition, and turns counts into samples."""

    def __init__(
        self,
        partition: Partition,
        log: Log,
        channels: Mapping[str, SubscriptionChannel],
        published: Flow,
    ) -> None:
        """``channels``: the open channels, by subscription; ``published``: the entries that clients
        published."""
        self._partition = partition
        self._log = log
        self._channels = channels
        self._labels = Labels(partition.config.name, partition.key)
        now_ms = partition.actor_system.clock_ms()
        self.published = published
        self.committed = 0  # ended transactions with entries here
        self.aborted = 0
        self._before: dict[str, Traffic] = {}  # counts of closed channels, by subscription
        self._activity: dict[str, Activity] = {}  # likewise
        self._known: dict[str, dict[str, Any]] = {}  # the last answer of each subscription
        self._rates = Rates(now_ms / 1000)
        self._first: int | None = None  # the end of the log at the first scrape
        self._latency_rates = ClassRates(LATENCY_NAMES, LATENCY_STEPS_MS, self._rates)

    def closed(self, channel: SubscriptionChannel) -> None:
        """Keep the counts of a closed channel. Its subscription's newest values are then read from
        the journal."""
        self.changed(channel.name)
        if channel.durable:
            self._before.setdefault(channel.name, Traffic()).add(channel.traffic)
            self._activity.setdefault(channel.name, Activity()).add(channel.activity)

    def changed(self, name: str) -> None:
        """Discard the known values of a subscription without a channel."""
        self._known.pop(name, None)

    def transaction_ended(self, *, commit: bool) -> None:
        """Count a verdict of a transaction with entries here."""
        if commit:
            self.committed += 1
        else:
            self.aborted += 1

    async def samples(self) -> list[Sample]:
        """The current samples. Asks the dispatchers of connected subscriptions."""
        partition = self._partition
        await asyncio.gather(*(self._ask(channel) for channel in self._channels.values()))
        durable = set(partition.runtime.state.subscriptions)
        for name in sorted(durable - self._known.keys() - self._channels.keys())[:READ_AT_ONCE]:
            await self._read(name)
        # From here on nothing waits: a channel that closes meanwhile would be counted twice.
        names = sorted(set(partition.runtime.state.subscriptions) | self._channels.keys())
        self._forget(names)
        now_s = partition.actor_system.clock_ms() / 1000
        found = self._of_topic(now_s, len(names))
        backlog = out = out_bytes = 0
        for name in names:
            traffic = self._delivered(name, self._channels.get(name))
            found += self._of_subscription(now_s, name, traffic)
            backlog += self._backlog(name) or 0
            out += traffic.messages
            out_bytes += traffic.bytes
        labels = self._labels.of_topic()
        rates = self._rates
        found += [
            Sample("pulsar_msg_backlog", labels, backlog),
            Sample("pulsar_rate_out", labels, rates.at(now_s, "out", out)),
            Sample("pulsar_throughput_out", labels, rates.at(now_s, "out bytes", out_bytes)),
        ]
        return found + await partition.geo.samples()

    def told(self, name: str, request: Request[Any], answer: Any) -> None:
        """Note that a subscription without a channel answered a request."""
        if isinstance(request, GetStats):
            self._known[name] = {**answer, "end_offset": request.end}
        elif isinstance(request, ResetCursor | SkipTo | ExpireEntries | ForgetMessages | UndoMoves):
            self.changed(name)  # until the next answer

    async def _read(self, name: str) -> None:
        """Read the values of a subscription that had no channel yet from its journal."""
        partition = self._partition
        end, ref = self._log.end_offset, partition.runtime.state.subscriptions[name].ref
        key = partition.key.of_subscription(name, ref.incarnation)
        try:
            state = (await state_at(partition.actor_system.store, key, PointInTime())).state
            cursor, pending = state.cursor, pending_stats(state)
            acked, backlog, expired = cursor.acked_before, cursor.backlog(end), dict(state.expired)
        except NotStored:  # it never ran
            acked, backlog, pending, expired = ref.start_offset, end - ref.start_offset, {}, {}
        except JournalError:
            return  # connecting to it reports the error; here it has no value
        known = {"acked_before": acked, "backlog": backlog, "end_offset": end, "delayed": 0}
        quiet = {"consumers": [], "blocked": False, "expired": expired}
        self._known[name] = {**known, **pending, **quiet}

    async def _ask(self, channel: SubscriptionChannel) -> None:
        end = self._log.end_offset
        try:
            async with asyncio.timeout(DISPATCHER_S):
                stats = await channel.ask(GetStats(end))
        except TRANSIENT:
            return  # it restarts, or its disk is slow: keep the last known values
        self._known[channel.name] = {**stats, "end_offset": end}

    def _forget(self, names: list[str]) -> None:
        for name in self._known.keys() - set(names):
            del self._known[name]
        for name in self._before.keys() - set(names):
            del self._before[name]
            del self._activity[name]
        kept = {f"{what}/{name}" for name in names for what in _SUBSCRIPTION_RATES}
        self._rates.keep_only({*_TOPIC_RATES, *kept})

    def _delivered(self, name: str, channel: SubscriptionChannel | None) -> Traffic:
        traffic = Traffic()
        if name in self._before:
            traffic.add(self._before[name])
        if channel is not None:
            traffic.add(channel.traffic)
        return traffic

    def _active(self, name: str, channel: SubscriptionChannel | None) -> Activity:
        activity = Activity()
        if name in self._activity:
            activity.add(self._activity[name])
        if channel is not None:
            activity.add(channel.activity)
        return activity

    def delivered(self, name: str) -> dict[str, Any]:
        """The counts of deliveries to a subscription's consumers, for the partition's
        statistics."""
        channel, now_ms = self._channels.get(name), self._partition.actor_system.clock_ms()
        traffic, activity = self._delivered(name, channel), self._active(name, channel)
        speed = Speed(0.0, 0.0, 0.0)
        if channel is not None:
            speed = channel.traffic.speed(now_ms)
        return {
            **speed.told("out"),
            "rate_again": speed.again,
            "messages": traffic.messages,
            "bytes": traffic.bytes,
            **activity.told(),
        }

    def _backlog(self, name: str) -> int | None:
        """The backlog of a subscription; None if unknown. Without a channel it changes only as
        `told`."""
        known = self._known.get(name)
        if known is None:
            return None
        return int(known["backlog"] + self._log.end_offset - known["end_offset"])

    def _of_topic(self, now_s: float, subscriptions: int) -> list[Sample]:
        partition, labels = self._partition, self._labels.of_topic()
        journal = partition.runtime.journal
        assert isinstance(journal, Journal)
        published, transactions = self.published, partition.runtime.state.transactions
        end, stored = self._log.end_offset, sum(info.bytes for info in journal.ledgers)
        if self._first is None:
            self._first = end
        durable = self._known.keys() & partition.runtime.state.subscriptions.keys()
        slowest = min((self._known[name]["acked_before"] for name in durable), default=end)
        gauges = {
            "pulsar_subscriptions_count": subscriptions,
            "pulsar_producers_count": len(partition.clients.producers()),
            "pulsar_consumers_count": sum(
                len(channel.consumers) for channel in self._channels.values()
            ),
            "pulsar_rate_in": self._rates.at(now_s, "in", published.messages),
            "pulsar_throughput_in": self._rates.at(now_s, "in bytes", published.bytes),
            "pulsar_in_messages_total": published.messages,
            "pulsar_in_bytes_total": published.bytes,
            "pulsar_storage_size": stored,
            "pulsar_storage_logical_size": stored,
            "pulsar_storage_offloaded_size": sum(
                info.bytes for info in journal.ledgers if info.offloaded_ms
            ),
            "pulsar_storage_backlog_size": self._log.backlog.bytes_from(slowest),
            "pulsar_storage_write_rate": self._rates.at(now_s, "entries", end - self._first),
            "pulsar_txn_tb_active_total": len(transactions.ongoing),
            "pulsar_txn_tb_committed_total": self.committed,
            "pulsar_txn_tb_aborted_total": self.aborted,
            "velaray_topic_entries": sum(
                run.entries for run in partition.runtime.state.table.runs(0, end)
            ),
            "velaray_topic_ongoing_transactions": len(transactions.ongoing),
            "velaray_topic_hidden_entries": transactions.hidden.size(),
            "velaray_topic_committed_transactions_total": self.committed,
            "velaray_topic_aborted_transactions_total": self.aborted,
            "velaray_topic_failed_reads_total": self._log.failed_reads,
            "velaray_cached_bytes": self._log.cache.bytes_held,
        }
        found = [Sample(name, labels, value) for name, value in gauges.items()]
        stats = partition.runtime.stats
        return [
            *found,
            *histogram(WRITE_LATENCY, labels, LATENCY_CLASSES_S, stats.latency, stats.latency_s),
            *self._latency_rates.samples(now_s, labels, LATENCY_CLASSES_S, stats.latency),
        ]

    def _of_subscription(self, now_s: float, name: str, traffic: Traffic) -> list[Sample]:
        labels = self._labels.of_subscription(name)
        channel = self._channels.get(name)

        def rate(what: str, total: float) -> float:
            return self._rates.at(now_s, f"{what}/{name}", total)

        values: dict[str, float] = {
            "pulsar_out_messages_total": traffic.messages,
            "pulsar_out_bytes_total": traffic.bytes,
            "pulsar_subscription_msg_rate_out": rate("out", traffic.messages),
            "pulsar_subscription_msg_throughput_out": rate("out bytes", traffic.bytes),
            "pulsar_subscription_msg_rate_redeliver": rate("again", traffic.again),
            "pulsar_subscription_consumers_count": len(channel.consumers) if channel else 0,
        }
        for what, at_ms in self._active(name, channel).times().items():
            values[f"pulsar_subscription_last_{what}_timestamp"] = at_ms
        backlog, known = self._backlog(name), self._known.get(name)
        if known is not None and backlog is not None:
            values["pulsar_subscription_back_log"] = backlog
            values["pulsar_subscription_back_log_no_delayed"] = backlog - known["delayed"]
            values["pulsar_subscription_delayed"] = known["delayed"]
            expired = sum(known["expired"].values())
            values["pulsar_subscription_total_msg_expired"] = expired
            values["pulsar_subscription_msg_rate_expired"] = rate("expired", expired)
            for what in ("pending_transactions", "pending_entries"):
                values[f"velaray_subscription_{what}"] = known.get(what, 0)
            unacked = sum(each["unacked"] for each in known["consumers"]) if channel else 0
            values["pulsar_subscription_unacked_messages"] = unacked
            blocked = channel is not None and known["blocked"]
            values["pulsar_subscription_blocked_on_unacked_messages"] = int(blocked)
        return [Sample(metric, labels, value) for metric, value in values.items()]

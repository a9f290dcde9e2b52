"""Metrics of actors: names, labels and values. Pulsar's names are used where Pulsar has the metric.

An actor computes its samples when they are requested; otherwise it only keeps counters. Values are
current, at most one commit ahead of the disk. Counters begin at 0 when an actor starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from velaray.actors.runtime import Stats
from velaray.events.ids import ActorKey, ActorKind
from velaray.topology.flow import Flow

RATE_WINDOW_S = 10.0
"""Rates are means over at least this long."""

LATENCY_STEPS_MS = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
"""Upper bounds of Pulsar's classes of storage write latency; the last class has none."""

EXECUTION_STEPS_MS = (
    *(10.0, 20.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 15_000.0, 30_000.0, 60_000.0),
    *(300_000.0, 1_500_000.0, 3_000_000.0),
)
"""Upper bounds of Pulsar's classes of transaction duration."""

WRITE_LATENCY = "velaray_storage_write_latency_seconds"
EXECUTION_LATENCY = "velaray_txn_execution_latency_seconds"
COMMIT_LATENCY = "velaray_txn_commit_latency_seconds"


def _classes(metric: str, steps: Sequence[float]) -> tuple[str, ...]:
    """Pulsar's names for classes with these upper bounds, and for one without."""
    ends = [str(int(step)) if step == int(step) else f"{step:g}" for step in steps]
    return (*(f"{metric}_le_{end}".replace(".", "_") for end in ends), f"{metric}_overflow")


LATENCY_NAMES = _classes("pulsar_storage_write_latency", LATENCY_STEPS_MS)
EXECUTION_NAMES = _classes("pulsar_txn_execution_latency", EXECUTION_STEPS_MS)


class Kind(StrEnum):
    """The type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    UNTYPED = "untyped"
    """Pulsar's counters whose names don't end as Prometheus requires."""
    HISTOGRAM = "histogram"
    """Its samples are those of `PARTS`."""


class Sample(NamedTuple):
    """One value; between processes it is a list of the three."""

    name: str
    labels: dict[str, str]
    value: float


class About(NamedTuple):
    """The description of a metric."""

    kind: Kind
    help: str


def _gauge(text: str) -> About:
    return About(Kind.GAUGE, text)


def _counter(text: str) -> About:
    return About(Kind.COUNTER, text)


def _histogram(text: str) -> About:
    return About(Kind.HISTOGRAM, text)


METRICS: Mapping[str, About] = {
    "pulsar_topics_count": _gauge("Topic partitions that are active now."),
    "pulsar_subscriptions_count": _gauge("Subscriptions of the topic."),
    "pulsar_producers_count": _gauge("Connected producers."),
    "pulsar_consumers_count": _gauge("Connected consumers."),
    "pulsar_rate_in": _gauge("Messages published per second."),
    "pulsar_rate_out": _gauge("Messages delivered per second."),
    "pulsar_throughput_in": _gauge("Bytes published per second."),
    "pulsar_throughput_out": _gauge("Bytes delivered per second."),
    "pulsar_in_messages_total": _counter("Messages published."),
    "pulsar_in_bytes_total": _counter("Bytes published."),
    "pulsar_out_messages_total": _counter("Messages delivered."),
    "pulsar_out_bytes_total": _counter("Bytes delivered, with the frames' headers."),
    "pulsar_storage_size": _gauge("Bytes that the topic's ledgers hold."),
    "pulsar_storage_logical_size": _gauge("The same as pulsar_storage_size: there are no copies."),
    "pulsar_storage_offloaded_size": _gauge("Bytes of the ledgers that are in the archive."),
    "pulsar_storage_backlog_size": _gauge("Bytes after the mark of the slowest subscription."),
    "pulsar_storage_write_rate": _gauge("Entries written per second; a batch is one."),
    "pulsar_msg_backlog": _gauge("Entries un-acknowledged, of all subscriptions."),
    "pulsar_subscription_back_log": _gauge("Entries that aren't acknowledged."),
    "pulsar_subscription_back_log_no_delayed": _gauge(
        "Entries that aren't acknowledged and don't wait for their delivery time."
    ),
    "pulsar_subscription_unacked_messages": _gauge("Messages delivered and not acknowledged."),
    "pulsar_subscription_msg_rate_out": _gauge("Messages delivered per second."),
    "pulsar_subscription_msg_throughput_out": _gauge("Bytes delivered per second."),
    "pulsar_subscription_msg_rate_redeliver": _gauge("Entries delivered again per second."),
    "pulsar_subscription_delayed": _gauge("Entries that wait for their delivery time."),
    "pulsar_subscription_total_msg_expired": About(
        Kind.UNTYPED, "Entries acknowledged because they expired; a batch is one."
    ),
    "pulsar_subscription_msg_rate_expired": _gauge("Entries expired per second."),
    **{
        f"pulsar_subscription_last_{what}_timestamp": _gauge(
            f"When a consumer last {did}, in milliseconds since 1970; 0: never."
        )
        for what, did in {
            "consumed": "got a message",
            "acked": "acknowledged",
            "consumed_flow": "asked for messages",
        }.items()
    },
    "pulsar_subscription_consumers_count": _gauge("Connected consumers."),
    "pulsar_subscription_blocked_on_unacked_messages": _gauge(
        "1 while the limit of un-acknowledged messages stops the delivery, else 0."
    ),
    WRITE_LATENCY: _histogram("Time that records waited for their group commit."),
    **{
        name: _gauge(
            "Records written per minute within that many milliseconds (a class, not a sum)."
        )
        for name in LATENCY_NAMES
    },
    "pulsar_txn_active_count": _gauge("Transactions that haven't ended."),
    **{
        f"pulsar_txn_{what}_count": About(Kind.UNTYPED, f"The same as pulsar_txn_{what}_total.")
        for what in ("created", "committed", "aborted", "timeout")
    },
    "pulsar_txn_created_total": _counter("Transactions begun."),
    "pulsar_txn_committed_total": _counter(
        "Transactions committed, with all participants notified."
    ),
    "pulsar_txn_aborted_total": _counter("Transactions aborted, with all participants notified."),
    "pulsar_txn_timeout_total": _counter("Transactions aborted by their timeout."),
    EXECUTION_LATENCY: _histogram("Time from the begin of transactions to their end."),
    **{
        name: _gauge(
            "Transactions ended per minute within that many milliseconds (a class, not a sum)."
        )
        for name in EXECUTION_NAMES
    },
    COMMIT_LATENCY: _histogram("Time from requests to commit to their answers."),
    "velaray_txn_open": _gauge("Transactions that aren't decided."),
    "velaray_txn_ending": _gauge("Decided transactions whose participants are being notified."),
    "pulsar_txn_tb_active_total": About(
        Kind.UNTYPED, "Open transactions with entries in the topic."
    ),
    "pulsar_txn_tb_committed_total": _counter(
        "Committed transactions that had entries in the topic."
    ),
    "pulsar_txn_tb_aborted_total": _counter("Aborted transactions that had entries in the topic."),
    "velaray_topic_entries": _gauge("Entries that the topic's ledgers hold; a batch is one."),
    "velaray_topic_ongoing_transactions": _gauge("Open transactions with entries."),
    "velaray_topic_hidden_entries": _gauge(
        "Entries of aborted transactions, which are stored but never delivered."
    ),
    "velaray_topic_committed_transactions_total": _counter(
        "Committed transactions that had entries."
    ),
    "velaray_topic_aborted_transactions_total": _counter("Aborted transactions that had entries."),
    "velaray_topic_failed_reads_total": _counter(
        "Failed reads of entries: the stored entry is damaged or missing."
    ),
    "velaray_subscription_pending_transactions": _gauge("Transactions with acknowledgements."),
    "velaray_subscription_pending_entries": _gauge(
        "Entries acknowledged, as a whole or in part, in transactions that haven't ended."
    ),
    "velaray_journal_commits_total": _counter("Group commits."),
    "velaray_journal_commit_seconds_total": _counter("Time that group commits took."),
    "velaray_journal_events_total": _counter("Events made durable."),
    "velaray_journal_bytes_total": _counter("Bytes of events and blobs made durable."),
    "velaray_journal_rolls_total": _counter("Ledgers begun since the start."),
    "velaray_journal_refused_full_total": _counter("Commands refused by a full disk."),
    "velaray_commands_total": _counter("Commands decided."),
    "velaray_recovery_seconds": _gauge("How long the last recovery took."),
    "velaray_recovery_events": _gauge("Events that the last recovery replayed."),
    "velaray_cached_bytes": _gauge("Bytes of the newest entries that are held in memory."),
    "velaray_ledger_deletion_sent_total": _counter("Ledgers whose deletion was enqueued."),
    "velaray_ledger_deletion_received_total": _counter("Deletion events received."),
    "velaray_ledger_deletion_deleted_total": _counter("Ledgers deleted."),
    "velaray_ledger_deletion_gone_total": _counter("Events of ledgers that were already deleted."),
    "velaray_ledger_deletion_in_use_total": _counter(
        "Events of ledgers that are still in a manifest."
    ),
    "velaray_ledger_deletion_failed_total": _counter("Deletions that failed."),
    "velaray_ledger_deletion_retried_total": _counter("Events that are retried later."),
    "velaray_ledger_deletion_dead_total": _counter("Events that became dead letters."),
    "velaray_ledger_deletion_malformed_total": _counter("Messages that weren't valid events."),
    "velaray_ledger_deletion_forged_total": _counter("Events that name a ledger of another actor."),
    "velaray_ledger_deletion_acked_total": _counter("Events acknowledged."),
    "pulsar_replication_rate_in": _gauge("Messages from the other cluster per second."),
    "pulsar_replication_rate_out": _gauge("Messages to the other cluster per second."),
    "pulsar_replication_throughput_in": _gauge("Bytes from the other cluster per second."),
    "pulsar_replication_throughput_out": _gauge("Bytes to the other cluster per second."),
    "pulsar_replication_backlog": _gauge("Entries that the other cluster hasn't confirmed."),
    "pulsar_replication_connected_count": _gauge(
        "1 while the replicator is connected to the other cluster, else 0."
    ),
    "pulsar_replication_delay_in_seconds": _gauge(
        "Age of the oldest entry that the other cluster hasn't confirmed."
    ),
    "velaray_replication_backlog_bytes": _gauge("Bytes that the other cluster hasn't confirmed."),
    "velaray_replication_entries_total": _counter("Entries that the other cluster confirmed."),
    "velaray_replication_duplicates_total": _counter(
        "Entries that the other cluster confirmed and had already."
    ),
    "velaray_replication_passed_over_total": _counter("Entries that aren't for the other cluster."),
    "velaray_replication_progress_lag_seconds": _gauge(
        "Age of the oldest progress of a subscription that the other cluster hasn't confirmed."
    ),
    "velaray_pull_connected": _gauge(
        "1 while the inbound replicator is connected to the other cluster, else 0."
    ),
    "velaray_pull_backlog": _gauge(
        "Entries there that the inbound replicator hasn't acknowledged."
    ),
    "velaray_pull_delay_seconds": _gauge("Age of the oldest received entry that isn't stored yet."),
    "velaray_pull_rate": _gauge("Messages pulled per second."),
    "velaray_pull_throughput": _gauge("Bytes pulled per second."),
    "velaray_pull_entries_total": _counter("Entries pulled."),
    "velaray_pull_duplicates_total": _counter("Pulled entries that were here already."),
    "velaray_pull_passed_over_total": _counter("Entries there that are never pulled."),
    "velaray_actors": _gauge("Actors that run, by kind."),
    "velaray_host_actors": _gauge("Actors that run in the host."),
    "velaray_host_memory_bytes": _gauge("Resident memory of a process: a host, or the proxy."),
    "velaray_host_cpu_seconds_total": _counter("CPU time of a process: a host, or the proxy."),
    "velaray_host_loop_lag_seconds": _gauge(
        "Longest delay of the event loop of a host or the proxy within the last minute."
    ),
    "velaray_connections": _gauge("Connections of clients to a process: a host, or the proxy."),
    "velaray_connections_refused_total": _counter(
        "Connections that the process closed at once, because it had too many."
    ),
    "velaray_connections_shed_total": _counter(
        "Connections that the process closed because buffers took too much memory."
    ),
    "velaray_role_refusals_total": _counter(
        "Connections and requests that the process refused, because their role had too many."
    ),
    "velaray_memory_refusals_total": _counter(
        "Look-ups, producers and consumers that the process refused, because it was over "
        "--memory-budget."
    ),
    "velaray_received_buffer_bytes": _gauge("Bytes of buffers for what clients send."),
    "velaray_unsent_buffer_bytes": _gauge("Bytes that wait for clients that don't read."),
    "velaray_actors_silent": _gauge("Actors that run and didn't answer this scrape in time."),
    "velaray_disk_bytes": _gauge("The size of the file system of the data directory."),
    "velaray_disk_free_bytes": _gauge(
        "Free bytes in the file system of the data directory, for users without privileges."
    ),
    "velaray_tls_expiry_timestamp_seconds": _gauge(
        "When the certificate that the proxy presents expires, in seconds since 1970."
    ),
    "velaray_tls_files_refused": _gauge(
        "1 if the files of the certificate have changed and can't be used, so the former "
        "certificate stays in use; otherwise 0."
    ),
}

PARTS: Mapping[str, str] = {
    f"{name}_{part}": name
    for name, about in METRICS.items()
    if about.kind is Kind.HISTOGRAM
    for part in ("bucket", "count", "sum")
}
"""The histogram of each name that a histogram's samples have."""


class Traffic:
    """Sums of messages and bytes in one direction."""

    __slots__ = ("again", "bytes", "messages")

    def __init__(self) -> None:
        self.messages = self.bytes = 0
        self.again = 0  # redelivered entries

    def add(self, other: Traffic | Flow) -> None:
        """Add another sum."""
        self.messages += other.messages
        self.bytes += other.bytes
        self.again += other.again


class Received:
    """The traffic from one other cluster, and its rates."""

    def __init__(self, now_s: float) -> None:
        self._rates = Rates(now_s)
        self.traffic = Traffic()

    def rates(self, now_s: float) -> dict[str, float]:
        """Messages and bytes a second."""
        return {
            "rate_in": self._rates.at(now_s, "messages", self.traffic.messages),
            "throughput_in": self._rates.at(now_s, "bytes", self.traffic.bytes),
        }


class Rates:
    """Rates of totals, by name."""

    def __init__(self, now_s: float) -> None:
        self._began = now_s
        self._marks: dict[str, tuple[float, float, float]] = {}  # time, total, rate before

    def at(self, now_s: float, name: str, total: float) -> float:
        """Per second over the last full window; before there is one, since the start."""
        when, before, rate = self._marks.get(name, (self._began, 0.0, -1.0))
        elapsed = now_s - when
        if elapsed < RATE_WINDOW_S and rate >= 0:
            return rate
        mean = (total - before) / elapsed if elapsed > 0 else 0.0
        if elapsed >= RATE_WINDOW_S:
            self._marks[name] = (now_s, total, mean)
        return mean

    def keep_only(self, names: set[str]) -> None:
        """Drop the totals of other names."""
        self._marks = {name: mark for name, mark in self._marks.items() if name in names}


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one actor's samples."""

    cluster: str
    key: ActorKey

    def of_namespace(self) -> dict[str, str]:
        """Cluster and namespace; only the cluster outside of namespaces."""
        if not self.key.namespace:
            return {"cluster": self.cluster}
        return {"cluster": self.cluster, "namespace": f"{self.key.tenant}/{self.key.namespace}"}

    def of_topic(self) -> dict[str, str]:
        """Pulsar's labels of a topic; a partition counts as a topic."""
        if not self.key.topic:
            return self.of_namespace()
        return {**self.of_namespace(), "topic": str(self.key.topic_name)}

    def of_subscription(self, name: str) -> dict[str, str]:
        """Pulsar's labels of a subscription."""
        return {**self.of_topic(), "subscription": name}

    def of_coordinator(self) -> dict[str, str]:
        """Pulsar's labels of a transaction coordinator."""
        return {"cluster": self.cluster, "coordinator_id": str(self.key.partition)}

    def of_actor(self) -> dict[str, str]:
        """The labels that distinguish this actor from all other active ones."""
        if self.key.kind is ActorKind.COORDINATOR:
            return {**self.of_coordinator(), "kind": self.key.kind.value}
        if self.key.kind is ActorKind.GARBAGE_COLLECTOR:
            own = {"cluster": self.cluster, "deleter_id": str(self.key.partition)}
            return {**own, "kind": self.key.kind.value}
        labels = {**self.of_topic(), "kind": self.key.kind.value}
        if self.key.subscription:
            labels["subscription"] = self.key.subscription
        return labels


def runtime_samples(labels: dict[str, str], stats: Stats) -> list[Sample]:
    """The metrics of every actor with a journal."""
    found = {
        "velaray_journal_commits_total": stats.commits,
        "velaray_journal_commit_seconds_total": stats.commit_s,
        "velaray_journal_events_total": stats.events,
        "velaray_journal_bytes_total": stats.bytes,
        "velaray_journal_rolls_total": stats.rolls,
        "velaray_journal_refused_full_total": stats.refused_full,
        "velaray_commands_total": stats.commands,
        "velaray_recovery_seconds": stats.recovery_ms / 1000,
        "velaray_recovery_events": stats.replayed,
    }
    return [Sample(name, labels, value) for name, value in found.items()]

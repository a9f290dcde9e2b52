"""What Pulsar's usual dashboards for Grafana ask Prometheus for, by dashboard and panel.

Names and labels are those of Pulsar's reference of metrics. Dashboards select by Grafana's
variables ``$cluster``, ``$namespace`` and ``$topic``; those for Kubernetes also by the scrape job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

JOB = "broker"
"""The scrape job that Pulsar's dashboards for Kubernetes select."""

_CLUSTER = f'cluster=~"$cluster",job=~"{JOB}"'
_NAMESPACE = f'{_CLUSTER},namespace=~"$namespace"'
_TOPIC = 'cluster=~"$cluster",namespace=~"$namespace",topic=~"$topic"'
_BY_NAMESPACE = "cluster, namespace"
_BY_TOPIC = "cluster, namespace, topic"
_BY_SUBSCRIPTION = f"{_BY_TOPIC}, subscription"
_BY_REMOTE = "cluster, remote_cluster"

_LATENCY_MS = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")
_LATENCY = (*(f"le_{end}" for end in _LATENCY_MS), "overflow")
_BYTES = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
_SIZES = tuple(f"le_{end}" for end in _BYTES)
_EXECUTION_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)
_EXECUTION = tuple(f"le_{end}" for end in _EXECUTION_MS)


def _total(metric: str, where: str, by: str = "") -> str:
    """The sum of a metric's series: one, or one for each value of ``by``."""
    return f"sum{f' by ({by})' if by else ''} (pulsar_{metric}{{{where}}})"


def _totals(metrics: str, where: str, by: str = "") -> list[str]:
    """The sums of several metrics."""
    return [_total(metric, where, by) for metric in metrics.split()]


def _classes(metric: str, ends: Sequence[str], where: str) -> list[str]:
    """The classes of a distribution. Pulsar counts them by minute, and panels show seconds."""
    return [f"{_total(f'{metric}_{end}', where)} / 60" for end in ends]


def _rate(metric: str, where: str, by: str) -> str:
    """The increase of a counter by second."""
    return f"sum by ({by}) (rate(pulsar_{metric}{{{where}}}[$__rate_interval]))"


def _mean_latency(where: str, by: str) -> str:
    """The mean time of a write."""
    total, count = _totals("storage_write_latency_sum storage_write_latency_count", where, by)
    return f"{total} / {count}"


def _traffic(where: str, by: str) -> Iterator[tuple[str, list[str]]]:
    """The panels that dashboards of namespaces and of topics share."""
    yield "messages in and out", _totals("rate_in rate_out", where, by)
    yield "bytes in and out", _totals("throughput_in throughput_out", where, by)
    yield (
        "counters",
        [_rate(f"{what}_total", where, by) for what in ("in_messages", "in_bytes")]
        + [_rate(f"{what}_total", where, by) for what in ("out_messages", "out_bytes")],
    )
    yield "clients", _totals("subscriptions_count producers_count consumers_count", where, by)
    yield "backlog", _totals("msg_backlog storage_backlog_size", where, by)
    yield "storage", _totals("storage_size storage_offloaded_size", where, by)
    yield "storage without copies", [_total("storage_logical_size", where, by)]
    yield "writes and reads", _totals("storage_write_rate storage_read_rate", where, by)
    yield "write latency", _classes("storage_write_latency", _LATENCY, where)
    yield "mean write latency", [_mean_latency(where, by)]
    yield "entry size", _classes("entry_size", _SIZES, where)
    yield "acknowledgements", [_total("consumer_msg_ack_rate", where, by)]
    yield "delayed", [_total("subscription_delayed", where, by)]


def _replication(where: str, by: str) -> Iterator[tuple[str, list[str]]]:
    """The panels about other clusters."""
    for what in ("rate", "throughput"):
        yield (
            f"replication {what}",
            _totals(f"replication_{what}_in replication_{what}_out", where, by),
        )
    yield "replication backlog", [_total("replication_backlog", where, by)]
    yield "replicators", [_total("replication_connected_count", where, by)]
    yield (
        "replication delay",
        [f"max by ({by}) (pulsar_replication_delay_in_seconds{{{where}}})"],
    )


def _messaging() -> Iterator[tuple[str, list[str]]]:
    """One number for a cluster, or for the namespaces that the reader selects."""
    for metric in (
        *("topics_count", "producers_count", "subscriptions_count", "consumers_count"),
        *("rate_in", "rate_out", "throughput_in", "throughput_out"),
        *("storage_size", "storage_backlog_size", "msg_backlog"),
    ):
        yield metric, [_total(metric, _NAMESPACE)]
    for label in ("cluster", "namespace", "topic"):
        yield f"the variable {label}", [f"group by ({label}) (pulsar_rate_in{{{_CLUSTER}}})"]


def _topic() -> Iterator[tuple[str, list[str]]]:
    """The panels of one topic, or of those that the reader selects."""
    yield from _traffic(_TOPIC, _BY_TOPIC)
    busiest = _total("rate_in", _TOPIC, _BY_TOPIC)
    yield "busiest topics", [f"topk(10, {busiest})"]
    size, limit = _totals("storage_backlog_size storage_backlog_quota_limit", _TOPIC, _BY_TOPIC)
    yield "use of the backlog quota", [f"100 * {size} / {limit}"]
    yield "transactions", _totals("txn_tb_active_total", _TOPIC, _BY_TOPIC)
    ended = ("txn_tb_committed_total", "txn_tb_aborted_total")
    yield "ended transactions", [_rate(each, _TOPIC, _BY_TOPIC) for each in ended]
    yield from _replication(_TOPIC, _BY_REMOTE)


def _subscription() -> Iterator[tuple[str, list[str]]]:
    """The panels of the subscriptions of topics."""
    for panel, metrics in {
        "backlog": "back_log back_log_no_delayed delayed",
        "delivery": "msg_rate_out msg_throughput_out msg_rate_redeliver",
        "consumers": "consumers_count unacked_messages blocked_on_unacked_messages",
        "acknowledgements": "msg_ack_rate",
        "expiry": "msg_rate_expired total_msg_expired",
    }.items():
        names = " ".join(f"subscription_{each}" for each in metrics.split())
        yield panel, _totals(names, _TOPIC, _BY_SUBSCRIPTION)
    for what in ("consumed", "acked", "consumed_flow", "mark_delete_advanced", "expire"):
        metric = f"pulsar_subscription_last_{what}_timestamp"
        yield (
            _since(what),
            [f"time() - max by ({_BY_SUBSCRIPTION}) ({metric}{{{_TOPIC}}}) / 1000"],
        )


def _since(what: str) -> str:
    """The panel of the time since something happened to a subscription."""
    return f"time since {what}"


def _transaction() -> Iterator[tuple[str, list[str]]]:
    """The panels of transaction coordinators."""
    by = "cluster, coordinator_id"
    yield "active", [_total("txn_active_count", _CLUSTER, by)]
    for what in ("created", "committed", "aborted", "timeout"):
        yield what, [_rate(f"txn_{what}_count", _CLUSTER, by)]
    yield "duration", _classes("txn_execution_latency", _EXECUTION, _CLUSTER)


MESSAGING = "Pulsar's messaging"
PANELS: Mapping[tuple[str, str], Sequence[str]] = {
    (dashboard, panel): expressions
    for dashboard, panels in {
        MESSAGING: [*_messaging()],
        "Pulsar's namespaces": [
            *_traffic(_NAMESPACE, _BY_NAMESPACE),
            *_replication(_NAMESPACE, _BY_REMOTE),
        ],
        "Pulsar's topics": [*_topic()],
        "Pulsar's subscriptions": [*_subscription()],
        "Pulsar's transactions": [*_transaction()],
    }.items()
    for panel, expressions in panels
}
"""The expressions of each panel."""

NO_REPLICATION = "the cluster replicates nothing"


def _empty() -> Iterator[tuple[str, Sequence[str]]]:
    """Reasons, each with the expressions that are empty for it."""
    both = ((_NAMESPACE, _BY_NAMESPACE), (_TOPIC, _BY_TOPIC))
    for where, by in both:
        yield "sizes of single entries aren't counted", _classes("entry_size", _SIZES, where)
        yield (
            "entries are read from memory or from files, which isn't counted",
            [_total("storage_read_rate", where, by)],
        )
        yield (
            "`velaray_storage_write_latency_seconds_sum` and `_count` have it",
            [_mean_latency(where, by)],
        )
        yield (
            "acknowledgements aren't counted: the backlog shows them",
            [_total("consumer_msg_ack_rate", where, by)],
        )
        for _, expressions in _replication(where, _BY_REMOTE):
            yield NO_REPLICATION, expressions
    panels = dict(_subscription())
    yield "acknowledgements aren't counted: the backlog shows them", panels["acknowledgements"]
    for panel in ("mark_delete_advanced", "expire"):
        yield "this time isn't kept", panels[_since(panel)]
    yield (
        "the quota is a policy: `velaray policies get` shows it",
        dict(_topic())["use of the backlog quota"],
    )


EMPTY: Mapping[str, str] = {
    expression: reason for reason, expressions in _empty() for expression in expressions
}
"""The expressions that a cluster without replication doesn't fill, and why."""

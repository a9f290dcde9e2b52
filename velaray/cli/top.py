"""``velaray top``: the busiest topics."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from velaray.actors.catalog.machine import SYSTEM_TENANT
from velaray.cli.common import Output, table_of, with_admin
from velaray.client.admin import Admin, AdminError, PreconditionFailed
from velaray.events.ids import ActorKey, ActorKind, InvalidNameError, TopicName

_FIRST_S = 1.0
"""The time between the two readings of hosts of which the first table consists."""
_COLUMNS = {
    "topic": "TOPIC",
    "rateIn": "MSG/S IN",
    "rateOut": "MSG/S OUT",
    "bytesIn": "BYTES/S IN",
    "bytesOut": "BYTES/S OUT",
    "backlogEntries": "BACKLOG ENTRIES",
    "storedBytes": "STORED BYTES",
    "hostCpuPercent": "HOST CPU %",
}
_METRICS = {
    "rateIn": "pulsar_rate_in",
    "rateOut": "pulsar_rate_out",
    "bytesIn": "pulsar_throughput_in",
    "bytesOut": "pulsar_throughput_out",
    "backlogEntries": "pulsar_msg_backlog",
    "storedBytes": "pulsar_storage_size",
}
_ORDERS = {
    "rate": lambda row: row["rateIn"] + row["rateOut"],
    "backlog": lambda row: row["backlogEntries"],
    "cpu": lambda row: row["hostCpuPercent"] or 0,
}
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Reading:
    """The CPU time of hosts by process at a time, and by topic the processes that it runs in."""

    at: float
    cpu_s: Mapping[int, float]
    processes: Mapping[str, set[int]]

    def percent_of(self, topic: str, before: _Reading) -> int | None:
        """The CPU of the busiest process that runs a partition of the topic; None if it isn't
        known."""
        passed = self.at - before.at
        shares = [
            100 * (self.cpu_s[pid] - before.cpu_s[pid]) / passed
            for pid in self.processes.get(topic, ())
            if pid in before.cpu_s and passed
        ]
        return round(max(shares)) if shares else None


def _read_hosts(admin: Admin) -> _Reading:
    """What the hosts have used; nothing if the actors of this cluster share no hosts."""
    try:
        hosts = admin.hosts()
    except PreconditionFailed:
        hosts = []
    processes: dict[str, set[int]] = {}
    for host in hosts:
        for text in host["actors"]:
            key = ActorKey.parse(text)
            if key.kind is ActorKind.PARTITION:
                processes.setdefault(str(key.topic_name.topic), set()).add(host["pid"])
    return _Reading(monotonic(), {host["pid"]: host["cpu_s"] for host in hosts}, processes)


def _rows(admin: Admin, now: _Reading, before: _Reading) -> list[Row]:
    """A row for each topic of users that runs."""
    rows: dict[str, Row] = {}
    names = {"names": ",".join(_METRICS.values())}
    for each in admin.request("GET", "broker-stats/metrics", query=names):
        labels, values = each["dimensions"], each["metrics"]
        topic = _whole_topic(labels)
        if topic is None:
            continue
        row = rows.setdefault(topic, {"topic": topic, **dict.fromkeys(_METRICS, 0)})
        for field, metric in _METRICS.items():
            row[field] += round(values.get(metric, 0))
    return [{**row, "hostCpuPercent": now.percent_of(name, before)} for name, row in rows.items()]


def _whole_topic(labels: Mapping[str, str]) -> str | None:
    """The topic of metrics of a partition; None for other metrics and for topics of the system."""
    if not labels.get("topic") or labels.get("subscription") or "remote_cluster" in labels:
        return None
    try:
        name = TopicName.parse(labels["topic"])
    except InvalidNameError:
        return None
    return None if name.tenant == SYSTEM_TENANT else str(name.topic)


@click.command()
@click.option("--once", is_flag=True, help="Print one table and end, as in a pipe or with -o json.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(_ORDERS)),
    default="rate",
    show_default=True,
    help="What comes first.",
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=20, show_default=True, help="Show so many."
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two tables.",
)
@with_admin
def top(show: Output, admin: Admin, once: bool, order: str, count: int, interval: float) -> None:
    """Show the topics with the highest rates, backlogs or CPU, until Ctrl-C.

    Rates count messages, backlogs count entries: a batch is one entry. HOST CPU is that of the
    process that runs the topic, which other topics may share. Topics without clients aren't shown:
    they don't run.

    \b
    Examples:
      velaray top
      velaray top --once --sort backlog -n 5 -o json
    """
    pause = threading.Event()
    before = _read_hosts(admin)
    if before.cpu_s:
        pause.wait(_FIRST_S)

    def busiest() -> list[Row]:
        nonlocal before
        now = _read_hosts(admin)
        rows = sorted(_rows(admin, now, before), key=_ORDERS[order], reverse=True)[:count]
        before = now
        return rows

    if once or show.as_json or not sys.stdout.isatty():
        show.rows(_COLUMNS, busiest())
        return
    with Live(table_of(_COLUMNS, busiest()), console=Console(), screen=True) as live:
        while True:
            pause.wait(interval)
            try:
                live.update(table_of(_COLUMNS, busiest()))
            except AdminError as error:  # a cluster that restarts comes back
                live.update(Group(Text(str(error)), table_of(_COLUMNS, [])))

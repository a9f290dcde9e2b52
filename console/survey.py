"""Metrics of all running actors, gathered by one operation and shared between visits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from velaray.client.admin.admin import AdminCalls
from velaray.client.admin.calls import Asyncio
from velaray.client.admin.errors import Unavailable

FRESH_S = 2.0
"""Visits within so long share a survey."""
WAIT_S = 0.03
"""How long a page waits for a survey if there is none yet."""
SHARE = 10
"""The time between surveys, in times of a survey: they take a tenth of the time at most."""
KEPT_S = 60.0
"""How old the survey may be that a page shows meanwhile."""
_MOST_KEPT = 100

METRICS = (
    "pulsar_rate_in",
    "pulsar_rate_out",
    "pulsar_in_messages_total",
    "pulsar_msg_backlog",
    "pulsar_storage_size",
    "pulsar_producers_count",
    "pulsar_consumers_count",
    "pulsar_subscription_back_log",
    "pulsar_subscription_consumers_count",
    "velaray_actors_silent",
    "velaray_cached_bytes",
    "velaray_disk_bytes",
    "velaray_disk_free_bytes",
    "velaray_journal_refused_full_total",
    "velaray_recovery_events",
    "velaray_recovery_seconds",
    "velaray_subscription_pending_entries",
    "velaray_topic_entries",
    "velaray_topic_failed_reads_total",
)
"""The metrics that pages show. Actors have ten times as many, which would take long to read."""

Metrics = dict[str, float]
Ask = Callable[[], Awaitable[Any]]


@dataclass
class Survey:
    """The metrics of running actors: by topic (partition), by subscription, and by actor."""

    topics: dict[str, Metrics] = field(default_factory=dict)
    subscriptions: dict[tuple[str, str], Metrics] = field(default_factory=dict)
    actors: list[tuple[dict[str, str], Metrics]] = field(default_factory=list)
    cluster: Metrics = field(default_factory=dict)

    def total(self, metric: str) -> float:
        """The sum over all topics."""
        return sum(values.get(metric, 0) for values in self.topics.values())

    def of_topic(self, names: list[str]) -> Metrics | None:
        """The sums over these partitions; None if none of them runs."""
        running = [self.topics[name] for name in names if name in self.topics]
        if not running:
            return None
        every = {metric for values in running for metric in values}
        return {metric: sum(values.get(metric, 0) for values in running) for metric in every}


def surveyed(rows: list[dict[str, Any]]) -> Survey:
    """The survey from the answer of ``GET /admin/v2/broker-stats/metrics``."""
    found = Survey()
    for row in rows:
        labels, values = row["dimensions"], row["metrics"]
        topic, subscription = labels.get("topic"), labels.get("subscription")
        if "kind" in labels:
            found.actors.append((labels, values))
        elif topic and subscription:
            found.subscriptions.setdefault((topic, subscription), {}).update(values)
        elif topic and "remote_cluster" not in labels:
            found.topics.setdefault(topic, {}).update(values)
        elif set(labels) == {"cluster"}:
            found.cluster.update(values)
    return found


class Surveys:
    """Answers that visits share for a short time, each only with visits of the same token."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], tuple[float, asyncio.Task[Any]]] = {}
        self._known: dict[tuple[str, str], tuple[float, Any]] = {}
        self._took: dict[tuple[str, str], float] = {}

    async def shared(self, token: str, what: str, fresh_s: float, ask: Ask) -> Any:
        """The answer of ``ask``, at most ``fresh_s`` old. Raises what ``ask`` raises."""
        return await asyncio.shield(self._asked((token, what), fresh_s, ask))

    async def recent(self, token: str, what: str, fresh_s: float, ask: Ask) -> Any:
        """The last answer of ``ask``, which is asked again if it is older than ``fresh_s``.

        A page doesn't wait for that: many actors answer slowly. Raises `Unavailable` if there is no
        answer within `WAIT_S`, and none that is younger than `KEPT_S`; and what ``ask`` raises.
        """
        key = (token, what)
        task = self._asked(key, fresh_s, ask)
        at, known = self._known.get(key, (float("-inf"), None))
        if not task.done():
            if time.monotonic() - at < KEPT_S:
                return known
            await asyncio.wait([task], timeout=WAIT_S)
            if not task.done():
                raise Unavailable(503, "the running actors are asked now: the next update tells")
        return task.result()

    async def survey(self, token: str, admin: AdminCalls[Asyncio]) -> Survey:
        """The metrics of the running actors, as `recent`. Raises `AdminError`."""

        async def ask() -> Survey:
            asked = {"names": ",".join(METRICS)}
            return surveyed(await admin.request("GET", "broker-stats/metrics", query=asked))

        found: Survey = await self.recent(token, "metrics", FRESH_S, ask)
        return found

    def forget(self) -> None:
        """Ask again at the next visit, after a change."""
        self._running = {key: each for key, each in self._running.items() if not each[1].done()}

    def _asked(self, key: tuple[str, str], fresh_s: float, ask: Ask) -> asyncio.Task[Any]:
        now = time.monotonic()
        began, task = self._running.get(key, (0.0, None))
        fresh_s = max(fresh_s, SHARE * self._took.get(key, 0.0))
        if task is None or (task.done() and (now - began > fresh_s or task.exception())):
            if len(self._running) >= _MOST_KEPT:
                self._running.clear()
                self._known.clear()
                self._took.clear()
            task = asyncio.ensure_future(self._ask(key, ask))
            self._running[key] = (now, task)
        return task

    async def _ask(self, key: tuple[str, str], ask: Ask) -> Any:
        began = time.monotonic()
        found = await ask()
        self._known[key] = (time.monotonic(), found)
        self._took[key] = time.monotonic() - began
        return found


SURVEYS = web.AppKey("surveys", Surveys)

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

FRESH_S = 2.0
"""Visits within so long share a survey."""
_MOST_KEPT = 100

Metrics = dict[str, float]


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

    async def shared(
        self, token: str, what: str, fresh_s: float, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        """The answer of ``ask``, at most ``fresh_s`` old. Raises what ``ask`` raises."""
        key, now = (token, what), time.monotonic()
        began, task = self._running.get(key, (0.0, None))
        if task is None or (task.done() and (now - began > fresh_s or task.exception())):
            if len(self._running) >= _MOST_KEPT:
                self._running.clear()
            task = asyncio.ensure_future(_run(ask))
            self._running[key] = (now, task)
        return await asyncio.shield(task)

    async def survey(self, token: str, admin: AdminCalls[Asyncio]) -> Survey:
        """The metrics of the running actors, at most `FRESH_S` old. Raises `AdminError`."""

        async def ask() -> Survey:
            return surveyed(await admin.request("GET", "broker-stats/metrics"))

        found: Survey = await self.shared(token, "metrics", FRESH_S, ask)
        return found

    def forget(self) -> None:
        """Forget all answers, after a change."""
        self._running.clear()


async def _run(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()


SURVEYS = web.AppKey("surveys", Surveys)

"""Sends progress, markers and completions of transactions beside a replicator's entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from velaray.geo.replication.replicator_ends import Ends
from velaray.geo.replication.replicator_markers import Markers
from velaray.geo.replication.replicator_progress import Export, Progress
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.topology.actor_system import ActorSystem
from velaray.wire.replication import Marker


class MarkerTarget(Protocol):
    """What markers need of the target."""

    @property
    def is_velaray(self) -> bool:
        """Whether the cluster runs velaray, and so takes markers of velaray's own."""
        ...

    async def send_marker(self, kind: Marker, payload: bytes, now_ms: int) -> None:
        """Send a marker; its effect is durable there when this returns."""


class SideWork:
    """Tasks that run while the target is connected, and their work, which outlasts connections."""

    def __init__(
        self,
        actor_system: ActorSystem,
        ends: Ends,
        export: Export,
        mark: Callable[[], int],
        transactions: Transactions | None,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``export`` returns new progress of a subscription. Everything before the offset ``mark``
        is acknowledged. ``changed`` is called when `pending` may have changed, ``failed`` with the
        error that ends a task."""
        self.progress = Progress(actor_system.clock_ms, changed)
        self.markers = Markers(changed)
        self._transactions = transactions
        self._actor_system = actor_system
        self._ends = ends
        self._export = export
        self._mark = mark
        self._failed = failed
        self._understands = True  # markers of velaray's own
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def pending(self) -> bool:
        """Whether progress, markers or transactions wait to be sent."""
        transactions = self._transactions is not None and self._transactions.pending
        return transactions or self.markers.pending or (self._exact and self.progress.pending)

    @property
    def _exact(self) -> bool:
        """Whether subscription progress is replicated."""
        return self._ends.remote.progress == "exact" and self._understands

    def status(self) -> dict[str, Any]:
        """The waiting progress, markers and transactions, and the reasons."""
        return {
            "markers": len(self.markers),
            "progress_pending_since_ms": self.progress.oldest_ms if self._exact else 0,
            "progress_reason": self.progress.reason,
            "transactions_reason": self._transactions.reason if self._transactions else "",
        }

    def begin(self, target: MarkerTarget) -> None:
        """Send to this target, which is open, until `end`."""
        self._understands = target.is_velaray

        async def send(kind: Marker, payload: bytes) -> None:
            await target.send_marker(kind, payload, self._actor_system.clock_ms())

        new_backoff = self._actor_system.backoff
        work = [self.markers.run(self._mark, send, new_backoff())]
        if self._exact:
            send_part = partial(send, Marker.PROGRESS)
            work.append(self.progress.run(self._export, send_part, new_backoff()))
        if self._transactions is not None:
            complete = partial(send, Marker.TRANSACTIONS_COMPLETE) if self._understands else None
            work.append(self._transactions.run(complete, new_backoff()))
        for each in work:
            task = asyncio.ensure_future(each)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def end(self) -> None:
        """Cancel the tasks."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()

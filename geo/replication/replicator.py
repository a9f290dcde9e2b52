"""Replicates one partition to one other cluster: entries in order, each once.

The replicator is the only consumer of its subscription, and a producer of the same partition in the
other cluster. It acknowledges the confirmed prefix of the entries. After any failure it reads and
sends all unacknowledged entries again; the other cluster recognizes duplicates by their source
positions. See docs/decisions/0024-geo-replication.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from velaray.client.exceptions import NotConnected
from velaray.events.ids import ActorKey
from velaray.geo.replication.connection_pace import ConnectionPace
from velaray.geo.replication.replication_window import Window
from velaray.geo.replication.replicator_acknowledger import Acknowledger
from velaray.geo.replication.replicator_counts import Counts
from velaray.geo.replication.replicator_ends import Ends
from velaray.geo.replication.replicator_intake import Intake, Permits
from velaray.geo.replication.replicator_progress import Export
from velaray.geo.replication.replicator_sender import Sender
from velaray.geo.replication.replicator_settings import Remote
from velaray.geo.replication.replicator_side_work import SideWork
from velaray.geo.replication.replicator_source import SourceLost
from velaray.geo.replication.replicator_target import Target
from velaray.geo.replication.replicator_throttle import Throttle
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import reason_of
from velaray.wire.commands import Message as Delivery

logger = logging.getLogger("velaray")

REST_S = 30.0
"""The idle time after which the target connection closes, so that the partition there may rest."""

LOOK_S = 5.0
"""The interval of checks for idleness and for lost permits."""
SOURCE_PAUSE_S = 1.0
"""A partition closes its consumers before passivation. Subscribing at once would activate it."""


class State(StrEnum):
    """The state of a replicator."""

    CONNECTING = "connecting"
    REPLICATING = "replicating"
    RESTING = "resting"
    WAITING = "waiting"
    """It is blocked for the given reason, and retries."""


class Replicator:
    """Runs until it is aborted."""

    def __init__(
        self,
        actor_system: ActorSystem,
        key: ActorKey,
        epoch: int,
        ends: Ends,
        permits: Permits,
        export: Export,
        told: Callable[[], None],
        mark: Callable[[], int] = lambda: 0,
        transactions: Transactions | None = None,
    ) -> None:
        """``key`` is the actor's; ``epoch`` grows with each activation. ``permits`` returns the
        permits that the source counts, ``export`` the new progress of a subscription. ``told`` is
        called when `quiet` or `connected` may have changed. Everything before the offset ``mark``
        is acknowledged. Without ``transactions`` no entry belongs to one."""
        self._actor_system = actor_system
        self._key = key
        self._ends = ends
        self._epoch = epoch << 24
        self._permits = permits
        self._told = told
        self._transactions = transactions
        self.side_work = SideWork(
            actor_system, ends, export, mark, transactions, self.on_side_work, self._break
        )
        self.state = State.CONNECTING
        self.reason = ""
        self._counts = Counts(actor_system.clock_ms() / 1000)
        self._backoff = actor_system.backoff()
        pace = actor_system.host_of(key).part(ConnectionPace)
        self._place = pace.place(ends.remote.name)
        self._throttle = Throttle(ends.remote.rate)
        self._target: Target | None = None
        self._lost: asyncio.Future[None]
        self._busy = asyncio.Event()
        self._redirected = asyncio.Event()
        self._changes = 0
        self._was_quiet = False  # when the source was lost, if it still is
        self._begin()

    def _begin(self) -> None:
        """Start with an empty window."""
        self._window = Window()
        self._intake = Intake(self._ends, self._window, self._actor_system.clock_ms, self._counts)
        self._sender = Sender(
            self._ends, self._window, self._throttle, self._transactions, self._break
        )
        self._acknowledger = Acknowledger(self._intake.acknowledge, self._on_acknowledged)

    # -- status ---------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether everything is confirmed and acknowledged, and nothing blocks the source."""
        idle = not self._window and not self._acknowledger.pending
        return self.connected and idle and not self.side_work.pending

    @property
    def connected(self) -> bool:
        """Whether it is connected with the other cluster."""
        return self.state in (State.REPLICATING, State.RESTING)

    @property
    def remote(self) -> Remote:
        """The other cluster."""
        return self._ends.remote

    @property
    def finished(self) -> bool:
        """Whether it is `quiet`, or was when the partition disconnected."""
        return self._was_quiet or self.quiet

    def status(self) -> dict[str, Any]:
        """The status for operators and metrics."""
        return {
            "state": str(self.state),
            "connected": self.connected,
            "reason": self.reason,
            "oldest_ms": self._window.oldest_ms,
            "in_flight": len(self._window),
            **self._counts.status(self._actor_system.clock_ms() / 1000),
            **self.side_work.status(),
        }

    def change(self, remote: Remote) -> None:
        """Apply new settings. Changed connection settings cause a new connection."""
        before, self._ends.remote = self.remote, remote
        if before.rate != remote.rate:
            self._throttle.change(remote.rate)
        where = ("service_url", "admin_url", "token", "progress")
        if any(getattr(before, name) != getattr(remote, name) for name in where):
            self._backoff.reset()
            self._redirected.set()
            self._break(NotConnected("the settings of the other cluster have changed"))

    # -- life --------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._enter(State.CONNECTING)
            pause = 0.0
            try:
                await self._replicate()
            except SourceLost as error:
                self._enter(State.WAITING, reason_of(error))
                pause = SOURCE_PAUSE_S
            except TRANSIENT_ABROAD as error:
                self._enter(State.WAITING, reason_of(error))
            finally:
                await self._disconnect()
            await self._pause(max(self._backoff.delay(), pause))

    async def _pause(self, seconds: float) -> None:
        """Wait for a time, or until the connection settings change."""
        self._redirected.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._redirected.wait()

    def _enter(self, state: State, reason: str = "") -> None:
        if reason and reason != self.reason:
            logger.warning("%s is blocked, retrying: %s", self._key, reason)
        self.state = state
        if state is not State.CONNECTING:  # the error stays until then
            self.reason = reason
        self._told()

    async def _replicate(self) -> None:
        """Replicate until something fails; raises the error."""
        self._lost = asyncio.get_running_loop().create_future()
        self._begin()
        while True:
            async with self._place:
                target = await self._reach_target()
                if not self._intake.opened:
                    await self._reach_source()
            self._enter(State.REPLICATING)
            self._sender.connect(target)
            await self._until_rest()
            self._target = None
            self._sender.disconnect()
            self.side_work.end()
            target.abort()
            self._enter(State.RESTING)
            await self._until_busy()

    async def _reach_target(self) -> Target:
        self._epoch += 1
        target = self._ends.target(self._epoch, self._on_confirmed, self._break)
        self._target = target
        await target.open()
        await self._ends.meet(target)
        if self._lost.done():
            await self._lost
        self.side_work.begin(target)
        return target

    async def _reach_source(self) -> None:
        await self._intake.open(self._on_entries, self._lose_source)
        self._was_quiet = False
        self._intake.ask_for_more()

    def on_side_work(self) -> None:
        """Note a change of what waits besides entries."""
        self._changes += 1
        if self.side_work.pending:
            self._busy.set()
        self._told()

    async def _until_rest(self) -> None:
        """Return after a long idle time. Raises what fails."""
        loop = asyncio.get_running_loop()
        busy_at = loop.time()
        while True:
            changes = self._changes
            await asyncio.wait([self._lost], timeout=min(LOOK_S, REST_S))
            if self._lost.done():
                await self._lost
            if changes != self._changes or not self.quiet:
                busy_at = loop.time()
            elif loop.time() - busy_at >= REST_S:
                return
            await self._intake.count_permits(self._permits)

    async def _until_busy(self) -> None:
        if not self.quiet:
            return
        self._busy.clear()
        busy = asyncio.ensure_future(self._busy.wait())
        either: list[asyncio.Future[Any]] = [self._lost, busy]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            busy.cancel()
        if self._lost.done():
            await self._lost

    def _lose_source(self, error: SourceLost) -> None:
        self._was_quiet = self.quiet
        self._break(error)

    def _break(self, error: Exception) -> None:
        if hasattr(self, "_lost") and not self._lost.done():
            self._lost.set_exception(error)
            self._lost.exception()  # its caller may have ended

    def abort(self) -> None:
        """Cut the connections, like a crash. The caller cancels `run`."""
        if self._target is not None:
            self._target.abort()
        self._intake.abort()

    async def _disconnect(self) -> None:
        self._acknowledger.flush()
        self.side_work.end()
        self._sender.close()
        target, self._target = self._target, None
        if target is not None:
            target.abort()
        await self._intake.close()

    # -- entries -----------------------------------------------------------------------

    def _on_entries(self, came: Sequence[tuple[Delivery, bytes]]) -> None:
        was_quiet = self.quiet
        self._intake.take(came)
        if self._window.next_unsent() is not None:
            self._changes += 1
            self._busy.set()
        if was_quiet:
            self._told()
        self._settle()
        self._sender.send()
        self._intake.ask_for_more()

    def _on_confirmed(self, entries: int, duplicates: bool) -> None:
        self._counts.confirm(self._window.confirmed(entries), duplicates=duplicates)
        self._changes += 1
        self._backoff.reset()
        self._settle()
        self._intake.ask_for_more()

    def _settle(self) -> None:
        """Acknowledge the confirmed prefix soon."""
        before = len(self._window)
        position = self._window.settle()
        if position is None:
            return
        if self._transactions is not None:
            self._transactions.settled(position)
        self._acknowledger.add(position, before - len(self._window))

    def _on_acknowledged(self) -> None:
        if self.quiet:
            self._told()

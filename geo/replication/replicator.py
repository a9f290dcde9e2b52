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
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from velaray.actors.rates import PublishRate
from velaray.client.exceptions import NotConnected
from velaray.client.retry import Backoff
from velaray.events.ids import ActorKey, Position, TransactionId
from velaray.geo.replication.replication_window import Held, Window
from velaray.geo.replication.replicator_ends import Ends
from velaray.geo.replication.replicator_markers import Markers
from velaray.geo.replication.replicator_progress import Export, Progress
from velaray.geo.replication.replicator_schemas import Translation
from velaray.geo.replication.replicator_settings import Remote
from velaray.geo.replication.replicator_source import Source, SourceLost
from velaray.geo.replication.replicator_target import Target
from velaray.geo.replication.replicator_transactions import Transactions
from velaray.geo.transient import TRANSIENT_ABROAD
from velaray.topology.actor_system import ActorSystem
from velaray.topology.metrics import Rates
from velaray.topology.rpc import reason_of
from velaray.wire.commands import Message as Delivery
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import message_count
from velaray.wire.replication import Marker
from velaray.wire.stamping import PassedOver, stamped, transaction_of

logger = logging.getLogger("velaray")

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 30.0
ACK_S = 0.1
"""The longest delay between a confirmation and its acknowledgement."""
ACK_ENTRIES = 500
"""The number of confirmed entries that are acknowledged without delay."""
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


@dataclass(slots=True)
class Counts:
    """Counters of a replicator since it started."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    duplicates: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)


class Replicator:
    """Runs until it is aborted."""

    def __init__(
        self,
        actor_system: ActorSystem,
        key: ActorKey,
        epoch: int,
        ends: Ends,
        permits: Callable[[], Awaitable[int | None]],
        export: Export,
        told: Callable[[], None],
        mark: Callable[[], int] = lambda: 0,
        transactions: Transactions | None = None,
    ) -> None:
        """``key`` is its actor's; ``epoch`` is higher for each life of it. ``permits`` says how
        many the source counts, ``export`` what is new of a subscription; ``told`` is called
        whenever `quiet` or `connected` may be another one. Everything before the offset ``mark`` is
        acknowledged. Without ``transactions`` entries are in none."""
        self._actor_system = actor_system
        self._key = key
        self._ends = ends
        self._epoch = epoch << 24
        self._permits = permits
        self._export = export
        self._told = told
        self._mark = mark
        self.progress = Progress(actor_system.clock_ms, self.on_side_work)
        self.markers = Markers(self.on_side_work)
        self._side_work: list[asyncio.Task[None]] = []
        self._transactions = transactions
        self.state = State.CONNECTING
        self.reason = ""
        self.counts = Counts()
        self._rates = Rates(actor_system.clock_ms() / 1000)
        self._backoff = Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        self._rate: PublishRate | None = None
        self._set_rate()
        self._source: Source | None = None
        self._target: Target | None = None
        self._schemas: Translation
        self._learning: asyncio.Task[None] | None = None
        self._window = Window()
        self._lost: asyncio.Future[None]
        self._busy = asyncio.Event()
        self._redirected = asyncio.Event()
        self._changes = 0
        self._unacked: Position | None = None
        self._unacked_entries = 0
        self._acking: asyncio.TimerHandle | None = None
        self._throttled: asyncio.TimerHandle | None = None
        self._paused = False
        self._understands = True  # markers of velaray's own
        self._was_quiet = False  # when the source was lost, if it still is

    # -- status ---------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether everything is confirmed and acknowledged, and nothing blocks the source."""
        fine = self.connected
        idle = not self._window and self._unacked is None
        return fine and idle and not self._has_side_work

    @property
    def _has_side_work(self) -> bool:
        """Whether progress, markers or transactions wait to be sent."""
        transactions = self._transactions is not None and self._transactions.pending
        return transactions or self.markers.pending or (self._exact and self.progress.pending)

    @property
    def connected(self) -> bool:
        """Whether it is connected with the other cluster."""
        return self.state in (State.REPLICATING, State.RESTING)

    @property
    def _exact(self) -> bool:
        """Whether subscription progress is replicated."""
        return self.remote.progress == "exact" and self._understands

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
        counts, now_s = self.counts, self._actor_system.clock_ms() / 1000
        return {
            "state": str(self.state),
            "connected": self.connected,
            "reason": self.reason,
            "oldest_ms": self._window.oldest_ms,
            "in_flight": len(self._window),
            "entries": counts.entries,
            "messages": counts.messages,
            "bytes": counts.bytes,
            "duplicates": counts.duplicates,
            "passed_over": dict(counts.passed_over),
            "rate_out": self._rates.at(now_s, "messages", counts.messages),
            "throughput_out": self._rates.at(now_s, "bytes", counts.bytes),
            "markers": len(self.markers),
            "progress_pending_since_ms": self.progress.oldest_ms if self._exact else 0,
            "progress_reason": self.progress.reason,
            "transactions_reason": self._transactions.reason if self._transactions else "",
        }

    def change(self, remote: Remote) -> None:
        """Apply new settings. Changed connection settings cause a new connection."""
        before, self._ends.remote = self.remote, remote
        if before.rate != remote.rate:
            self._set_rate()
            if self._throttled is not None:
                self._throttled.cancel()
                self._go_on()
        where = ("service_url", "admin_url", "token", "progress")
        if any(getattr(before, name) != getattr(remote, name) for name in where):
            self._backoff.reset()
            self._redirected.set()
            self._break(NotConnected("the settings of the other cluster have changed"))

    def _set_rate(self) -> None:
        rate = self.remote.rate
        self._rate = PublishRate(*rate) if max(rate) > 0 else None

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
        self._window = Window()
        while True:
            await self._reach_target()
            if self._source is None:
                await self._reach_source()
            self._enter(State.REPLICATING)
            self._send_more()
            await self._until_rest()
            assert self._target is not None
            target, self._target = self._target, None
            self._end_side_work()
            target.abort()
            self._enter(State.RESTING)
            await self._until_busy()

    async def _reach_target(self) -> None:
        self._epoch += 1
        target = self._ends.target(self._epoch, self._confirmed, self._break)
        self._target = target
        await target.open()
        await self._ends.meet(target)
        self._schemas = Translation(self._ends.schema, self._key.topic_name, target)
        if self._lost.done():
            await self._lost
        self._understands = target.server_version.startswith("velaray")
        self._begin_side_work(target)

    def _begin_side_work(self, target: Target) -> None:
        async def send(kind: Marker, payload: bytes) -> None:
            await target.send_marker(kind, payload, self._actor_system.clock_ms())

        work = [self.markers.run(self._mark, send)]
        if self._exact:
            work.append(self.progress.run(self._export, partial(send, Marker.PROGRESS)))
        if self._transactions is not None:
            complete = partial(send, Marker.TRANSACTIONS_COMPLETE) if self._understands else None
            work.append(self._transactions.run(complete))
        for each in work:
            task = asyncio.ensure_future(each)
            task.add_done_callback(self._side_work_ended)
            self._side_work.append(task)

    def _side_work_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._break(error)

    def on_side_work(self) -> None:
        """Note a change of what waits besides entries."""
        self._changes += 1
        if self._has_side_work:
            self._busy.set()
        self._told()

    def _end_side_work(self) -> None:
        side_work, self._side_work = self._side_work, []
        for task in side_work:
            task.cancel()

    async def _reach_source(self) -> None:
        source = self._ends.source(self._on_entries, self._lose_source)
        self._source = source
        await source.open()
        self._was_quiet = False
        self._ask_for_more()

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
            await self._count_permits()

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

    async def _count_permits(self) -> None:
        """Repair lost permits: an entry with a wrong message count takes other permits than
        counted here, and delivery may stop."""
        if not self._window:
            counted = await self._permits()
            if counted is not None and not self._window:
                self._window.permits = min(self._window.permits, counted)
                self._ask_for_more()

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
        if self._source is not None:
            self._source.abort()

    async def _disconnect(self) -> None:
        self._acknowledge()
        self._end_side_work()
        for timer in (self._acking, self._throttled):
            if timer is not None:
                timer.cancel()
        self._acking = self._throttled = None
        learning, self._learning = self._learning, None
        if learning is not None:
            learning.cancel()
        self._paused = False
        if self._target is not None:
            self._target.abort()
        source, self._source, self._target = self._source, None, None
        if source is not None:
            await source.close()

    # -- entries -----------------------------------------------------------------------

    def _on_entries(self, came: Sequence[tuple[Delivery, bytes]]) -> None:
        was_quiet = self.quiet
        for delivery, entry in came:
            self._window.take(self._judged(delivery, entry))
        if self._window.next_unsent() is not None:
            self._changes += 1
            self._busy.set()
        if was_quiet:
            self._told()
        self._settle()
        self._send_more()
        self._ask_for_more()

    def _judged(self, delivery: Delivery, entry: bytes) -> Held:
        position = Position(delivery.ledger_id, delivery.entry_id)
        ttl_ms = self.remote.ttl_ms
        judged = self._ends.judge(entry, self._actor_system.clock_ms() - ttl_ms if ttl_ms else 0)
        if isinstance(judged, PassedOver):
            self.counts.passed_over[str(judged)] += 1
            return Held(position, _messages(entry), len(entry), 0, None)
        metadata, start = judged
        messages = max(metadata.num_messages_in_batch, 1)
        held = Held(position, messages, len(entry), metadata.publish_time, (entry, metadata, start))
        held.transaction = transaction_of(metadata)
        return held

    def _ask_for_more(self) -> None:
        if self._source is None:
            return
        permits = self._window.wanted()
        if permits:
            self._source.flow(permits)
        if self._window.overfull != self._paused:
            self._paused = self._window.overfull
            self._source.pause(self._paused)

    def _send_more(self) -> None:
        if self.state is not State.REPLICATING:
            return  # not connected yet: sent entries would be lost
        while self._target is not None and self._throttled is None and self._learning is None:
            held = self._window.next_unsent()
            if held is None:
                return
            assert held.outgoing is not None
            entry, metadata, start = held.outgoing
            transaction = held.transaction
            if transaction is not None:
                is_of = self._is_of(transaction, held.position)
                if is_of is None:
                    return
                transaction = transaction if is_of else None
            version = metadata.schema_version
            if version:
                known = self._schemas.get(version)
                if known is None:
                    self._learn(self._schemas.learn(version, held.position))
                    return
                version = known
            self._window.sent()
            origin, at = self._ends.origin, held.position
            outgoing = stamped(entry, metadata, start, origin, at, transaction, version)
            is_chunk = metadata.num_chunks_from_msg > 1
            self._target.send(outgoing, held.messages, is_chunk=is_chunk)
            self._throttle(held)

    def _is_of(self, transaction: TransactionId, position: Position) -> bool | None:
        """Whether the entry belongs to this transaction; None if that must be looked up."""
        if self._transactions is None or not self._understands:
            return False
        is_of = self._transactions.is_of(transaction, position)
        if is_of is None:
            self._learn(self._transactions.learn())
        return is_of

    def _learn(self, work: Coroutine[Any, Any, None]) -> None:
        """Look up what the next entry needs, such as its schema, before it is sent."""
        learning = asyncio.ensure_future(work)
        self._learning = learning
        learning.add_done_callback(self._learnt)

    def _learnt(self, learning: asyncio.Task[None]) -> None:
        if self._learning is not learning:
            return  # it belongs to a later connection
        self._learning = None
        if learning.cancelled():
            return
        error = learning.exception()
        if isinstance(error, Exception):
            self._break(error)
        else:
            self._send_more()

    def _throttle(self, held: Held) -> None:
        """Pause while the rate limit is exceeded."""
        if self._rate is None:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._rate.take(held.messages, held.size, loop.time())
        if wait_s > 0:
            self._throttled = loop.call_later(wait_s, self._go_on)

    def _go_on(self) -> None:
        self._throttled = None
        self._send_more()

    def _confirmed(self, entries: int, duplicates: bool) -> None:
        counts, confirmed = self.counts, self._window.confirmed(entries)
        counts.entries += entries
        counts.messages += sum(held.messages for held in confirmed)
        counts.bytes += sum(held.size for held in confirmed)
        if duplicates:
            counts.duplicates += entries
        self._changes += 1
        self._backoff.reset()
        self._settle()
        self._ask_for_more()

    # -- acknowledging -----------------------------------------------------------------

    def _settle(self) -> None:
        before = len(self._window)
        position = self._window.settle()
        if position is None:
            return
        if self._transactions is not None:
            self._transactions.settled(position)
        self._unacked = position
        self._unacked_entries += before - len(self._window)
        if self._unacked_entries >= ACK_ENTRIES:
            self._acknowledge()
        elif self._acking is None:
            self._acking = asyncio.get_running_loop().call_later(ACK_S, self._acknowledge)

    def _acknowledge(self) -> None:
        if self._acking is not None:
            self._acking.cancel()
            self._acking = None
        if self._unacked is not None and self._source is not None:
            self._source.acknowledge(self._unacked)
        self._unacked, self._unacked_entries = None, 0
        if self.quiet:
            self._told()


def _messages(entry: bytes) -> int:
    """The permits of an entry that isn't replicated, if it can be read."""
    try:
        return message_count(entry)
    except MalformedEntryError:
        return 1

"""Reads the entries of a replicator's source into its window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from velaray.events.ids import Position
from velaray.geo.replication.replication_window import Held, Window
from velaray.geo.replication.replicator_counts import Counts
from velaray.geo.replication.replicator_ends import Ends
from velaray.geo.replication.replicator_source import OnEntries, Source, SourceLost
from velaray.wire.commands import Message as Delivery
from velaray.wire.errors import MalformedEntryError
from velaray.wire.messages import message_count
from velaray.wire.stamping import PassedOver, transaction_of

Permits = Callable[[], Awaitable[int | None]]
"""The number of permits that the source counts; None if unknown."""


class Intake:
    """The source of one window: requests as many entries as fit, and decides on each."""

    def __init__(
        self, ends: Ends, window: Window, clock_ms: Callable[[], int], counts: Counts
    ) -> None:
        self._ends = ends
        self._window = window
        self._clock_ms = clock_ms
        self._counts = counts
        self._source: Source | None = None
        self._paused = False

    @property
    def opened(self) -> bool:
        """Whether `open` was called."""
        return self._source is not None

    async def open(self, on_entries: OnEntries, on_lost: Callable[[SourceLost], None]) -> None:
        """Connect with the source. Raises what `Source.open` raises."""
        self._source = self._ends.source(on_entries, on_lost)
        await self._source.open()

    def take(self, came: Sequence[tuple[Delivery, bytes]]) -> None:
        """Add entries of the source to the window."""
        for delivery, entry in came:
            self._window.take(self._judged(delivery, entry))

    def _judged(self, delivery: Delivery, entry: bytes) -> Held:
        position = Position(delivery.ledger_id, delivery.entry_id)
        ttl_ms = self._ends.remote.ttl_ms
        judged = self._ends.judge(entry, self._clock_ms() - ttl_ms if ttl_ms else 0)
        if isinstance(judged, PassedOver):
            self._counts.pass_over(judged)
            return Held(position, _messages(entry), len(entry), 0, None)
        metadata, start = judged
        messages = max(metadata.num_messages_in_batch, 1)
        held = Held(position, messages, len(entry), metadata.publish_time, (entry, metadata, start))
        held.transaction = transaction_of(metadata)
        return held

    def ask_for_more(self) -> None:
        """Request the entries for which the window has room, or pause the source."""
        if self._source is None:
            return
        permits = self._window.wanted()
        if permits:
            self._source.flow(permits)
        if self._window.overfull != self._paused:
            self._paused = self._window.overfull
            self._source.pause(self._paused)

    async def count_permits(self, permits: Permits) -> None:
        """Repair lost permits: an entry with a wrong message count takes other permits than
        counted here, and delivery may stop."""
        if not self._window:
            counted = await permits()
            if counted is not None and not self._window:
                self._window.permits = min(self._window.permits, counted)
                self.ask_for_more()

    def acknowledge(self, position: Position) -> None:
        """Acknowledge everything up to ``position``, without waiting."""
        if self._source is not None:
            self._source.acknowledge(position)

    def abort(self) -> None:
        """Cut the connection."""
        if self._source is not None:
            self._source.abort()

    async def close(self) -> None:
        """Close the connection, after everything is written out."""
        source, self._source = self._source, None
        if source is not None:
            await source.close()


def _messages(entry: bytes) -> int:
    """The permits of an entry that isn't replicated, if it can be read."""
    try:
        return message_count(entry)
    except MalformedEntryError:
        return 1

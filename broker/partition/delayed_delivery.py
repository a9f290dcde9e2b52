"""Tracks a partition's delayed entries, with a timer for their delivery times.

Only the partition's clock decides when an entry becomes due. Entries become due in groups, at most
once per tick of the policy: an entry may be up to one tick late, and is never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from velaray.actors.partition.delayed import DelayedEntry, DelayedIndex
from velaray.actors.sets.ranges import Range, RangeSet

LONGEST_SLEEP_MS = 60_000
"""The longest time between looks at the clock, which may be set forward."""


class DelayedDeliveryTracker:
    """The stored entries of one partition that aren't due."""

    def __init__(
        self,
        clock_ms: Callable[[], int],
        on_due: Callable[[list[DelayedEntry], int], None],
        entries: Iterable[DelayedEntry] = (),
    ) -> None:
        """``on_due`` is called with the entries that became due, and the time up to which none
        waits."""
        self._clock_ms = clock_ms
        self._on_due = on_due
        self._queue = DelayedIndex(entries)
        self._waiting: dict[int, DelayedEntry] = {}
        self._offsets = RangeSet()  # the delivery times of waiting entries
        for entry in self._queue:
            self._wait(entry)
        self._active = True
        self._closed = False
        self._tick_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_fire = 0.0  # the earliest time of the next timer, on the event loop's clock

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, offset: int) -> DelayedEntry | None:
        """The delayed entry at this offset; None if it isn't delayed."""
        return self._waiting.get(offset)

    def first_within(self, first: int, end: int) -> int:
        """The first delayed offset from ``first`` on; ``end`` if there is none before it."""
        return first if first in self._offsets else self._offsets.next_start(first, end)

    def ranges(self, first: int, end: int, most: int) -> list[Range]:
        """The first ``most`` ranges of delayed offsets in ``first`` to ``end`` - 1."""
        return self._offsets.first_within(first, end, most)

    @property
    def next_ms(self) -> int | None:
        """The earliest delivery time of an entry that isn't due; None if there is none."""
        return self._queue.next_ms() if self._active else None

    def _wait(self, entry: DelayedEntry) -> None:
        self._waiting[entry.offset] = entry
        self._offsets.add(entry.offset, entry.offset + 1)

    def add(self, entry: DelayedEntry) -> None:
        """Add a stored entry."""
        if entry.deliver_at_ms <= self._clock_ms():
            return
        self._queue.add(entry)
        if self._active:
            self._wait(entry)
            if self._queue.next_ms() == entry.deliver_at_ms:
                self._arm()

    def apply(self, active: bool, tick_ms: int) -> None:
        """Apply the policy: whether entries are delayed at all, and the tick."""
        self._tick_ms = tick_ms
        if active and not self._active:
            for entry in self._queue:
                self._wait(entry)
        elif self._active and not active and self._waiting:
            freed = list(self._waiting.values())
            self._waiting.clear()
            self._offsets.clear()
            self._on_due(freed, 0)
        self._active = active
        self._arm()

    def close(self) -> None:
        """Stop the timer, for good: entries that are stored while the partition stops may still be
        added. Idempotent."""
        self._closed = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._disarm()
        due_ms = self._queue.next_ms()
        if due_ms is not None and not self._closed:
            loop = asyncio.get_running_loop()
            wait_ms = min(max(due_ms - self._clock_ms(), 0), LONGEST_SLEEP_MS)
            when = max(loop.time() + wait_ms / 1000, self._next_fire)
            self._timer = loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._clock_ms()
        due = self._queue.take(now_ms)
        if due:
            self._next_fire = asyncio.get_running_loop().time() + self._tick_ms / 1000
            waited = [entry for entry in due if self._waiting.pop(entry.offset, None) is not None]
            for entry in waited:
                self._offsets.discard(entry.offset, entry.offset + 1)
            self._on_due(waited, now_ms)
        self._arm()

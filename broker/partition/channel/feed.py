"""Reports the entries of a log to the dispatcher, which decides who gets them.

Hidden entries are acknowledged at the dispatcher before later ones are reported. Entries that came
from another cluster wait until the progress of that cluster is taken in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from velaray.actors.partition.delayed import DelayedEntry
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.runtime import Stopped
from velaray.actors.sets.offset_sets import Range
from velaray.broker.partition.channel.link import DispatcherLink
from velaray.broker.partition.channel.log import PartitionLog
from velaray.broker.partition.channel.origins import UnsettledOrigins
from velaray.broker.partition.unreadable import Unreadable
from velaray.broker.subscription.messages import EntriesDue, FeedEntries, PassOver
from velaray.journal.errors import JournalError
from velaray.topology.messages import Message, ReplyT, Request
from velaray.topology.transient import TRANSIENT

FEED_ENTRIES = 4096


class Channel(Protocol):
    """What a feed needs of its channel."""

    closed: bool
    unreadable: Unreadable
    link: DispatcherLink
    origins: UnsettledOrigins

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after a report of what was delivered under the lease."""
        ...

    async def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request to the dispatcher, after such a report; returns its answer."""
        ...

    async def settle(self) -> None:
        """Make the subscription take in the waiting progress of other clusters."""
        ...

    def reading_failed(self, offset: int, error: Exception) -> None:
        """Stop the delivery at an entry."""
        ...

    def close(self) -> None:
        """Disconnect the dispatcher and every consumer."""
        ...


def flat_ranges(offsets: list[int]) -> list[int]:
    """Ascending, merged ranges of the offsets: first, last + 1, first, last + 1, ..."""
    if offsets and offsets == list(range(offsets[0], offsets[0] + len(offsets))):
        return [offsets[0], offsets[-1] + 1]
    flat: list[int] = []
    for offset in sorted(offsets):
        if flat and flat[-1] >= offset:
            flat[-1] = max(flat[-1], offset + 1)
        else:
            flat += (offset, offset + 1)
    return flat


class DispatcherFeed:
    """What one dispatcher is told of the entries of a log."""

    def __init__(
        self, channel: Channel, log: PartitionLog, serve_lease: Callable[[], bool]
    ) -> None:
        """``serve_lease`` delivers new entries under the lease, and returns whether there is
        one."""
        self.hashing = False  # the dispatcher needs the hashes of keys
        self._channel = channel
        self._link = channel.link
        self._origins = channel.origins
        self._log = log
        self._serve_lease = serve_lease
        self._fed = 0
        self._wanted = 0
        self._hidden_passed = 0  # the dispatcher has all hidden entries below this
        self._begun = 0  # how often feeding began
        self._feeding: asyncio.Task[None] | None = None
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether entries are being read, or hidden ones passed over, before later ones are
        reported."""
        return self._busy

    def start(self, offset: int, wanted: int, hashing: bool) -> None:
        """Report the sizes of entries from ``offset`` on, and the hashes of their keys if
        ``hashing``."""
        self._fed = offset
        self._wanted = wanted
        self.hashing = hashing
        self._hidden_passed = 0
        self._begun += 1
        self.run()

    def want(self, limit: int) -> None:
        """Note that the dispatcher wants the entries below ``limit``."""
        self._wanted = limit

    def want_more(self, limit: int) -> None:
        """Note that the dispatcher wants the entries below ``limit`` at least."""
        self._wanted = max(self._wanted, limit)

    def passed(self, offset: int) -> None:
        """Note that the dispatcher knows the entries below ``offset`` from reports of
        deliveries."""
        self._fed = max(self._fed, offset)

    def close(self) -> None:
        """End what is under way."""
        if self._feeding is not None:
            self._feeding.cancel()

    def run(self) -> None:
        """Handle new entries: deliver them under a lease; otherwise report the sizes of those that
        the dispatcher wants and lacks."""
        if self._serve_lease() or self._feeding is not None or self._link.port is None:
            return
        limit = min(self._wanted, self._log.visibility.readable_end)
        visibility = self._log.visibility
        while self._fed < limit:
            most = min(limit, self._fed + FEED_ENTRIES)
            known, end = visibility.visible_until(self._fed, most)
            if known == self._fed:
                self._feeding = asyncio.get_running_loop().create_task(self._load_hidden())
                return
            if end == self._fed < self._hidden_passed:
                # Hidden entries may continue beyond those that were reported.
                self._fed = min(visibility.hidden_within(end, known)[0][1], self._hidden_passed)
                continue
            if end == self._fed:
                work = self._pass_hidden(visibility.hidden_within(end, known), known)
                self._busy = True
                self._feeding = asyncio.get_running_loop().create_task(work)
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return
            end = self._origins.first_unsettled(self._fed, end)
            if end == self._fed:
                self._feeding = asyncio.get_running_loop().create_task(self._settle())
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return
            if not self._feed_cached(end):
                if not self._channel.unreadable.may_try(self._fed):
                    return
                self._busy = True
                self._feeding = asyncio.get_running_loop().create_task(self._feed_cold())
                self._feeding.add_done_callback(partial(self._fed_cold, self._fed))
                return

    def _feed_cached(self, limit: int) -> bool:
        first = self._fed
        sizes: list[int] = []
        chunks: dict[int, str] = {}
        delayed: list[int] = []
        delays = self._log.delayed if len(self._log.delayed) else None
        for offset in range(first, limit):
            entry = self._log.cache.get(offset)
            if entry is None and self._log.kept_from(offset) != offset:
                sizes.append(1)  # trimmed: the cursor has it
                continue
            later = None if delays is None else delays.get(offset)
            if entry is None and (later is None or not self._is_told(later)):
                break
            if later is not None:
                delayed.append(offset)
            if entry is None:
                assert later is not None
                sizes.append(later.messages)
                continue
            sizes.append(entry.messages)
            if entry.chunk_uuid:
                chunks[offset] = entry.chunk_uuid
        if not sizes:
            return False
        self._fed = first + len(sizes)
        hashes = self._hashes(first, len(sizes)) if self.hashing else None
        self._link.overtake(FeedEntries(first, sizes, chunks, hashes, flat_ranges(delayed)))
        return True

    def _is_told(self, later: DelayedEntry) -> bool:
        """Whether everything that the dispatcher needs of the entry is known without reading it."""
        return later.messages > 0 and (later.key_hash > 0 or not self.hashing)

    def _hashes(self, first: int, count: int) -> list[int]:
        cache, delays = self._log.cache, self._log.delayed
        if not delays:
            return cache.hashes(first, count)
        found = []
        for offset in range(first, first + count):
            later = delays.get(offset)
            found.append(later.key_hash if later is not None else 0)
            if not found[-1]:
                found[-1:] = cache.hashes(offset, 1)
        return found

    def due(self, offsets: list[int]) -> None:
        """End the delay of these entries: the dispatcher may deliver those that it was fed."""
        fed = [offset for offset in offsets if offset < self._fed]
        if fed:  # also without consumers: the next one may need them
            self._channel.tell(EntriesDue(flat_ranges(fed)))

    async def _load_hidden(self) -> None:
        """Load which of the next entries are hidden, and go on in the same turn."""
        try:
            await self._log.visibility.load(self._fed)
        except (Stopped, JournalError):
            return  # the partition ends
        self._feeding = None
        if not self._channel.closed:
            self.run()

    async def _pass_hidden(self, hidden: Sequence[Range], end: int) -> None:
        """Acknowledge hidden entries at the dispatcher before later entries are reported to it."""
        begun = self._begun
        flat = [offset for part in hidden for offset in part]
        try:
            await self._channel.ask(PassOver(self._log.end_offset, flat, []))
        except TRANSIENT:
            self._channel.close()  # the consumers subscribe again
            return
        if begun == self._begun:
            self._hidden_passed = end

    async def _settle(self) -> None:
        try:
            await self._channel.settle()
        except TRANSIENT:
            self._channel.close()  # the consumers subscribe again

    async def _feed_cold(self) -> None:
        await self._log.cache.load(self._fed)

    def _fed_cold(self, offset: int, task: asyncio.Task[None]) -> None:
        self._feeding, self._busy = None, False
        if task.cancelled() or self._channel.closed:
            return
        error = task.exception()
        if isinstance(error, NoSuchEntryError):
            return  # trimmed meanwhile; `trimmed` continues
        if isinstance(error, Exception):
            self._channel.reading_failed(offset, error)
        else:
            self._channel.unreadable.read(offset)
            self.run()

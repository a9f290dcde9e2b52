"""Writes entries to consumers' sockets: granted ones, and new ones under a lease.

Granted entries wait as offsets. Their bytes are read only when the socket takes them, so a slow
consumer holds at most its socket's write buffer plus one entry, or one piece of small entries.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from velaray.actors.dispatch.dispatcher import IN_ORDER
from velaray.actors.dispatch.lease import LeasedDelivery
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.runtime import Stopped
from velaray.broker.partition.channel.consumer import ChannelConsumer, Grant
from velaray.broker.partition.channel.link import DispatcherLink
from velaray.broker.partition.channel.log import RUN_ENTRIES, PartitionLog
from velaray.broker.partition.channel.origins import UnsettledOrigins
from velaray.broker.partition.channel.throttle import Throttle
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.unreadable import Unreadable
from velaray.broker.subscription.messages import GrantLease, LeaseReport, ReleaseLease
from velaray.events.ids import Position
from velaray.journal.errors import JournalError
from velaray.topology.flow import Activity
from velaray.topology.messages import Message
from velaray.wire.commands import MessageHeaders

if TYPE_CHECKING:
    from velaray.topology.store_spans import DeliverySpans

_DATA, _MESSAGES = itemgetter(0), itemgetter(1)  # of a `CachedEntry`
PIECE_BYTES = 32 << 10
"""Small entries are written together in pieces of about this size."""
_SMALL = 4 << 10
"""Entries of at most this size, on average, are copied into pieces."""
REPORT_S = 0.1
"""The longest delay of a report of deliveries under a lease."""


class Feed(Protocol):
    """What a delivery under a lease changes in the feed of the dispatcher."""

    hashing: bool

    @property
    def busy(self) -> bool:
        """Whether entries are being read, or hidden ones passed over, before later ones are
        reported."""
        ...

    def want_more(self, limit: int) -> None:
        """Note that the dispatcher wants the entries below ``limit`` at least."""
        ...

    def passed(self, offset: int) -> None:
        """Note that the dispatcher knows the entries below ``offset`` from reports of
        deliveries."""
        ...


class Channel(Protocol):
    """What a delivery needs of its channel."""

    closed: bool
    resetting: bool
    activity: Activity
    unreadable: Unreadable
    link: DispatcherLink
    origins: UnsettledOrigins

    @property
    def feed(self) -> Feed:
        """What the dispatcher is told of the log."""
        ...

    def tell(self, notice: Message) -> None:
        """Send a notice to the dispatcher, after a report of what was delivered under the lease."""
        ...

    def reading_failed(self, offset: int, error: Exception) -> None:
        """Stop the delivery at an entry."""
        ...


class Delivery:
    """The deliveries to the consumers of one subscription on this partition."""

    gathers = True
    """Whether entries of several grants may be written together."""

    def __init__(self, channel: Channel, log: PartitionLog) -> None:
        self.quiet = False  # consumers get nothing for now
        #: The limits of the rate; none if it is unlimited.
        self.throttles: tuple[Throttle, ...] = ()
        self.spans: DeliverySpans | None = None
        self._channel = channel
        self._log = log
        self._leased: LeasedDelivery | None = None
        self._served: ChannelConsumer | None = None  # holder of the lease
        self._lease_ends = 0  # the number of sent notices that end a lease
        self._reporting: asyncio.TimerHandle | None = None

    def grant(self, consumer: ChannelConsumer, grant: Grant) -> None:
        """Take entries that the dispatcher granted."""
        grant.epoch = consumer.epoch
        consumer.grants.append(grant)

    # -- under a lease -----------------------------------------------------------------

    @property
    def leased(self) -> bool:
        """Whether there is a lease."""
        return self._leased is not None

    def begin_lease(self, consumer: ChannelConsumer, grant: GrantLease) -> None:
        """Deliver to the consumer under a lease, unless a notice that ends it was sent
        meanwhile."""
        if grant.lease_ends != self._lease_ends:
            return
        if self._channel.resetting:
            self._channel.tell(ReleaseLease())  # the consumers are about to be closed
            return
        self._leased = LeasedDelivery(grant.first, consumer.flowed - grant.debited, grant.room)
        self._served = consumer
        self.deliver(consumer)

    def more_permits(self, consumer: ChannelConsumer, permits: int) -> None:
        """The client of a consumer can take that many more messages."""
        if self._leased is not None and consumer is self._served:
            self._leased.permits += permits
            # Not at once: a redelivery request that follows must come first.
            asyncio.get_running_loop().call_soon(self.deliver, consumer)

    def acknowledging(self, end: int) -> None:
        """Call this before offsets up to ``end`` - 1 are acknowledged.

        It ends the lease if some of them aren't delivered yet: the dispatcher must pass over them.
        """
        if self._leased is not None and end > self._leased.next_offset:
            self._channel.tell(ReleaseLease())

    def report(self) -> None:
        """Report what was delivered under the lease to the dispatcher."""
        report = None if self._leased is None else self._leased.report()
        if report is not None:
            self._channel.link.overtake(LeaseReport(*report))

    def _report_late(self) -> None:
        self._reporting = None
        self.report()

    def end_lease(self) -> None:
        """End the lease, and refuse leases that the dispatcher granted before it knows of this
        end."""
        self._lease_ends += 1
        if self._leased is not None:
            self._channel.feed.passed(self._leased.next_offset)
            self._leased = self._served = None

    def drop_lease(self) -> None:
        """End the lease without a report: the channel is closed."""
        self._leased = self._served = None
        if self._reporting is not None:
            self._reporting.cancel()

    def release_lease(self) -> None:
        """End the lease for the dispatcher, which revokes it."""
        if self._leased is not None:
            self._channel.tell(ReleaseLease())

    def serve_lease(self) -> bool:
        """Deliver new entries to the holder of the lease. Returns whether there is one."""
        if self._served is None:
            return False
        self.deliver(self._served)
        return True

    def _deliver_leased(self, leased: LeasedDelivery, consumer: ChannelConsumer) -> None:
        log = self._log
        readable = log.visibility.readable_end
        known, end = log.visibility.visible_until(leased.next_offset, readable)
        end = self._channel.origins.first_unsettled(leased.next_offset, end)
        if log.delayed and consumer.type not in IN_ORDER:
            end = log.delayed.first_within(leased.next_offset, end)
        while (
            (allowance := leased.allowance) > 0
            and leased.next_offset < end
            and consumer.connection.writable
        ):
            first = leased.next_offset
            run = self._run(first, min(end, first + allowance))
            if not run:
                self._load(consumer, first)
                break
            if self.throttles and not (run := self._admitted(consumer, run)):
                break
            sizes = [entry.messages for entry in run]
            if sum(sizes) > allowance:
                used = [0, *accumulate(sizes)]
                del sizes[bisect_left(used, allowance) :]
            offsets = range(first, first + len(sizes))
            written = self._write(consumer, offsets, run[: len(sizes)], consumer.epoch)
            if not written:
                break  # trimmed: see `trimmed`
            keys = {
                offset: entry.chunk_uuid
                for offset, entry in enumerate(run[:written], first)
                if entry.chunk_uuid
            }
            hashes = log.cache.hashes(first, written) if self._channel.feed.hashing else ()
            leased.delivered(sizes[:written], keys, hashes)
        if leased.next_offset == known < readable:
            consumer.loading = asyncio.get_running_loop().create_task(
                self._load_hidden(consumer, known)
            )
        elif leased.next_offset == end < readable:
            # That entry must wait, and later ones mustn't: the dispatcher decides at once. While it
            # can't be told of them, it would only grant another lease.
            self._channel.feed.want_more(end + RUN_ENTRIES)
            if not self._channel.feed.busy:
                self._channel.tell(ReleaseLease())
        elif leased.room <= 0:
            self._channel.tell(ReleaseLease())  # the consumer is full: the dispatcher must decide
        elif leased.report_due or log.terminated_at is not None:
            self.report()  # at the end of a topic the dispatcher notifies consumers
        elif self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report_late)

    # -- delivery ----------------------------------------------------------------------

    def deliver(self, consumer: ChannelConsumer) -> None:
        """Write granted entries while the socket takes them, then new ones under a lease."""
        if consumer.loading is not None or consumer.closed or self.quiet:
            return
        while consumer.grants and consumer.connection.writable:
            grant = consumer.grants[0]
            offsets, run = self._granted(consumer.grants)
            if not run:
                self._load(consumer, grant.first)
                return
            if self.throttles and not (run := self._admitted(consumer, run)):
                return
            offsets = offsets[: len(run)]
            written = self._write(
                consumer, offsets, run, grant.epoch, grant.redelivery_count, grant.ack_set
            )
            if not written:
                return  # trimmed: see `SubscriptionChannel.trimmed`
            consumer.wrote(written)
        if consumer.ends and not consumer.grants:
            consumer.reach_end()
        if self._leased is not None and consumer is self._served and not consumer.grants:
            self._deliver_leased(self._leased, consumer)

    def _run(self, first: int, end: int) -> Sequence[CachedEntry]:
        """The entries from ``first`` on that are in memory, up to a number."""
        return self._log.cache.run(first, min(end - first, RUN_ENTRIES))

    def _granted(self, grants: Sequence[Grant]) -> tuple[Sequence[int], Sequence[CachedEntry]]:
        """Entries of the first grants that may be written together, as far as they are in memory,
        and their offsets, ascending."""
        grant = grants[0]
        run = self._run(grant.first, grant.first + grant.count)
        offsets = range(grant.first, grant.first + len(run))
        if len(grants) == 1 or len(run) < grant.count or not self.gathers:
            return offsets, run
        gathered, entries = list(offsets), list(run)
        for following in islice(grants, 1, None):
            if len(entries) >= RUN_ENTRIES or not following.continues(grant):
                break
            run = self._run(following.first, following.first + following.count)
            gathered += range(following.first, following.first + len(run))
            entries += run
            if len(run) < following.count:
                break
            grant = following
        return gathered, entries

    def _admitted(
        self, consumer: ChannelConsumer, run: Sequence[CachedEntry]
    ) -> Sequence[CachedEntry]:
        """The entries of the run that all limits of the rate let pass now. If there are none, they
        are delivered later."""
        for throttle in self.throttles:
            run = run[: throttle.admits(consumer, run, partial(self.deliver, consumer))]
            if not run:
                break
        return run

    def _write(
        self,
        consumer: ChannelConsumer,
        offsets: Sequence[int],
        run: Sequence[CachedEntry],
        epoch: int | None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
    ) -> int:
        """Write entries of one ledger, and of ascending ``offsets``, while the socket takes them;
        returns their number.

        Returns 0 if the first one is trimmed.
        """
        try:
            span = self._log.span_of(offsets[0])
        except NoSuchEntryError:
            return 0
        headers = MessageHeaders(
            consumer.consumer_id,
            span.ledger_id,
            self._log.partition_index,
            redelivery_count,
            ack_set,
            epoch,
        )
        connection = consumer.connection
        before = connection.bytes_written
        entries = list(map(_DATA, run[: bisect_left(offsets, span.end)]))
        entry_ids = _less(offsets, span.first)
        step = _piece(entries)
        written = 0
        while written < len(entries) and connection.writable:
            end = min(written + step, len(entries))
            if step == 1:
                entry = entries[written]
                connection.write_two(headers.header(entry_ids[written], len(entry)), entry)
            else:
                connection.write(headers.frames(entry_ids[written:end], entries[written:end]))
            written = end
        size = connection.bytes_written - before
        if written:
            now_ms, done = self._log.clock_ms(), run if written == len(run) else run[:written]
            messages, again = sum(map(_MESSAGES, done)), written if redelivery_count else 0
            consumer.traffic.count(messages, size, now_ms, again)
            for throttle in self.throttles:
                throttle.take(done)
            consumer.activity.consumed_ms = self._channel.activity.consumed_ms = now_ms
            if self.spans is not None:
                for entry_id, entry in zip(entry_ids[:written], entries, strict=False):
                    at = Position(span.ledger_id, entry_id)
                    self.spans.written(entry, at, consumer.name, redelivery_count)
        return written

    def _load(self, consumer: ChannelConsumer, offset: int) -> None:
        if not self._channel.unreadable.may_try(offset):
            return
        consumer.loading = asyncio.get_running_loop().create_task(self._read(offset))
        consumer.loading.add_done_callback(lambda task: self._loaded(consumer, offset, task))

    async def _read(self, offset: int) -> None:
        """Read what `_run` needs for the entry at ``offset`` into memory."""
        await self._log.cache.load(offset)

    async def _load_hidden(self, consumer: ChannelConsumer, offset: int) -> None:
        """Load which of the next entries are hidden, and go on in the same turn."""
        try:
            await self._log.visibility.load(offset)
        except (Stopped, JournalError):
            return  # the partition ends
        consumer.loading = None
        if not consumer.closed:
            self.deliver(consumer)

    def _loaded(self, consumer: ChannelConsumer, offset: int, task: asyncio.Task[None]) -> None:
        consumer.loading = None
        if task.cancelled() or consumer.closed:
            self._channel.unreadable.gave_up(offset)
            return
        error = task.exception()
        if isinstance(error, NoSuchEntryError):
            return  # trimmed meanwhile; `SubscriptionChannel.trimmed` continues
        if isinstance(error, Exception):
            self._channel.reading_failed(offset, error)
        else:
            self._channel.unreadable.read(offset)
            self.deliver(consumer)


def _piece(entries: Sequence[bytes | memoryview]) -> int:
    """How many of these entries are written together: one, unless they are small."""
    size, count = sum(map(len, entries)), len(entries)
    if size > _SMALL * count:
        return 1
    return count if size <= PIECE_BYTES else max(count * PIECE_BYTES // size, 1)


def _less(offsets: Sequence[int], first: int) -> Sequence[int]:
    """Entry ids of offsets in the ledger that begins at ``first``."""
    if isinstance(offsets, range):
        return range(offsets.start - first, offsets.stop - first)
    return [offset - first for offset in offsets]

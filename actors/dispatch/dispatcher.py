"""The dispatcher of a subscription chooses the consumer of each entry. It is volatile.

It tracks the connected consumers, their permits, the un-acknowledged entries of each, and the
entries that wait for redelivery (`velaray.actors.dispatch.in_flight`). It reads the cursor, which
belongs to the subscription machine, and never delivers acknowledged entries. It has no payloads:
its host feeds it the number of messages of each entry. Nothing here is journaled. A new dispatcher
begins when consumers subscribe again.

The type of the consumers decides how they share entries (`velaray.actors.dispatch.strategy`). With
a single consumer the partition may deliver without asking (`velaray.actors.dispatch.lease`). Then
the dispatcher delivers nothing, and the partition reports its deliveries.

`velaray.actors.dispatch.unacked` limits the un-acknowledged messages of consumers.

Permits count messages. A consumer with at least one permit gets the next entry whole, so permits
may fall below zero by the size of one entry. A batch debits its un-acknowledged messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from velaray.actors.dispatch.consumers import (
    ActiveChange,
    Attached,
    ConsumerSpec,
    ConsumerView,
    Delivery,
    SubscriptionType,
    UnknownConsumerError,
)
from velaray.actors.dispatch.cursor_in_memory import CursorInMemory
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.key_shared import KeySharedDispatch
from velaray.actors.dispatch.lease import DispatchLease
from velaray.actors.dispatch.shared import SharedDispatch
from velaray.actors.dispatch.single_active import SingleActive
from velaray.actors.dispatch.strategy import DispatchStrategy
from velaray.actors.dispatch.suspects import Suspects, relieve
from velaray.actors.dispatch.waiting import why_it_waits
from velaray.actors.machine import Reason, Refusal, require
from velaray.actors.sets.offset_sets import gaps
from velaray.actors.sets.ranges import Range, normalized
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.actors.subscription.redelivery import CountRuns, NoteDeliveries
from velaray.events.segments import StoredSegment

IN_ORDER = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
"""The types of subscription where one consumer gets all entries in order."""

MIN_WINDOW = 128
MAX_WINDOW = 10_000
"""The least and the most entries that are fed ahead of the read position."""


class Dispatcher:
    """Dispatch of one subscription of one partition."""

    def __init__(
        self,
        cursor: Cursor,
        partition: int = 0,
        counts: CountRuns | None = None,
        acks: PendingAcks | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """Starts at the cursor's mark. ``partition`` spreads the active consumers of a Failover
        subscription over the consumers of the best priority level. ``counts`` are the redelivery
        counts so far; only the dispatcher changes them from now on. ``acks`` are the
        acknowledgements pending in transactions; the dispatcher reads them. The same ``suspects``
        are passed to the next dispatcher."""
        self._partition = max(partition, 0)
        self._in_flight = InFlightTracker(cursor, counts, acks, suspects)
        self._limits = (0, 0)
        self._serving: DispatchStrategy | None = None  # None without consumers
        self._leased: Attached | None = None  # the holder of the dispatch lease
        self._is_cut_off = False
        #: No lease is granted before this offset.
        self.lease_from = 0

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the consumers attached now; None without any."""
        for consumer in self._in_flight.consumers.values():
            return consumer.spec.type
        return None

    @property
    def next_offset(self) -> int:
        """The read position: all entries before it were delivered or queued."""
        return self._in_flight.next_offset

    @property
    def feed_from(self) -> int:
        """The first un-acknowledged offset whose size isn't known yet."""
        return self._in_flight.feed_from

    def wants(self) -> int:
        """Feed up to this offset (exclusive), as far as the partition has entries.

        Feed nothing if it is `feed_from` or less. It isn't beyond the first acknowledgements that
        aren't in memory; `lacks` returns these.
        """
        if self._serving is None or self._leased is not None or self._is_cut_off:
            return self.feed_from
        return self._in_flight.reach(self._wants(self._serving))

    def _wants(self, serving: DispatchStrategy) -> int:
        candidates = serving.candidates()
        permits = sum(consumer.permits for consumer in candidates if consumer.permits > 0)
        window = min(max(2 * permits, MIN_WINDOW), MAX_WINDOW)
        return self._in_flight.deliverable.next_unacked(self._in_flight.next_offset) + window

    def lacks(self) -> list[StoredSegment]:
        """The cold segments of the cursor that keep `wants` from reaching further. Once they are
        loaded, call `wants` in the same turn."""
        if self._serving is None or self._leased is not None or self._is_cut_off:
            return []
        return self._in_flight.cursor.cold_before(self._wants(self._serving))

    @property
    def cursor(self) -> CursorInMemory:
        """The part of the cursor that it knows; only read it."""
        return self._in_flight.cursor

    def feed(
        self,
        first_offset: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None = None,
        hashes: Sequence[int] | None = None,
        delayed: Iterable[Range] = (),
    ) -> bool:
        """Messages per entry of consecutive entries; keys of those that are chunks, by offset;
        the hashes of their keys, 1 to 65535, which it needs if `needs_hashes`; which of them
        aren't due yet (the others are).

        Entries known already are ignored. If there are no hashes and they are needed, or
        un-acknowledged entries between `feed_from` and ``first_offset`` are missing (this feed
        was under way when the dispatcher was reset), nothing is taken and False returned: feed
        from `feed_from` on. Raises ValueError for a size below 1.
        """
        return self._in_flight.feed(first_offset, sizes, chunk_keys, hashes, delayed)

    def due(self, ranges: Iterable[Range]) -> None:
        """End the delay of these entries. Entries that were never fed are ignored."""
        back = self._in_flight.due(ranges)
        if self._serving is not None:
            self._serving.waits(back)

    @property
    def needs_hashes(self) -> bool:
        """Whether entries must be fed with the hashes of their keys.

        They are needed from the first Key_Shared consumer on. Feed from `feed_from` on then.
        """
        return self._in_flight.hashes is not None

    def size_of(self, offset: int) -> int | None:
        """Messages of the entry, if it was fed and is still needed."""
        return self._in_flight.sizes.get(offset)

    # ---- consumers

    def attach(self, spec: ConsumerSpec) -> Refusal | list[ActiveChange]:
        """Attach a consumer, with no permits.

        Refused BUSY for a second Exclusive one or if live consumers have another type or another
        mode of Key_Shared, UNASSIGNABLE if another one has part of its sticky ranges. Raises
        ValueError if the id is attached already.
        """
        consumers = self._in_flight.consumers
        if spec.consumer_id in consumers:
            raise ValueError(f"consumer {spec.consumer_id} is attached already")
        live = self.type
        if live is not None and live is not spec.type:
            return Refusal(
                Reason.BUSY,
                f"the subscription has consumers of type {live.name}, not {spec.type.name}",
            )
        serving = self._serving or self._serving_for(spec)
        refusal = serving.refusal(spec)
        if refusal is not None:
            return refusal
        if self._serving is None:
            self._in_flight.mind_delays(spec.type not in IN_ORDER)
            if spec.type in IN_ORDER:
                self._in_flight.suspects.forget()
        self._serving = serving
        consumers[spec.consumer_id] = consumer = Attached(spec)
        self._set_limits()
        return serving.joined(consumer)

    def _serving_for(self, spec: ConsumerSpec) -> DispatchStrategy:
        if spec.type is SubscriptionType.KEY_SHARED:
            return KeySharedDispatch(self._in_flight, spec.keys)
        self._in_flight.serve_runs()
        if spec.type is SubscriptionType.SHARED:
            return SharedDispatch(self._in_flight)
        return SingleActive(self._in_flight, self._partition, spec.type)

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """Set how many messages one consumer, and all together, may hold un-acknowledged; 0: any
        number.

        For Shared and Key_Shared. Call it only without a lease: a lease has room for the former
        limits.
        """
        self._limits = (per_consumer, per_subscription)
        self._set_limits()

    def _set_limits(self) -> None:
        limited = self.type in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        per_consumer, per_subscription = self._limits if limited else (0, 0)
        limits, consumers = self._in_flight.limits, self._in_flight.consumers.values()
        limits.set(per_consumer, per_subscription, consumers)

    def detach(self, consumer_id: int, lost: bool = False) -> list[ActiveChange]:
        """Remove a consumer; its entries are delivered again, in order and before new ones.

        If it was ``lost``, the entries that it can have been processing count as failed deliveries,
        and are suspects in Shared and Key_Shared. Raises `UnknownConsumerError`.
        """
        consumer, serving = self._attached(consumer_id)
        failed = self._in_flight.failed(consumer) if lost else []
        if consumer.spec.type not in IN_ORDER:
            self._in_flight.suspect(failed)
        back = self._in_flight.give_back(consumer, failed)
        self._in_flight.chunks.unbind_owner(consumer_id)
        del self._in_flight.consumers[consumer_id]
        changes = serving.left(consumer)
        serving.waits(back)
        if not self._in_flight.consumers:
            self._serving = None
        return changes

    def cut_off(self) -> None:
        """End all deliveries after the connection to the partition broke.

        The entries that consumers can have been processing count as failed deliveries. None of them
        becomes a suspect, as most consumers live. Nothing is dispatched afterwards.
        """
        self._leased, self._is_cut_off = None, True
        self._in_flight.cursor.release()
        for consumer in self._in_flight.consumers.values():
            back = self._in_flight.give_back(consumer, self._in_flight.failed(consumer))
            if self._serving is not None:
                self._serving.waits(back)

    def _attached(self, consumer_id: int) -> tuple[Attached, DispatchStrategy]:
        consumer, serving = self._in_flight.consumers.get(consumer_id), self._serving
        if consumer is None or serving is None:
            raise UnknownConsumerError(f"no consumer {consumer_id} is attached")
        return consumer, serving

    def flow(self, consumer_id: int, permits: int) -> None:
        """Add permits: the consumer can take that many more messages.

        Raises `UnknownConsumerError`, and ValueError for permits below 0.
        """
        consumer, serving = self._attached(consumer_id)
        if permits < 0:
            raise ValueError(f"{permits} permits")
        consumer.queue = consumer.queue or permits
        consumer.permits += permits
        serving.can_take(consumer)

    # ---- acknowledgements and redelivery

    def acked(self, ranges: Iterable[Range], partial: Iterable[tuple[int, int]] = ()) -> bool:
        """Release the entries of these ranges, and messages of batches, that are acknowledged.

        Call it right after every event that changed the cursor. Entries that the cursor doesn't
        have stay where they are. Returns whether it is known to have all the ``ranges``.
        """
        in_flight = self._in_flight
        known = in_flight.acked_all(list(ranges))
        for offset, _ in partial:
            in_flight.acked_in_part(offset)
        in_flight.forget_acked()
        return known

    def count_at_least(self, runs: Iterable[tuple[int, int, int]]) -> None:
        """Raise redelivery counts: (first, last + 1, count), as another cluster has them. Call it
        only without a lease for these entries."""
        for first, end, times in runs:
            self._in_flight.counts.raise_to(first, end, times)

    def set_aside(self, ranges: Iterable[Range], partial: Iterable[int] = ()) -> None:
        """Take entries, or batches ``partial``, that are pending in a transaction from consumers.

        Call it before anything is dispatched after the event. Repeating it does no harm.
        """
        view, partial = self._in_flight.deliverable, list(partial)
        for first, end in [*ranges, *((offset, offset + 1) for offset in partial)]:
            for part in gaps(first, end, view.unacked_ranges(first, end)):
                self._in_flight.set_aside(*part)
        for offset in partial:
            self._in_flight.acked_in_part(offset)

    def put_back(self, ranges: Iterable[Range]) -> None:
        """Queue entries of an aborted transaction, pending as a whole or in part, for redelivery.
        Call it only without a lease.

        In Exclusive and Failover all that the active consumer holds is queued too, to keep the
        order. A batch of which a consumer holds some messages is delivered again with all of them.
        """
        in_flight, serving = self._in_flight, self._serving
        back = [part for first, end in ranges for part in in_flight.put_back(first, end)]
        if serving is None:
            return
        if back and self.type in IN_ORDER:
            for consumer in serving.candidates():
                back += in_flight.give_back(consumer)
        serving.waits(back)

    def redeliver(self, consumer_id: int, ranges: Iterable[Range] | None = None) -> None:
        """Redeliver entries that a consumer holds (None: all of them), at its request.

        In Shared and Key_Shared these entries are queued, and their redelivery count goes up by
        one. In Exclusive and Failover all that the consumer holds is queued, in order and before
        new entries; the counts of the entries in ``ranges`` go up. Entries that the consumer
        doesn't hold are ignored. Raises `UnknownConsumerError`.
        """
        consumer, serving = self._attached(consumer_id)
        in_flight = self._in_flight
        named = in_flight.held_of(consumer_id, None if ranges is None else normalized(ranges))
        serving.waits(in_flight.take_back(consumer, serving.returned(consumer, named), named))

    def unsent(self, consumer_id: int, sent: Iterable[tuple[int, int]]) -> None:
        """Return permits for messages of delivered entries that weren't sent. The masks say which
        messages were sent (0: none); the others are about to be acknowledged.

        Raises `UnknownConsumerError`.
        """
        consumer, serving = self._attached(consumer_id)
        for offset, mask in sent:
            self._in_flight.give_permits_back(consumer, offset, mask)
        serving.can_take(consumer)

    def reset(self, next_offset: int) -> None:
        """Begin again at ``next_offset`` after a reset of the cursor, without counts.

        Consumers and their permits stay.
        """
        self._in_flight.reset(next_offset)
        if self._serving is not None:
            self._serving.reset()

    # ---- dispatch leases

    @property
    def leased(self) -> bool:
        """Whether the partition delivers by itself."""
        return self._leased is not None

    def may_lease(self) -> bool:
        """Whether one consumer gets all next entries, so that the partition may deliver alone."""
        in_flight, consumer = self._in_flight, self._only_candidate()
        first = in_flight.deliverable.next_unacked(in_flight.next_offset)
        return consumer is not None and not (
            in_flight.limits.room(consumer) <= 0
            or in_flight.waiting
            or consumer.on_trial
            or first < self.lease_from
            or in_flight.feed_from < first  # entries there are pending, and an abort delivers them
            or max(in_flight.deliverable.untouched_from(), in_flight.counts.end) > first
            or (in_flight.chunks and any(known.reserved for known in in_flight.consumers.values()))
        )

    def _only_candidate(self) -> Attached | None:
        if self._serving is None or self._is_cut_off:
            return None
        return self._serving.only_candidate()

    def lease(self) -> DispatchLease | None:
        """Grant a dispatch lease if it `may_lease` and there is none."""
        if self._leased is not None or not self.may_lease():
            return None
        self._leased = leased = self._only_candidate()
        assert leased is not None
        in_flight = self._in_flight
        in_flight.reach(in_flight.pass_over())
        room = in_flight.limits.room(leased)
        return DispatchLease(leased.spec.consumer_id, in_flight.next_offset, leased.debited, room)

    def lease_report(
        self,
        first: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None = None,
        hashes: Sequence[int] | None = None,
    ) -> None:
        """Take in deliveries under the lease, each of a whole entry.

        Raises `InvariantViolation` without a lease, or if ``first`` isn't `next_offset`.
        """
        consumer, serving = self._leased, self._serving
        require(
            consumer is not None and first == self.next_offset,
            "deliveries under a lease continue it",
            f"{len(sizes)} entries from {first}, next is {self.next_offset}",
        )
        assert consumer is not None and serving is not None
        self._in_flight.lease_report(consumer, sizes, chunk_keys, hashes)
        if chunk_keys:
            serving.lease_report(consumer, chunk_keys)

    def release_lease(self) -> None:
        """End the lease. The partition has reported all deliveries under it."""
        self._leased = None

    # ---- dispatch

    def dispatch(self) -> list[Delivery]:
        """Deliver what can be delivered now. Send the deliveries in this order.

        It delivers nothing while there is a lease, or after `cut_off`.
        """
        out: list[Delivery] = []
        if self._leased is None and self._serving is not None and not self._is_cut_off:
            if self._in_flight.limits.changed:
                self._in_flight.limits.changed = False
                for consumer in self._in_flight.consumers.values():
                    self._serving.can_take(consumer)
            self._serving.dispatch(out)
        return out

    # ---- suspects

    @property
    def on_trial(self) -> bool:
        """Whether a consumer holds suspects, or gets nothing new until it has room for one."""
        consumers = self._in_flight.consumers.values()
        return any(consumer.suspects or consumer.draining for consumer in consumers)

    def relieve(self) -> None:
        """Give consumers on trial that finished nothing since the last call more room."""
        for consumer in self._in_flight.consumers.values():
            relieve(consumer)
        self._in_flight.limits.changed = True  # such a consumer may get entries again

    # ---- dead letters

    def condemn(self, most: int) -> list[Range]:
        """Take away entries with a redelivery count above ``most`` that no consumer holds; returns
        them. No consumer gets them afterwards.
        """
        return self._in_flight.condemned(most)

    def kill(self, ranges: Iterable[Range]) -> None:
        """Take away entries that are on their way to the dead-letter topic."""
        self._in_flight.kill(ranges)

    # ---- notes for the journal

    @property
    def has_notes(self) -> bool:
        """Whether the beginning or end of deliveries isn't noted yet."""
        return bool(self._in_flight.begun or self._in_flight.returned)

    @property
    def must_note(self) -> bool:
        """Whether the end of deliveries in order isn't noted yet."""
        return bool(self._in_flight.returned)

    def take_notes(self, deliveries: Iterable[Delivery] = ()) -> NoteDeliveries:
        """All that isn't noted yet, with the redeliveries among ``deliveries``."""
        in_flight = self._in_flight
        again = [(each.first, each.end) for each in deliveries if each.redelivery_count]
        notes = NoteDeliveries(in_flight.begun, in_flight.returned, again)
        in_flight.begun, in_flight.returned = [], []
        return notes

    def retire(self) -> None:
        """End all deliveries in order: they don't count."""
        self._leased = None
        self._in_flight.cursor.release()
        for consumer_id in list(self._in_flight.consumers):
            self.detach(consumer_id)

    # ---- inspection

    def unacked(self, consumer_id: int) -> list[Range]:
        """The entries that the consumer holds, ascending. Raises `UnknownConsumerError`."""
        self._attached(consumer_id)
        return self._in_flight.held.of(consumer_id)

    def waiting(self) -> int:
        """The number of entries that wait for redelivery."""
        in_flight = self._in_flight
        reserved = sum(consumer.reserved.size() for consumer in in_flight.consumers.values())
        return in_flight.waiting.size() + reserved

    def holder_of(self, offset: int) -> str:
        """The name of the consumer that holds an entry; empty if none does."""
        owner = self._in_flight.held.owner_of(offset)
        return "" if owner is None else self._in_flight.consumers[owner].spec.name

    def why_it_waits(self, offset: int) -> str:
        """The reason why an entry waits that no consumer holds, before the read position; "" if
        none is known."""
        return why_it_waits(self._in_flight, self._serving, offset)

    @property
    def failed_deliveries(self) -> CountRuns:
        """The redelivery counts. Only read them."""
        return self._in_flight.counts

    def redelivery_counts(self, cursor: Cursor, limit: int) -> list[tuple[int, int]]:
        """(offset, count) of the first ``limit`` entries that aren't acknowledged in ``cursor`` and
        have a count above 0."""
        return list(islice(self._counted(cursor), limit))

    def _counted(self, cursor: Cursor) -> Iterator[tuple[int, int]]:
        for run in self._in_flight.counts:
            at = cursor.next_unacked(run.first)
            while at < run.end:
                yield at, run.times
                at = cursor.next_unacked(at + 1)

    def is_delayed(self, offset: int) -> bool:
        """Whether an entry was fed and isn't due yet."""
        return offset in self._in_flight.delayed

    def delayed(self) -> int:
        """The number of entries that were fed and aren't due yet."""
        return self._in_flight.delayed.size()

    def consumers(self) -> list[ConsumerView]:
        """The attached consumers, in the order they attached.

        ``active`` is true of every Shared and Key_Shared consumer.
        """
        in_flight, serving = self._in_flight, self._serving
        return [
            ConsumerView(
                consumer_id,
                known.spec.name,
                known.spec.priority,
                known.permits,
                known.unacked,
                serving is not None and serving.is_active(known),
                known.blocked,
            )
            for consumer_id, known in in_flight.consumers.items()
        ]

    def draining(self) -> int:
        """The number of key hashes with un-acknowledged entries at a former consumer."""
        return self._serving.draining() if isinstance(self._serving, KeySharedDispatch) else 0

    @property
    def blocked(self) -> bool:
        """Whether the consumers together have reached the limit of the subscription."""
        return self._in_flight.limits.blocked

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        self._in_flight.check()
        require(
            (self._serving is None) == (not self._in_flight.consumers),
            "consumers are served in some way",
        )
        if self._serving is not None:
            self._serving.check()
        self._in_flight.check_counts()
        require(
            self._leased is None
            or (self._leased is self._only_candidate() and not self._in_flight.waiting),
            "a lease is for the only candidate, without redeliveries",
        )

"""The books of a dispatcher: which entries are where, and what is known about them.

An entry before `InFlightTracker.next_offset` that isn't acknowledged is either held by a consumer,
or waits to be delivered again, or is not due yet, or is a chunk reserved for the consumer that has
the other chunks of its message, or is pending in a transaction. How entries are shared among
consumers is not decided here (`velaray.actors.dispatch.strategy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from velaray.actors.dispatch.chunks import ChunkGroups
from velaray.actors.dispatch.consumers import Attached, Delivery
from velaray.actors.dispatch.deliverable import Deliverable
from velaray.actors.dispatch.draining import PendingHashes
from velaray.actors.dispatch.sizes import EntryHashes, EntrySizes
from velaray.actors.dispatch.suspects import Suspects, failed_of
from velaray.actors.dispatch.unacked import UnackedLimits
from velaray.actors.machine import require
from velaray.actors.sets.holdings import Holding, Holdings
from velaray.actors.sets.ranges import Range, RangeSet
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.actors.subscription.redelivery import CountRuns


class InFlightTracker:
    """What one dispatcher knows; its members are read, and changed by these methods alone."""

    def __init__(
        self,
        cursor: Cursor,
        counts: CountRuns | None = None,
        acks: PendingAcks | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """Starts at the cursor's mark. ``counts``: how often entries were delivered in vain;
        ``acks``: what is pending in transactions."""
        self.cursor = cursor
        self.deliverable = Deliverable(cursor, PendingAcks() if acks is None else acks)
        self.consumers: dict[int, Attached] = {}
        self.held: Holdings[int] = Holdings()
        self.waiting = RangeSet()
        self.delayed = RangeSet()  # fed, but not due
        self.dead = RangeSet()  # nobody gets these: they go to the dead-letter topic
        self.delays = True  # whether those must wait; Exclusive and Failover don't mind
        self.counts = CountRuns() if counts is None else counts  # of deliveries in vain
        self.suspects = Suspects() if suspects is None else suspects
        self.begun: list[Range] = []  # deliveries that aren't noted yet, but those that count
        self.returned: list[Range] = []  # those that ended in order since then
        self.chunks = ChunkGroups()
        self.sizes = EntrySizes()
        self.hashes: EntryHashes | None = None  # once there was a Key_Shared consumer
        self.pending: PendingHashes | None = None  # while there are some that want order
        self.limits = UnackedLimits()
        self._left: dict[int, int] = {}  # messages left of batches that are held in part
        self.next_offset = self.fed = cursor.acked_before

    # ---- what is known of entries

    @property
    def feed_from(self) -> int:
        """The first offset whose size isn't known yet; acknowledged and dead ones are passed
        over, as nobody gets them.
        """
        first = self.cursor.next_unacked(self.fed)
        while first in self.dead:
            first = self.cursor.next_unacked(self.dead.next_missing(first))
        return first

    def feed(
        self,
        first_offset: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None,
        hashes: Sequence[int] | None,
        delayed: Iterable[Range] = (),
    ) -> bool:
        """See `velaray.actors.dispatch.dispatcher.Dispatcher.feed`."""
        end = first_offset + len(sizes)
        fed = self.fed
        if first_offset > fed and first_offset > self.feed_from:
            return False
        if self.hashes is not None and not hashes:
            return False
        if end <= fed:
            return True
        if min(sizes) < 1:
            raise ValueError(f"an entry of {min(sizes)} messages from offset {first_offset} on")
        first = max(first_offset, fed)
        self.sizes.put(first, sizes[first - first_offset :])
        if self.hashes is not None and hashes:
            self.hashes.put(first, hashes[first - first_offset :])
        if chunk_keys:
            is_acked = self.cursor.is_acked
            self.chunks.add(
                {
                    offset: key
                    for offset, key in chunk_keys.items()
                    if first <= offset < end and not is_acked(offset)
                }
            )
        if self.delays:
            for start, stop in delayed:
                for part in self.cursor.unacked_ranges(max(start, first), stop):
                    self.delayed.add(*part)
        self.fed = end
        return True

    def need_hashes(self) -> None:
        """From now on entries are known with their hashes: begin again, as nobody holds any."""
        counts, suspects = self.counts.copy(), self.suspects
        self.suspects = Suspects()
        self.reset(self.cursor.acked_before)
        self.counts, self.suspects = counts, suspects
        self.hashes = EntryHashes()

    def mind_delays(self, delays: bool) -> None:
        """Whether entries must wait until they're due; what was fed ahead is to be fed again."""
        if delays == self.delays:
            return
        self.delays = delays
        if delays:
            self.fed = self.next_offset
        else:
            self.due([(0, self.fed)])

    def due(self, ranges: Iterable[Range]) -> list[Range]:
        """These needn't wait any longer; returns what was passed over, and waits to be delivered
        next.
        """
        return [
            part
            for first, end in ranges
            for start, stop in self.delayed.discard(first, end)
            for part in self._wait(start, stop)
        ]

    def _wait(self, first: int, end: int) -> list[Range]:
        """What may be delivered of a range, and was passed over, waits; returns that."""
        end = min(end, self.next_offset)
        back = self.deliverable.unacked_ranges(first, end) if first < end else []
        for part in back:
            self.waiting.add(*part)
        return back

    def reset(self, next_offset: int) -> None:
        """Forget everything but the consumers; go on at ``next_offset``."""
        self.held.clear()
        self.waiting.clear()
        self.delayed.clear()
        self.dead.clear()
        self.counts.clear()
        self.suspects.forget()
        self.begun.clear()
        self.returned.clear()
        self.chunks.clear()
        self.sizes.clear()
        if self.hashes is not None:
            self.hashes.clear()
        if self.pending is not None:
            self.pending.clear()
        self.limits.reset(self.consumers.values())
        self._left.clear()
        for consumer in self.consumers.values():
            consumer.reserved.clear()
            consumer.forget_held()
        self.next_offset = self.fed = next_offset

    # ---- giving out

    def can_take(self, consumer: Attached) -> bool:
        """Whether the consumer has permits, doesn't hold too much, and may get any entry."""
        return self.can_try(consumer) and not consumer.on_trial

    def can_try(self, consumer: Attached) -> bool:
        """As `can_take`, of suspects."""
        return consumer.permits > 0 and self.limits.room(consumer) > 0

    def front(self) -> Range | None:
        """What is to be delivered next: what waits, then what is new."""
        return self.waiting.first() or self.unread()

    def fresh_front(self) -> Range | None:
        """The `front`, suspects aside; None as well if suspects are next to be read."""
        if not self.suspects:
            return self.front()
        if (front := self.suspects.first_but(self.waiting)) or (front := self.unread()) is None:
            return front
        losses, stop = self.suspects.alike(*front)
        return None if losses else (front[0], stop)

    def unearth(self) -> list[Range]:
        """Suspects that are next to be read wait from now on; returns them."""
        found: list[Range] = []
        while self.suspects and (front := self.unread()) is not None:
            losses, stop = self.suspects.alike(*front)
            if not losses:
                break
            self.waiting.add(front[0], stop)
            self.next_offset = stop
            found.append((front[0], stop))
        return found

    def unread(self) -> Range | None:
        """The first entries that are known and have never been delivered."""
        first = self.pass_over()
        if first >= self.fed:
            return None
        end = self.deliverable.next_acked(first, self.fed)
        for others in (self.delayed, self.dead):
            end = others.next_start(first, end) if others else end
        return first, end

    def pass_over(self) -> int:
        """Go on behind what is acknowledged, pending, not due yet or dead; returns where that
        is. What is pending may come again, so it must be known."""
        first = self.deliverable.next_unacked(self.next_offset)
        while first in self.delayed or first in self.dead:
            first = self.delayed.next_missing(self.dead.next_missing(first))
            first = self.deliverable.next_unacked(first)
        if first > self.fed:
            first = min(first, self.feed_from)
        self.next_offset = first
        return first

    def condemned(self, most: int) -> list[Range]:
        """What nobody holds, and was delivered in vain more often than that; it's dead now.

        Not what is pending in part in a transaction: all of its messages would go.
        """
        found = []
        for run in list(self.counts):
            if run.times > most:
                found += self.waiting.within(run.first, run.end)
                first = max(run.first, self.next_offset)
                if first < run.end:
                    found += self.deliverable.unacked_ranges(first, run.end)
        new = [
            part
            for first, end in found
            for start, stop in self.dead.missing(first, end)
            for part in self.deliverable.without_pending_parts(start, stop)
        ]
        self.kill(new)
        return new

    def kill(self, ranges: Iterable[Range]) -> None:
        """Nobody gets these any more; what of them is acknowledged is nowhere anyway."""
        for first, end in ranges:
            for part in self.cursor.unacked_ranges(first, end):
                self.waiting.discard(*part)
                self.delayed.discard(*part)
                self.dead.add(*part)
                self.suspects.clear(*part)

    def passed(self, first: int, end: int) -> None:
        """What is to be delivered next, from ``first`` to ``end``, is dealt with."""
        if first < self.next_offset:
            self.waiting.discard(first, end)
        else:
            self.next_offset = end

    def deliver(
        self, consumer: Attached, first: int, end: int, limit: int, out: list[Delivery]
    ) -> int:
        """Deliver entries from ``first`` on that are alike, for some ``limit`` messages.

        Returns the offset up to which it got: before ``end`` if the limit is reached, or if
        the next entry needs a delivery of its own kind.
        """
        count = 0
        end = min(end, first + limit)
        if self.counts:
            count, end = self.counts.alike(first, end)
        ack_set = None
        partials = self.deliverable.partials(first, end)
        if partials and partials[0][0] == first:
            ack_set = partials[0][1]
            end, messages = first + 1, self._count_left(first, ack_set)
            self._left[first] = consumer.last_debit = messages
        else:
            if partials:
                end = partials[0][0]
            end, messages = self.sizes.fit(first, end, limit)
            consumer.last_debit = self.sizes.get(end - 1) or 0
        self._give(consumer, first, end)
        self._debit(consumer, first, end, messages)
        if not count:
            self._begin(first, end)
        owner = consumer.spec.consumer_id
        out.append(Delivery(owner, first, end, messages, count, ack_set))
        return end

    def deliver_one(self, consumer: Attached, offset: int, out: list[Delivery]) -> None:
        """Deliver an entry, together with the one before it if they are alike."""
        count = self.counts.get(offset) if self.counts else 0
        if not count:
            self._begin(offset, offset + 1)
        messages = self.sizes.get(offset) or 0
        ack_set = self.deliverable.ack_set(offset)
        if ack_set is not None:
            self._left[offset] = messages = self._count_left(offset, ack_set)
        self._give(consumer, offset, offset + 1)
        self._debit(consumer, offset, offset + 1, messages)
        consumer.last_debit = messages
        owner = consumer.spec.consumer_id
        if out and ack_set is None:
            last = out[-1]
            alike = last.redelivery_count == count and last.ack_set is None
            if last.end == offset and last.consumer_id == owner and alike:
                last.end += 1
                last.messages += messages
                return
        out.append(Delivery(owner, offset, offset + 1, messages, count, ack_set))

    def _begin(self, first: int, end: int) -> None:
        """These go out, uncounted so far."""
        begun = self.begun
        if begun and begun[-1][1] == first:
            begun[-1] = (begun[-1][0], end)
        else:
            begun.append((first, end))

    def _give(self, consumer: Attached, first: int, end: int) -> None:
        owner = consumer.spec.consumer_id
        self.held.give(first, end, owner)
        consumer.entries += end - first
        if self.suspects:
            losses = self.suspects.losses
            consumer.suspects.update((at, None) for at in range(first, end) if losses(at))
        if self.pending is not None and self.hashes is not None:
            for offset in range(first, end):
                self.pending.given(self.hashes.get(offset) or 0, owner)

    def _debit(self, consumer: Attached, first: int, end: int, messages: int) -> None:
        consumer.note_sent(first, end, messages)
        consumer.permits -= messages
        consumer.debited += messages
        self.limits.gave(consumer, messages)

    def _count_left(self, offset: int, ack_set: int) -> int:
        size = self.sizes.get(offset) or 0
        return (ack_set & (1 << size) - 1).bit_count()

    def lease_report(
        self,
        consumer: Attached,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None,
        hashes: Sequence[int] | None,
    ) -> None:
        """The partition gave the entries from `next_offset` on to a consumer, whole."""
        first, end = self.next_offset, self.next_offset + len(sizes)
        require(self.feed(first, sizes, chunk_keys, hashes), "what is delivered is known", f"{end}")
        self._debit(consumer, first, end, sum(sizes))
        self._begin(first, end)
        consumer.last_debit = sizes[-1]
        at = first
        for start, stop in self.deliverable.unacked_ranges(first, end):
            self.limits.took(consumer, self.sizes.total(at, start))
            self._give(consumer, start, stop)
            at = stop
        self.limits.took(consumer, self.sizes.total(at, end))
        for offset, _ in self.deliverable.partials(first, end):
            self.acked_in_part(offset)
        self.next_offset = end

    # ---- taking back

    def acked(self, first: int, end: int) -> None:
        """The cursor changed within this range: nobody holds any longer what it has."""
        if end - first == 1:
            if self.cursor.is_acked(first):
                self._release(first, end)
            return
        for start, stop in self.cursor.unacked_ranges(first, end):
            self._release(first, start)
            first = stop
        self._release(first, end)

    def acked_in_part(self, offset: int) -> None:
        """The cursor, or what is pending, changed at this batch: who holds it holds the less
        of it."""
        ack_set, owner = self.deliverable.ack_set(offset), self.held.owner_of(offset)
        if ack_set is None:
            self.acked(offset, offset + 1)
        elif not ack_set:
            self.set_aside(offset, offset + 1)
        elif owner is not None:
            before = self._left.get(offset) or self.sizes.get(offset) or 0
            self._left[offset] = left = self._count_left(offset, ack_set)
            self.limits.took(self.consumers[owner], before - left)

    def set_aside(self, first: int, end: int) -> None:
        """These are pending from now on. Their delivery counts as one in vain, which doesn't
        matter if they are acknowledged in the end."""
        taken = self.held.take(first, end)
        self.counts.add([(part.first, part.end) for part in taken], 1)
        self._took(taken)
        self.waiting.discard(first, end)
        for consumer in self.consumers.values():
            consumer.reserved.discard(first, end)

    def put_back(self, first: int, end: int) -> list[Range]:
        """These, or some messages of them, aren't pending any longer: they wait to be delivered
        again, unless they're dead or not due; returns what waits."""
        end = min(end, self.next_offset)
        if first < end:
            self.set_aside(first, end)  # who has the rest of a batch gets it anew
        return [
            part
            for alive in self.dead.missing(first, end)
            for due in self.delayed.missing(*alive)
            for part in self._wait(*due)
        ]

    def _release(self, first: int, end: int) -> None:
        if first >= end:
            return
        self._took(self.held.take(first, end))
        if self.waiting:
            self.waiting.discard(first, end)
        if self.delayed:
            self.delayed.discard(first, end)
        if self.dead:
            self.dead.discard(first, end)
        if self.counts:
            self.counts.forget(first, end)
        if self.suspects:
            self.suspects.clear(first, end)
        if self.chunks:
            for consumer in self.consumers.values():
                consumer.reserved.discard(first, end)
            self.chunks.forget(first, end)

    def _took(self, parts: Sequence[Holding[int]]) -> None:
        """These aren't held any longer."""
        for first, end, owner in parts:
            if end - first == 1 and first not in self._left:
                messages = self.sizes.get(first) or 0
            else:
                messages = self._messages_held(first, end)
            consumer = self.consumers[owner]
            self.limits.took(consumer, messages)
            consumer.entries -= end - first
            consumer.progressed = True
            if consumer.suspects:
                self._tried(consumer, first, end)
            if self.pending is not None and self.hashes is not None:
                for offset in range(first, end):
                    self.pending.taken(self.hashes.get(offset) or 0)
            if self._left:
                for offset in self._left_within(first, end):
                    del self._left[offset]

    def _tried(self, consumer: Attached, first: int, end: int) -> None:
        """The consumer has these suspects no longer."""
        for offset in [at for at in consumer.suspects if first <= at < end]:
            del consumer.suspects[offset]
        if not consumer.suspects:
            consumer.relief = 0
            self.limits.changed = True  # it may get other entries again

    def _messages_held(self, first: int, end: int) -> int:
        messages = self.sizes.total(first, end)
        if self._left:
            for offset in self._left_within(first, end):
                messages += self._left[offset] - (self.sizes.get(offset) or 0)
        return messages

    def _left_within(self, first: int, end: int) -> list[int]:
        known = self._left if len(self._left) < end - first else range(first, end)
        return [offset for offset in known if first <= offset < end and offset in self._left]

    def forget_acked(self) -> None:
        """Drop what is known of entries that are acknowledged."""
        self.sizes.drop(self.cursor.acked_before, self.cursor.next_unacked)
        if self.hashes is not None:
            self.hashes.drop(self.cursor.acked_before, self.cursor.next_unacked)

    def held_of(self, owner: int, ranges: Sequence[Range] | None) -> list[Range]:
        """What the consumer holds of the ranges (None: all), ascending."""
        if ranges is None:
            return self.held.of(owner)
        return [
            (part.first, part.end)
            for first, end in ranges
            for part in self.held.within(first, end)
            if part.owner == owner
        ]

    def end_deliveries(self, ranges: Sequence[Range], failed_deliveries: Sequence[Range]) -> None:
        """End the deliveries of these ranges, and count the ``failed_deliveries`` among them."""
        self.counts.add(failed_deliveries, 1)
        if ranges != failed_deliveries:
            counted = RangeSet(failed_deliveries)
            self._return(part for each in ranges for part in counted.missing(*each))

    def _return(self, ranges: Iterable[Range]) -> None:
        # What isn't noted yet needn't be taken back: it is as if it hadn't gone out.
        begun = RangeSet(self.begun)
        for first, end in ranges:
            unnoted = RangeSet(begun.discard(first, end))
            self.returned += unnoted.missing(first, end)
        self.begun = list(begun)

    def give_permits_back(self, consumer: Attached, offset: int, sent: int) -> None:
        """Undo the debit of what isn't in the mask ``sent``, if the consumer holds the entry."""
        if self.held.owner_of(offset) != consumer.spec.consumer_id:
            return
        everything = (1 << (self.sizes.get(offset) or 0)) - 1
        ack_set = self.deliverable.ack_set(offset)
        debited = everything if ack_set is None else everything & ack_set
        unsent = (debited & ~sent).bit_count()
        consumer.permits += unsent
        consumer.debited -= unsent

    def take_back(
        self, consumer: Attached, ranges: Sequence[Range], failed_deliveries: Sequence[Range]
    ) -> list[Range]:
        """What a consumer held of these waits to be delivered again; returns all that does.

        The redelivery count of ``failed_deliveries`` goes up by one. Their consumer outlived them,
        so they are no suspects.
        """
        back = list(ranges)
        self.end_deliveries(ranges, failed_deliveries)
        for first, end in failed_deliveries:
            self.suspects.clear(first, end)
        for first, end in ranges:
            self._took(self.held.take(first, end))
        if self.chunks:
            for offset in self.chunks.unbind_returned(ranges, self._is_held):
                back += consumer.reserved.discard(offset, offset + 1)
        for first, end in back:
            self.waiting.add(first, end)
        return back

    def _is_held(self, offset: int) -> bool:
        return self.held.owner_of(offset) is not None

    def failed(self, consumer: Attached) -> list[Range]:
        """What a lost consumer can have been processing (`velaray.actors.dispatch.suspects`)."""
        held = self.held.of(consumer.spec.consumer_id)
        return failed_of(
            consumer, held, self.suspects, lambda offset: self._messages_held(offset, offset + 1)
        )

    def suspect(self, ranges: Iterable[Range]) -> None:
        """These were lost with their consumer. Not chunks: all of a message are needed at once."""
        chunks = self.chunks
        if not chunks:
            self.suspects.lost(ranges)
            return
        for first, end in ranges:
            alone = [at for at in range(first, end) if chunks.key_of(at) is None]
            self.suspects.lost((at, at + 1) for at in alone)

    def give_back(self, consumer: Attached, failed_deliveries: Sequence[Range] = ()) -> list[Range]:
        """All that a consumer held, or that was reserved for it, waits to be delivered again.

        The redelivery count of ``failed_deliveries`` goes up by one.
        """
        owner = consumer.spec.consumer_id
        held = self.held.of(owner)
        self.end_deliveries(held, failed_deliveries)
        back = [*held, *consumer.reserved]
        for first, end in back:
            self._took(self.held.take(first, end, owner))
            self.waiting.add(first, end)
        consumer.reserved.clear()
        return back

    # ---- invariants

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        self.held.check()
        self._check_places()
        self._check_consumers()
        for offset, owner in self.chunks.bound():
            holder = self.held.owner_of(offset)
            require(
                holder is None or holder == owner,
                "all chunks of a message are at one consumer",
                f"{offset} at {holder}, others at {owner}",
            )

    def _check_places(self) -> None:
        """Every un-acknowledged entry behind the read position is in exactly one place."""
        places = [("held", first, end) for first, end, _ in self.held]
        places += [("waiting", first, end) for first, end in self.waiting]
        at, unacked_ranges = self.cursor.acked_before, self.deliverable.unacked_ranges
        for place, others in (("not due", self.delayed), ("dead", self.dead)):
            for first, end in others.within(0, self.next_offset):
                whole = self.cursor.unacked_ranges(first, end) == [(first, end)]
                require(whole, f"nothing acknowledged is {place}", f"{first} to {end}")
                places += [(place, *part) for part in unacked_ranges(first, end)]
        for consumer in self.consumers.values():
            places += [("reserved", first, end) for first, end in consumer.reserved]
        places.sort(key=lambda place: place[1:])
        for place, first, end in places:
            unacked = unacked_ranges(first, end)
            require(
                unacked == [(first, end)],
                f"nothing acknowledged is {place}",
                f"{first} to {end}",
            )
            require(at <= first, "an entry is in one place", f"{place} {first} to {end}, {at}")
            require(
                end <= self.next_offset,
                "what isn't read yet is nowhere",
                f"{place} {first} to {end}",
            )
            lost = unacked_ranges(at, first)
            require(not lost, "no entry is lost", f"{lost} not acked, not held, not waiting")
            at = end
            sizes = [self.sizes.get(offset) for offset in range(first, end)]
            require(
                place == "dead" or None not in sizes,
                "sizes of what may be delivered are known",
                f"{first}",
            )
        lost = unacked_ranges(at, self.next_offset)
        require(not lost, "no entry is lost", f"{lost} not acked, not held, not waiting")

    def check_counts(self) -> None:
        """Raise `InvariantViolation` unless what is counted is what is held."""
        messages: dict[int, int] = {}
        held: set[int] = set()
        for first, end, owner in self.held:
            messages[owner] = messages.get(owner, 0) + self._messages_held(first, end)
            held.update(self._left_within(first, end))
        require(held == set(self._left), "what is left is told of what is held", repr(self._left))
        self.limits.check(self.consumers.values(), messages)
        for number, consumer in self.consumers.items():
            mine = RangeSet(self.held.of(number))
            require(
                consumer.entries == mine.size() and all(at in mine for at in consumer.suspects),
                "suspects are among the entries that are held",
                f"{consumer.spec.name}: {consumer.entries}, {consumer.suspects}, holds {mine}",
            )
        if self.pending is not None and self.hashes is not None:
            self._check_pending(self.pending, self.hashes)

    def _check_pending(self, pending: PendingHashes, hashes: EntryHashes) -> None:
        counted: dict[tuple[int, int], int] = {}
        for first, end, owner in self.held:
            for offset in range(first, end):
                at = (hashes.get(offset) or 0, owner)
                counted[at] = counted.get(at, 0) + 1
        owners = [hashed for hashed, _ in counted]
        require(
            len(owners) == len(set(owners)),
            "a key is un-acknowledged at no more than one consumer",
            repr(counted),
        )
        require(
            counted == {(hashed, owner): entries for hashed, owner, entries in pending},
            "pending hashes are those of what is held",
            f"{sorted(pending)}, not {sorted(counted.items())}",
        )

    def _check_consumers(self) -> None:
        kinds = {consumer.spec.type for consumer in self.consumers.values()}
        require(len(kinds) <= 1, "consumers are of one type", repr(kinds))
        for first, _, owner in self.held:
            require(owner in self.consumers, "who holds entries is attached", f"{first}: {owner}")
        for consumer in self.consumers.values():
            require(
                consumer.permits >= 0 or consumer.permits + consumer.last_debit > 0,
                "permits are exceeded by the last entry only",
                f"{consumer.spec.name}: {consumer.permits}",
            )

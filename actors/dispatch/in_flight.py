"""Tracks where a dispatcher's entries are: held, waiting, delayed, reserved or pending.

An un-acknowledged entry before `InFlightTracker.next_offset` is in exactly one place:

- a consumer holds it;
- it waits for redelivery;
- its delivery time hasn't come;
- it is a chunk, reserved for the consumer with the other chunks of its message;
- it is pending in a transaction;
- it is on its way to the dead-letter topic.

`velaray.actors.dispatch.strategy` decides which consumer gets which entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from velaray.actors.dispatch.chunks import ChunkGroups
from velaray.actors.dispatch.consumers import Attached, Delivery
from velaray.actors.dispatch.cursor_in_memory import CursorInMemory
from velaray.actors.dispatch.deliverable import Deliverable
from velaray.actors.dispatch.draining import PendingHashes
from velaray.actors.dispatch.sizes import EntryHashes, EntrySizes
from velaray.actors.dispatch.suspects import Suspects, failed_of
from velaray.actors.dispatch.unacked import UnackedLimits
from velaray.actors.machine import require
from velaray.actors.sets.entry_holdings import EntryHoldings, places_of
from velaray.actors.sets.holdings import Holding, Holdings
from velaray.actors.sets.ranges import Range, RangeSet
from velaray.actors.subscription.cursor import Cursor
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.actors.subscription.redelivery import CountRuns

_Sent = tuple[int, int, int]  # first, last + 1, messages

_SHORT = 16
"""Ranges of at most this many entries are released entry by entry in Key_Shared."""


class InFlightTracker:
    """The entries of one dispatcher. Others read its members; only its methods change them."""

    def __init__(
        self,
        cursor: Cursor,
        counts: CountRuns | None = None,
        acks: PendingAcks | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """Starts at the cursor's mark. ``counts`` are redelivery counts, ``acks`` the
        acknowledgements that are pending in transactions."""
        self.cursor = CursorInMemory(cursor)
        self.deliverable = Deliverable(self.cursor, PendingAcks() if acks is None else acks)
        self._unseen: Range | None = None  # acknowledgements within may be in cold segments
        self.consumers: dict[int, Attached] = {}
        self.held: Holdings[int] | EntryHoldings = Holdings()
        self.waiting = RangeSet()
        self.delayed = RangeSet()  # fed, but not due
        self.dead = RangeSet()  # on their way to the dead-letter topic
        self.delays = True  # whether those wait; not in Exclusive and Failover
        self.counts = CountRuns() if counts is None else counts  # redelivery counts
        self.suspects = Suspects() if suspects is None else suspects
        self.begun: list[Range] = []  # first deliveries that aren't noted yet
        self.returned: list[Range] = []  # deliveries that ended in order and aren't noted yet
        self.chunks = ChunkGroups()
        self.sizes = EntrySizes()
        self.hashes: EntryHashes | None = None  # once there was a Key_Shared consumer
        self.pending: PendingHashes | None = None  # while several consumers need keys in order
        self.limits = UnackedLimits()
        self._left: dict[int, int] = {}  # messages left of batches that are held in part
        self.next_offset = self.fed = cursor.acked_before

    # ---- entries that were fed

    @property
    def feed_from(self) -> int:
        """The first offset whose size isn't known yet, after entries that are acknowledged or on
        their way to the dead-letter topic: these are never delivered.
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
        fed = self.fed
        if first_offset > fed and first_offset > self.feed_from:
            return False
        if self.hashes is not None and not hashes:
            return False
        end = self.reach(first_offset + len(sizes))
        if end <= fed:
            return True
        sizes = sizes[: end - first_offset]
        self._take_sizes(first_offset, sizes, chunk_keys, hashes, delayed)
        return True

    def _take_sizes(
        self,
        first_offset: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None,
        hashes: Sequence[int] | None,
        delayed: Iterable[Range] = (),
    ) -> None:
        fed, end = self.fed, first_offset + len(sizes)
        if min(sizes) < 1:
            raise ValueError(f"an entry of {min(sizes)} messages from offset {first_offset} on")
        first = max(first_offset, fed)
        self.sizes.put(first, sizes[first - first_offset :])
        if self.hashes is not None and hashes:
            self.hashes.put(first, hashes[first - first_offset : len(sizes)])
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
                for part in self.cursor.unacked_ranges(max(start, first), min(stop, end)):
                    self.delayed.add(*part)
        self.fed = end

    def reach(self, offset: int) -> int:
        """Move on to ``offset``, or to the first acknowledgements that aren't in memory if they are
        before it; returns the offset. Entries beyond it can't be delivered yet."""
        known = self.cursor.reach(offset)
        if self._unseen is not None and self._unseen[0] < self.cursor.kept_before:
            first, end = self._unseen
            stop = min(self.cursor.kept_before, end)
            self._unseen = (stop, end) if stop < end else None
            self.acked(first, stop)
            for at, _ in self.deliverable.partials(first, stop):
                self.acked_in_part(at)
        return known

    def _see_later(self, first: int, end: int) -> None:
        """Note that the range has acknowledgements that aren't in memory, if so; `reach` returns to
        them."""
        first = max(first, self.cursor.acked_before)
        if end > self.cursor.kept_before and self.cursor.known_until(first, end) < end:
            known = self._unseen or (first, end)
            self._unseen = min(known[0], first), max(known[1], end)

    def need_hashes(self) -> None:
        """Begin again at the cursor's mark, with hashes of keys. No consumer holds entries then."""
        counts, suspects = self.counts.copy(), self.suspects
        self.suspects = Suspects()
        self.reset(self.cursor.acked_before)
        self.counts, self.suspects = counts, suspects
        self.hashes = EntryHashes()

    def serve_keys(self) -> None:
        """Serve Key_Shared consumers from now on. No consumer holds entries then."""
        self.pending, self.held = None, EntryHoldings()

    def count_pending(self) -> None:
        """Count the held entries of each hash from now on."""
        assert self.hashes is not None
        self.pending = PendingHashes()
        for first, end, owner in self.held:
            self.pending.given(self.hashes.all(first, end), [owner] * (end - first))

    def serve_runs(self) -> None:
        """Serve consumers of other types from now on. No consumer holds entries then."""
        self.pending, self.held = None, Holdings()

    def mind_delays(self, delays: bool) -> None:
        """Set whether entries wait until they're due; entries fed ahead must be fed again."""
        if delays == self.delays:
            return
        self.delays = delays
        if delays:
            self.fed = self.next_offset
        else:
            self.due([(0, self.fed)])

    def due(self, ranges: Iterable[Range]) -> list[Range]:
        """End the delay of these entries; returns those that wait for delivery now, because
        the read position has passed them.
        """
        return [
            part
            for first, end in ranges
            for start, stop in self.delayed.discard(first, end)
            for part in self._wait(start, stop)
        ]

    def _wait(self, first: int, end: int) -> list[Range]:
        """Queue the deliverable entries of a range before the read position; returns them."""
        end = min(end, self.next_offset)
        back = self.deliverable.unacked_ranges(first, end) if first < end else []
        for part in back:
            self.waiting.add(*part)
        return back

    def reset(self, next_offset: int) -> None:
        """Drop everything except the consumers; continue at ``next_offset``."""
        self.cursor.release()
        self._unseen = None
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
        """Whether the consumer has permits and room, and may get entries that aren't suspects."""
        return self.can_try(consumer) and not consumer.on_trial

    def can_try(self, consumer: Attached) -> bool:
        """Whether the consumer has permits and room for suspects."""
        return consumer.permits > 0 and self.limits.room(consumer) > 0

    def front(self) -> Range | None:
        """The entries to deliver next: waiting ones before new ones."""
        return self.waiting.first() or self.unread()

    def fresh_front(self) -> Range | None:
        """The `front` without suspects; None if the next unread entries are suspects."""
        if not self.suspects:
            return self.front()
        if (front := self.suspects.first_but(self.waiting)) or (front := self.unread()) is None:
            return front
        losses, stop = self.suspects.alike(*front)
        return None if losses else (front[0], stop)

    def unearth(self) -> list[Range]:
        """Queue suspects at the read position; returns them."""
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
        """Move the read position behind entries that are acknowledged, pending, delayed or dead;
        returns it. It stays before pending entries that weren't fed: an abort delivers them."""
        first = self.deliverable.next_unacked(self.next_offset)
        while first in self.delayed or first in self.dead:
            first = self.delayed.next_missing(self.dead.next_missing(first))
            first = self.deliverable.next_unacked(first)
        if first > self.fed:
            first = min(first, self.feed_from)
        self.next_offset = first
        return first

    def condemned(self, most: int) -> list[Range]:
        """Take away all entries with a redelivery count above ``most`` that no consumer holds;
        returns them. They are dead: no consumer gets them. Entries beyond what is in memory follow
        later.

        Batches that are pending in part in a transaction stay: all of their messages would go.
        """
        found = []
        for run in list(self.counts):
            if run.times > most:
                found += self.waiting.within(run.first, run.end)
                first = max(run.first, self.next_offset)
                if first < (end := self.cursor.known_until(first, run.end)):
                    found += self.deliverable.unacked_ranges(first, end)
        new = [
            part
            for first, end in found
            for start, stop in self.dead.missing(first, end)
            for part in self.deliverable.without_pending_parts(start, stop)
        ]
        self.kill(new)
        return new

    def kill(self, ranges: Iterable[Range]) -> None:
        """Take away un-acknowledged entries of these ranges: no consumer gets them."""
        for first, end in ranges:
            self._see_later(first, end)
            for part in self.cursor.unacked_ranges(first, end):
                self.waiting.discard(*part)
                self.delayed.discard(*part)
                self.dead.add(*part)
                self.suspects.clear(*part)

    def passed(self, first: int, end: int) -> None:
        """Remove ``first`` to ``end`` - 1 from the front: they are delivered or elsewhere."""
        if first < self.next_offset:
            self.waiting.discard(first, end)
        else:
            self.next_offset = end

    def deliver(
        self, consumer: Attached, first: int, end: int, limit: int, out: list[Delivery]
    ) -> int:
        """Deliver entries from ``first`` on with equal counts, for about ``limit`` messages.

        Returns the offset behind the last one: below ``end`` if the limit is reached, or if
        the next entry needs a delivery of its own.
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
        """Deliver an entry; it joins the last delivery in ``out`` if they are alike."""
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

    def deliver_each(
        self,
        first: int,
        owners: Sequence[int | None],
        hashes: Sequence[int],
        entries: Mapping[int | None, int],
        out: list[Delivery],
    ) -> None:
        """As `deliver_one`, of new entries of `are_alike` from ``first`` on, each to one of the
        ``owners``; None delivers it to none. ``entries`` is their number by owner. All of them are
        in one page of sizes."""
        sizes = self.sizes.run(first, first + len(owners))
        new, sent = _runs_of(first, owners, sizes)
        assert isinstance(self.held, EntryHoldings)
        self.held.give_each(first, owners)
        for owner, runs in sent.items():
            last_debit = sizes[runs[-1][1] - 1 - first]
            self._debit_all(self.consumers[owner], runs, entries[owner], last_debit)
        if None not in entries:
            self._begin(first, first + len(owners))
        else:
            for run in new:
                self._begin(run.first, run.end)
        if self.pending is not None:
            self.pending.given(hashes, owners)
        if out and new:
            last, run = out[-1], new[0]
            alike = not last.redelivery_count and last.ack_set is None
            if last.end == run.first and last.consumer_id == run.consumer_id and alike:
                last.end = run.end
                last.messages += run.messages
                del new[0]
        out += new

    def _debit_all(
        self,
        consumer: Attached,
        runs: Sequence[_Sent],
        entries: int,
        last_debit: int,
    ) -> None:
        """Debit runs of entries (first, last + 1, messages) that a consumer gets."""
        messages = consumer.note_all_sent(runs)
        consumer.entries += entries
        consumer.permits -= messages
        consumer.debited += messages
        consumer.last_debit = last_debit
        self.limits.gave(consumer, messages)

    def are_alike(self, first: int, end: int) -> bool:
        """Whether no entry from ``first`` to ``end`` - 1 was delivered before, is acknowledged in
        part, or is a chunk."""
        special = self.counts or self.suspects or self.chunks
        return not special and not self.deliverable.partials(first, end)

    def _begin(self, first: int, end: int) -> None:
        """Remember first deliveries, to be noted durably."""
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
            self.pending.given(self.hashes.all(first, end), [owner] * (end - first))

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
        """Take in whole entries from `next_offset` on that the partition delivered."""
        first, end = self.next_offset, self.next_offset + len(sizes)
        known = first <= self.fed or first <= self.feed_from
        known = known and (self.hashes is None or bool(hashes))
        require(known, "what is delivered is known", f"{end}")
        if self.reach(end) < end:
            self._see_later(first, end)
        if end > self.fed:
            self._take_sizes(first, sizes, chunk_keys, hashes)
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
        """Release the entries of a range that are acknowledged by now."""
        if end - first == 1 and self.cursor.is_acked(first):  # nearly always
            self._release(first, end)
            return
        self._see_later(first, end)
        for start, stop in self.cursor.unacked_ranges(first, end):
            self._release(first, start)
            first = stop
        self._release(first, end)

    def acked_all(self, ranges: Sequence[Range]) -> bool:
        """As `acked`, of each of these ranges; returns whether all of them are known to be
        acknowledged."""
        known = not self.cursor.unacked_of(ranges)  # nearly always
        if known and len(ranges) > 1:
            self._release_all(ranges)
        else:
            for first, end in ranges:
                self.acked(first, end)
        return known

    def acked_in_part(self, offset: int) -> None:
        """Release the messages of a batch that are acknowledged or pending by now."""
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
        """Take these entries from their consumers: they are pending in a transaction. Their
        redelivery count goes up, for the case of an abort."""
        taken = self.held.take(first, end)
        self.counts.add([(part.first, part.end) for part in taken], 1)
        self._took(taken)
        self.waiting.discard(first, end)
        for consumer in self.consumers.values():
            consumer.reserved.discard(first, end)

    def put_back(self, first: int, end: int) -> list[Range]:
        """Queue entries of an aborted transaction, or batches in part, for redelivery, unless
        they are dead or delayed; returns what waits."""
        end = min(end, self.next_offset)
        if first < end:
            self.set_aside(first, end)  # the holder of the rest of a batch gets all of it again
        return [
            part
            for alive in self.dead.missing(first, end)
            for due in self.delayed.missing(*alive)
            for part in self._wait(*due)
        ]

    def _release(self, first: int, end: int) -> None:
        if first < end:
            self._release_all([(first, end)])

    def _release_all(self, ranges: Sequence[Range]) -> None:
        take = self.held.take
        loose = self._release_each(ranges)
        self._took([part for first, end in loose for part in take(first, end)])
        if loose:
            lowest, highest = min(loose)[0], max(end for _, end in loose)
            for others in (self.waiting, self.delayed, self.dead):
                if others and others.overlaps(lowest, highest):
                    for first, end in loose:
                        others.discard(first, end)
        if self.counts:
            for first, end in ranges:
                self.counts.forget(first, end)
        if self.suspects:
            for first, end in ranges:
                self.suspects.clear(first, end)
        if self.chunks:
            for first, end in ranges:
                for consumer in self.consumers.values():
                    consumer.reserved.discard(first, end)
                self.chunks.forget(first, end)

    def _release_each(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """Release the entries of short ranges that consumers hold, where entries are held one by
        one; returns the other ranges."""
        held, left = self.held, self._left
        if isinstance(held, Holdings) or len(ranges) == 1:
            return ranges
        single: list[int] = []
        loose: list[Range] = []
        for part in ranges:
            first, end = part
            if end - first == 1 and first not in left:
                single.append(first)
            elif end - first <= _SHORT and not left:
                single += range(first, end)
            else:
                loose.append(part)
        single = sorted(single if len(set(single)) == len(single) else set(single))
        places = places_of(single)
        owners = held.take_each(places)
        for owner in set(owners):
            if owner is None:
                nobody = zip(single, owners, strict=True)
                loose += [(at, at + 1) for at, whose in nobody if whose is None]
                continue
            mine = single
            if len(owners) != owners.count(owner):
                mine = [at for at, whose in zip(single, owners, strict=True) if whose == owner]
                places = places_of(mine)
            self._took_of(owner, mine, sum(self.sizes.of(places)))
            if self.pending is not None and self.hashes is not None:
                self.pending.taken(self.hashes.of(places))
        return loose

    def _took(self, parts: Sequence[Holding[int]]) -> None:
        """Update limits, suspects and hashes after entries left their consumers."""
        left, size_of, pending, hashes = self._left, self.sizes.get, self.pending, self.hashes
        for first, end, owner in parts:
            if end - first == 1 and first not in left:
                messages = size_of(first) or 0
            else:
                messages = self._messages_held(first, end)
            self._took_of(owner, range(first, end), messages)
            if pending is not None and hashes is not None:
                pending.taken(hashes.all(first, end))
            if left:
                for offset in self._left_within(first, end):
                    del left[offset]

    def _took_of(self, owner: int, gone: Sequence[int], messages: int) -> None:
        """Update limits and suspects after these entries left a consumer."""
        consumer = self.consumers[owner]
        self.limits.took(consumer, messages)
        consumer.entries -= len(gone)
        consumer.progressed = True
        if consumer.suspects:
            self._tried(consumer, gone)

    def _tried(self, consumer: Attached, gone: Sequence[int]) -> None:
        """Remove suspects that the consumer no longer holds."""
        known = gone if isinstance(gone, range) else set(gone)
        for offset in [at for at in consumer.suspects if at in known]:
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
        """Drop sizes and hashes of entries that are acknowledged and released.

        The cursor may have acknowledgements that this object doesn't have yet: several that were
        put off during a roll-over are applied one after the other.
        """
        self.sizes.drop(self.cursor.acked_before, self._needed)
        if self.hashes is not None:
            self.hashes.drop(self.cursor.acked_before, self._needed)

    def _needed(self, first: int, end: int) -> bool:
        return self.cursor.next_unacked(first) < end or bool(self.held.within(first, end))

    def held_of(self, owner: int, ranges: Sequence[Range] | None) -> list[Range]:
        """The entries in the ranges (None: all) that the consumer holds, ascending."""
        if ranges is None:
            return self.held.of(owner)
        return [
            (part.first, part.end)
            for first, end in ranges
            for part in self.held.within(first, end)
            if part.owner == owner
        ]

    def end_deliveries(self, ranges: Sequence[Range], failed_deliveries: Sequence[Range]) -> None:
        """End deliveries without acknowledgement. Those in ``failed_deliveries`` count as
        failed."""
        self.counts.add(failed_deliveries, 1)
        if ranges != failed_deliveries:
            counted = RangeSet(failed_deliveries)
            self._return(part for each in ranges for part in counted.missing(*each))

    def _return(self, ranges: Iterable[Range]) -> None:
        # A delivery that isn't noted yet cancels out with its return.
        begun = RangeSet(self.begun)
        for first, end in ranges:
            unnoted = RangeSet(begun.discard(first, end))
            self.returned += unnoted.missing(first, end)
        self.begun = list(begun)

    def give_permits_back(self, consumer: Attached, offset: int, sent: int) -> None:
        """Undo the debit of messages outside the mask ``sent``, if the consumer holds the entry."""
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
        """Queue the held ones of these entries for redelivery; returns all that waits.

        The redelivery count of entries in ``failed_deliveries`` goes up by one. They are no
        suspects: their consumer is still alive.
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
        """The entries that a lost consumer can have been processing.

        `velaray.actors.dispatch.suspects` has the rules.
        """
        held = self.held.of(consumer.spec.consumer_id)
        return failed_of(
            consumer, held, self.suspects, lambda offset: self._messages_held(offset, offset + 1)
        )

    def suspect(self, ranges: Iterable[Range]) -> None:
        """Suspect these, which were lost with their consumer, except chunks.

        One consumer needs all chunks of a message at once.
        """
        chunks = self.chunks
        if not chunks:
            self.suspects.lost(ranges)
            return
        for first, end in ranges:
            alone = [at for at in range(first, end) if chunks.key_of(at) is None]
            self.suspects.lost((at, at + 1) for at in alone)

    def give_back(self, consumer: Attached, failed_deliveries: Sequence[Range] = ()) -> list[Range]:
        """Queue all that a consumer held, or that was reserved for it, for redelivery.

        The redelivery count of entries in ``failed_deliveries`` goes up by one.
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
        """Check that every un-acknowledged entry before the read position is in one place."""
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
        """Raise `InvariantViolation` unless the counters match what consumers hold."""
        messages: dict[int, int] = {}
        held: set[int] = set()
        for first, end, owner in self.held:
            messages[owner] = messages.get(owner, 0) + self._messages_held(first, end)
            held.update(self._left_within(first, end))
        require(
            held == set(self._left),
            "remaining messages are known only for held batches",
            repr(self._left),
        )
        self.limits.check(self.consumers.values(), messages)
        for number, consumer in self.consumers.items():
            mine = RangeSet(self.held.of(number))
            require(
                consumer.entries == mine.size() and all(at in mine for at in consumer.suspects),
                "suspects are held entries",
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
            require(
                owner in self.consumers,
                "consumers that hold entries are attached",
                f"{first}: {owner}",
            )
        for consumer in self.consumers.values():
            require(
                consumer.permits >= 0 or consumer.permits + consumer.last_debit > 0,
                "permits are exceeded by the last entry only",
                f"{consumer.spec.name}: {consumer.permits}",
            )


def _runs_of(
    first: int, owners: Sequence[int | None], sizes: Sequence[int]
) -> tuple[list[Delivery], Mapping[int, list[_Sent]]]:
    """Deliveries of entries from ``first`` on to their owners, a run of one owner's together; and
    the runs of each owner."""
    deliveries: list[Delivery] = []
    runs: defaultdict[int, list[_Sent]] = defaultdict(list)
    previous: int | None = None
    start = total = 0
    for offset, (owner, messages) in enumerate(zip(owners, sizes, strict=True), first):
        if owner == previous:
            total += messages
            continue
        if previous is not None:
            deliveries.append(Delivery(previous, start, offset, total, 0))
            runs[previous].append((start, offset, total))
        previous, start, total = owner, offset, messages
    if previous is not None:
        end = first + len(owners)
        deliveries.append(Delivery(previous, start, end, total, 0))
        runs[previous].append((start, end, total))
    return deliveries, runs

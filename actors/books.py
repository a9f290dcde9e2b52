"""The books of a dispatcher: which entries are where, and what is known about them.

An entry before `Books.next_offset` that isn't acknowledged is either held by a consumer, or
waits to be delivered again, or is a chunk reserved for the consumer that has the other chunks
of its message. How entries are shared among consumers is not decided here
(`velaray.actors.serving`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from velaray.actors.chunks import ChunkGroups
from velaray.actors.consumers import Attached, Delivery
from velaray.actors.cursor import Cursor
from velaray.actors.holdings import Holdings
from velaray.actors.machine import require
from velaray.actors.ranges import Range, RangeSet
from velaray.actors.sizes import EntrySizes


class Books:
    """What one dispatcher knows; its members are read, and changed by these methods alone."""

    def __init__(self, cursor: Cursor) -> None:
        """Starts at the cursor's mark."""
        self.cursor = cursor
        self.consumers: dict[int, Attached] = {}
        self.held = Holdings()
        self.waiting = RangeSet()
        self.counts: dict[int, int] = {}  # redelivery counts above 0
        self.chunks = ChunkGroups()
        self.sizes = EntrySizes()
        self.next_offset = self.fed = cursor.acked_before

    # ---- what is known of entries

    @property
    def feed_from(self) -> int:
        """The first offset whose size isn't known yet; acknowledged ones are passed over."""
        return self.cursor.next_unacked(self.fed)

    def feed(
        self, first_offset: int, sizes: Sequence[int], chunk_keys: Mapping[int, str] | None
    ) -> bool:
        """See `velaray.actors.dispatch.Dispatcher.feed`."""
        end = first_offset + len(sizes)
        fed = self.fed
        if first_offset > fed and first_offset > self.feed_from:
            return False
        if end <= fed:
            return True
        if min(sizes) < 1:
            raise ValueError(f"an entry of {min(sizes)} messages from offset {first_offset} on")
        first = max(first_offset, fed)
        self.sizes.put(first, sizes[first - first_offset :])
        if chunk_keys:
            is_acked = self.cursor.is_acked
            self.chunks.add(
                {
                    offset: key
                    for offset, key in chunk_keys.items()
                    if first <= offset < end and not is_acked(offset)
                }
            )
        self.fed = end
        return True

    def reset(self, next_offset: int) -> None:
        """Forget everything but the consumers; go on at ``next_offset``."""
        self.held.clear()
        self.waiting.clear()
        self.counts.clear()
        self.chunks.clear()
        self.sizes.clear()
        for consumer in self.consumers.values():
            consumer.reserved.clear()
        self.next_offset = self.fed = next_offset

    # ---- giving out

    def front(self) -> Range | None:
        """What is to be delivered next: what waits, then what is new."""
        return self.waiting.first() or self.unread()

    def unread(self) -> Range | None:
        """The first entries that are known and have never been delivered."""
        first = self.next_offset = self.cursor.next_unacked(self.next_offset)
        if first >= self.fed:
            return None
        return first, self.cursor.next_acked(first, self.fed)

    def passed(self, first: int, end: int) -> None:
        """The front up to ``end`` is dealt with."""
        if self.waiting:
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
            count, end = self._same_count(first, end)
        remaining = None
        partials = self.cursor.partials(first, end)
        if partials and partials[0][0] == first:
            remaining = partials[0][1]
            end, messages = first + 1, self._debit(first, remaining)
            consumer.last_debit = messages
        else:
            if partials:
                end = partials[0][0]
            end, messages = self.sizes.fit(first, end, limit)
            consumer.last_debit = self.sizes.get(end - 1) or 0
        consumer.permits -= messages
        consumer.debited += messages
        owner = consumer.spec.consumer_id
        self.held.give(first, end, owner)
        out.append(Delivery(owner, first, end, messages, count, remaining))
        return end

    def _debit(self, offset: int, remaining: int) -> int:
        size = self.sizes.get(offset) or 0
        return (remaining & (1 << size) - 1).bit_count()

    def _same_count(self, first: int, end: int) -> tuple[int, int]:
        """The redelivery count at ``first``, and how far it is the same."""
        counts = self.counts
        count = counts.get(first, 0)
        for offset in range(first + 1, end):
            if counts.get(offset, 0) != count:
                return count, offset
        return count, end

    def stood(
        self, consumer: Attached, sizes: Sequence[int], chunk_keys: Mapping[int, str] | None
    ) -> None:
        """The partition gave the entries from `next_offset` on to a consumer, whole."""
        first, end = self.next_offset, self.next_offset + len(sizes)
        self.feed(first, sizes, chunk_keys)
        owner = consumer.spec.consumer_id
        for start, stop in self.cursor.unacked_ranges(first, end):
            self.held.give(start, stop, owner)
        messages = sum(sizes)
        consumer.permits -= messages
        consumer.debited += messages
        consumer.last_debit = sizes[-1]
        self.next_offset = end

    # ---- taking back

    def acked(self, first: int, end: int) -> None:
        """The cursor changed within this range: nobody holds any longer what it has."""
        for start, stop in self.cursor.unacked_ranges(first, end):
            self._release(first, start)
            first = stop
        self._release(first, end)

    def _release(self, first: int, end: int) -> None:
        if first >= end:
            return
        self.held.take(first, end)
        if self.waiting:
            self.waiting.discard(first, end)
        if self.counts:
            known = self.counts if len(self.counts) < end - first else range(first, end)
            for offset in [offset for offset in known if first <= offset < end]:
                self.counts.pop(offset, None)
        if self.chunks:
            for consumer in self.consumers.values():
                consumer.reserved.discard(first, end)
            self.chunks.forget(first, end)

    def forget_acked(self) -> None:
        """Drop what is known of entries that are acknowledged."""
        self.sizes.drop(self.cursor.acked_before, self.cursor.next_unacked)

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

    def count_again(self, ranges: Sequence[Range]) -> None:
        """The redelivery count of these goes up by one."""
        counts = self.counts
        for first, end in ranges:
            for offset in range(first, end):
                counts[offset] = counts.get(offset, 0) + 1

    def take_back(self, consumer: Attached, ranges: Sequence[Range]) -> None:
        """What a consumer held of these waits to be delivered again."""
        for first, end in ranges:
            self.held.take(first, end)
            self.waiting.add(first, end)
        if self.chunks:
            for offset in self.chunks.unbind_returned(ranges, self._is_held):
                for first, end in consumer.reserved.discard(offset, offset + 1):
                    self.waiting.add(first, end)

    def _is_held(self, offset: int) -> bool:
        return self.held.owner_of(offset) is not None

    def give_back(self, consumer: Attached) -> None:
        """All that a consumer held, or that was reserved for it, waits to be delivered again."""
        owner = consumer.spec.consumer_id
        for first, end in (*self.held.of(owner), *consumer.reserved):
            self.held.take(first, end, owner)
            self.waiting.add(first, end)
        consumer.reserved.clear()

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
        for consumer in self.consumers.values():
            places += [("reserved", first, end) for first, end in consumer.reserved]
        places.sort(key=lambda place: place[1:])
        at, unacked_ranges = self.cursor.acked_before, self.cursor.unacked_ranges
        for place, first, end in places:
            unacked = unacked_ranges(first, end)
            require(
                unacked == [(first, end)], f"nothing acknowledged is {place}", f"{first} to {end}"
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
            require(None not in sizes, "sizes of what may be delivered are known", f"{first}")
        lost = unacked_ranges(at, self.next_offset)
        require(not lost, "no entry is lost", f"{lost} not acked, not held, not waiting")

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

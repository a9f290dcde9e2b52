"""Who gets which entries of a subscription: the volatile dispatcher.

It knows the connected consumers, their permits, which entries each of them holds
un-acknowledged, and which must be delivered again. It reads the cursor, which belongs to the
subscription machine, and never delivers what the cursor has. It knows no payload: the host
feeds it the number of messages of each entry. Nothing here is journaled; all of it is made
anew when consumers subscribe again.

While there is one consumer to serve and nothing to decide, the partition may deliver by itself
(`velaray.actors.standing`): the dispatcher gives nothing out then, and hears what was.

Permits count messages. While a consumer has any, it gets the next entry, whatever its size,
so permits may fall below zero by the size of one entry. What a batch debits is the number
of its messages that aren't acknowledged yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from sortedcontainers import SortedDict

from velaray.actors.chunks import ChunkGroups
from velaray.actors.cursor import Cursor
from velaray.actors.holdings import Holdings
from velaray.actors.machine import Reason, Refusal, require
from velaray.actors.ranges import Range, RangeSet, normalized
from velaray.actors.sizes import EntrySizes
from velaray.actors.standing import StandingGrant

TURN = 20
"""Messages that a Shared consumer gets before it is the next one's turn (at least an entry)."""

MIN_WINDOW = 128
MAX_WINDOW = 10_000
"""Entries ahead of the read position whose sizes a dispatcher wants to know."""


class SubscriptionType(IntEnum):
    """Pulsar's subscription types; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class UnknownConsumerError(KeyError):
    """No consumer with this id is attached."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A consumer that wants to attach; the id is the host's, unique in the subscription.

    ``priority`` 0 comes first.
    """

    consumer_id: int
    name: str
    type: SubscriptionType
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ActiveChange:
    """Tell a Failover consumer whether it is the active one."""

    consumer_id: int
    active: bool


@dataclass(slots=True)
class Delivery:
    """Send the entries ``first`` to ``end`` - 1 to a consumer, in order.

    ``messages`` is what they debit from its permits. ``remaining`` is the mask of messages
    that aren't acknowledged yet, for a batch acknowledged in part (a delivery of its own).
    """

    consumer_id: int
    first: int
    end: int
    messages: int
    redelivery_count: int
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """A consumer as statistics show it; ``unacked`` counts entries."""

    consumer_id: int
    name: str
    priority: int
    permits: int
    unacked: int
    active: bool


@dataclass(slots=True)
class _Consumer:
    spec: ConsumerSpec
    permits: int = 0
    debited: int = 0  # messages, ever; with ``permits`` that is all it ever gave
    last_debit: int = 0  # of the entry delivered last: all that permits may fall below zero
    queued: bool = False  # stands in its level's queue (Shared)
    reserved: RangeSet = field(default_factory=RangeSet)  # chunks that wait for its permits


class Dispatcher:
    """Dispatch of one subscription of one partition.

    An entry before `next_offset` that isn't acknowledged is either held by a consumer, or
    waits to be delivered again, or is a chunk reserved for the consumer that has the other
    chunks of its message.
    """

    def __init__(self, cursor: Cursor, partition: int = 0) -> None:
        """Starts at the cursor's mark. ``partition`` spreads the active consumers of a
        Failover subscription over the consumers of the best priority level.
        """
        self._cursor = cursor
        self._partition = max(partition, 0)
        self._consumers: dict[int, _Consumer] = {}
        self._levels: SortedDict = SortedDict()  # priority -> queue of consumers with permits
        self._active: _Consumer | None = None
        self._held = Holdings()
        self._waiting = RangeSet()
        self._counts: dict[int, int] = {}  # redelivery counts above 0
        self._chunks = ChunkGroups()
        self._sizes = EntrySizes()
        self._standing: _Consumer | None = None  # whom the partition serves by itself
        self._next = self._fed = cursor.acked_before

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the consumers attached now; None without any."""
        for consumer in self._consumers.values():
            return consumer.spec.type
        return None

    @property
    def next_offset(self) -> int:
        """New entries are read from here on; all before it have been delivered once."""
        return self._next

    @property
    def feed_from(self) -> int:
        """The first offset whose size isn't known yet; acknowledged ones are passed over."""
        return self._cursor.next_unacked(self._fed)

    def wants(self) -> int:
        """Feed up to this offset (exclusive), as far as the partition has entries.

        `feed_from` or less means: nothing now.
        """
        if not self._consumers or self._standing is not None:
            return self.feed_from
        candidates = self._consumers.values() if self._active is None else [self._active]
        permits = sum(consumer.permits for consumer in candidates if consumer.permits > 0)
        window = min(max(2 * permits, MIN_WINDOW), MAX_WINDOW)
        return self._cursor.next_unacked(self._next) + window

    def feed(
        self,
        first_offset: int,
        sizes: Sequence[int],
        chunk_keys: Mapping[int, str] | None = None,
    ) -> bool:
        """Messages per entry of consecutive entries; keys of those that are chunks, by offset.

        Entries known already are ignored. If un-acknowledged entries between `feed_from` and
        ``first_offset`` are missing (this feed was under way when the dispatcher was reset),
        nothing is taken and False returned: feed from `feed_from` on. Raises ValueError for a
        size below 1.
        """
        end = first_offset + len(sizes)
        fed = self._fed
        if first_offset > fed and first_offset > self.feed_from:
            return False
        if end <= fed:
            return True
        if min(sizes) < 1:
            raise ValueError(f"an entry of {min(sizes)} messages from offset {first_offset} on")
        first = max(first_offset, fed)
        self._sizes.put(first, sizes[first - first_offset :])
        if chunk_keys:
            is_acked = self._cursor.is_acked
            self._chunks.add(
                {
                    offset: key
                    for offset, key in chunk_keys.items()
                    if first <= offset < end and not is_acked(offset)
                }
            )
        self._fed = end
        return True

    def size_of(self, offset: int) -> int | None:
        """Messages of the entry, if it was fed and is still needed."""
        return self._sizes.get(offset)

    # ---- consumers

    def attach(self, spec: ConsumerSpec) -> Refusal | list[ActiveChange]:
        """A consumer subscribes, with no permits.

        Refused BUSY for a second Exclusive one or if live consumers have another type,
        NOT_ALLOWED for Key_Shared. Raises ValueError if the id is attached already.
        """
        if spec.consumer_id in self._consumers:
            raise ValueError(f"consumer {spec.consumer_id} is attached already")
        if spec.type is SubscriptionType.KEY_SHARED:
            return Refusal(Reason.NOT_ALLOWED, "Key_Shared subscriptions are not available yet")
        live = self.type
        if live is not None and live is not spec.type:
            return Refusal(
                Reason.BUSY,
                f"the subscription has consumers of type {live.name}, not {spec.type.name}",
            )
        if live is SubscriptionType.EXCLUSIVE:
            return Refusal(Reason.BUSY, "the Exclusive subscription has a consumer already")
        self._consumers[spec.consumer_id] = _Consumer(spec)
        return self._elect(joined=spec.consumer_id)

    def detach(self, consumer_id: int) -> list[ActiveChange]:
        """A consumer is gone: what it held goes back, to be delivered first, in order.

        This doesn't count as a redelivery. Raises `UnknownConsumerError`.
        """
        consumer = self._consumer(consumer_id)
        del self._consumers[consumer_id]
        queue = self._levels.get(consumer.spec.priority, ())
        if consumer.queued:
            queue.remove(consumer)
        if not queue:
            self._levels.pop(consumer.spec.priority, None)
        self._give_back(consumer)
        self._chunks.unbind_owner(consumer_id)
        return self._elect()

    def _consumer(self, consumer_id: int) -> _Consumer:
        try:
            return self._consumers[consumer_id]
        except KeyError:
            raise UnknownConsumerError(f"no consumer {consumer_id} is attached") from None

    def _give_back(self, consumer: _Consumer) -> None:
        owner = consumer.spec.consumer_id
        for first, end in (*self._held.of(owner), *consumer.reserved):
            self._held.take(first, end, owner)
            self._waiting.add(first, end)
        consumer.reserved.clear()

    def _elect(self, joined: int | None = None) -> list[ActiveChange]:
        """Choose the active consumer; returns who is to be told.

        What the previous one held goes back: its successor must get it before newer entries.
        """
        kind, previous = self.type, self._active
        if kind is None or kind is SubscriptionType.SHARED:
            self._active = None
            return []
        best = min(consumer.spec.priority for consumer in self._consumers.values())
        level = sorted(
            (known for known in self._consumers.values() if known.spec.priority == best),
            key=lambda known: known.spec.name,
        )
        self._active = elected = level[self._partition % len(level)]
        if previous is not elected and previous is not None:
            self._give_back(previous)
        if kind is SubscriptionType.EXCLUSIVE:
            return []
        told = self._consumers.values()
        return [
            ActiveChange(known.spec.consumer_id, known is elected)
            for known in told
            if previous is not elected or known.spec.consumer_id == joined
        ]

    def flow(self, consumer_id: int, permits: int) -> None:
        """A consumer can take that many more messages.

        Raises `UnknownConsumerError`, and ValueError for permits below 0.
        """
        consumer = self._consumer(consumer_id)
        if permits < 0:
            raise ValueError(f"{permits} permits")
        consumer.permits += permits
        if consumer.permits > 0 and not consumer.queued and self._active is None:
            consumer.queued = True
            self._levels.setdefault(consumer.spec.priority, deque()).append(consumer)

    # ---- acknowledgements and redelivery

    def acked(self, ranges: Iterable[Range], partial: Iterable[tuple[int, int]] = ()) -> None:
        """The cursor changed within these: nobody holds any longer what it has now.

        Call it right after every event that changed the cursor. What the cursor doesn't have
        acknowledged stays as it is.
        """
        cursor = self._cursor
        for first, end in ranges:
            for start, stop in cursor.unacked_ranges(first, end):
                self._release(first, start)
                first = stop
            self._release(first, end)
        for offset, _ in partial:
            if cursor.is_acked(offset):
                self._release(offset, offset + 1)
        self._sizes.drop(cursor.acked_before, cursor.next_unacked)

    def _release(self, first: int, end: int) -> None:
        if first >= end:
            return
        self._held.take(first, end)
        if self._waiting:
            self._waiting.discard(first, end)
        if self._counts:
            known = self._counts if len(self._counts) < end - first else range(first, end)
            for offset in [offset for offset in known if first <= offset < end]:
                self._counts.pop(offset, None)
        if self._chunks:
            for consumer in self._consumers.values():
                consumer.reserved.discard(first, end)
            self._chunks.forget(first, end)

    def redeliver(self, consumer_id: int, ranges: Iterable[Range] | None = None) -> None:
        """A consumer asks for entries it holds again (None: all of them).

        Shared: those; their redelivery count goes up by one. Exclusive and Failover: all it
        holds, in order, before newer ones; the count of those it named goes up. Entries it
        doesn't hold are ignored. Raises `UnknownConsumerError`.
        """
        self._consumer(consumer_id)
        held = self._held
        if ranges is None:
            named = held.of(consumer_id)
        else:
            named = [
                (part.first, part.end)
                for first, end in normalized(ranges)
                for part in held.within(first, end)
                if part.owner == consumer_id
            ]
        counts = self._counts
        for first, end in named:
            for offset in range(first, end):
                counts[offset] = counts.get(offset, 0) + 1
        back = named if self._active is None else held.of(consumer_id)
        for first, end in back:
            held.take(first, end)
            self._waiting.add(first, end)
        if self._chunks:
            for offset in self._chunks.unbind_returned(back, self._is_held):
                for first, end in self._consumers[consumer_id].reserved.discard(offset, offset + 1):
                    self._waiting.add(first, end)

    def _is_held(self, offset: int) -> bool:
        return self._held.owner_of(offset) is not None

    def reset(self, next_offset: int) -> None:
        """The cursor was reset: forget what is held, counted and fed; go on there.

        Consumers and their permits stay.
        """
        self._held.clear()
        self._waiting.clear()
        self._counts.clear()
        self._chunks.clear()
        self._sizes.clear()
        for consumer in self._consumers.values():
            consumer.reserved.clear()
        self._next = self._fed = next_offset

    # ---- standing grants

    @property
    def standing(self) -> bool:
        """Whether the partition delivers by itself."""
        return self._standing is not None

    def may_stand(self) -> bool:
        """Whether there is but one way to go on: the next entries, to a certain consumer."""
        return self._only_candidate() is not None and not (
            self._waiting
            or self._cursor.untouched_from() > self._cursor.next_unacked(self._next)
            or (self._chunks and any(known.reserved for known in self._consumers.values()))
        )

    def _only_candidate(self) -> _Consumer | None:
        if self._active is None and len(self._consumers) == 1:
            return next(iter(self._consumers.values()))
        return self._active

    def stand(self) -> StandingGrant | None:
        """Leave it to the partition to deliver, if it `may_stand` and doesn't yet."""
        if self._standing is not None or not self.may_stand():
            return None
        self._standing = standing = self._only_candidate()
        assert standing is not None
        self._next = self._cursor.next_unacked(self._next)
        return StandingGrant(standing.spec.consumer_id, self._next, standing.debited)

    def stood(
        self, first: int, sizes: Sequence[int], chunk_keys: Mapping[int, str] | None = None
    ) -> None:
        """The partition delivered these entries under its grant, each with all its messages.

        Raises `InvariantViolation` if it has no grant, or if ``first`` isn't `next_offset`.
        """
        consumer = self._standing
        require(
            consumer is not None and first == self._next,
            "what is delivered without asking continues a standing grant",
            f"{len(sizes)} entries from {first}, next is {self._next}",
        )
        assert consumer is not None
        self.feed(first, sizes, chunk_keys)
        owner, end = consumer.spec.consumer_id, first + len(sizes)
        for start, stop in self._cursor.unacked_ranges(first, end):
            self._held.give(start, stop, owner)
        if self._chunks and self._active is None:
            for offset, key in (chunk_keys or {}).items():
                if not self._cursor.is_acked(offset):
                    self._chunks.bind(key, owner)
        messages = sum(sizes)
        consumer.permits -= messages
        consumer.debited += messages
        consumer.last_debit = sizes[-1]
        self._next = end

    def stand_down(self) -> None:
        """The partition delivers nothing by itself any longer, and has reported all it did."""
        self._standing = None

    # ---- dispatch

    def dispatch(self) -> list[Delivery]:
        """Give out what can be given out now; deliveries are to be sent in this order.

        Nothing while the partition has a standing grant.
        """
        out: list[Delivery] = []
        if self._standing is not None:
            return out
        if self._chunks:
            self._give_reserved(out)
        while True:
            consumer = self._next_consumer()
            if consumer is None:
                return out
            front = self._front()
            if front is None:
                return out
            first, end = front
            if self._chunks and self._active is None:
                end = self._chunks.next_chunk(first, end)
                if end == first:
                    self._serve_chunk(consumer, first, out)
                    continue
            limit = consumer.permits if self._active is not None else min(consumer.permits, TURN)
            self._pass(first, self._deliver(consumer, first, end, limit, out))
            self._end_turn(consumer)

    def _next_consumer(self) -> _Consumer | None:
        active = self._active
        if active is not None:
            return active if active.permits > 0 else None
        for queue in self._levels.values():
            while queue:
                consumer: _Consumer = queue[0]
                if consumer.permits > 0:
                    return consumer
                queue.popleft()
                consumer.queued = False
        return None

    def _end_turn(self, consumer: _Consumer) -> None:
        """The first of its queue goes to the queue's end."""
        if self._active is None:
            self._levels[consumer.spec.priority].rotate(-1)

    def _front(self) -> Range | None:
        """What is to be delivered next: what waits, then what is new."""
        lowest = self._waiting.first()
        if lowest is not None:
            return lowest
        first = self._next = self._cursor.next_unacked(self._next)
        if first >= self._fed:
            return None
        return first, self._cursor.next_acked(first, self._fed)

    def _pass(self, first: int, end: int) -> None:
        """The front up to ``end`` is dealt with."""
        if self._waiting:
            self._waiting.discard(first, end)
        else:
            self._next = end

    def _deliver(
        self, consumer: _Consumer, first: int, end: int, limit: int, out: list[Delivery]
    ) -> int:
        """Deliver entries from ``first`` on that are alike, for some ``limit`` messages.

        Returns the offset up to which it got: before ``end`` if the limit is reached, or if
        the next entry needs a delivery of its own kind.
        """
        count = 0
        end = min(end, first + limit)
        if self._counts:
            count, end = self._same_count(first, end)
        remaining = None
        partials = self._cursor.partials(first, end)
        if partials and partials[0][0] == first:
            remaining = partials[0][1]
            end, messages = first + 1, self._debit(first, remaining)
            consumer.last_debit = messages
        else:
            if partials:
                end = partials[0][0]
            end, messages = self._sizes.fit(first, end, limit)
            consumer.last_debit = self._sizes.get(end - 1) or 0
        consumer.permits -= messages
        consumer.debited += messages
        owner = consumer.spec.consumer_id
        self._held.give(first, end, owner)
        out.append(Delivery(owner, first, end, messages, count, remaining))
        return end

    def _debit(self, offset: int, remaining: int) -> int:
        size = self._sizes.get(offset) or 0
        return (remaining & (1 << size) - 1).bit_count()

    def _same_count(self, first: int, end: int) -> tuple[int, int]:
        """The redelivery count at ``first``, and how far it is the same."""
        counts = self._counts
        count = counts.get(first, 0)
        for offset in range(first + 1, end):
            if counts.get(offset, 0) != count:
                return count, offset
        return count, end

    # ---- chunks (Shared)

    def _serve_chunk(self, consumer: _Consumer, offset: int, out: list[Delivery]) -> None:
        """Deliver a chunk to the consumer that its message is bound to; reserve it, if that
        one has no permits. The first chunk binds the message to ``consumer``.
        """
        key = self._chunks.key_of(offset)
        assert key is not None
        owner = self._chunks.owner_of(key)
        if owner is None:
            self._chunks.bind(key, consumer.spec.consumer_id)
            bound = consumer
        else:
            bound = self._consumers[owner]
        if bound.permits > 0:
            self._deliver(bound, offset, offset + 1, bound.permits, out)
        else:
            bound.reserved.add(offset, offset + 1)
        self._pass(offset, offset + 1)
        if bound is consumer:
            self._end_turn(consumer)

    def _give_reserved(self, out: list[Delivery]) -> None:
        for consumer in self._consumers.values():
            while consumer.permits > 0 and (lowest := consumer.reserved.first()) is not None:
                first, end = lowest
                end = self._deliver(consumer, first, end, consumer.permits, out)
                consumer.reserved.discard(first, end)

    # ---- what is where

    def unacked(self, consumer_id: int) -> list[Range]:
        """What the consumer holds, ascending. Raises `UnknownConsumerError`."""
        self._consumer(consumer_id)
        return self._held.of(consumer_id)

    def waiting(self) -> int:
        """How many entries wait to be delivered again."""
        reserved = sum(consumer.reserved.size() for consumer in self._consumers.values())
        return self._waiting.size() + reserved

    def consumers(self) -> list[ConsumerView]:
        """The attached consumers, in the order they attached.

        ``active`` is true of every Shared consumer.
        """
        held = dict.fromkeys(self._consumers, 0)
        for first, end, owner in self._held:
            held[owner] += end - first
        return [
            ConsumerView(
                consumer_id,
                known.spec.name,
                known.spec.priority,
                known.permits,
                held[consumer_id],
                self._active is None or known is self._active,
            )
            for consumer_id, known in self._consumers.items()
        ]

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        self._held.check()
        self._check_places()
        self._check_consumers()
        for offset, owner in self._chunks.bound():
            holder = self._held.owner_of(offset)
            require(
                holder is None or holder == owner,
                "all chunks of a message are at one consumer",
                f"{offset} at {holder}, others at {owner}",
            )

    def _check_places(self) -> None:
        """Every un-acknowledged entry behind the read position is in exactly one place."""
        places = [("held", first, end) for first, end, _ in self._held]
        places += [("waiting", first, end) for first, end in self._waiting]
        for consumer in self._consumers.values():
            places += [("reserved", first, end) for first, end in consumer.reserved]
        places.sort(key=lambda place: place[1:])
        at = self._cursor.acked_before
        for place, first, end in places:
            unacked = self._cursor.unacked_ranges(first, end)
            require(
                unacked == [(first, end)], f"nothing acknowledged is {place}", f"{first} to {end}"
            )
            require(at <= first, "an entry is in one place", f"{place} {first} to {end}, {at}")
            require(
                end <= self._next, "what isn't read yet is nowhere", f"{place} {first} to {end}"
            )
            lost = self._cursor.unacked_ranges(at, first)
            require(not lost, "no entry is lost", f"{lost} not acked, not held, not waiting")
            at = end
            sizes = [self._sizes.get(offset) for offset in range(first, end)]
            require(None not in sizes, "sizes of what may be delivered are known", f"{first}")
        lost = self._cursor.unacked_ranges(at, self._next)
        require(not lost, "no entry is lost", f"{lost} not acked, not held, not waiting")

    def _check_consumers(self) -> None:
        kinds = {consumer.spec.type for consumer in self._consumers.values()}
        require(len(kinds) <= 1, "consumers are of one type", repr(kinds))
        shared = self.type in (None, SubscriptionType.SHARED)
        require(shared == (self._active is None), "one active consumer in Exclusive and Failover")
        if self.type is SubscriptionType.EXCLUSIVE:
            require(len(self._consumers) == 1, "an Exclusive consumer is alone")
        require(
            self._standing is None
            or (self._standing is self._only_candidate() and not self._waiting),
            "a standing grant is for the only candidate, with nothing to deliver again",
        )
        for first, _, owner in self._held:
            require(owner in self._consumers, "who holds entries is attached", f"{first}: {owner}")
            active = self._active
            require(
                active is None or active.spec.consumer_id == owner,
                "only the active consumer holds entries",
                f"{first}: {owner}",
            )
        for consumer in self._consumers.values():
            name, permits = consumer.spec.name, consumer.permits
            require(
                permits >= 0 or permits + consumer.last_debit > 0,
                "permits are exceeded by the last entry only",
                f"{name}: {permits}",
            )
            queued = consumer in self._levels.get(consumer.spec.priority, ())
            require(queued == consumer.queued, "consumers know where they queue", name)
            require(queued or not shared or permits <= 0, "who has permits has a turn", name)

"""Key_Shared: entries of one key (its hash) go to one consumer, in order.

A hash belongs to a consumer (`velaray.actors.dispatch.key_ranges`), and its un-acknowledged entries
are at one consumer at most (`velaray.actors.dispatch.draining`). An entry whose consumer can't take
it yet waits in the queue of its hash. Later entries of that hash wait behind it; other hashes
continue. The number of waiting entries is limited: at the limit no new entry is read.

The chunks of one message all go to one consumer, even if their hash gets another one meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from velaray.actors.dispatch.consumers import (
    ActiveChange,
    Attached,
    ConsumerSpec,
    Delivery,
    KeySharedPolicy,
)
from velaray.actors.dispatch.draining import PendingHashes
from velaray.actors.dispatch.in_flight import InFlightTracker
from velaray.actors.dispatch.key_ranges import Assignment, policy_refusal, selector_for
from velaray.actors.dispatch.suspects import room
from velaray.actors.machine import Refusal, require
from velaray.actors.sets.ranges import Range

LOOK_AHEAD_PER_CONSUMER = 2000
LOOK_AHEAD = 20_000
"""The number of waiting entries, of all consumers together, at which no new ones are read."""


class KeySharedDispatch:
    """Queues of hashes, and for each consumer its hashes that may continue."""

    def __init__(self, in_flight: InFlightTracker, policy: KeySharedPolicy) -> None:
        if in_flight.hashes is None:
            in_flight.need_hashes()
        assert in_flight.hashes is not None
        in_flight.serve_keys()
        self._in_flight = in_flight
        self._hashes = in_flight.hashes
        self._policy = policy
        self._selector = selector_for(policy)
        self._known: Assignment | None = None  # that of the selector, once it is asked for
        self._queues: dict[int, list[int]] = {}  # hash -> heap of entries; some are stale
        # hash -> the listed entry of its queue: the first one, if it may be delivered. It is stale
        # if that entry is acknowledged or dead since; then the present first one is listed at its
        # turn.
        self._listed: dict[int, int] = {}
        self._ready: dict[int, list[tuple[int, int]]] = {}  # consumer -> heap of (first, hash)
        self.waits(list(in_flight.waiting))

    # ---- consumers

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """BUSY for another mode, UNASSIGNABLE for invalid or occupied ranges."""
        return policy_refusal(self._policy, spec.keys) or self._selector.refusal(spec)

    def joined(self, consumer: Attached) -> list[ActiveChange]:
        """Reassign hashes; hashes that the consumer gets from others are drained first."""
        self._selector.add(consumer)
        if len(self._in_flight.consumers) == 2 and not self._policy.out_of_order:
            self._in_flight.count_pending()
        self._reassign()
        return []

    def left(self, consumer: Attached) -> list[ActiveChange]:
        """Reassign the consumer's hashes to others."""
        self._selector.remove(consumer)
        if len(self._in_flight.consumers) == 1:
            self._in_flight.pending = None  # whatever is held, the only consumer holds it
        self._reassign()
        return []

    def _reassign(self) -> None:
        self._known = None
        self._listed.clear()
        self._ready = {number: [] for number in self._in_flight.consumers}
        for hashed in list(self._queues):
            self._list(hashed)

    @property
    def _pending(self) -> PendingHashes | None:
        return self._in_flight.pending

    def can_take(self, consumer: Attached) -> None:
        """Nothing to note: every consumer is tried."""

    def candidates(self) -> Iterable[Attached]:
        """All consumers."""
        return self._in_flight.consumers.values()

    def only_candidate(self) -> Attached | None:
        """The consumer that has all hashes, if it is the only one."""
        return self._selector.only() if len(self._in_flight.consumers) == 1 else None

    def returned(self, consumer: Attached, named: Sequence[Range]) -> Sequence[Range]:
        """Exactly the named entries."""
        return named

    def is_active(self, consumer: Attached) -> bool:
        """Always true."""
        return True

    def _consumer_of(self, hashed: int) -> Attached | None:
        number = self._assignment().number_of(hashed)
        return None if number is None else self._in_flight.consumers[number]

    def _assignment(self) -> Assignment:
        if self._known is None:
            self._known = Assignment(self._selector)
        return self._known

    def _may_take(self, consumer: Attached, hashed: int) -> bool:
        pending = self._pending
        return pending is None or pending.may_take(hashed, consumer.spec.consumer_id)

    # ---- waiting entries

    def waits(self, ranges: Sequence[Range]) -> None:
        """Queue each entry under its hash; reserve chunks for the consumer of their message."""
        touched: dict[int, None] = {}
        for first, end in ranges:
            for offset in range(first, end):
                if self._in_flight.chunks and self._is_bound(offset):
                    self._reserve(offset)
                    continue
                hashed = self._hash_of(offset)
                heappush(self._queues.setdefault(hashed, []), offset)
                touched[hashed] = None
        for hashed in touched:
            self._list(hashed)

    def _hash_of(self, offset: int) -> int:
        hashed = self._hashes.get(offset)
        assert hashed is not None
        return hashed

    def _is_bound(self, offset: int) -> bool:
        """Whether it is a chunk of a message that is bound to a consumer."""
        key = self._in_flight.chunks.key_of(offset)
        return key is not None and self._in_flight.chunks.owner_of(key) is not None

    def _reserve(self, offset: int) -> None:
        """Reserve a chunk for the consumer of its message, outside the queues."""
        in_flight = self._in_flight
        owner = in_flight.chunks.owner_of(in_flight.chunks.key_of(offset) or "")
        assert owner is not None
        in_flight.waiting.discard(offset, offset + 1)
        in_flight.consumers[owner].reserved.add(offset, offset + 1)

    def reset(self) -> None:
        """Drop all waiting entries."""
        self._queues.clear()
        self._reassign()

    def _first(self, hashed: int) -> int | None:
        """The first waiting entry of the hash."""
        queue, waiting = self._queues.get(hashed), self._in_flight.waiting
        if queue is None:
            return None
        while queue and queue[0] not in waiting:
            heappop(queue)
        if queue:
            return queue[0]
        del self._queues[hashed]
        return None

    def _list(self, hashed: int) -> None:
        """List the hash at its consumer if its first waiting entry may be delivered."""
        first, consumer = self._first(hashed), self._consumer_of(hashed)
        if first is None or consumer is None or not self._may_take(consumer, hashed):
            self._listed.pop(hashed, None)
        elif self._listed.get(hashed) != first:
            self._listed[hashed] = first
            heappush(self._ready[consumer.spec.consumer_id], (first, hashed))

    # ---- dispatch

    def dispatch(self, out: list[Delivery]) -> None:
        """Deliver waiting entries that may be delivered, then new ones."""
        if self._pending is not None:
            for hashed in self._pending.take_drained():
                if hashed in self._queues:
                    self._list(hashed)
        while True:
            self.waits(self._in_flight.unearth())
            for number, consumer in self._in_flight.consumers.items():
                consumer.draining = False
                if self._ready[number]:
                    self._give_waiting(consumer, out)
                if consumer.reserved:
                    self._give_reserved(consumer, out)
            if not self._give_new(out):
                return

    def _give_reserved(self, consumer: Attached, out: list[Delivery]) -> None:
        in_flight = self._in_flight
        for first, end in list(consumer.reserved):
            for offset in range(first, end):
                if not in_flight.can_take(consumer):
                    return
                if self._may_take(consumer, self._hash_of(offset)):
                    consumer.reserved.discard(offset, offset + 1)
                    self._deliver(consumer, offset, out)

    def _give_waiting(self, consumer: Attached, out: list[Delivery]) -> None:
        in_flight, ready = self._in_flight, self._ready[consumer.spec.consumer_id]
        while ready and in_flight.can_try(consumer):
            first, hashed = ready[0]
            listed = self._listed.get(hashed) == first
            if listed and first in in_flight.waiting and not self._has_room(consumer, first):
                return  # its other entries wait behind that one
            heappop(ready)
            if not listed:
                continue
            del self._listed[hashed]
            if first in in_flight.waiting and self._may_take(consumer, hashed):
                in_flight.waiting.discard(first, first + 1)
                self._deliver(consumer, first, out)
            self._list(hashed)

    def _has_room(self, consumer: Attached, offset: int) -> bool:
        """Whether the consumer has room for this entry, which may be a suspect."""
        losses = self._in_flight.suspects.losses(offset)
        if not losses:
            return not consumer.on_trial
        consumer.draining = room(consumer, losses) <= 0
        return not consumer.draining

    def _deliver(self, consumer: Attached, offset: int, out: list[Delivery]) -> None:
        in_flight = self._in_flight
        in_flight.deliver_one(consumer, offset, out)
        key = in_flight.chunks.key_of(offset) if in_flight.chunks else None
        if key is not None:
            in_flight.chunks.bind(key, consumer.spec.consumer_id)
            for other in in_flight.chunks.members(key):
                if other in in_flight.waiting:
                    self._reserve(other)

    def _space(self) -> int:
        """The number of further entries that may wait."""
        consumers, chunks = self._in_flight.consumers, self._in_flight.chunks
        waiting = self._in_flight.waiting.size()
        if chunks:
            waiting += sum(consumer.reserved.size() for consumer in consumers.values())
        return min(LOOK_AHEAD_PER_CONSUMER * len(consumers), LOOK_AHEAD) - waiting

    def _give_new(self, out: list[Delivery]) -> bool:
        """Deliver or queue new entries; False if there are none, no consumer can take any, or too
        many wait."""
        in_flight, can_take = self._in_flight, self._in_flight.can_take
        unread, space = in_flight.unread(), self._space()
        able = {consumer for consumer in in_flight.consumers.values() if can_take(consumer)}
        if unread is None or not able or space <= 0:
            return False
        hashes = self._hashes.run(*unread)
        if in_flight.are_alike(unread[0], unread[0] + len(hashes)):
            self._give_alike(unread[0], list(hashes), able, space, out)
            return True
        for offset, hashed in enumerate(hashes, unread[0]):
            in_flight.next_offset = offset + 1
            consumer = self._consumer_of(hashed)
            if consumer in able and in_flight.suspects.losses(offset):
                consumer.draining = True  # the suspect comes next
                able.discard(consumer)
            if (
                consumer not in able
                or hashed in self._queues
                or not self._may_take(consumer, hashed)
                or (in_flight.chunks and self._is_bound(offset))
            ):
                in_flight.waiting.add(offset, offset + 1)
                self.waits([(offset, offset + 1)])
                space -= 1
                if not space or not able:
                    break
                continue
            self._deliver(consumer, offset, out)
            if not can_take(consumer):
                able.discard(consumer)
                if not able or in_flight.limits.blocked:
                    break
        return True

    def _give_alike(
        self,
        first: int,
        hashes: Sequence[int],
        able: set[Attached],
        space: int,
        out: list[Delivery],
    ) -> None:
        """Deliver or queue new entries that are alike, until ``space`` of them wait or none is
        ``able`` to take any."""
        in_flight, queues = self._in_flight, self._queues
        limits, sizes = in_flight.limits, in_flight.sizes.run(first, first + len(hashes))
        rooms: dict[int | None, int] = {
            consumer.spec.consumer_id: min(consumer.permits, limits.room(consumer))
            for consumer in able
        }
        left, room_of_all = len(rooms), limits.room_of_all()
        holders: Mapping[int, int] = {} if self._pending is None else self._pending.owners
        takers = list(self._assignment().numbers_of(hashes))
        entries = Counter(takers)
        if (
            queues.keys().isdisjoint(hashes)
            and list(map(holders.get, hashes, takers)) == takers
            and _have_room(entries, max(sizes), rooms, room_of_all)
        ):
            in_flight.next_offset = first + len(hashes)
            in_flight.deliver_each(first, takers, hashes, entries, out)
            return
        owners: list[int | None] = []
        behind: list[int] = []
        for hashed, messages, owner in zip(hashes, sizes, takers, strict=True):
            room = rooms.get(owner, 0)
            if room > 0 and hashed not in queues and holders.get(hashed, owner) == owner:
                owners.append(owner)
                rooms[owner] = room - messages
                room_of_all -= messages
                if room <= messages:
                    left -= 1
                if not left or room_of_all <= 0:
                    break
                continue
            behind.append(first + len(owners))
            queues.setdefault(hashed, []).append(behind[-1])  # later than all others there
            owners.append(None)
            space -= 1
            if not space or not left:
                break
        in_flight.next_offset = first + len(owners)
        in_flight.deliver_each(first, owners, hashes[: len(owners)], Counter(owners), out)
        for offset in behind:
            in_flight.waiting.add(offset, offset + 1)
        for hashed in {hashes[offset - first] for offset in behind}:
            self._list(hashed)

    def lease_report(self, consumer: Attached, chunk_keys: Mapping[int, str]) -> None:
        """Bind the chunks' messages to the consumer, which gets their other chunks too."""
        for offset, key in chunk_keys.items():
            if not self._in_flight.cursor.is_acked(offset):
                self._in_flight.chunks.bind(key, consumer.spec.consumer_id)

    # ---- inspection

    def consumer_and_holder(self, offset: int) -> tuple[Attached | None, Attached | None]:
        """The consumer that gets a waiting entry, and the one that holds others of its key."""
        consumers, chunks = self._in_flight.consumers, self._in_flight.chunks
        hashed = self._hash_of(offset)
        owner = chunks.owner_of(chunks.key_of(offset) or "")
        consumer = self._consumer_of(hashed) if owner is None else consumers[owner]
        holder = None if self._pending is None else self._pending.owner_of(hashed)
        return consumer, None if holder is None else consumers[holder]

    def draining(self) -> int:
        """The number of hashes with un-acknowledged entries at a former consumer."""
        return sum(
            known is None or known.spec.consumer_id != owner
            for known, owner in (
                (self._consumer_of(hashed), owner) for hashed, owner, _ in self._pending or ()
            )
        )

    def check(self) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        for first, end in self._in_flight.waiting:
            for offset in range(first, end):
                require(
                    offset in self._queues.get(self._hash_of(offset), ()),
                    "what waits is in the queue of its hash",
                    str(offset),
                )
        drained = set() if self._pending is None else set(self._pending.drained())
        for hashed, queue in self._queues.items():
            # Not `_first`, which would drop stale entries.
            longest = min((at for at in queue if at in self._in_flight.waiting), default=None)
            consumer = self._consumer_of(hashed)
            may = consumer is not None and self._may_take(consumer, hashed)
            require(
                longest is None or not may or hashed in drained or self._is_listed(hashed, longest),
                "what may go on is known",
                f"{longest} of hash {hashed}",
            )

    def _is_listed(self, hashed: int, longest: int) -> bool:
        """Whether the hash is listed at its consumer, at or before its first waiting entry."""
        listed, consumer = self._listed.get(hashed), self._consumer_of(hashed)
        return (
            listed is not None
            and consumer is not None
            and listed <= longest
            and (listed, hashed) in self._ready[consumer.spec.consumer_id]
        )


def _have_room(
    entries: Counter[int | None],
    most: int,
    rooms: Mapping[int | None, int],
    room_of_all: int,
) -> bool:
    """Whether each consumer has room for its number of entries, of ``most`` messages at most."""
    return entries.total() * most <= room_of_all and all(
        count * most <= rooms.get(owner, 0) for owner, count in entries.items()
    )

"""Dispatch leases: a partition delivers new entries without asking, and reports them.

The dispatcher needn't see an entry before its delivery if the next step is certain: there is one
consumer to serve, nothing to redeliver, and nothing acknowledged beyond the read position. Then it
grants a `DispatchLease`. The partition delivers in order from there on while the consumer has
permits, and reports its deliveries, with their sizes, before any other notice. Permits arrive at
the partition first: it knows the sum of all permits, and the lease has the number of those used.

The partition ends the lease before it sends any notice that may change the assignment of entries.
So only one side decides at a time, and no entry is delivered twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

REPORT_AT = 1024
"""The number of entries after which a report is due even without other notices."""


@dataclass(frozen=True, slots=True)
class DispatchLease:
    """A lease to deliver to a consumer from ``first`` on, in order.

    ``debited`` is the number of its permits, of all ever given, that earlier deliveries used.
    ``room`` is the number of further messages that it may hold; when they are used up, the lease
    ends.
    """

    consumer_id: int
    first: int
    debited: int
    room: int


class Report(NamedTuple):
    """Delivered entries from ``first`` on: their numbers of messages, the keys of chunks, and the
    hashes of their keys if the dispatcher needs them."""

    first: int
    sizes: list[int]
    chunk_keys: dict[int, str]
    hashes: list[int]


class LeasedDelivery:
    """The partition's side of one dispatch lease."""

    __slots__ = ("_chunk_keys", "_hashes", "_sizes", "next_offset", "permits", "room")

    def __init__(self, first: int, permits: int, room: int) -> None:
        """``permits``: all permits of the consumer, less those debited. ``room`` is that of the
        lease."""
        self.next_offset = first
        self.permits = permits
        self.room = room
        self._sizes: list[int] = []
        self._hashes: list[int] = []
        self._chunk_keys: dict[int, str] = {}

    @property
    def allowance(self) -> int:
        """The number of messages that may be delivered now."""
        return min(self.permits, self.room)

    def delivered(
        self, sizes: Sequence[int], chunk_keys: Mapping[int, str], hashes: Sequence[int] = ()
    ) -> None:
        """Record the delivery of the entries from `next_offset` on; ``chunk_keys`` by offset,
        ``hashes`` if they are needed.

        Deliver only while there is an `allowance`; the last entry may exceed it, as with any
        delivery.
        """
        messages = sum(sizes)
        self._sizes += sizes
        self._hashes += hashes
        self._chunk_keys.update(chunk_keys)
        self.next_offset += len(sizes)
        self.permits -= messages
        self.room -= messages

    @property
    def report_due(self) -> bool:
        """Whether enough entries were delivered for a report."""
        return len(self._sizes) >= REPORT_AT

    def report(self) -> Report | None:
        """The deliveries since the last report; None if there are none."""
        sizes, keys, hashes = self._sizes, self._chunk_keys, self._hashes
        if not sizes:
            return None
        self._sizes, self._chunk_keys, self._hashes = [], {}, []
        return Report(self.next_offset - len(sizes), sizes, keys, hashes)

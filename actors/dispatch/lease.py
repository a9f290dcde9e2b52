"""Standing grants: what a partition may deliver without asking, and what it has delivered.

While there is but one way to go on (one consumer to serve, nothing to deliver again, nothing
acknowledged ahead of the read position), the dispatcher needn't see an entry before it goes
out. It gives a `DispatchLease`; the partition delivers in order from there on while the
consumer has permits, and reports what it delivered, with the sizes, before it says anything
else. Permits come to the partition first: it knows all that the consumer ever gave, the grant
says how many of them were used.

Before it tells of anything that changes who gets what, the partition's grant ends. So of both
sides one at a time decides, and nothing is delivered twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

REPORT_AT = 1024
"""Entries after which a report is due even if there is nothing else to tell."""


@dataclass(frozen=True, slots=True)
class DispatchLease:
    """Deliver to a consumer from ``first`` on, in order.

    ``debited`` is how many of all its permits, ever, what came before has used. ``room`` is how
    many messages it may hold more than it does: when they are used up, the grant ends.
    """

    consumer_id: int
    first: int
    debited: int
    room: int


class Report(NamedTuple):
    """Entries from ``first`` on were delivered: messages of each, keys of those that are chunks,
    the hashes of their keys if the dispatcher needs them."""

    first: int
    sizes: list[int]
    chunk_keys: dict[int, str]
    hashes: list[int]


class LeasedDelivery:
    """The partition's side of one standing grant."""

    __slots__ = ("_chunk_keys", "_hashes", "_sizes", "next_offset", "permits", "room")

    def __init__(self, first: int, permits: int, room: int) -> None:
        """``permits``: what the consumer ever gave, less what was debited. For ``room`` see the
        grant.
        """
        self.next_offset = first
        self.permits = permits
        self.room = room
        self._sizes: list[int] = []
        self._hashes: list[int] = []
        self._chunk_keys: dict[int, str] = {}

    @property
    def allowance(self) -> int:
        """How many messages may be delivered now."""
        return min(self.permits, self.room)

    def delivered(
        self, sizes: Sequence[int], chunk_keys: Mapping[int, str], hashes: Sequence[int] = ()
    ) -> None:
        """The entries from `next_offset` on go out; the keys, by offset, of those that are chunks;
        the hashes, if they are needed.

        Each only while there is an `allowance`, but the last may take more than that, as with
        any delivery.
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
        """Whether so much was delivered that the dispatcher should hear of it now."""
        return len(self._sizes) >= REPORT_AT

    def report(self) -> Report | None:
        """What was delivered since the last report; None if nothing was."""
        sizes, keys, hashes = self._sizes, self._chunk_keys, self._hashes
        if not sizes:
            return None
        self._sizes, self._chunk_keys, self._hashes = [], {}, []
        return Report(self.next_offset - len(sizes), sizes, keys, hashes)

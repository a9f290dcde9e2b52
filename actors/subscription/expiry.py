"""Expired entries: entries that a subscription skips although no consumer acknowledged them.

Entries expire by age (time to live), by number (backlog quota), by an administrator's command, or
because they are trimmed and can't be read. The cursor treats them as acknowledged; their number is
counted by reason. A rule of the subscription's machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from velaray.actors.machine import Decision, Reason, refuse
from velaray.actors.sets.offset_sets import Range
from velaray.actors.subscription.cursor import Cursor, pack_ranges, unpack_ranges
from velaray.events.events_pb2 import EntriesExpired


class ExpiryReason(StrEnum):
    """The reason of expiry."""

    TTL = "ttl"
    QUOTA = "quota"
    TRIMMED = "trimmed"
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True, slots=True)
class Expire:
    """Expire entries (``ranges`` of (first, last + 1), ascending).

    Reply: `Expired`; acknowledged entries stay as they are. Refused INVALID, as a whole, if
    anything is at or beyond ``end_offset``, the partition's end; NOT_FOUND before `Create`.
    """

    end_offset: int
    ranges: Sequence[Range]
    reason: ExpiryReason


@dataclass(frozen=True, slots=True)
class Expired:
    """The newly expired ranges, as ascending (first, last + 1)."""

    ranges: tuple[Range, ...] = ()


def decide_expire(cursor: Cursor, command: Expire) -> Decision:
    """The decision on `Expire`."""
    for first, end in command.ranges:
        if not 0 <= first < end <= command.end_offset:
            return refuse(
                Reason.INVALID,
                f"can't expire {first} to {end - 1}: the log ends at {command.end_offset}",
            )
    new = missing(cursor, command.ranges)
    if not new:
        return Decision(reply=Expired())
    return Decision((expired(new, command.reason),), Expired(tuple(new)))


def missing(cursor: Cursor, ranges: Iterable[Range]) -> list[Range]:
    """The parts of ``ranges`` that aren't wholly acknowledged, ascending."""
    return [part for first, end in ranges for part in cursor.unacked_ranges(first, end)]


def expired(ranges: Sequence[Range], reason: ExpiryReason) -> EntriesExpired:
    """The event of an expiry."""
    return EntriesExpired(ranges=pack_ranges(ranges), reason=reason)


def evolve_expired(cursor: Cursor, counts: dict[str, int], event: EntriesExpired) -> None:
    """Acknowledge the expired entries, and add them to ``counts`` by reason."""
    for first, end in unpack_ranges(event.ranges):
        counts[event.reason] = counts.get(event.reason, 0) + end - first
        cursor.ack_range(first, end)

"""Moves of entries to the dead-letter topic: part of a subscription's state.

A move has three steps, each durable before the next. First the entry is *intended*: it isn't
delivered any more. Then the partition publishes it, under a producer name of this subscription and
the number that the intent assigned; numbers ascend and are never reused, so de-duplication stores
it once however often a crash repeats the step. Finally the entry is *moved*, which acknowledges it.
An acknowledgement after the intent changes nothing. One in a transaction is refused, because its
work would count in addition to the dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from velaray.actors.machine import Decision, require
from velaray.actors.sets.ranges import Range, normalized
from velaray.actors.subscription.cursor import Cursor, pack_ranges, unpack_ranges
from velaray.actors.subscription.pending_sets import PendingAcks
from velaray.events.events_pb2 import DeadLettersIntended, DeadLettersMoved


@dataclass(slots=True)
class IntendDeadLetters:
    """Intend to move entries to the dead-letter topic. Reply: `Intended`, without entries that are
    acknowledged or pending in a transaction."""

    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Intended:
    """The entries to publish: (offset, number), in the order of the numbers."""

    dead_letters: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class ConfirmMoved:
    """Confirm that entries are durably in the dead-letter topic. Reply: `Moved`, with those that
    were intended."""

    offsets: Sequence[int]


@dataclass(frozen=True, slots=True)
class Moved:
    """The moved entries, which are acknowledged."""

    ranges: tuple[Range, ...]


@dataclass(slots=True)
class DeadLetters:
    """The unfinished moves: numbers by offset."""

    next_number: int = 0
    intended: dict[int, int] = field(default_factory=dict)

    def dead_letters(self) -> list[tuple[int, int]]:
        """(offset, number), in the order of the numbers."""
        return sorted(self.intended.items(), key=lambda dead_letter: dead_letter[1])


def decide_intent(
    dead: DeadLetters, cursor: Cursor, pending: PendingAcks, command: IntendDeadLetters
) -> Decision:
    """The decision on `IntendDeadLetters`."""
    ranges = normalized(
        (offset, offset + 1)
        for first, end in command.ranges
        for start, stop in cursor.unacked_ranges(first, end)
        for offset in range(start, stop)
        if offset not in dead.intended and pending.holder_of(offset, -1) is None
    )
    offsets = [offset for first, end in ranges for offset in range(first, end)]
    dead_letters = tuple((offset, dead.next_number + at) for at, offset in enumerate(offsets))
    if not dead_letters:
        return Decision(reply=Intended(()))
    event = DeadLettersIntended(ranges=pack_ranges(ranges), first_sequence=dead.next_number)
    return Decision((event,), Intended(dead_letters))


def decide_moved(dead: DeadLetters, command: ConfirmMoved) -> Decision:
    """The decision on `ConfirmMoved`."""
    known = normalized((at, at + 1) for at in command.offsets if at in dead.intended)
    if not known:
        return Decision(reply=Moved(()))
    return Decision((DeadLettersMoved(ranges=pack_ranges(known)),), Moved(tuple(known)))


def evolve_intended(dead: DeadLetters, event: DeadLettersIntended) -> None:
    """Apply the event."""
    number = event.first_sequence
    for first, end in unpack_ranges(event.ranges):
        for offset in range(first, end):
            dead.intended[offset] = number
            number += 1
    dead.next_number = number


def evolve_moved(dead: DeadLetters, cursor: Cursor, event: DeadLettersMoved) -> None:
    """Apply the event."""
    for first, end in unpack_ranges(event.ranges):
        for offset in range(first, end):
            del dead.intended[offset]
        cursor.ack_range(first, end)


def check(dead: DeadLetters) -> None:
    """Raise `InvariantViolation` if an invariant is broken."""
    numbers = set(dead.intended.values())
    require(len(numbers) == len(dead.intended), "dead letters have numbers of their own")
    require(
        not numbers or max(numbers) < dead.next_number, "numbers of dead letters are never reused"
    )


def snapshot(dead: DeadLetters) -> bytes | None:
    """The segment of dead letters; None if there never was one."""
    if not dead.next_number:
        return None
    return json.dumps([dead.next_number, dead.dead_letters()], separators=(",", ":")).encode()


def restore(segment: bytes | None) -> DeadLetters:
    """The inverse of `snapshot`."""
    if segment is None:
        return DeadLetters()
    number, dead_letters = json.loads(segment)
    return DeadLetters(number, dict(dead_letters))

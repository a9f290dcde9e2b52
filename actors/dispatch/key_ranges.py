"""The assignment of hashes to Key_Shared consumers: a hash ring, or ranges that consumers name.

Hashes are Pulsar's: Murmur3 of the key, 1 to 65535. With AUTO_SPLIT every consumer has 100 points
on a ring, and a hash belongs to the consumer of the next point. So a new consumer takes hashes from
all others, a leaving one gives its hashes to all others, and the other hashes stay. With STICKY
each consumer names its ranges, which must not overlap; entries of unassigned hashes wait.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Iterator, Sequence
from typing import Protocol

import mmh3

from velaray.actors.dispatch.consumers import Attached, ConsumerSpec, KeySharedMode, KeySharedPolicy
from velaray.actors.machine import Reason, Refusal

HASHES = 65536
POINTS = 100
"""Points of one consumer on the ring."""


class KeySelector(Protocol):
    """Assigns hashes to consumers."""

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """The reason why the consumer can't join; None if it can."""
        ...

    def add(self, consumer: Attached) -> None:
        """Add a consumer."""
        ...

    def remove(self, consumer: Attached) -> None:
        """Remove a consumer."""
        ...

    def only(self) -> Attached | None:
        """The consumer that gets every hash, if there is one."""
        ...

    def parts(self) -> Iterator[tuple[int, int, Attached]]:
        """All parts of the hashes that one consumer gets: (first, last + 1, consumer)."""
        ...


class HashRing:
    """Consistent hashing; the same consumers by name have the same hashes on every partition."""

    def __init__(self) -> None:
        self._points: list[tuple[int, str, int]] = []  # point, consumer's name, which of that name
        self._consumers: dict[tuple[str, int], Attached] = {}

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """None: any consumer may join."""
        return None

    def add(self, consumer: Attached) -> None:
        """Add the consumer's points: hashes before them become its own."""
        name, number = consumer.spec.name, 0
        while (name, number) in self._consumers:
            number += 1
        self._consumers[name, number] = consumer
        for point in range(POINTS):
            hashed = mmh3.hash(f"{name}\0{number}\0{point}", 0, signed=False) % HASHES
            insort(self._points, (hashed, name, number))

    def remove(self, consumer: Attached) -> None:
        """Remove the consumer's points: its hashes go to the consumers of the next points."""
        whose = next(key for key, known in self._consumers.items() if known is consumer)
        del self._consumers[whose]
        self._points = [point for point in self._points if point[1:] != whose]

    def only(self) -> Attached | None:
        """The only consumer, if there is exactly one."""
        return next(iter(self._consumers.values())) if len(self._consumers) == 1 else None

    def parts(self) -> Iterator[tuple[int, int, Attached]]:
        """From each point to the next."""
        first = 0
        for point, name, number in self._points:
            if first <= point:
                yield first, point + 1, self._consumers[name, number]
                first = point + 1
        if self._points:
            _, name, number = self._points[0]
            yield first, HASHES, self._consumers[name, number]


class StickyRanges:
    """Ranges of hashes that consumers name."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Attached]] = []  # first, last; ascending

    def refusal(self, spec: ConsumerSpec) -> Refusal | None:
        """UNASSIGNABLE if its ranges are invalid or overlap those of another consumer."""
        if not spec.keys.ranges:
            return Refusal(Reason.UNASSIGNABLE, "a sticky consumer must name ranges of hashes")
        taken = [(first, last, known.spec.name) for first, last, known in self._ranges]
        for first, last in spec.keys.ranges:
            if not 0 <= first <= last < HASHES:
                return Refusal(
                    Reason.UNASSIGNABLE,
                    f"range {first} to {last}: ranges of hashes lie in 0 to {HASHES - 1}",
                )
            for other_first, other_last, name in taken:
                if first <= other_last and other_first <= last:
                    return Refusal(
                        Reason.UNASSIGNABLE,
                        f"range {first} to {last} overlaps {other_first} to {other_last},"
                        f" which consumer {name!r} has",
                    )
            taken.append((first, last, spec.name))
        return None

    def add(self, consumer: Attached) -> None:
        """Add the consumer's ranges."""
        self._ranges += [(first, last, consumer) for first, last in consumer.spec.keys.ranges]
        self._ranges.sort(key=lambda known: known[0])

    def remove(self, consumer: Attached) -> None:
        """Remove the consumer's ranges; their hashes are unassigned."""
        self._ranges = [known for known in self._ranges if known[2] is not consumer]

    def only(self) -> Attached | None:
        """The consumer that has all hashes, if there is one."""
        first = self._ranges[0][2] if self._ranges else None
        covered = sum(last + 1 - max(start, 1) for start, last, _ in self._ranges)
        alone = all(known is first for _, _, known in self._ranges)
        return first if alone and covered == HASHES - 1 else None

    def parts(self) -> Iterator[tuple[int, int, Attached]]:
        """The consumers' ranges."""
        for first, last, consumer in self._ranges:
            yield first, last + 1, consumer


class Assignment:
    """The consumer of every hash, as a table."""

    __slots__ = ("_numbers", "_slots")

    def __init__(self, selector: KeySelector) -> None:
        self._numbers: list[int | None] = [None]
        self._slots = array("H", [0]) * HASHES  # hash -> place in the numbers
        slots: dict[int, int] = {}
        for first, end, consumer in selector.parts():
            number = consumer.spec.consumer_id
            slot = slots.get(number)
            if slot is None:
                slot = slots[number] = len(self._numbers)
                self._numbers.append(number)
            self._slots[first:end] = array("H", [slot]) * (end - first)

    def number_of(self, hashed: int) -> int | None:
        """The id of the consumer that gets the hash; None if none does."""
        return self._numbers[self._slots[hashed]]

    def numbers_of(self, hashes: Sequence[int]) -> Iterator[int | None]:
        """`number_of` each of the hashes."""
        return map(self._numbers.__getitem__, map(self._slots.__getitem__, hashes))


def selector_for(policy: KeySharedPolicy) -> KeySelector:
    """The selector of a policy."""
    return StickyRanges() if policy.mode is KeySharedMode.STICKY else HashRing()


def policy_refusal(live: KeySharedPolicy, wanted: KeySharedPolicy) -> Refusal | None:
    """BUSY if the live consumers have another mode, or differ in ``out_of_order``."""
    if live.mode is not wanted.mode:
        return Refusal(
            Reason.BUSY,
            f"the subscription has Key_Shared consumers of mode {live.mode.name},"
            f" not {wanted.mode.name}",
        )
    if live.out_of_order != wanted.out_of_order:
        allow = "allow" if live.out_of_order else "don't allow"
        return Refusal(
            Reason.BUSY, f"the subscription has consumers that {allow} out-of-order delivery"
        )
    return None

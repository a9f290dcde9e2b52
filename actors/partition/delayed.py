"""The index of delayed entries: part of a partition's state.

An entry with a delivery time is in the index from its append until DelayedEntriesDue removes it.
The index alone, without the entries, tells the host which entries must wait, and until when.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from velaray.actors.machine import Decision, require
from velaray.events.events_pb2 import DelayedEntriesDue, EntryAppended

SEGMENT = 1 << 16
"""Offsets per segment of a snapshot."""

PREFIX = "delayed/"
_FIELDS = Struct(">HQIH")


class DelayedEntry(NamedTuple):
    """One entry, ordered by time. ``key_hash`` is 0 if none was recorded.

    ``messages`` is 0 for a chunk of a large message, whose entry must be read instead.
    """

    deliver_at_ms: int
    offset: int
    messages: int
    key_hash: int


@dataclass(frozen=True, slots=True)
class ReleaseDelayed:
    """Release all entries with a delivery time up to ``until_ms``. Reply: `ReleasedDelayed`."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class ReleasedDelayed:
    """The number of entries that are still delayed."""

    left: int


class DelayedIndex:
    """Entries by delivery time."""

    __slots__ = ("_heap",)

    def __init__(self, entries: Iterable[DelayedEntry] = ()) -> None:
        self._heap = list(entries)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[DelayedEntry]:
        """All entries, in arbitrary order."""
        return iter(self._heap)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DelayedIndex):
            return NotImplemented
        return sorted(self._heap) == sorted(other._heap)

    __hash__ = None  # type: ignore[assignment]

    def add(self, entry: DelayedEntry) -> None:
        """Add an appended entry."""
        heapq.heappush(self._heap, entry)

    def is_due(self, until_ms: int) -> bool:
        """Whether any entry is due at ``until_ms``."""
        return bool(self._heap) and self._heap[0].deliver_at_ms <= until_ms

    def next_ms(self) -> int | None:
        """The earliest delivery time."""
        return self._heap[0].deliver_at_ms if self._heap else None

    def take(self, until_ms: int) -> list[DelayedEntry]:
        """Remove the entries that are due; returns them, by time."""
        taken = []
        while self.is_due(until_ms):
            taken.append(heapq.heappop(self._heap))
        return taken

    def check(self, end_offset: int) -> None:
        """Raise `InvariantViolation` if an invariant is broken."""
        offsets = {entry.offset for entry in self._heap}
        require(len(offsets) == len(self._heap), "an entry is delayed once")
        require(
            not offsets or max(offsets) < end_offset,
            "what is delayed is stored",
            f"{max(offsets, default=0)} of {end_offset}",
        )

    def snapshot(self) -> dict[str, bytes]:
        """Segments ``delayed/<n>`` for offsets n * 65536 and following."""
        parts: dict[int, bytearray] = {}
        for entry in sorted(self._heap, key=lambda entry: entry.offset):
            number, within = divmod(entry.offset, SEGMENT)
            fields = _FIELDS.pack(within, entry.deliver_at_ms, entry.messages, entry.key_hash)
            parts.setdefault(number, bytearray()).extend(fields)
        return {f"{PREFIX}{number}": bytes(part) for number, part in parts.items()}

    @classmethod
    def restore(cls, segments: Mapping[str, bytes]) -> DelayedIndex:
        """The inverse of `snapshot`; other segments are ignored."""
        entries = []
        for name, part in segments.items():
            if name.startswith(PREFIX):
                base = int(name.removeprefix(PREFIX)) * SEGMENT
                for within, at_ms, messages, key_hash in _FIELDS.iter_unpack(part):
                    entries.append(DelayedEntry(at_ms, base + within, messages, key_hash))
        return cls(entries)


def decide(index: DelayedIndex, command: ReleaseDelayed) -> Decision:
    """The decision on the command."""
    due = index.is_due(command.until_ms)
    left = sum(entry.deliver_at_ms > command.until_ms for entry in index) if due else len(index)
    events = (DelayedEntriesDue(until_ms=command.until_ms),) if due else ()
    return Decision(events, ReleasedDelayed(left))


def appended(index: DelayedIndex, event: EntryAppended, offset: int) -> None:
    """Record an entry with a delivery time, appended at ``offset``."""
    if event.deliver_at_ms > event.at_ms:
        messages = 0 if event.chunk_uuid else event.messages or 1
        index.add(DelayedEntry(event.deliver_at_ms, offset, messages, event.key_hash))

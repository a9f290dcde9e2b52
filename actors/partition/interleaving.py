"""De-duplication for producers with interleaved batches.

A producer that batches by key sends a batch per key in each flush: for example messages 0, 5 and 9
in one, and messages 1 to 8 except 5 in the next. The second has a lower highest sequence id than
the first and is no duplicate. A comparison with the highest id alone would drop it, and still
answer it with a receipt.

Such a producer is recognised in time: the batches of a flush are sent in the order of their first
messages, so an entry with a lower id follows a *sparse* batch, one that spans more ids than it has
messages. From the first sparse batch on the exact (first, highest) ids of the newest entries are
remembered, and an entry is a duplicate only if it is one of them, or older than all of them.
"""

from __future__ import annotations

WINDOW = 4096
"""Remembered entries; far more than a client sends at once."""


class Interleaving:
    """The newest entries of one producer, by their first and highest sequence ids."""

    __slots__ = ("entries", "floor")

    def __init__(self, floor: int, entries: dict[int, int] | None = None) -> None:
        """Everything below ``floor`` counts as seen."""
        self.floor = floor
        self.entries = {} if entries is None else entries

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interleaving):
            return NotImplemented
        return self.floor == other.floor and list(self.entries.items()) == list(
            other.entries.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def has(self, first: int, highest: int) -> bool:
        """Whether the entry was stored before."""
        return first < self.floor or self.entries.get(first) == highest

    def add(self, first: int, highest: int) -> None:
        """Record a stored entry."""
        self.entries.pop(first, None)
        self.entries[first] = highest
        if len(self.entries) > WINDOW:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
            self.floor = max(self.floor, oldest + 1)


def is_sparse(first: int, highest: int, messages: int) -> bool:
    """Whether a batch spans more ids than it has messages."""
    return highest - first + 1 > messages

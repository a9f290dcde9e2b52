"""De-duplication for producers whose batches interleave.

A producer that batches by key sends, of one flush, a batch per key: messages 0, 5 and 9 in
one, messages 1 to 8 but 5 in the next. The second has a lower highest sequence id than the
first and is no duplicate. Comparing with the highest id seen would drop it, and the client
would be told that it was stored.

Such a producer gives itself away before anything can be mistaken: the batches of a flush are
sent in the order of their first messages, so what comes before an entry with a lower id is a
*sparse* batch, one that spans more ids than it has messages. From the first sparse batch on
the exact (first, highest) ids of the newest entries are remembered, and an entry is a
duplicate only if it is one of them, or older than all of them.
"""

from __future__ import annotations

WINDOW = 4096
"""Entries remembered; far more than a client has under way at once."""


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
        """The entry is stored."""
        self.entries.pop(first, None)
        self.entries[first] = highest
        if len(self.entries) > WINDOW:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
            self.floor = max(self.floor, oldest + 1)


def is_sparse(first: int, highest: int, messages: int) -> bool:
    """Whether a batch spans ids of messages that it doesn't hold."""
    return highest - first + 1 > messages

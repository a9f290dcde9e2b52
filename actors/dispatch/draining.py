"""The hashes of keys with un-acknowledged entries, and the consumer that holds them.

The rule of Key_Shared: at any time, the un-acknowledged entries of one hash are at one consumer at
most. When a hash gets another consumer, the former one *drains* it: the new one gets no entry of
that hash until all entries of the former one are acknowledged or returned.
"""

from __future__ import annotations

from collections.abc import Iterator

from velaray.actors.machine import require


class PendingHashes:
    """The consumer and the number of un-acknowledged entries of every hash that has any."""

    __slots__ = ("_drained", "_pending")

    def __init__(self) -> None:
        self._pending: dict[int, tuple[int, int]] = {}  # hash -> (owner, entries)
        self._drained: list[int] = []

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(hash, owner, entries) of all, in no order."""
        for hashed, (owner, entries) in self._pending.items():
            yield hashed, owner, entries

    def owner_of(self, hashed: int) -> int | None:
        """The consumer that has un-acknowledged entries of the hash."""
        found = self._pending.get(hashed)
        return None if found is None else found[0]

    def may_take(self, hashed: int, owner: int) -> bool:
        """Whether no other consumer has un-acknowledged entries of the hash."""
        found = self._pending.get(hashed)
        return found is None or found[0] == owner

    def given(self, hashed: int, owner: int) -> None:
        """Record that ``owner`` got an entry of the hash; raises `InvariantViolation` if another
        consumer has some.

        Call `may_take` first.
        """
        held_by, entries = self._pending.get(hashed, (owner, 0))
        if held_by != owner:
            name = "a key is un-acknowledged at no more than one consumer"
            require(False, name, f"hash {hashed} at {held_by} and {owner}")
        self._pending[hashed] = (owner, entries + 1)

    def taken(self, hashed: int) -> None:
        """Record that an entry of the hash was acknowledged or returned."""
        owner, entries = self._pending[hashed]
        if entries > 1:
            self._pending[hashed] = (owner, entries - 1)
        else:
            del self._pending[hashed]
            self._drained.append(hashed)

    def take_drained(self) -> list[int]:
        """The hashes without un-acknowledged entries since the last call."""
        drained, self._drained = self._drained, []
        return drained

    def drained(self) -> list[int]:
        """The result of `take_drained`, without a change."""
        return list(self._drained)

    def clear(self) -> None:
        """Drop everything."""
        self._pending.clear()
        self._drained.clear()

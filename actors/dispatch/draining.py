"""Which hashes of keys are un-acknowledged at which consumer.

The rule of Key_Shared: entries of one hash are un-acknowledged at no more than one consumer at
any time. When a hash gets another consumer, its former one *drains* it: nothing of that hash
goes to the new one until all that the former one holds is acknowledged or has come back.
"""

from __future__ import annotations

from collections.abc import Iterator

from velaray.actors.machine import require


class PendingHashes:
    """For every hash that is un-acknowledged somewhere: at whom, and how many entries."""

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
        """``owner`` got an entry of the hash; raises `InvariantViolation` if another one has some.

        That is what `may_take` is asked for before.
        """
        held_by, entries = self._pending.get(hashed, (owner, 0))
        require(
            held_by == owner,
            "a key is un-acknowledged at no more than one consumer",
            f"hash {hashed} at {held_by} and {owner}",
        )
        self._pending[hashed] = (owner, entries + 1)

    def taken(self, hashed: int) -> None:
        """An entry of the hash was acknowledged, or came back."""
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
        """What `take_drained` would return."""
        return list(self._drained)

    def clear(self) -> None:
        """Nobody has anything."""
        self._pending.clear()
        self._drained.clear()

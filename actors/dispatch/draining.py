"""The hashes of keys with un-acknowledged entries, and the consumer that holds them.

The rule of Key_Shared: at any time, the un-acknowledged entries of one hash are at one consumer at
most. When a hash gets another consumer, the former one *drains* it: the new one gets no entry of
that hash until all entries of the former one are acknowledged or returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from velaray.actors.machine import require


class PendingHashes:
    """The consumer and the number of un-acknowledged entries of every hash that has any."""

    __slots__ = ("_drained", "_more", "_owners")

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}
        self._more: dict[int, int] = {}  # hash -> its entries without the first one, at least 1
        self._drained: list[int] = []

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(hash, owner, entries) of all, in no order."""
        for hashed, owner in self._owners.items():
            yield hashed, owner, 1 + self._more.get(hashed, 0)

    @property
    def owners(self) -> Mapping[int, int]:
        """The consumer that has un-acknowledged entries of a hash, by hash. Only read it."""
        return self._owners

    def owner_of(self, hashed: int) -> int | None:
        """The consumer that has un-acknowledged entries of the hash."""
        return self._owners.get(hashed)

    def may_take(self, hashed: int, owner: int) -> bool:
        """Whether no other consumer has un-acknowledged entries of the hash."""
        return self._owners.get(hashed, owner) == owner

    def given(self, hashes: Sequence[int], owners: Sequence[int | None]) -> None:
        """Record that each of the ``owners`` got an entry of one of the hashes, in their order;
        None got none. Raises `InvariantViolation` if another consumer has some of it.

        Call `may_take` first.
        """
        held_by, more = self._owners, self._more
        for hashed, owner in zip(hashes, owners, strict=True):
            if owner is None:
                continue
            if hashed not in held_by:
                held_by[hashed] = owner
            elif held_by[hashed] == owner:
                more[hashed] = more.get(hashed, 0) + 1
            else:
                name = "a key is un-acknowledged at no more than one consumer"
                require(False, name, f"hash {hashed} at {held_by[hashed]} and {owner}")

    def taken(self, hashes: Sequence[int]) -> None:
        """Record that an entry of each of these hashes was acknowledged or returned."""
        owners, more = self._owners, self._more
        if not more and len(set(hashes)) == len(hashes):
            for hashed in hashes:
                del owners[hashed]
            self._drained += hashes
            return
        for hashed in hashes:
            left = more.get(hashed)
            if left is None:
                del owners[hashed]
                self._drained.append(hashed)
            elif left == 1:
                del more[hashed]
            else:
                more[hashed] = left - 1

    def take_drained(self) -> list[int]:
        """The hashes without un-acknowledged entries since the last call."""
        drained, self._drained = self._drained, []
        return drained

    def drained(self) -> list[int]:
        """The result of `take_drained`, without a change."""
        return list(self._drained)

    def clear(self) -> None:
        """Drop everything."""
        self._owners.clear()
        self._more.clear()
        self._drained.clear()

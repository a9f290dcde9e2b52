"""The chunks of large messages in a dispatcher: all chunks of a message go to one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sortedcontainers import SortedDict

from velaray.actors.sets.ranges import Range


class ChunkGroups:
    """The entries that are chunks, the message of each, and the consumer that the message is bound
    to."""

    __slots__ = ("_keys", "_members", "_owners")

    def __init__(self) -> None:
        self._keys: SortedDict = SortedDict()  # offset -> key of its message
        self._members: dict[str, set[int]] = {}
        self._owners: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, keys: Mapping[int, str]) -> None:
        """Add entries that are chunks, with the keys of their messages."""
        for offset, key in keys.items():
            self._keys[offset] = key
            self._members.setdefault(key, set()).add(offset)

    def key_of(self, offset: int) -> str | None:
        """The message that the entry is a chunk of; None if it is none."""
        key: str | None = self._keys.get(offset)
        return key

    def next_chunk(self, offset: int, limit: int) -> int:
        """The first chunk at or after ``offset``, ``limit`` if there is none before it."""
        for found in self._keys.irange(offset, limit):
            return int(found)
        return limit

    def members(self, key: str) -> Iterable[int]:
        """The chunks of the message that are known and not acknowledged."""
        return sorted(self._members.get(key, ()))

    def owner_of(self, key: str) -> int | None:
        """The consumer that the message is bound to."""
        return self._owners.get(key)

    def bind(self, key: str, owner: int) -> None:
        """Bind the message to ``owner``, which gets all of its chunks."""
        self._owners[key] = owner

    def unbind_owner(self, owner: int) -> None:
        """Unbind the messages of a consumer that left: other consumers may get them."""
        self._owners = {key: whose for key, whose in self._owners.items() if whose != owner}

    def unbind_returned(self, ranges: Iterable[Range], is_held: Callable[[int], bool]) -> list[int]:
        """Unbind messages without held chunks, after entries returned; other consumers may get
        them.

        Returns the chunks of those messages.
        """
        touched = {
            self._keys[offset]
            for first, end in ranges
            for offset in self._keys.irange(first, end - 1)
        }
        free: list[int] = []
        for key in sorted(touched):
            if not any(is_held(offset) for offset in self._members[key]):
                self._owners.pop(key, None)
                free += sorted(self._members[key])
        return free

    def forget(self, first: int, end: int) -> None:
        """Drop acknowledged entries."""
        for offset in list(self._keys.irange(first, end - 1)):
            key = self._keys.pop(offset)
            members = self._members[key]
            members.discard(offset)
            if not members:
                del self._members[key]
                self._owners.pop(key, None)

    def bound(self) -> Iterable[tuple[int, int]]:
        """(offset, owner) of every chunk whose message is bound."""
        for key, owner in self._owners.items():
            for offset in self._members[key]:
                yield offset, owner

    def clear(self) -> None:
        """Drop everything."""
        self._keys.clear()
        self._members.clear()
        self._owners.clear()

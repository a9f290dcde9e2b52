"""Chunks of large messages, as a dispatcher sees them: all of a message go to one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sortedcontainers import SortedDict

from velaray.actors.sets.ranges import Range


class ChunkGroups:
    """Entries that are chunks, the message each belongs to, and the consumer bound to it."""

    __slots__ = ("_keys", "_members", "_owners")

    def __init__(self) -> None:
        self._keys: SortedDict = SortedDict()  # offset -> key of its message
        self._members: dict[str, set[int]] = {}
        self._owners: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, keys: Mapping[int, str]) -> None:
        """Entries that are chunks, with the key of their message."""
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
        """All chunks of the message go to ``owner``."""
        self._owners[key] = owner

    def unbind_owner(self, owner: int) -> None:
        """The consumer is gone: its messages may go to others."""
        self._owners = {key: whose for key, whose in self._owners.items() if whose != owner}

    def unbind_returned(self, ranges: Iterable[Range], is_held: Callable[[int], bool]) -> list[int]:
        """Entries came back: messages none of whose chunks is held may go to others.

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
        """The entries are acknowledged."""
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
        """Forget everything."""
        self._keys.clear()
        self._members.clear()
        self._owners.clear()

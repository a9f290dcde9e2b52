"""The rules of compaction: the newest message of each key stays, unless it is a tombstone.

Two passes visit the entries below the horizon in order. The first (`NewestByKey.see`) finds each
key's newest message, the second (`NewestByKey.kept`) gives the messages of each entry that stay.
The encoding of entries is unknown here: they come as `Contents`.

A message with an empty value is a tombstone: it removes its key and isn't kept itself. A message
without a key is dropped, unless such messages are retained. A batch is judged message by message.
The chunks of a large message are one message, as new as its last chunk; chunks of a message that is
incomplete below the horizon stay, since the rest may follow. Unreadable entries (encrypted batches,
malformed entries) stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

KEY_BUDGET = 256 << 20
"""Bytes of memory for the keys of one compaction, by `KEY_OVERHEAD` and their text."""
KEY_OVERHEAD = 200
"""Bytes that a key takes beside its text: a dict's slot, a string's head, a place."""

_INDEX_BITS = 24


class TooManyKeys(Exception):
    """The keys of a topic exceed the memory that a compaction may use."""


class Item(NamedTuple):
    """A message as compaction sees it. ``gone``: an earlier compaction removed it."""

    key: str | None
    empty: bool
    gone: bool = False


class Part(NamedTuple):
    """The large message that an entry belongs to, and the number of its chunk."""

    uuid: str
    chunk_id: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The messages of an entry; None if it is unreadable."""

    items: tuple[Item, ...] | None
    part: Part | None = None


def everything(contents: Contents) -> int:
    """The mask of all messages of an entry."""
    return (1 << len(contents.items or (None,))) - 1


class NewestByKey:
    """The newest messages by key of one compaction; memory is bounded by ``key_budget``."""

    def __init__(self, *, retain_without_key: bool = False, key_budget: int = KEY_BUDGET) -> None:
        self._retain = retain_without_key
        self._left = key_budget
        self._newest: dict[str, int] = {}  # key -> offset and index of its newest message
        self._complete: dict[int, tuple[int, ...]] = {}  # offset of the last chunk -> all offsets
        self._open: dict[str, list[int]] = {}  # uuid -> offsets of its chunks so far
        self._chunks: set[int] | None = None

    @property
    def keys(self) -> int:
        """The number of keys with a value."""
        return len(self._newest)

    def see(self, offset: int, contents: Contents) -> None:
        """Visit the next entry of the first pass. Raises `TooManyKeys`; then the topic can't be
        compacted."""
        items = contents.items
        if items is None:
            return
        if contents.part is not None:
            self._see_chunk(offset, items[0], contents.part)
            return
        for index, item in enumerate(items):
            if item.key is not None and not item.gone:
                self._see_message(item.key, item.empty, offset, index)

    def _see_message(self, key: str, empty: bool, offset: int, index: int) -> None:
        former = self._newest.get(key)
        if former is not None:
            self._complete.pop(former >> _INDEX_BITS, None)
        if empty:
            if former is not None:
                del self._newest[key]
                self._left += len(key) + KEY_OVERHEAD
            return
        if former is None:
            self._left -= len(key) + KEY_OVERHEAD
            if self._left < 0:
                raise TooManyKeys(
                    f"more than {len(self._newest)} keys: they don't fit the memory that a "
                    "compaction may use; spread the topic over more partitions"
                )
        self._newest[key] = offset << _INDEX_BITS | index

    def _see_chunk(self, offset: int, item: Item, part: Part) -> None:
        offsets = self._open.setdefault(part.uuid, [])
        if part.chunk_id == 0:
            offsets.clear()  # the message was restarted: its earlier chunks are useless
        offsets.append(offset)
        if part.chunk_id + 1 < part.chunks:
            return
        del self._open[part.uuid]
        if item.key is not None:
            self._see_message(item.key, False, offset, 0)
        if item.key is not None or self._retain:
            self._complete[offset] = tuple(offsets)

    def kept(self, offset: int, contents: Contents) -> int:
        """The messages of the entry that stay: bit i set = message i does. After the first pass."""
        if contents.items is None:
            return 1
        if contents.part is not None:
            return int(offset in self._kept_chunks())
        mask = 0
        place = offset << _INDEX_BITS
        for index, item in enumerate(contents.items):
            if item.gone:
                continue
            if item.key is None:
                stays = self._retain
            else:
                stays = self._newest.get(item.key) == place | index
            mask |= stays << index
        return mask

    def _kept_chunks(self) -> set[int]:
        if self._chunks is None:
            groups = [*self._complete.values(), *self._open.values()]
            self._chunks = {offset for offsets in groups for offset in offsets}
        return self._chunks

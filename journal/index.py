"""A sparse index of one ledger, to find the frame of an entry."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import Final

from crc32c import crc32c

SPACING: Final = 64 * 1024
"""Bytes between two indexed frames, at least."""

_MAGIC: Final = b"\x89VINDEX\x01"
_HEADER: Final = struct.Struct("<8sQI")


class SparseIndex:
    """Frames of a ledger, one about every 64 KiB: (id of the first entry, file offset)."""

    __slots__ = ("_entries", "_offsets")

    def __init__(self) -> None:
        self._entries = array("Q")
        self._offsets = array("Q")

    def __len__(self) -> int:
        return len(self._offsets)

    def note(self, entry: int, offset: int) -> None:
        """Add the frame at ``offset``, whose first entry is ``entry``; call it in the order of
        frames."""
        if not self._offsets or offset - self._offsets[-1] >= SPACING:
            self._entries.append(entry)
            self._offsets.append(offset)

    def find(self, entry: int) -> int | None:
        """The offset of a frame at or before the one that holds ``entry``."""
        at = bisect_right(self._entries, entry) - 1
        return self._offsets[at] if at >= 0 else None

    def cut(self, first: int, end: int, size: int) -> list[tuple[int, int]]:
        """Split the entries from ``first`` to ``end`` - 1 into parts of about ``size`` bytes: each
        part's first entry, and its frame's offset as from `find`. Empty if the index is empty."""
        at = bisect_right(self._entries, first) - 1
        if at < 0:
            return []
        parts = [(first, self._offsets[at])]
        for entry, offset in zip(self._entries[at + 1 :], self._offsets[at + 1 :], strict=True):
            if entry >= end:
                break
            if offset - parts[-1][1] >= size and entry > parts[-1][0]:
                parts.append((entry, offset))
        return parts

    def encode(self, ledger_id: int) -> bytes:
        """The stored form."""
        body = struct.pack(f"<{len(self) * 2}Q", *self._entries, *self._offsets)
        return _HEADER.pack(_MAGIC, ledger_id, crc32c(body)) + body


def decode_index(ledger_id: int, raw: bytes) -> SparseIndex | None:
    """Read what `SparseIndex.encode` wrote; None if ``raw`` isn't this ledger's index.

    An index contains nothing that isn't in the ledger, so a bad one is rebuilt and not reported.
    """
    if len(raw) < _HEADER.size or (len(raw) - _HEADER.size) % 16:
        return None
    magic, owner, crc = _HEADER.unpack_from(raw)
    body = raw[_HEADER.size :]
    if magic != _MAGIC or owner != ledger_id or crc != crc32c(body):
        return None
    numbers = struct.unpack(f"<{len(body) // 8}Q", body)
    index = SparseIndex()
    index._entries.extend(numbers[: len(numbers) // 2])
    index._offsets.extend(numbers[len(numbers) // 2 :])
    return index

"""Zeros after the end of a ledger's frames, so that small commits overwrite the file instead of
extending it.

A sync of a write that extends a file also writes the file's size, through the file system's
journal. If zeros are there already, the sync writes only the data. The block of a small frame is
written as a whole anyway, so zeros up to its end cost nothing. Further zeros are bytes that are
written twice. So their number is limited to the bytes of the small frames that were written in a
row, and large frames write none.

Zeros aren't a frame: after the last frame they are a clean end, see `velaray.journal.scan`.
"""

from __future__ import annotations

from typing import Final

BLOCK: Final = 4096
"""The block size of file systems; a frame of up to this size is small."""
AHEAD: Final = 64 << 10
"""The most zeros that are written at once."""

ZEROS: Final = memoryview(bytes(BLOCK))


class Ahead:
    """The end of one ledger's file, and the number of zeros to write with its next frame."""

    __slots__ = ("_run", "reach")

    def __init__(self, end: int) -> None:
        self.reach = end
        """The end of the file."""
        self._run = 0

    def zeros(self, offset: int, size: int) -> int:
        """The number of zeros to write after a frame of ``size`` bytes at ``offset``."""
        if size > BLOCK:
            self._run = 0
            return 0
        self._run += size
        end = offset + size
        if end <= self.reach:
            return 0
        return -(-(end + min(self._run, AHEAD)) // BLOCK) * BLOCK - end

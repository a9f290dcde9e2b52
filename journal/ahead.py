"""Zeros behind the end of a ledger, so that small commits overwrite instead of extending.

Syncing a write that makes a file longer means writing the file's size, too, through the file
system's own journal. Where zeros are there already, the sync writes the data alone. The block
that a small frame is in is written as a whole anyway; zeros up to its end cost nothing.
Beyond that, zeros are bytes written twice, so there are never more of them ahead than small
frames have come in a row, and large frames, which extend the file as they come, bring none.

Zeros are no frame: behind the last one they are a clean end, see `velaray.journal.scan`.
"""

from __future__ import annotations

from typing import Final

BLOCK: Final = 4096
"""What file systems write at once; a frame of up to this size is small."""
AHEAD: Final = 64 << 10
"""So many zeros, at most, are written at once."""

ZEROS: Final = memoryview(bytes(BLOCK))


class Ahead:
    """How far one ledger's file reaches, and how many zeros its next frame brings along."""

    __slots__ = ("_run", "reach")

    def __init__(self, end: int) -> None:
        self.reach = end
        """Where the file ends."""
        self._run = 0

    def zeros(self, offset: int, size: int) -> int:
        """How many zeros to write behind a frame of ``size`` bytes at ``offset``."""
        if size > BLOCK:
            self._run = 0
            return 0
        self._run += size
        end = offset + size
        if end <= self.reach:
            return 0
        return -(-(end + min(self._run, AHEAD)) // BLOCK) * BLOCK - end

"""One owner's view of its journal in an object store."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from velaray.journal.objects.bodies import Chunk
from velaray.journal.objects.host_log import HostLog, Owner
from velaray.journal.objects.journal_record import JournalRecord

_offset = attrgetter("offset")


class Runs:
    """Chunks by ledger, each ledger's in the order of its bytes."""

    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        self.by_ledger: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            self.add(chunk)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk of a ledger."""
        self.by_ledger.setdefault(chunk.ledger_id, []).append(chunk)

    def end(self, ledger_id: int) -> int:
        """The offset after the last byte of a ledger; 0 without chunks."""
        chunks = self.by_ledger.get(ledger_id)
        return chunks[-1].end if chunks else 0

    def read(self, ledger_id: int, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``, as far as they are here without a gap."""
        chunks: Sequence[Chunk] = self.by_ledger.get(ledger_id, ())
        at = bisect_right(chunks, offset, key=_offset) - 1
        found: list[bytes | memoryview] = []
        end = offset + length
        for chunk in chunks[max(at, 0) :]:
            if not chunk.offset <= offset < chunk.end or offset >= end:
                break
            found.append(chunk.data[offset - chunk.offset : end - chunk.offset])
            offset = min(chunk.end, end)
        return b"".join(found)


class Kept:
    """The chunks of one activation in its own process's log that no part holds yet."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, Chunk]] = []
        self.size = 0
        self.since_s = 0.0
        """The time of the oldest one, on the event loop's clock."""

    @property
    def first_number(self) -> int | None:
        """The number of the oldest chunk's object."""
        return self.chunks[0][0] if self.chunks else None

    def add(self, number: int, chunks: list[Chunk]) -> None:
        """Add chunks that were staged for the object ``number``."""
        if not self.chunks:
            self.since_s = asyncio.get_running_loop().time()
        self.chunks += [(number, chunk) for chunk in chunks]
        self.size += sum(len(chunk.data) for chunk in chunks)

    def below(self, number: int) -> list[Chunk]:
        """The chunks in objects below ``number``."""
        return [chunk for at, chunk in self.chunks if at < number]

    def keep(self, first: int, end: int) -> None:
        """Keep only the chunks in the objects from ``first`` up to ``end`` - 1."""
        self.chunks = [(at, chunk) for at, chunk in self.chunks if first <= at < end]
        self.size = sum(len(chunk.data) for _, chunk in self.chunks)
        self.since_s = asyncio.get_running_loop().time()


class Activation(Owner):
    """The owner of a journal in this process, from its take to its close, failure or loss.

    ``record`` and ``tag`` are the journal's record as this owner last wrote it. ``lock`` is held
    while it is replaced.
    """

    def __init__(
        self, journal: str, epoch: int, log: HostLog, record: JournalRecord, tag: str
    ) -> None:
        super().__init__(journal, epoch)
        self.log = log
        self.record = record
        self.tag = tag
        self.lock = asyncio.Lock()
        self.adoption: asyncio.Task[list[Chunk]] | None = None
        self.adopted = Runs()
        self.copied = False
        """Whether what it adopted was staged to its own log."""
        self.kept = Kept()
        self.runs = Runs()
        """The chunks of `kept`, for reading."""
        self.first_number = -1
        self.last_number = -1
        self.created: set[int] = set()
        self.is_writing = False
        """Whether a write of its record is under way, or has an unknown outcome."""

    def stage(self, chunks: list[Chunk]) -> int:
        """Add chunks to the log; returns the number of their object. Raises the log's failure."""
        number = self.log.stage(self, chunks)
        self.kept.add(number, chunks)
        for chunk in chunks:
            self.runs.add(chunk)
        if self.first_number < 0:
            self.first_number = number
        self.last_number = number
        return number

    def end_it(self) -> None:
        """Cut it: what isn't sent yet never appears, and nothing more is acknowledged."""
        if not self.cut:
            self.cut = True
            self.kept.keep(0, self.log.next_number)

    async def settled(self) -> None:
        """Wait until everything that was sent is committed. Raises the log's failure."""
        if self.last_number >= 0:
            await self.log.wait(min(self.last_number, self.log.next_number - 1))

    def unpacked(self, below: int) -> None:
        """Drop the chunks that a won record names as parts."""
        self.kept.keep(below, self.last_number + 1)
        self.runs = Runs(chunk for _, chunk in self.kept.chunks)

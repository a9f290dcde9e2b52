"""The blocks of offloaded ledgers that a process keeps in memory, and reading ahead."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final, NamedTuple

from velaray.journal.errors import CorruptJournal
from velaray.journal.offload.archive import LedgerArchive

BLOCK_BYTES: Final = 1 << 20
BLOCKS: Final = 32
"""How many blocks are kept, those that are being read included."""


class _Block(NamedTuple):
    journal: str
    ledger_id: int
    number: int


class ReadAhead:
    """Reads an archive in blocks. A reader that goes on from one block to the next gets the one
    after it ahead."""

    def __init__(self, archive: LedgerArchive) -> None:
        self._archive = archive
        self._blocks: OrderedDict[_Block, asyncio.Task[bytes]] = OrderedDict()

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Bytes of a ledger; see `LedgerArchive.read`."""
        end = await self._archive.end(journal, ledger_id)
        stop = min(offset + length, end.size)
        found: list[bytes] = []
        while offset < stop:
            number, start = divmod(offset, BLOCK_BYTES)
            block = _Block(journal, ledger_id, number)
            goes_on = block._replace(number=number - 1) in self._blocks
            reading = self._get(block)
            if goes_on and (number + 1) * BLOCK_BYTES < end.size:
                self._get(block._replace(number=number + 1))
            data = await asyncio.shield(reading)
            piece = data[start : start + stop - offset]
            if not piece:
                place = self._archive.location(journal, ledger_id)
                raise CorruptJournal(place, offset, f"ends before byte {stop}")
            found.append(piece)
            offset += len(piece)
        return b"".join(found)

    def _get(self, block: _Block) -> asyncio.Task[bytes]:
        reading = self._blocks.get(block)
        if reading is None:
            reading = self._blocks[block] = asyncio.create_task(self._read(block))
            reading.add_done_callback(lambda task: self._drop_failed(block, task))
            if len(self._blocks) > BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        return reading

    async def _read(self, block: _Block) -> bytes:
        start = block.number * BLOCK_BYTES
        return await self._archive.read(block.journal, block.ledger_id, start, BLOCK_BYTES)

    def _drop_failed(self, block: _Block, task: asyncio.Task[bytes]) -> None:
        """Let the next reader try again; nobody may wait for a block that was read ahead."""
        failed = task.cancelled() or task.exception() is not None
        if failed and self._blocks.get(block) is task:
            del self._blocks[block]

    def forget(self, journal: str, ledger_id: int) -> None:
        """Drop the blocks of a ledger that is deleted."""
        for block in [each for each in self._blocks if each[:2] == (journal, ledger_id)]:
            del self._blocks[block]

    def close(self) -> None:
        """Stop reading ahead, and drop all blocks."""
        for reading in self._blocks.values():
            reading.cancel()
        self._blocks.clear()

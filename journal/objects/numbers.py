"""Journal numbers, taken in blocks by compare-and-set of one object."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from velaray.journal.errors import Contended
from velaray.journal.objects.bodies import Kind, decode_body, decode_record, encode_record
from velaray.journal.objects.conditional import ConditionalObjects, Replaced, Taken

NUMBERS: Final = "numbers"
BLOCK: Final = 64
"""Numbers that a process takes at once; those that it doesn't use are lost."""
TRIES: Final = 100


class JournalNumbers:
    """The numbers of one process, after ``base``."""

    def __init__(self, objects: ConditionalObjects, base: int, block: int) -> None:
        self._objects = objects
        self._base = base
        self._block = block
        self._free: list[int] = []
        self._claiming = asyncio.Lock()

    async def claim(self) -> int:
        """A number of this process alone. Raises `Contended` if others win every attempt."""
        async with self._claiming:
            if not self._free:
                self._free = await self._claim_block()
            return self._base + self._free.pop(0)

    async def _claim_block(self) -> list[int]:
        place = self._objects.location(NUMBERS)
        for _ in range(TRIES):
            found, first = await self._objects.get(NUMBERS), 1
            if found is not None:
                body = decode_body(NUMBERS, place, found.data, Kind.NUMBERS)
                (first,) = decode_record(place, body.payload)
            end = first + self._block
            payload = encode_record(end)
            with suppress(Taken, Replaced):
                if found is None:
                    await self._objects.create(NUMBERS, Kind.NUMBERS, payload)
                else:
                    await self._objects.replace(NUMBERS, Kind.NUMBERS, payload, found.tag)
                return list(range(first, end))
        raise Contended(place, TRIES)

"""Journal numbers, taken in blocks by compare-and-set of one object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    async def taken(self) -> int:
        """The last number of the newest block of any process, without the base; 0 if there is
        none."""
        return (await self._read())[0] - 1

    async def take(self, until: int) -> None:
        """Let the next block begin behind ``until``. Raises `Contended` as `claim` does."""
        await self._advance(lambda first: max(first, until + 1))

    async def _claim_block(self) -> list[int]:
        first, end = await self._advance(lambda first: first + self._block)
        return list(range(first, end))

    async def _read(self) -> tuple[int, str | None]:
        """The first free number and the object's tag, None if there is no object."""
        place = self._objects.location(NUMBERS)
        found = await self._objects.get(NUMBERS)
        if found is None:
            return 1, None
        body = decode_body(NUMBERS, place, found.data, Kind.NUMBERS)
        (first,) = decode_record(place, body.payload)
        return first, found.tag

    async def _advance(self, end_of: Callable[[int], int]) -> tuple[int, int]:
        """Replace the first free number by ``end_of`` it; returns both."""
        for _ in range(TRIES):
            first, tag = await self._read()
            end = end_of(first)
            payload = encode_record(end)
            with suppress(Taken, Replaced):
                if tag is None:
                    await self._objects.create(NUMBERS, Kind.NUMBERS, payload)
                else:
                    await self._objects.replace(NUMBERS, Kind.NUMBERS, payload, tag)
                return first, end
        raise Contended(self._objects.location(NUMBERS), TRIES)

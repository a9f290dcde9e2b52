"""The archive: copies of sealed ledgers in an object store.

A ledger is ``ledgers/<journal>/<ledger id>/<number>`` for each part, and then ``.../end`` with its
size and the checksums of the parts. Without ``end`` the copy isn't complete. All names and bytes
follow from the ledger, which never changes, so copies may be repeated, by any owner at any time.
Nothing is ever overwritten. See docs/decisions/0046-tiered-ledgers.md.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from velaray.journal.errors import CorruptJournal, NotStored
from velaray.journal.objects.bodies import (
    HEADER_SIZE,
    Kind,
    decode_body,
    decode_record,
    encode_record,
)
from velaray.journal.objects.conditional import ConditionalObjects, Taken
from velaray.journal.objects.journal_record import LEDGERS, index_object, ledger_prefix
from velaray.journal.objects.object_store import ObjectCounters, StoredObject
from velaray.journal.paths import journal_of
from velaray.journal.store import LedgerStore

PART_BYTES: Final = 4 << 20
"""Bytes of a ledger in one object. It is a part of the format: a copy that was interrupted
continues with the same parts."""
KNOWN_ENDS: Final = 1024
"""How many ledgers' ends are kept in memory."""
_END: Final = "end"


@dataclass(frozen=True, slots=True)
class End:
    """The content of the object that completes a copy."""

    size: int
    part_bytes: int
    checksums: tuple[int, ...]


def part_name(journal: str, ledger_id: int, number: int) -> str:
    """The name of a part."""
    return f"{ledger_prefix(journal, ledger_id)}{number:06d}"


def end_name(journal: str, ledger_id: int) -> str:
    """The name of the object that completes a copy."""
    return f"{ledger_prefix(journal, ledger_id)}{_END}"


class LedgerArchive:
    """The copies of one cluster's ledgers. Any method may raise what the object store raises."""

    def __init__(self, objects: ConditionalObjects) -> None:
        self._objects = objects
        self._ends: OrderedDict[tuple[str, int], End] = OrderedDict()

    @property
    def counters(self) -> ObjectCounters:
        """The requests so far."""
        return self._objects.objects.counters

    def location(self, journal: str, ledger_id: int) -> str:
        """The address of a copy, for people."""
        return self._objects.location(ledger_prefix(journal, ledger_id))

    # ---------------------------------------------------------------- writing

    async def copy(self, source: LedgerStore, journal: str, ledger_id: int, size: int) -> None:
        """Copy the first ``size`` bytes of a sealed ledger, and verify the copy.

        On return the copy is complete, and every byte of it was read back. After an error a part of
        it may be stored; the call may be repeated. Raises `CorruptJournal` if the ledger is too
        short, or if an object of another content has one of the names; `NotStored` if the ledger
        isn't in ``source``.
        """
        checksums: list[int] = []
        for start in range(0, size, PART_BYTES):
            length = min(PART_BYTES, size - start)
            data = await source.read(journal, ledger_id, start, length)
            if len(data) != length:
                place = source.location(journal, ledger_id)
                raise CorruptJournal(place, start + len(data), f"ends before byte {size}")
            await self._put(part_name(journal, ledger_id, len(checksums)), Kind.PART, data)
            checksums.append(crc32c(data))
        await self._copy_index(source, journal, ledger_id)
        end = encode_record(size, PART_BYTES, checksums)
        await self._put(end_name(journal, ledger_id), Kind.END, end)
        await self.verify(journal, ledger_id)

    async def _put(self, name: str, kind: Kind, payload: bytes) -> None:
        """Store an object unless it is stored. Raises `CorruptJournal` if another one is."""
        try:
            await self._objects.create(name, kind, payload)
        except Taken as taken:
            if taken.found is not None and self._payload(name, taken.found, kind) == payload:
                return
            place = self._objects.location(name)
            problem = "the name is taken by another object; if no cluster uses it, delete it"
            raise CorruptJournal(place, 0, problem) from taken

    async def _copy_index(self, source: LedgerStore, journal: str, ledger_id: int) -> None:
        index = await source.read_index(journal, ledger_id)
        if index is not None:
            try:
                await self._objects.create(index_object(journal, ledger_id), Kind.INDEX, index)
            except Taken:
                return  # of the same ledger: any index of it serves

    async def verify(self, journal: str, ledger_id: int) -> None:
        """Read a copy back. Raises `NotStored` if an object is missing, `CorruptJournal` if one is
        damaged."""
        self.forget(journal, ledger_id)
        end = await self.end(journal, ledger_id)
        for number, checksum in enumerate(end.checksums):
            name = part_name(journal, ledger_id, number)
            found = await self._objects.get(name)
            if found is None:
                raise NotStored(self._objects.location(name))
            payload = self._payload(name, found, Kind.PART)
            length = min(end.part_bytes, end.size - number * end.part_bytes)
            if len(payload) != length or crc32c(payload) != checksum:
                raise CorruptJournal(self._objects.location(name), 0, "not the part of the ledger")

    async def is_complete(self, journal: str, ledger_id: int, size: int) -> bool:
        """Whether all objects of a copy of ``size`` bytes are listed now, with the right end."""
        self.forget(journal, ledger_id)
        try:
            end = await self.end(journal, ledger_id)
        except NotStored:
            return False
        stored = set(await self._objects.list(ledger_prefix(journal, ledger_id)))
        parts = {part_name(journal, ledger_id, number) for number in range(len(end.checksums))}
        return end.size == size and parts <= stored

    async def delete(self, journal: str, ledger_id: int) -> None:
        """Delete a copy, complete or not. Idempotent; after an error a part of it may be left.

        ``end`` is deleted first, so readers don't find a part of a ledger."""
        end = end_name(journal, ledger_id)
        names = await self._objects.list(ledger_prefix(journal, ledger_id))
        self.forget(journal, ledger_id)
        if end in names:
            await self._objects.delete([end])
        await self._objects.delete([name for name in names if name != end])

    # ---------------------------------------------------------------- reading

    async def end(self, journal: str, ledger_id: int) -> End:
        """The end of a complete copy. Raises `NotStored`, `CorruptJournal`."""
        key = (journal, ledger_id)
        known = self._ends.get(key)
        if known is not None:
            self._ends.move_to_end(key)
            return known
        name = end_name(journal, ledger_id)
        found = await self._objects.get(name)
        if found is None:
            raise NotStored(self._objects.location(name))
        fields = decode_record(self._objects.location(name), self._payload(name, found, Kind.END))
        size, part_bytes, checksums = fields
        end = self._ends[key] = End(size, part_bytes, tuple(checksums))
        if len(self._ends) > KNOWN_ENDS:
            self._ends.popitem(last=False)
        return end

    def forget(self, journal: str, ledger_id: int) -> None:
        """Let the next call of `end` ask the store."""
        self._ends.pop((journal, ledger_id), None)

    async def read(self, journal: str, ledger_id: int, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the ledger.

        The bytes aren't verified here: frames have checksums. Raises `NotStored`.
        """
        end = await self.end(journal, ledger_id)
        found: list[bytes] = []
        at, stop = offset, min(offset + length, end.size)
        while at < stop:
            number, start = divmod(at, end.part_bytes)
            wanted = min(stop - at, end.part_bytes - start)
            name = part_name(journal, ledger_id, number)
            piece = await self._objects.get_range(name, HEADER_SIZE + start, wanted)
            if len(piece) != wanted:
                raise CorruptJournal(self._objects.location(name), start, "the object is too short")
            found.append(piece)
            at += wanted
        return b"".join(found)

    async def read_index(self, journal: str, ledger_id: int) -> bytes | None:
        """The index of a ledger; None if there is none that can be read."""
        name = index_object(journal, ledger_id)
        found = await self._objects.get(name)
        if found is None:
            return None
        try:
            return bytes(self._payload(name, found, Kind.INDEX))
        except CorruptJournal:
            return None  # it is computed from the ledger

    async def list(self) -> dict[str, set[int]]:
        """The ledgers of which any object is stored, by journal."""
        found: dict[str, set[int]] = {}
        for name in await self._objects.list(f"{LEDGERS}/"):
            journal, ledger_id, _ = name.removeprefix(f"{LEDGERS}/").rsplit("/", 2)
            if ledger_id.isdecimal():
                found.setdefault(journal_of(journal), set()).add(int(ledger_id))
        return found

    async def ledgers(self, journal: str) -> set[int]:
        """The ledgers of one journal of which any object is stored."""
        prefix = ledger_prefix(journal)
        names = await self._objects.list(prefix)
        numbers = {name.removeprefix(prefix).split("/", 1)[0] for name in names}
        return {int(number) for number in numbers if number.isdecimal()}

    async def close(self) -> None:
        """Release connections. Idempotent."""
        await self._objects.objects.close()

    def _payload(self, name: str, found: StoredObject, kind: Kind) -> memoryview:
        return decode_body(name, self._objects.location(name), found.data, kind).payload

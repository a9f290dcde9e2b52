"""Reads a ledger frame by frame, and verifies everything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, overload

from velaray.events.ids import Position
from velaray.journal import frames
from velaray.journal.encryption.parts import Decryptor
from velaray.journal.errors import CorruptJournal, MissingKey, Misuse, PlainLedger
from velaray.journal.frames import FRAME_HEADER_SIZE, LOST, FrameHeader, LedgerHeader, Mark, Pair
from velaray.journal.manifest import LedgerInfo
from velaray.journal.store import LedgerStore

CHUNK: Final = 1 << 20
"""Bytes read at once when scanning."""


class Record(NamedTuple):
    """One journaled event. ``position`` is None for an event without a blob."""

    sequence: int
    position: Position | None
    event: bytes


class Entry(NamedTuple):
    """One stored entry: an event and the blob that was staged with it."""

    position: Position
    event: bytes
    blob: memoryview


class EntryRun(Sequence[Entry]):
    """Entries of one ledger that follow each other, from the entry id ``first`` on.

    Readers of many entries take ``events`` and ``blobs``: an `Entry` is made when it's asked for.
    """

    __slots__ = ("blobs", "events", "first", "ledger_id")

    def __init__(self, ledger_id: int, first: int) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.events: list[bytes] = []
        self.blobs: list[memoryview] = []

    def __len__(self) -> int:
        return len(self.events)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        event = self.events[at]
        position = Position(self.ledger_id, self.first + at % len(self.events))
        return Entry(position, event, self.blobs[at])


@dataclass(frozen=True, slots=True)
class Frame:
    """A verified frame, with the stored payload.

    In a ``damaged`` one the content of some blobs differs; everything else is proven to be as it
    was written (`velaray.journal.frames.only_blobs_are_damaged`). Of an encrypted frame of history
    ``opened`` has the records.
    """

    offset: int
    header: FrameHeader
    payload: memoryview
    damaged: bool = False
    opened: Sequence[Pair] | None = None

    @property
    def end(self) -> int:
        """The offset after the frame."""
        return self.offset + FRAME_HEADER_SIZE + self.header.length

    @property
    def next_sequence(self) -> int:
        """The sequence of the first record after this frame."""
        return self.header.sequence + self.header.records


def _without_lost(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The pairs of a damaged frame, with `LOST` for blobs that aren't whole."""
    for event, blob in pairs:
        lost = blob is not None and not frames.blob_is_whole(blob)
        yield event, LOST if lost else blob


class Window:
    """A read buffer that moves forward through one ledger."""

    def __init__(self, reader: LedgerReader, chunk: int, limit: int | None) -> None:
        self._reader = reader
        self._chunk = chunk
        self._limit = limit
        self._base = 0
        self._data = memoryview(b"")

    async def at(self, offset: int, length: int) -> memoryview:
        """Up to ``length`` bytes from ``offset``, shorter at the end (or the limit)."""
        if self._limit is not None:
            length = min(length, max(0, self._limit - offset))
        start = offset - self._base
        if start < 0 or start + length > len(self._data):
            wanted = max(length, self._chunk)
            if self._limit is not None:
                wanted = min(wanted, max(0, self._limit - offset))
            self._data = memoryview(await self._reader.read(offset, wanted))
            self._base, start = offset, 0
        return self._data[start : start + length]

    def forget(self) -> None:
        """Drop the buffer, so that the next read sees the current file."""
        self._data = memoryview(b"")


async def read_header(store: LedgerStore, journal: str, ledger_id: int) -> LedgerHeader:
    """Read and check the header of a ledger. No key is needed.

    Raises `NotStored`, `UnsupportedFormat`, and `CorruptJournal` if the header is damaged or names
    another ledger or owner.
    """
    file = store.location(journal, ledger_id)
    raw = await store.read(journal, ledger_id, 0, frames.LEDGER_HEADER_READ)
    header = frames.decode_ledger_header(file, raw)
    if header.owner != journal or header.ledger_id != ledger_id:
        raise CorruptJournal(
            file, 0, f"the header names ledger {header.ledger_id} of {header.owner}"
        )
    return header


async def decryptor_of(store: LedgerStore, header: LedgerHeader) -> Decryptor | None:
    """What decrypts a ledger; None if it isn't encrypted. Raises `MissingKey`, `PlainLedger`."""
    file = store.location(header.owner, header.ledger_id)
    if header.key is None:
        if store.keys is not None and store.keys.required:
            raise PlainLedger(file)
        return None
    if store.keys is None:
        raise MissingKey(file, header.key.key_id)
    return Decryptor(await store.keys.find(file, header.key, header.key_context))


class LedgerReader:
    """Reads one ledger, also without owning it. Obtained from `LedgerReader.open`."""

    def __init__(
        self,
        store: LedgerStore,
        journal: str,
        header: LedgerHeader,
        decryptor: Decryptor | None = None,
        *,
        blobs: bool = True,
    ) -> None:
        """Without ``decryptor`` the frames of an encrypted ledger are checked, but not opened;
        without ``blobs`` the blobs aren't."""
        self.store = store
        self.journal = journal
        self.header = header
        self.file = store.location(journal, header.ledger_id)
        self._decryptor = decryptor
        self._blobs = blobs

    @classmethod
    async def open(
        cls,
        store: LedgerStore,
        journal: str,
        ledger_id: int,
        *,
        keyless: bool = False,
        blobs: bool = True,
    ) -> LedgerReader:
        """Read and check the ledger's header, and find its key unless ``keyless``. Without
        ``blobs`` a reader needs events alone: in an encrypted ledger each blob is `frames.LOST`.

        Raises as `read_header`, `MissingKey`, and `PlainLedger` unless ``keyless``.
        """
        header = await read_header(store, journal, ledger_id)
        decryptor = None if keyless else await decryptor_of(store, header)
        return cls(store, journal, header, decryptor, blobs=blobs)

    @property
    def opens(self) -> bool:
        """Whether the records can be read: the ledger isn't encrypted, or its key is known."""
        return self.header.key is None or self._decryptor is not None

    async def read(self, offset: int, length: int) -> bytes:
        """Raw bytes, unverified."""
        return await self.store.read(self.journal, self.header.ledger_id, offset, length)

    async def whole(
        self, start: int, end: int, chunk: int = CHUNK, *, damaged: bool = False
    ) -> AsyncIterator[Frame]:
        """The frames of a range known to be whole.

        Raises `CorruptJournal` at the first damaged one; with ``damaged`` it yields those whose
        blobs alone are damaged.
        """
        cursor = self.cursor(start, end, chunk, damaged=damaged)
        while (frame := await cursor.next()) is not None:
            yield frame

    def cursor(
        self, start: int, end: int, chunk: int = CHUNK, *, damaged: bool = False
    ) -> FrameCursor:
        """The same as `whole`, for readers that may stop in the middle. With ``damaged`` it also
        yields frames whose blobs alone are damaged."""
        return FrameCursor(self, start, end, chunk, damaged)

    async def tail(
        self, start: int, sequence: int, *, damaged: bool = False
    ) -> AsyncIterator[Frame]:
        """The frames from ``start`` (first record ``sequence``) to an unrecorded end.

        Anything after the last yielded frame isn't known to be acknowledged. Raises
        `CorruptJournal` if a frame is bad or missing before the end in the ledger's mark, or before
        a later frame that proves that it had been synced. With ``damaged`` it yields such a frame
        if its blobs alone are damaged.
        """
        # Read before the frames, so that a live ledger has everything that the mark covers.
        mark = await self._mark()
        window = Window(self, CHUNK, None)
        at = start
        while True:
            frame = await self.frame(window, at)
            if frame is None:
                problem = await self._proof(at, sequence, mark)
                if problem is None:
                    return
                # A live writer may have completed the frame between the two reads. The later #
                # frame was written after this one was whole, so one more read decides.
                window.forget()
                frame = await self.frame(window, at, damaged=damaged)
                if frame is None:
                    raise CorruptJournal(self.file, at, problem)
            if frame.damaged and not damaged:
                raise self._changed(at)
            yield frame
            at, sequence = frame.end, frame.next_sequence

    async def _proof(self, at: int, sequence: int, mark: Mark | None) -> str | None:
        """The reason why a bad frame isn't a torn one; None if it may be one."""
        if mark is not None and (at < mark.end or sequence <= mark.sequence):
            return (
                f"the frame of sequence {sequence} is damaged or cut off; the ledger "
                f"was acknowledged up to sequence {mark.sequence}, byte {mark.end}"
            )
        later = await self._find_later(at, sequence)
        if later is None:
            return None
        return (
            f"the frame of sequence {sequence} is damaged, but the later one at byte "
            f"{later} proves that it had been synced"
        )

    async def _mark(self) -> Mark | None:
        raw = await self.store.read_mark(self.journal, self.header.ledger_id)
        if raw is None:
            return None
        return frames.decode_mark(self.header.salt, self.header.ledger_id, raw)

    def history(self, info: LedgerInfo, *, damaged: bool = False) -> AsyncIterator[Frame]:
        """The frames after the checkpoint: of a sealed ledger up to its listed end, of an open one
        up to the last whole frame. Raises as `whole` and `tail` do; with ``damaged`` it yields
        frames whose blobs alone are damaged."""
        if info.sealed:
            return self.whole(info.data_offset, info.bytes, damaged=damaged)
        return self.tail(info.data_offset, info.first_sequence, damaged=damaged)

    async def frame(self, window: Window, at: int, *, damaged: bool = False) -> Frame | None:
        """The verified frame at ``at``, None if there is none. With ``damaged`` one whose blobs
        alone are damaged counts.

        If the checksums of an encrypted frame are right, it isn't a torn one. Then it raises
        `CorruptJournal` if its events aren't those that were encrypted, and returns a damaged frame
        if that is so for a blob.
        """
        salt = self.header.salt
        head = await window.at(at, FRAME_HEADER_SIZE)
        header = frames.decode_frame_header(salt, at, head)
        if header is None:
            return None
        payload = await window.at(at + FRAME_HEADER_SIZE, header.length)
        if len(payload) != header.length:
            return None
        whole = frames.payload_is_whole(salt, at, header, payload)
        if self._decryptor is not None and not header.kind:
            return self._opened(self._decryptor, Frame(at, header, payload), whole, damaged)
        if whole:
            return Frame(at, header, payload)
        is_plain = self.header.key is None
        if damaged and is_plain and frames.only_blobs_are_damaged(salt, at, header, payload):
            return Frame(at, header, payload, damaged=True)
        return None

    def _opened(
        self, decryptor: Decryptor, frame: Frame, whole: bool, damaged: bool
    ) -> Frame | None:
        if not whole and not damaged:
            return None
        place = frames.place_of_stored(frame.offset, frame.header)
        opened = decryptor.frame(frame.payload, frame.header.records, place, blobs=self._blobs)
        if opened is not None:
            lost = self._blobs and any(blob is LOST for _, blob in opened)
            return replace(frame, damaged=lost or not whole, opened=opened)
        if whole:
            raise self._changed(frame.offset)
        return None

    def _changed(self, at: int) -> CorruptJournal:
        return CorruptJournal(
            self.file, at, "this frame isn't what the ledger's owner encrypted at this place"
        )

    async def _find_later(self, start: int, sequence: int) -> int | None:
        at = start
        while True:
            raw = await self.read(at, CHUNK)
            found = frames.find_later(self.header.salt, at, raw, sequence, start)
            if found is not None or len(raw) < CHUNK:
                return found
            at += CHUNK - FRAME_HEADER_SIZE

    async def find_frame(self, start: int, end: int, sequence: int) -> int | None:
        """The offset of the first frame header in a range whose records are after ``sequence``."""
        while start < end:
            raw = await self.read(start, min(CHUNK, end - start))
            found = frames.find_later(self.header.salt, start, raw, sequence, -1)
            if found is not None or len(raw) <= FRAME_HEADER_SIZE:
                return found
            start += len(raw) - FRAME_HEADER_SIZE + 1
        return None

    def pairs(self, frame: Frame) -> Iterator[Pair]:
        """The (event, blob) pairs of a frame of history; a blob that is damaged is `frames.LOST`.
        Raises `CorruptJournal`, at the latest after the last pair, if they don't add up."""
        if frame.opened is not None:
            return iter(frame.opened)
        self._check_opens(frame)
        fault = partial(CorruptJournal, self.file, frame.offset)
        pairs = frames.records(frame.payload, frame.header.records, fault)
        return _without_lost(pairs) if frame.damaged else pairs

    def segments(self, frame: Frame) -> Iterator[tuple[memoryview, memoryview | None, int]]:
        """The name, the bytes and their offset, for each segment of a frame of a checkpoint; of its
        marker the bytes and None. Raises `CorruptJournal`, as `pairs`."""
        start = frame.offset + FRAME_HEADER_SIZE
        if self._decryptor is not None:
            place = frames.place_of_stored(frame.offset, frame.header)
            found = self._decryptor.segments(frame.payload, frame.header.records, place, start)
            if found is None:
                raise self._changed(frame.offset)
            yield from found
            return
        for name, body in self.pairs(frame):
            start += frames.RECORD_HEADER_SIZE + len(name)
            yield name, body, start
            start += len(body or b"")

    def _check_opens(self, frame: Frame) -> None:
        if not self.opens:
            raise Misuse(f"{self.file}: the frame at byte {frame.offset} wasn't decrypted")


class FrameCursor:
    """Reads the frames of a range that is known to be whole. Obtained from
    `LedgerReader.cursor`."""

    def __init__(
        self, reader: LedgerReader, start: int, end: int, chunk: int, damaged: bool
    ) -> None:
        self._reader = reader
        self._damaged = damaged
        self._window = Window(reader, chunk, end)
        self._at = start
        self._end = end
        self._sequence = -1  # of the last record that was read

    async def next(self) -> Frame | None:
        """The next frame, None at the end of the range.

        Raises `CorruptJournal` if it is damaged.
        """
        if self._at >= self._end:
            return None
        frame = await self._reader.frame(self._window, self._at, damaged=self._damaged)
        if frame is None or (frame.damaged and not self._damaged):
            raise CorruptJournal(
                self._reader.file,
                self._at,
                f"a damaged frame in a range complete up to byte {self._end}",
            )
        self._at = frame.end
        self._sequence = frame.next_sequence - 1
        return frame

    async def skip_damage(self) -> bool:
        """After `next` raised `CorruptJournal`: continue with the next frame header after the
        damage. False if there is none."""
        found = await self._reader.find_frame(self._at + 1, self._end, self._sequence)
        if found is None:
            return False
        self._at = found
        return True


class Continuity:
    """Checks that frames follow each other without gaps, and numbers their records."""

    def __init__(self, reader: LedgerReader, first_sequence: int) -> None:
        self._reader = reader
        self._ledger_id = reader.header.ledger_id
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence
        self.next_entry = 0

    def records(self, frame: Frame) -> Iterator[tuple[Record, memoryview | None]]:
        """The numbered records of the next frame, with their blobs.

        Raises `CorruptJournal` if the frame is not the next one.
        """
        header = frame.header
        if header.kind or (header.sequence, header.entry) != (self.next_sequence, self.next_entry):
            raise CorruptJournal(
                self._reader.file,
                frame.offset,
                f"expected sequence {self.next_sequence}, entry {self.next_entry}; the frame "
                f"says {header.sequence}, {header.entry} (flags {header.flags})",
            )
        for event, blob in self._reader.pairs(frame):
            position = None
            if blob is not None:
                position = Position(self._ledger_id, self.next_entry)
                self.next_entry += 1
            record = Record(self.next_sequence, position, bytes(event))
            self.next_sequence += 1
            yield record, blob

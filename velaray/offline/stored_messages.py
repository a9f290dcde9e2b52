"""The messages in portions of ledgers, as a reader of the service receives them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from velaray.client.blocks import Block, Segment
from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.entries import EntryReader, Opened
from velaray.events.codec import decode
from velaray.events.events_pb2 import EntryAppended
from velaray.events.ids import ActorKey, Position
from velaray.journal.damage import damaged_entry
from velaray.journal.encryption.keyring import Keyring, head_of
from velaray.journal.errors import CorruptJournal, NotStored
from velaray.journal.frames import LOST
from velaray.journal.replay import load_manifest
from velaray.journal.scan import CHUNK, LedgerReader
from velaray.journal.store import LedgerStore
from velaray.offline.stored_topics import Portion, acknowledged, gone, open_data
from velaray.topology.keyrings import keyring_of
from velaray.wire.commands import Message as Delivery
from velaray.wire.errors import MalformedEntryError
from velaray.wire.sealed import looks_sealed, parts_of
from velaray.wire.sealed import opened as unsealed

if TYPE_CHECKING:
    from velaray.client.blocks import Receiver

logger = logging.getLogger("velaray")

_NOBODY = cast("Receiver", None)
"""A placeholder: no receiver delivered these messages."""

Step = tuple[int, memoryview, memoryview]
"""The number of an entry in its ledger, its event, its bytes."""


def read_portions(
    data_dir: str,
    portions: Sequence[Portion],
    until: Position,
    size: int,
    key_reader: EncryptionKeyReader | None = None,
    encryption_keys: str | None = None,
) -> Iterator[list[Segment]]:
    """The messages of neighbouring portions, in order, about ``size`` bytes at a time.

    A chunked message belongs to the portion of its first chunk. The other chunks are searched for
    behind the last portion, up to the position ``until``. Of an entry that ``key_reader`` doesn't
    decrypt the encrypted payload is one message, and its ``info.sealed`` isn't empty. Messages that
    were erased are left out; their number is logged.

    Raises `ReadError` if a ledger was trimmed meanwhile, `CorruptJournal`, `MissingKey`, and
    `InvalidConfiguration` if the directory doesn't exist.
    """
    store = open_data(data_dir, encryption_keys)
    with asyncio.Runner() as runner:
        try:
            source = _Source(store, portions, until, key_reader)
            while found := runner.run(source.next(size)):
                yield found
            if source.erased:
                logger.info("%s: left out %d erased messages", source.topic, source.erased)
        finally:
            runner.run(store.close())


class _Source:
    def __init__(
        self,
        store: LedgerStore,
        portions: Sequence[Portion],
        until: Position,
        key_reader: EncryptionKeyReader | None,
    ) -> None:
        self._store = store
        self._key = key = ActorKey.parse(portions[0].journal)
        name = key.topic_name
        self.topic = str(name)
        self.erased = 0
        """The erased messages so far."""
        self._keyring = keyring_of(store, random, creates=False)
        self._reader = EntryReader(str(name), name.partition, 0, key_reader)
        self._until = until
        self._steps = self._walk(portions)
        self._begun: set[str] = set()  # messages with missing chunks

    async def next(self, size: int) -> list[Segment]:
        """The next messages; none at the end."""
        found, taken = [], 0
        async for opened, entry_bytes in self._steps:
            block = Block(_NOBODY, opened.info, opened.layout, opened.indexes)
            found.append(Segment(block, 0, len(block)))
            taken += entry_bytes
            if taken >= size:
                break
        return found

    async def _walk(self, portions: Sequence[Portion]) -> AsyncIterator[tuple[Opened, int]]:
        for portion in portions:
            async for number, event, blob in self._entries(portion):
                found = await self._read(portion.ledger_id, number, blob)
                if found is None or found.chunks:
                    self._note(event)
                if found is not None:
                    yield found, len(blob)
        if not self._begun:
            return
        async for ledger_id, (number, event, blob) in self._following(portions[-1]):
            if self._is_wanted(event):
                found = await self._read(ledger_id, number, blob)
                if found is not None:
                    yield found, len(blob)

    async def _read(self, ledger_id: int, number: int, blob: memoryview) -> Opened | None:
        delivery = Delivery(0, ledger_id, number, self._key.partition)
        if self._keyring is None or not looks_sealed(blob):
            return self._reader.read(delivery, bytes(blob))
        return await self._unsealed(self._keyring, delivery, blob)

    async def _unsealed(
        self, keyring: Keyring, delivery: Delivery, blob: memoryview
    ) -> Opened | None:
        """A sealed entry without its erased messages. Raises `LostDataKey`, `CorruptJournal`."""
        try:
            _, parts = parts_of(blob)
            heads = [head_of(part) for part in parts]
        except (MalformedEntryError, ValueError):
            return self._reader.read(delivery, bytes(blob))  # which logs it
        while not keyring.can_open(heads):
            await keyring.prepare_to_open(heads)
        entry, mask = unsealed(blob, keyring.open)
        self.erased += len(parts) - mask.bit_count()
        found = self._reader.read(delivery, entry) if mask else None
        if found is not None and mask.bit_count() < len(parts):
            found.indexes = [at for at in found.indexes if mask >> at & 1]
        return found

    def _note(self, raw: memoryview) -> None:
        """Record a chunk."""
        event = decode(bytes(raw))
        assert isinstance(event, EntryAppended)
        if event.chunks and event.chunk_id == 0:
            self._begun.add(event.chunk_uuid)
        if event.chunk_id + 1 == event.chunks:
            self._begun.discard(event.chunk_uuid)

    def _is_wanted(self, raw: memoryview) -> bool:
        """Whether an entry behind the portions is a chunk of a message that began in them."""
        event = decode(bytes(raw))
        assert isinstance(event, EntryAppended)
        if not event.chunks or event.chunk_uuid not in self._begun:
            return False
        if event.chunk_id == 0:  # a resent message: it is read with its own portion
            self._begun.discard(event.chunk_uuid)
            return False
        self._note(raw)
        return True

    async def _entries(self, portion: Portion) -> AsyncIterator[Step]:
        reader = await self._opened(portion.ledger_id)
        hidden = list(reversed(portion.hidden))
        async for step in _steps(reader, portion.start, portion.stop, portion.hidden):
            number = step[0]
            if number >= portion.end:
                return
            while hidden and number >= hidden[-1][1]:
                hidden.pop()
            if number >= portion.first and not (hidden and number >= hidden[-1][0]):
                yield step

    async def _following(self, last: Portion) -> AsyncIterator[tuple[int, Step]]:
        """The entries after a portion, until all chunks are found or ``until`` is reached."""
        for info in (await load_manifest(self._store, last.journal)).ledgers:
            if not last.ledger_id <= info.ledger_id <= self._until.ledger_id:
                continue
            reader = await self._opened(info.ledger_id)
            start = last.stop if info.ledger_id == last.ledger_id else info.data_offset
            async for step in _steps(reader, start, await acknowledged(reader, info)):
                place = Position(info.ledger_id, step[0])
                if not self._begun or place > self._until:
                    return
                yield info.ledger_id, step

    async def _opened(self, ledger_id: int) -> LedgerReader:
        try:
            return await LedgerReader.open(self._store, self._key.text(), ledger_id)
        except NotStored as error:
            raise gone(self._key, ledger_id) from error


async def _steps(
    reader: LedgerReader, start: int, stop: int, hidden: Sequence[tuple[int, int]] = ()
) -> AsyncIterator[Step]:
    """The entries in a range of bytes, except damaged ones that are ``hidden``. Raises
    `CorruptJournal` at any other damaged one."""
    cursor = reader.cursor(start, stop, CHUNK, damaged=True)
    number: int | None = None
    while True:
        try:
            frame = await cursor.next()
        except CorruptJournal:
            if not hidden or not await cursor.skip_damage():
                raise
            frame = await cursor.next()
            if frame is None or not _covers(hidden, number, frame.header.entry):
                raise
        if frame is None:
            return
        number = frame.header.entry
        for event, blob in reader.pairs(frame):
            if blob is None:
                continue
            if blob is not LOST:
                yield number, event, blob
            elif not _covers(hidden, number, number + 1):
                raise damaged_entry(reader, frame, Position(reader.header.ledger_id, number))
            number += 1


def _covers(hidden: Sequence[tuple[int, int]], first: int | None, end: int) -> bool:
    """Whether one hidden range has all entries from ``first`` (None: from its own first one)."""
    return any((first is None or start <= first) and end <= after for start, after in hidden)

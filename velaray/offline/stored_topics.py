"""The topics in a cluster's data directory, read without the cluster.

The readers write nothing and call no actor. A journal that is still written is read up to its
commit mark, which bounds the acknowledged history. So the readers return no entry that may still be
lost, and no transaction outcome that isn't durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from velaray.actors.catalog.machine import CatalogMachine
from velaray.actors.catalog.state import find_topic
from velaray.actors.machine import Machine
from velaray.actors.partition.machine import (
    PartitionMachine,
)
from velaray.actors.partition.skipped_entries import hidden_within
from velaray.actors.partition.state import PartitionState
from velaray.client.exceptions import InvalidConfiguration, ReadError, TopicNotFound
from velaray.client.similar import missing_topic
from velaray.events.codec import decode
from velaray.events.ids import ActorKey, Position, TopicName
from velaray.journal.checkpoint import read_checkpoint
from velaray.journal.errors import NotStored
from velaray.journal.frames import decode_mark
from velaray.journal.index import SparseIndex, decode_index
from velaray.journal.manifest import LedgerInfo
from velaray.journal.replay import load_manifest
from velaray.journal.scan import Continuity, LedgerReader
from velaray.journal.store import LedgerStore
from velaray.topology.stores import is_object_store, open_store
from velaray.wire.messages import publish_time

_INDEXED_BYTES = 256 * 1024
"""The read size for a single entry."""


def open_data(data_dir: str, encryption_keys: str | None = None) -> LedgerStore:
    """Open the journals of a cluster for reading; ``data_dir`` is a directory, or the URL of an
    object store. ``encryption_keys`` is that of `open_store`.

    Raises `InvalidConfiguration` if the directory holds none.
    """
    if is_object_store(data_dir):
        return open_store(data_dir, encryption_keys)
    if not (Path(data_dir) / "journals").is_dir() or not os.access(data_dir, os.R_OK | os.X_OK):
        raise InvalidConfiguration(
            f"data_dir={data_dir!r}: there are no journals of a cluster on this machine; give the"
            " directory that the cluster was started with, which every executor must see"
        )
    return open_store(data_dir, encryption_keys)


@dataclass(frozen=True, slots=True)
class Portion:
    """Entries of one ledger, from ``first`` up to, not including, ``end``.

    Their frames are the bytes ``start`` to ``stop`` of the file. Consumers never get the entries in
    ``hidden``, which are ascending ranges.
    """

    journal: str
    ledger_id: int
    first: int
    end: int
    start: int
    stop: int
    hidden: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Newest:
    """An actor's acknowledged state, and the acknowledged part of its newest ledger."""

    state: Any
    ledgers: tuple[LedgerInfo, ...]
    reader: LedgerReader
    stop: int
    index: SparseIndex


async def acknowledged(reader: LedgerReader, info: LedgerInfo) -> int:
    """The end of a ledger's acknowledged history, as an offset in its file.

    In an open ledger the commit mark gives the end. Without a mark the acknowledged history is
    empty.
    """
    if info.sealed:
        return info.bytes
    raw = await reader.store.read_mark(reader.journal, info.ledger_id)
    mark = None if raw is None else decode_mark(reader.header.salt, info.ledger_id, raw)
    return info.data_offset if mark is None else max(mark.end, info.data_offset)


async def _newest(store: LedgerStore, journal: str, machine: Machine[Any]) -> _Newest | None:
    """The newest state of a journal; None without history. Raises `NotStored`, `CorruptJournal`."""
    if await store.read_manifest(journal) is None:
        return None
    ledgers = (await load_manifest(store, journal)).ledgers
    if not ledgers:
        return None
    info = ledgers[-1]
    reader = await LedgerReader.open(store, journal, info.ledger_id)
    state = machine.restore((await read_checkpoint(reader, info)).segments)
    stop = await acknowledged(reader, info)
    index, continuity = SparseIndex(), Continuity(reader, info.first_sequence)
    async for frame in reader.whole(info.data_offset, stop, damaged=True):
        index.note(frame.header.entry, frame.offset)
        for record, _ in continuity.records(frame):
            machine.evolve(state, decode(record.event))
    return _Newest(state, ledgers, reader, stop, index)


async def newest_state(store: LedgerStore, journal: str, machine: Machine[Any]) -> Any:
    """An actor's acknowledged state; None if it has no history.

    Raises `CorruptJournal`.
    """
    found = await _newest(store, journal, machine)
    return None if found is None else found.state


async def partitions_of(store: LedgerStore, topic: TopicName) -> tuple[ActorKey, ...]:
    """The partitions of a topic, in order; a single one if ``topic`` names a partition.

    Raises `TopicNotFound`, `CorruptJournal`.
    """
    key = ActorKey.catalog().text()
    catalog = await _newest(store, key, CatalogMachine())
    if catalog is None:
        raise TopicNotFound(f"the cluster of {store.location(key)} has no topic {topic}")
    found = find_topic(catalog.state, topic)
    if found is None:
        names = catalog.state.namespaces.get((topic.tenant, topic.namespace), {})
        raise TopicNotFound(f"{missing_topic(topic, names)} ({store.location(key)})")
    if topic.partition >= 0:
        return (found.actors()[topic.partition],)
    return found.actors()


class StoredLog:
    """A partition's log. Created by `StoredLog.open`."""

    def __init__(self, store: LedgerStore, key: ActorKey, newest: _Newest | None) -> None:
        self.key = key
        self._store = store
        self._journal = key.text()
        self._newest = newest
        self._state: PartitionState = (
            newest.state if newest is not None else PartitionMachine().initial()
        )
        ledgers = () if newest is None else newest.ledgers
        self._ledgers = {info.ledger_id: info for info in ledgers}

    @classmethod
    async def open(cls, store: LedgerStore, key: ActorKey) -> StoredLog:
        """Read the partition's state; the log of a partition that was never used is empty.

        Raises `NotStored` if it is deleted meanwhile, `CorruptJournal`.
        """
        return cls(store, key, await _newest(store, key.text(), PartitionMachine()))

    @property
    def end(self) -> int:
        """The first offset that consumers don't get."""
        return self._state.max_read_offset

    def before(self, offset: int) -> Position:
        """The last position before an offset; entry -1 at the beginning of a ledger."""
        return self._state.table.position_before(offset)

    def after(self, place: Position) -> int:
        """The first offset after a position."""
        return self._state.table.at_or_after(Position(place.ledger_id, place.entry_id + 1))

    async def offset_at_time(self, publish_ms: int) -> int:
        """The first offset with at least this publish time; by bisection, as in the service."""
        table = self._state.table
        low, high = table.first_offset, table.end_offset
        while low < high:
            middle = (low + high) // 2
            kept = table.kept_from(middle)
            if kept >= high or publish_time(await self._entry(kept)) >= publish_ms:
                high = middle
            else:
                low = kept + 1
        return table.kept_from(low)

    async def _entry(self, offset: int) -> memoryview:
        place = self._state.table.position_of(offset)
        reader, stop, index = await self._ledger(place.ledger_id)
        start = index.find(place.entry_id)
        assert start is not None
        cursor = reader.cursor(start, stop, _INDEXED_BYTES)
        while (frame := await cursor.next()) is not None:
            entry = frame.header.entry
            for _, blob in reader.pairs(frame):
                if blob is not None and entry == place.entry_id:
                    return blob
                entry += blob is not None
        raise gone(self.key, place.ledger_id)

    async def _ledger(self, ledger_id: int) -> tuple[LedgerReader, int, SparseIndex]:
        newest = self._newest
        if newest is not None and newest.reader.header.ledger_id == ledger_id:
            return newest.reader, newest.stop, newest.index
        info = self._ledgers.get(ledger_id)
        if info is None:
            raise gone(self.key, ledger_id)
        try:
            reader = await LedgerReader.open(self._store, self._journal, ledger_id)
        except NotStored as error:
            raise gone(self.key, ledger_id) from error
        raw = await self._store.read_index(self._journal, ledger_id)
        index = decode_index(ledger_id, raw) if raw is not None else None
        if index is None:  # the owner creates the index on demand
            index = SparseIndex()
            index.note(0, info.data_offset)
        return reader, info.bytes, index

    async def portions(self, first: int, end: int, size: int) -> list[Portion]:
        """The retained entries from offset ``first`` up to, not including, ``end``, in order.

        Each portion has about ``size`` bytes. Raises `ReadError` if the entries are trimmed
        meanwhile.
        """
        found = []
        for run in self._state.table.runs(first, end):
            _, stop, index = await self._ledger(run.ledger_id)
            last = run.first_entry + run.entries
            parts = [*index.cut(run.first_entry, last, size), (last, stop)]
            for (entry, start), (after, until) in pairwise(parts):
                hidden = tuple(self._hidden(run.ledger_id, entry, after))
                found.append(
                    Portion(self._journal, run.ledger_id, entry, after, start, until, hidden)
                )
        return found

    def _hidden(self, ledger_id: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        base = self._state.table.offset_of(Position(ledger_id, first)) - first
        for at, after in hidden_within(self._state, base + first, base + end):
            yield at - base, after - base


def gone(key: ActorKey, ledger_id: int) -> ReadError:
    """The error for a ledger that was deleted between planning and reading."""
    return ReadError(
        f"{key.text()}: ledger {ledger_id} is gone: it was trimmed or its topic was deleted during"
        " the read. Read again to get what is still stored"
    )

"""Topics read from the ledgers in a cluster's data directory: the plan and its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from velaray.client.core import topic_name
from velaray.events.ids import ActorKey, Position, TopicName
from velaray.journal.store import LedgerStore
from velaray.offline.stored_messages import read_portions
from velaray.offline.stored_schemas import StoredDecoders
from velaray.offline.stored_topics import Portion, StoredLog, open_data, partitions_of
from velaray.pipelines.private_keys import check_decrypted, key_reader
from velaray.pipelines.rows import record_batch
from velaray.pipelines.spark_positions import Place, Start

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.pipelines.typed_values import TypedValue

PART_BYTES = 64 << 20
"""Approximate bytes of files that one task reads."""
BATCH_BYTES = 8 << 20
"""Approximate bytes of entries in one record batch."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Consecutive portions of one partition, and the last position that the query reads there."""

    data_dir: str
    portions: tuple[Portion, ...]
    until: Position
    encryption_keys: str | None = None

    @property
    def topic(self) -> TopicName:
        """The topic of the partition."""
        return ActorKey.parse(self.portions[0].journal).topic_name.topic

    @property
    def nbytes(self) -> int:
        """Approximate bytes in files."""
        return sum(portion.stop - portion.start for portion in self.portions)

    def read(
        self,
        columns: Sequence[str],
        typed: TypedValue | None = None,
        private_key_file: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages as rows.

        Raises as `velaray.offline.stored_messages.read_portions`, `UndecodableMessage` for a
        message that doesn't have the type of ``typed``, and `CryptoError` for one that the key
        doesn't decrypt.
        """
        keys = key_reader(private_key_file)
        data, at_rest = self.data_dir, self.encryption_keys
        decoders = None if typed is None else StoredDecoders(data, self.topic, typed, at_rest)
        for segments in read_portions(data, self.portions, self.until, BATCH_BYTES, keys, at_rest):
            check_decrypted(segments)
            if decoders is not None:
                decoders.set(segments)
            yield record_batch(segments, columns, typed)


def plan(
    data_dir: str,
    topics: Sequence[str],
    start: Start,
    end: Start,
    size: int = PART_BYTES,
    encryption_keys: str | None = None,
) -> list[LedgerPart]:
    """Return the messages between two positions, in parts of about ``size`` bytes.

    Messages of open transactions, and all messages behind the first of these, are excluded. Raises
    `InvalidConfiguration` if the directory holds no cluster or a position is missing,
    `TopicNotFound`, `CorruptJournal`, `MissingKey`.
    """
    names = [topic_name(each) for each in topics]
    store = open_data(data_dir, encryption_keys)

    async def planned() -> list[LedgerPart]:
        try:
            parts = await _plan(data_dir, store, names, start, end, size)
            return [replace(part, encryption_keys=encryption_keys) for part in parts]
        finally:
            await store.close()

    with asyncio.Runner() as runner:
        return runner.run(planned())


async def _plan(
    data_dir: str,
    store: LedgerStore,
    topics: Sequence[TopicName],
    start: Start,
    end: Start,
    size: int,
) -> list[LedgerPart]:
    keys = [key for topic in topics for key in await partitions_of(store, topic)]
    for bound in (start, end):
        bound.check([str(key.topic_name) for key in keys])
    parts = []
    for key in keys:
        log = await StoredLog.open(store, key)
        first, after = await _offset(log, start), await _offset(log, end)
        portions = await log.portions(first, after, size)
        until = log.before(after)
        parts += [LedgerPart(data_dir, tuple(group), until) for group in _groups(portions, size)]
    return parts


async def _offset(log: StoredLog, bound: Start) -> int:
    """The first offset after a bound."""
    last = Place(*log.before(log.end))
    sought = last
    if bound.time is not None:
        sought = Place(*log.before(await log.offset_at_time(bound.time)))
    place = bound.place(str(log.key.topic_name), last, lambda time: sought)
    return min(log.after(Position(*place)), log.end)


def _groups(portions: Sequence[Portion], size: int) -> Iterator[list[Portion]]:
    """Group consecutive portions until a group is large enough."""
    group: list[Portion] = []
    held = 0
    for portion in portions:
        group.append(portion)
        held += portion.stop - portion.start
        if held >= size:
            yield group
            group, held = [], 0
    if group:
        yield group

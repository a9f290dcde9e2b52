"""Spark's data source ``velaray-journal``: the events of actors, from their journals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from velaray.client.exceptions import InvalidConfiguration
from velaray.events.ids import ActorKey, ActorKind
from velaray.journal.errors import NotStored
from velaray.journal.manifest import LedgerInfo
from velaray.journal.replay import HistoryRecord, load_manifest
from velaray.journal.scan import Continuity, LedgerReader
from velaray.journal.store import LedgerStore
from velaray.offline.journal_events import actors_in, told_of
from velaray.offline.stored_topics import acknowledged, gone, open_data
from velaray.pipelines.spark_options import Options

if TYPE_CHECKING:
    import pyarrow as pa

OPTIONS = frozenset({"data_dir", "actor", "encryption_keys"})
SCHEMA = (
    "actor string NOT NULL, kind string NOT NULL, ledger bigint NOT NULL, sequence bigint NOT NULL,"
    " time timestamp NOT NULL, type string NOT NULL, transactions array<string> NOT NULL,"
    " entry bigint, offset bigint, bytes bigint NOT NULL, event string NOT NULL"
)
"""The table's columns; docs/pipelines.md describes them."""
ROWS = 5_000
"""Maximum rows of a record batch."""


class LedgerOfActor(InputPartition):
    """The ledger that one task reads."""

    def __init__(self, actor: str, info: LedgerInfo) -> None:
        self.actor = actor
        self.info = info


class JournalReader(DataSourceReader):
    """Reads the events of actors, ledger by ledger, without affecting them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, OPTIONS, "the velaray-journal source")
        self._data_dir = known.required("data_dir")
        self._keys = known.text("encryption_keys")
        self._wanted = known.text("actor") or "*"

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each ledger of each selected actor.

        Raises `InvalidConfiguration` if there is no such actor, or no data.
        """
        store = open_data(self._data_dir, self._keys)
        with asyncio.Runner() as runner:
            try:
                return runner.run(self._ledgers(store))
            finally:
                runner.run(store.close())

    async def _ledgers(self, store: LedgerStore) -> list[LedgerOfActor]:
        every = await actors_in(store)
        actors = [each for each in every if _is_wanted(each, self._wanted)]
        if not actors:
            raise InvalidConfiguration(
                f"actor={self._wanted!r}: none of the {len(every)} actors with a journal in"
                f" {self._data_dir} has this name; `velaray journal list` prints them"
            )
        found = []
        for actor in actors:
            try:
                ledgers = (await load_manifest(store, actor)).ledgers
            except NotStored:
                continue  # deleted meanwhile
            found += [LedgerOfActor(actor, info) for info in ledgers]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; runs in an executor.

        Raises `ReadError` if its ledger is gone.
        """
        if not isinstance(partition, LedgerOfActor):
            return  # Spark plans a task without a partition if there is nothing to read
        store = open_data(self._data_dir, self._keys)
        with asyncio.Runner() as runner:
            try:
                rows = _rows(store, ActorKey.parse(partition.actor), partition.info)
                while batch := runner.run(_take(rows)):
                    yield _record_batch(batch)
            finally:
                runner.run(store.close())


def _is_wanted(actor: str, wanted: str) -> bool:
    kind = actor.split("/")[0]
    return fnmatchcase(actor, wanted) or wanted == kind


async def _take(rows: AsyncIterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    found = []
    async for row in rows:
        found.append(row)
        if len(found) == ROWS:
            break
    return found


async def _rows(
    store: LedgerStore, key: ActorKey, info: LedgerInfo
) -> AsyncIterator[tuple[Any, ...]]:
    actor = key.text()
    try:
        reader = await LedgerReader.open(store, actor, info.ledger_id)
    except NotStored as error:
        raise gone(key, info.ledger_id) from error
    continuity = Continuity(reader, info.first_sequence)
    async for frame in reader.whole(info.data_offset, await acknowledged(reader, info)):
        at_ms = frame.header.at_ms
        for record, blob in continuity.records(frame):
            told = told_of(key, HistoryRecord(*record, blob, at_ms))
            entry = None if record.position is None else record.position.entry_id
            offset = None
            if entry is not None and key.kind is ActorKind.PARTITION:
                offset = info.first_offset + entry
            yield (
                actor,
                key.kind.value,
                info.ledger_id,
                record.sequence,
                datetime.fromtimestamp(at_ms / 1000, UTC),
                told.name,
                [str(each) for each in told.transactions],
                entry,
                offset,
                told.blob_bytes,
                told.json(),
            )


def _record_batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<string>": pa.list_(pa.string()),
    }
    fields = []
    for column in SCHEMA.split(","):
        name, kind, *rest = column.split()
        fields.append(pa.field(name, kinds[kind], nullable=not rest))
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class JournalDataSource(DataSource):
    """The events of actors as Spark's table; see docs/pipelines.md for options and columns."""

    @classmethod
    def name(cls) -> str:
        """The name for Spark's ``format``."""
        return "velaray-journal"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The source of a batch query."""
        return JournalReader(self.options)

"""Spark's batch source: the messages of topics between two positions, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from velaray.client.exceptions import InvalidConfiguration
from velaray.pipelines import ledgers, service_parts
from velaray.pipelines.ledgers import LedgerPart
from velaray.pipelines.rows import columns_named
from velaray.pipelines.service_parts import ServicePart
from velaray.pipelines.spark_client import CONNECTION
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import Start
from velaray.pipelines.spark_reading import OPTIONS, Origin, topics_named

if TYPE_CHECKING:
    import pyarrow as pa

    from velaray.pipelines.typed_values import TypedValue

BATCH_OPTIONS = OPTIONS | {"ending_position", "data_dir", "encryption_keys"}


class PartitionToRead(InputPartition):
    """The part that one task reads."""

    def __init__(self, part: LedgerPart | ServicePart) -> None:
        self.part = part


class BatchSource(DataSourceReader):
    """Reads topics between two positions, which are looked up when the query is planned.

    The messages come from the service, or with ``data_dir`` from the files of its ledgers. Then
    driver and executors make no connections, and both must have access to the directory.
    """

    def __init__(self, options: Mapping[str, str], typed: TypedValue | None = None) -> None:
        """``typed``: the type of column ``value``, if not bytes. Raises `InvalidConfiguration`."""
        self._typed = typed
        known = Options(options, BATCH_OPTIONS, "the velaray batch source")
        self._start = Start.parse(known.text("starting_position") or "earliest")
        self._end = Start.parse(known.text("ending_position") or "latest")
        self._columns = columns_named(known.text("columns"))
        self._topics, pattern = topics_named(known)
        self._data_dir = known.text("data_dir")
        self._private_key_file = known.text("private_key_file")
        self._encryption_keys = known.text("encryption_keys")
        if self._data_dir is None:
            if self._encryption_keys is not None:
                raise InvalidConfiguration("encryption_keys needs data_dir: the service decrypts")
            self._origin = Origin.of(known)
            return
        if pattern is not None:
            raise InvalidConfiguration("topics_pattern and data_dir: name the topics")
        remote = [name for name in sorted(CONNECTION) if known.text(name) is not None]
        if remote:
            raise InvalidConfiguration(
                f"{remote[0]} and data_dir: read from the service, or from its files without it"
            )

    def partitions(self) -> Sequence[InputPartition]:
        """One task for each part of a partition with messages to read."""
        parts: Sequence[LedgerPart | ServicePart]
        if self._data_dir is not None:
            parts = ledgers.plan(
                *(self._data_dir, self._topics, self._start, self._end),
                encryption_keys=self._encryption_keys,
            )
        else:
            origin = self._origin
            parts = service_parts.plan(origin.service, origin.partitions, self._start, self._end)
        return [PartitionToRead(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; runs in an executor."""
        # Spark plans a task without a partition if there is nothing to read.
        return (
            partition.part.read(self._columns, self._typed, self._private_key_file)
            if isinstance(partition, PartitionToRead)
            else iter(())
        )

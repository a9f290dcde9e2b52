"""Writing from Spark's ``foreachBatch``: to several topics, all of a batch by one commit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from velaray.client.exceptions import InvalidConfiguration
from velaray.events.ids import TransactionId
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_sink import OPTIONS, Prepared, Target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RESULT = "coordinator bigint, sequence bigint"


class BatchWriter:
    """What one batch of a streaming query writes; made by `batch_writer`."""

    def __init__(self, commit_sequence: str, number: int, options: dict[str, str]) -> None:
        """Not for callers."""
        self._commit_sequence = commit_sequence
        self._number = number
        self._options = options
        self._prepared: list[Prepared] = []

    def write(self, frame: DataFrame, topic: str | None = None) -> None:
        """Publish the rows of ``frame``, with the columns that the sink takes.

        All is published on return, and counts when the batch is committed. ``topic`` is where
        rows go; without one, a column ``topic`` says it. Raises `InvalidConfiguration` for a
        frame that can't be written, and what Spark raises if the job fails.
        """
        named = {} if topic is None else {"topic": topic}
        given = Options({**self._options, **named}, OPTIONS, "batch_writer")
        target = Target.of(given).check(frame.schema)
        commit_sequence, number = self._commit_sequence, self._number

        def publish(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            txn = target.publish(commit_sequence, number, rows).txn
            if txn is not None:
                found = [pa.array([part], pa.int64()) for part in txn]
                yield pa.RecordBatch.from_arrays(found, ["coordinator", "sequence"])

        # Spark returns the results of those attempts that count, and of no others.
        for row in frame.mapInArrow(publish, _RESULT).collect():
            self._prepared.append(Prepared(commit_sequence, TransactionId(*row)))


@contextmanager
def batch_writer(frame: DataFrame, batch_id: int, **options: str) -> Iterator[BatchWriter]:
    """Within ``foreachBatch``: write to any number of topics, once for each batch of the query.

    ``frame`` and ``batch_id`` are what ``foreachBatch`` gives; ``options`` are those of the sink:
    ``service_url``, ``transaction_timeout`` and so on. When the block is left, all that
    `BatchWriter.write` published in it is committed by one decision of the service; if by an
    exception, it is aborted. What Spark does again of a batch that was committed is computed, for
    the sake of the query's state, and isn't published.

    Raises `InvalidConfiguration` outside of a streaming query, and what the service says if the
    batch can't be committed: then nothing of it counts, and Spark may try it again.
    """
    query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise InvalidConfiguration("batch_writer is for the function that foreachBatch calls")
    target = Target.of(Options(options, OPTIONS, "batch_writer"))
    commit_sequence = target.commit_sequence(query)
    writer = BatchWriter(commit_sequence, batch_id, options)
    well = False
    try:
        yield writer
        well = True
    finally:
        if not well:
            target.abort(writer._prepared)
    target.commit(batch_id, writer._prepared)

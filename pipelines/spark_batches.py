"""Writing from Spark's ``foreachBatch``: to several topics, with one commit per batch."""

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
    """Writes one batch of a streaming query; made by `batch_writer`."""

    def __init__(self, commit_sequence: str, number: int, options: dict[str, str]) -> None:
        """Not for callers."""
        self._commit_sequence = commit_sequence
        self._number = number
        self._options = options
        self._prepared: list[Prepared] = []

    def write(self, frame: DataFrame, topic: str | None = None) -> None:
        """Publish the rows of ``frame``, which has the columns of the sink.

        All rows are published on return, and readable when the batch is committed. The rows go to
        ``topic``, or without one to the topics in column ``topic``. Raises `InvalidConfiguration`
        for a frame that can't be written, and Spark's error if the job fails.
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

        # Spark returns the results of the successful attempts only.
        for row in frame.mapInArrow(publish, _RESULT).collect():
            self._prepared.append(Prepared(commit_sequence, TransactionId(*row)))


@contextmanager
def batch_writer(frame: DataFrame, batch_id: int, **options: str) -> Iterator[BatchWriter]:
    """Write to any number of topics within ``foreachBatch``, once for each batch of the query.

    ``frame`` and ``batch_id`` are the arguments of ``foreachBatch``; ``options`` are those of the
    sink: ``service_url``, ``transaction_timeout`` and so on. At the end of the block one decision
    of the service commits everything that `BatchWriter.write` published in it. After an exception
    it is aborted. When Spark repeats a committed batch, its rows are computed, for the query's
    state, but not published.

    Raises `InvalidConfiguration` outside of a streaming query, and the service's error if the batch
    can't be committed: nothing of the batch is readable then, and Spark may repeat it.
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

"""Spark's transactional sink: each task publishes in a transaction; one commit for all tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from secrets import token_hex

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from velaray.client.exceptions import InvalidConfiguration
from velaray.events.ids import TransactionId
from velaray.pipelines import public_keys
from velaray.pipelines.public_keys import PublicKeys, listed
from velaray.pipelines.publishing import give_up, send_rows
from velaray.pipelines.spark_client import CONNECTION, Service, link_to
from velaray.pipelines.spark_options import Options

OPTIONS = CONNECTION | public_keys.OPTIONS | {"topic", "name", "transaction_timeout"}
TIMEOUT_S = 600.0
"""Default timeout of a task's transaction, in seconds."""

_COLUMNS: Mapping[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (StringType(),),
    "properties": (MapType(StringType(), StringType()),),
    "event_time": (TimestampType(),),
    "topic": (StringType(),),
}


@dataclass(frozen=True)
class Prepared(WriterCommitMessage):
    """The result of a task attempt: its commit sequence, and its transaction if there were rows."""

    commit_sequence: str
    txn: TransactionId | None


@dataclass(frozen=True)
class Target:
    """The target of a query's rows, from its options and columns."""

    service: Service
    topic: str | None
    label: str | None
    timeout: float
    keys: PublicKeys | None = None

    @staticmethod
    def of(options: Options) -> Target:
        """Read and validate the options. Raises `InvalidConfiguration`."""
        return Target(
            Service.of(options),
            options.text("topic"),
            options.text("name"),
            options.seconds("transaction_timeout", TIMEOUT_S),
            PublicKeys.of(
                listed(options.text("encryption_key")), listed(options.text("public_key_file"))
            ),
        )

    def check(self, schema: StructType) -> Target:
        """Return itself. Raises `InvalidConfiguration` if rows of this schema can't be written."""
        _check_columns(schema)
        if ("topic" in schema.names) == (self.topic is not None):
            raise InvalidConfiguration(
                "the velaray sink needs either a topic to write to or a column of topics:"
                ' option "topic" or column "topic"'
            )
        return self

    def commit_sequence(self, *parts: str) -> str:
        """The name of a commit sequence: these parts, and that of the option."""
        return "/".join(["spark", *parts, *filter(None, [self.label])])

    def publish(
        self, commit_sequence: str, number: int, rows: Iterator[pa.RecordBatch]
    ) -> Prepared:
        """Publish ``rows`` in one transaction of ``series``; it is complete and open on return.

        Nothing is published if ``number`` was committed before. After an error the transaction is
        aborted, and the error is raised.
        """
        with link_to(self.service) as link:
            commits = link.client.commit_sequence(commit_sequence)
            if commits.last >= number:
                deque(rows, 0)  # read all rows, so that stateful operators keep their state
                return Prepared(commit_sequence, None)
            txn = prepared = None
            send = partial(send_rows, link, self.topic, self.keys)
            try:
                # Spark's next rows are fetched while the last ones are being sent.
                with ThreadPoolExecutor(1) as sender:
                    sent: Future[None] | None = None
                    for batch in rows:
                        if batch.num_rows:
                            txn = txn or commits.begin(self.timeout, number)
                            before, sent = sent, sender.submit(send, batch, txn)
                            if before is not None:
                                before.result()
                    if sent is not None:
                        sent.result()
                prepared = Prepared(commit_sequence, None if txn is None else txn.prepare())
            finally:
                if prepared is None:
                    give_up(txn)
            return prepared

    def commit(self, number: int, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the tasks' transactions as ``number``, once. Raises the service's error."""
        for commit_sequence, ids in _by_sequence(messages).items():
            with link_to(self.service) as link:
                link.client.commit_sequence(commit_sequence).commit(number, ids)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the tasks' transactions, unless they are committed."""
        for commit_sequence, ids in _by_sequence(messages).items():
            with link_to(self.service) as link:
                link.client.commit_sequence(commit_sequence).abort(ids)


def _check_columns(schema: StructType) -> None:
    known = "; ".join(
        f"{name}: {' or '.join(kind.simpleString() for kind in kinds)}"
        for name, kinds in _COLUMNS.items()
    )
    for field in schema.fields:
        if not any(field.dataType == kind for kind in _kinds(field.name)):
            raise InvalidConfiguration(
                f"the velaray sink doesn't take column {field.name!r} of type"
                f" {field.dataType.simpleString()}; it takes {known}"
            )
    if "value" not in schema.names:
        raise InvalidConfiguration(f'the velaray sink needs a column "value"; it takes {known}')


def _kinds(name: str) -> tuple[DataType, ...]:
    kinds = _COLUMNS.get(name, ())
    # The plan doesn't show whether maps contain nulls; rows with such maps are refused.
    return (*kinds, MapType(StringType(), StringType(), False)) if name == "properties" else kinds


def _by_sequence(messages: Sequence[WriterCommitMessage | None]) -> dict[str, list[TransactionId]]:
    found: dict[str, list[TransactionId]] = {}
    for message in messages:
        if isinstance(message, Prepared) and message.txn is not None:
            found.setdefault(message.commit_sequence, []).append(message.txn)
    return found


def _property(name: str) -> str:
    context = TaskContext.get()
    value = context and context.getLocalProperty(name)
    if not value:
        raise InvalidConfiguration(f"this version of Spark doesn't give its tasks {name}")
    return value


class StreamSink(DataSourceStreamArrowWriter):
    """Writes a streaming query's batches; repeated batches count once.

    The commit sequence is named after the query's id, which is stored in its checkpoint.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, OPTIONS, "the velaray sink")
        self._target = Target.of(known).check(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Publish a task's rows; `commit` with the returned message makes them readable."""
        commit_sequence = self._target.commit_sequence(_property("sql.streaming.queryId"))
        number = int(_property("streaming.sql.batchId"))
        return self._target.publish(commit_sequence, number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch with one decision of the service; idempotent."""
        self._target.commit(batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the batch's open transactions; committed ones stay, even if Spark failed."""
        self._target.abort(messages)


class BatchSink(DataSourceArrowWriter):
    """Writes a batch query's rows as one commit, once for each ``run_key``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Raises `InvalidConfiguration`."""
        known = Options(options, OPTIONS | {"run_key"}, "the velaray sink")
        self._target = Target.of(known).check(schema)
        if overwrite:
            raise InvalidConfiguration('a topic isn\'t overwritten: use .mode("append")')
        self._kept = known.text("run_key")
        self._commit_sequence = self._target.commit_sequence("run", self._kept or token_hex(8))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Prepared:
        """Publish a task's rows; `commit` with the returned message makes them readable."""
        return self._target.publish(self._commit_sequence, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all rows with one decision of the service."""
        self._target.commit(0, messages)
        if self._kept is None:  # this run is complete
            with link_to(self._target.service) as link:
                link.client.commit_sequence(self._commit_sequence).forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the run's open transactions."""
        self._target.abort(messages)

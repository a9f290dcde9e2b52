"""Publishing of Arrow rows as messages of a transaction."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from velaray.client.enums import TransactionState
from velaray.client.exceptions import InvalidMessage, VelarayError

if TYPE_CHECKING:
    from velaray import Producer, Transaction
    from velaray.pipelines.public_keys import PublicKeys
    from velaray.pipelines.spark_client import RpcConnection

logger = logging.getLogger("velaray")


def send_rows(
    link: RpcConnection,
    topic: str | None,
    keys: PublicKeys | None,
    batch: pa.RecordBatch,
    txn: Transaction,
) -> None:
    """Send the rows to ``topic``, or to the topics in their column ``topic``, encrypted for
    ``keys`` if these are given.

    The columns are those of the sink. Raises `InvalidMessage` for a row without a topic.
    """
    if topic is not None:
        _send_to(link.producer(topic, keys), batch, txn)
        return
    topics = batch.column("topic")
    for name in topics.unique():
        if not name.as_py():
            raise InvalidMessage('a row has no topic: column "topic" is null or empty')
        rows = batch.filter(pc.equal(topics, name))
        _send_to(link.producer(name.as_py(), keys), rows, txn)


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """Return the column, None if it is empty."""
    if name not in batch.schema.names:
        return None
    column = batch.column(name)
    return None if column.null_count == len(column) else column


def _send_to(producer: Producer, batch: pa.RecordBatch, txn: Transaction) -> None:
    keys, properties = _column(batch, "key"), _column(batch, "properties")
    times = _column(batch, "event_time")
    values = batch.column("value")
    if properties is None and times is None:
        producer.send_many(values, keys, txn=txn)
        return
    nothing = [None] * len(values)
    if times is not None:
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
    rows = zip(
        values.cast(pa.binary()).to_pylist(),
        nothing if keys is None else keys.to_pylist(),
        nothing if properties is None else properties.to_pylist(),
        nothing if times is None else times.to_pylist(),
        strict=True,
    )
    for value, key, pairs, time in rows:
        # A failed message fails the transaction, whose end raises the error.
        producer.send_async(
            value,
            partition_key=key,
            properties=dict(pairs) if pairs else None,
            event_timestamp=time,
            txn=txn,
        )


def give_up(txn: Transaction | None) -> None:
    """Abort an open transaction; if that fails, it ends by its timeout."""
    if txn is not None and txn.state == TransactionState.OPEN:
        try:
            txn.abort()
        except VelarayError as error:
            # The first error is the one to raise; the service aborts the transaction after its
            # timeout.
            logger.warning("can't abort %r, its timeout will: %s", txn, error)

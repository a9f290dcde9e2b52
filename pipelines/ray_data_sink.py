"""Ray Data's sink: writes a dataset's rows as messages; one commit for a whole run."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import Any

try:
    import pyarrow as pa
    from ray.data import Datasink
    from ray.data.block import Block, BlockAccessor
    from ray.data.datasource import WriteResult
except ImportError as error:
    raise ImportError(
        "velaray's source and sink of Ray Data need ray[data], pyarrow and pandas:"
        f" pip install 'velaray[data]' ({error})"
    ) from error

from velaray.client.exceptions import InvalidConfiguration, VelarayError
from velaray.client.tls import TlsOptions
from velaray.events.ids import TransactionId
from velaray.pipelines.public_keys import PublicKeys
from velaray.pipelines.publishing import give_up, send_rows
from velaray.pipelines.spark_client import Service, link_to

logger = logging.getLogger("velaray")

TIMEOUT_S = 600.0
"""Default timeout of a task's transaction, in seconds."""
_NUMBER = 0


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind)


def _is_properties(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


def _several(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


_COLUMNS = {
    "value": (_is_bytes, "bytes or text"),
    "key": (_is_text, "text"),
    "properties": (_is_properties, "a map of text to text"),
    "event_time": (pa.types.is_timestamp, "timestamps"),
    "topic": (_is_text, "text"),
}


class TopicSink(Datasink[TransactionId | None]):
    """Writes a dataset to topics: ``dataset.write_datasink(TopicSink(...))``.

    Each write task publishes in a transaction. When all tasks are complete, one decision of the
    service commits the transactions of the successful attempts. No message can be read before, and
    none is ever readable if the write fails. A run that was committed under its ``run_key`` isn't
    written again. So a program that is restarted, without knowing whether its write was committed,
    writes once.
    """

    def __init__(
        self,
        topic: str | None = None,
        *,
        service_url: str,
        run_key: str | None = None,
        transaction_timeout: float = TIMEOUT_S,
        token: str | None = None,
        token_file: str | None = None,
        tls: TlsOptions | None = None,
        encryption_key: str | Sequence[str] | None = None,
        public_key_file: str | Sequence[str] | None = None,
    ) -> None:
        """Without a ``topic`` the column ``topic`` contains the target of each row.

        ``transaction_timeout`` is in seconds, and must be longer than the whole write. It aborts
        the open transactions of a failed write, unless the run is written again before. ``token``,
        ``token_file`` and ``tls`` are those of `read_topic`. With ``encryption_key``, the name of a
        key or several names, messages are encrypted: ``public_key_file`` has the path, on every
        node, of the RSA key (PEM) of each name, in the same order.

        Raises `InvalidConfiguration`.
        """
        self._topic = topic
        self._service = Service(service_url, token, token_file, tls)
        self._keys = PublicKeys.of(_several(encryption_key), _several(public_key_file))
        self._run_key = run_key
        self._commit_sequence = f"ray/run/{run_key or token_hex(8)}"
        self._timeout = transaction_timeout

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Raises `InvalidConfiguration` for a dataset with columns that messages don't have."""
        if isinstance(schema, pa.Schema):
            self._check(schema)

    def _check(self, schema: pa.Schema) -> None:
        known = "; ".join(f"{name}: {what}" for name, (_, what) in _COLUMNS.items())
        for field in schema:
            fits = _COLUMNS.get(field.name, (None, ""))[0]
            # A column of nulls has no type.
            if fits is None or not (fits(field.type) or pa.types.is_null(field.type)):
                raise InvalidConfiguration(
                    f"TopicSink doesn't take column {field.name!r} of type {field.type};"
                    f" it takes {known}"
                )
        if "value" not in schema.names:
            raise InvalidConfiguration(f'TopicSink needs a column "value"; it takes {known}')
        if ("topic" in schema.names) == (self._topic is not None):
            raise InvalidConfiguration('TopicSink needs either a topic or a column "topic"')

    def write(self, blocks: Iterable[Block], ctx: Any) -> TransactionId | None:
        """Publish a task's rows in a transaction; runs in a worker.

        The transaction is complete and open on return. Returns None if there are no rows, or the
        run was committed before.
        """
        with link_to(self._service) as link:
            commits = link.client.commit_sequence(self._commit_sequence)
            if commits.last >= _NUMBER:
                return None
            txn, prepared = None, False
            try:
                for block in blocks:
                    table = self._table(block)
                    if not table.num_rows:
                        continue
                    txn = txn or commits.begin(self._timeout, _NUMBER)
                    for batch in table.to_batches():
                        send_rows(link, self._topic, self._keys, batch, txn)
                found = None if txn is None else txn.prepare()
                prepared = True
                return found
            finally:
                if not prepared:
                    give_up(txn)

    def _table(self, block: Block) -> pa.Table:
        table = BlockAccessor.for_block(block).to_arrow()
        if table.num_rows:
            self._check(table.schema)
            at = table.schema.get_field_index("value")
            if pa.types.is_null(table.schema.field(at).type):
                table = table.set_column(at, "value", table.column(at).cast(pa.binary()))
        return table

    def on_write_complete(self, write_result: WriteResult[TransactionId | None]) -> None:
        """Commit the run. Raises the service's error; nothing is committed then."""
        found = [TransactionId(*each) for each in write_result.write_returns if each is not None]
        with link_to(self._service) as link:
            commits = link.client.commit_sequence(self._commit_sequence)
            if found:
                commits.commit(_NUMBER, found)
            if self._run_key is None:  # this run is complete
                commits.forget()

    def on_write_failed(self, error: Exception) -> None:
        """Abort the open transactions, unless a later run may continue under the ``run_key``."""
        if self._run_key is not None:
            return
        try:
            with link_to(self._service) as link:
                link.client.commit_sequence(self._commit_sequence).forget()
        except VelarayError as failed:
            # The first error is the one to raise; the service aborts the transaction after its
            # timeout.
            logger.warning("can't abort %s, its timeout will: %s", self._commit_sequence, failed)

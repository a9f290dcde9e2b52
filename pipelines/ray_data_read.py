"""Ray Data's source: a dataset of the messages of topics between two positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

try:
    import pyarrow as pa
    import ray.data
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata
    from ray.data.context import DataContext
except ImportError as error:
    raise ImportError(
        "velaray's source and sink of Ray Data need ray[data], pyarrow and pandas:"
        f" pip install 'velaray[data]' ({error})"
    ) from error

from velaray import Client
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.tls import TlsOptions
from velaray.pipelines import ledgers, service_parts
from velaray.pipelines.ledgers import LedgerPart
from velaray.pipelines.rows import columns_named, record_batch
from velaray.pipelines.service_parts import ServicePart
from velaray.pipelines.spark_client import Service
from velaray.pipelines.spark_options import Options
from velaray.pipelines.spark_positions import Start
from velaray.pipelines.typed_values import TypedValue, typed_by_files, typed_by_service

Part: TypeAlias = LedgerPart | ServicePart

SMALLEST_PART = 1 << 20
"""Minimum bytes of a part of files, whatever the parallelism."""


def read_topic(
    topic: str | Sequence[str],
    *,
    service_url: str | None = None,
    data_dir: str | None = None,
    columns: Sequence[str] | None = None,
    starting_position: str = "earliest",
    ending_position: str = "latest",
    value_schema: str = "bytes",
    on_undecodable: str = "fail",
    parallelism: int | None = None,
    private_key_file: str | None = None,
    encryption_keys: str | None = None,
    token: str | None = None,
    token_file: str | None = None,
    tls: TlsOptions | None = None,
) -> ray.data.Dataset:
    """Read the messages of one topic or several as a dataset of Arrow blocks.

    The messages come from the service, or with ``data_dir`` from the files of its ledgers: every
    node must have access to that directory then. The range is fixed by this call. Messages of open
    transactions, and all messages behind the first of these, are excluded. Columns, positions,
    ``value_schema`` (``"typed"``: column ``value`` has the type of the topic's schema) and
    ``on_undecodable`` are those of Spark's batch source. ``private_key_file``: a path, on every
    node, of the RSA key (PEM) that decrypts encrypted messages. ``encryption_keys``: a directory,
    on every node, of the keys of ledgers that the cluster encrypts; by default
    ``VELARAY_ENCRYPTION_KEYS`` names it. ``token`` is a JSON web token, or ``token_file`` a path of
    one, on every node, if the service requires it. ``tls``: what is trusted, and the certificate
    that is presented, for a ``service_url`` of TLS; its files are on every node. There is a read
    task for each 64 MiB, and at most ``parallelism`` tasks if that is given. Files are divided into
    ``parallelism`` tasks if they are large enough.

    Raises `InvalidConfiguration`, `TopicNotFound`, `MissingKey`, and the service's errors.
    """
    names = (topic,) if isinstance(topic, str) else tuple(topic)
    if not names:
        raise InvalidConfiguration("read_topic needs a topic")
    wanted = columns_named(None if columns is None else ",".join(columns))
    bounds = Start.parse(starting_position), Start.parse(ending_position)
    options = {"value_schema": value_schema, "on_undecodable": on_undecodable}
    chosen = Options(options, options.keys(), "read_topic")
    lenient = chosen.choice("on_undecodable", "fail", "null") == "null"
    is_typed = chosen.choice("value_schema", "bytes", "typed") == "typed" and "value" in wanted
    typed = None
    parts: Sequence[Part]
    if data_dir is not None and service_url is None:
        if (token, token_file, tls) != (None, None, None):
            raise InvalidConfiguration("token, token_file and tls need service_url")
        parts = _ledger_parts(data_dir, names, *bounds, parallelism, encryption_keys)
        if is_typed:
            typed = typed_by_files(data_dir, names, lenient, encryption_keys)
    elif service_url is not None and data_dir is None:
        if encryption_keys is not None:
            raise InvalidConfiguration("encryption_keys needs data_dir: the service decrypts")
        service = Service(service_url, token, token_file, tls)
        parts = service_parts.plan(service, partial(_partitions, names), *bounds)
        if is_typed:
            typed = typed_by_service(service, lambda _: names, lenient)
    else:
        raise InvalidConfiguration("read_topic needs either service_url or data_dir")
    found: ray.data.Dataset = ray.data.read_datasource(
        TopicDatasource(parts, wanted, typed, private_key_file),
        override_num_blocks=parallelism or max(len(parts), 1),
    )
    return found


def _partitions(topics: Sequence[str], client: Client) -> list[str]:
    return [name for topic in topics for name in client.get_topic_partitions(topic, create=False)]


def _ledger_parts(
    data_dir: str,
    topics: Sequence[str],
    start: Start,
    end: Start,
    parallelism: int | None,
    encryption_keys: str | None,
) -> list[LedgerPart]:
    parts = ledgers.plan(data_dir, topics, start, end, encryption_keys=encryption_keys)
    if parallelism is None or len(parts) >= parallelism:
        return parts
    size = max(sum(part.nbytes for part in parts) // parallelism, SMALLEST_PART)
    return ledgers.plan(data_dir, topics, start, end, size, encryption_keys)


class TopicDatasource(Datasource):
    """The datasource of `read_topic`."""

    def __init__(
        self,
        parts: Sequence[Part],
        columns: Sequence[str],
        typed: TypedValue | None = None,
        private_key_file: str | None = None,
    ) -> None:
        """Each of ``parts`` is one task; a task reads several if Ray requests fewer tasks."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._parts = parts
        self._columns = columns
        self._typed = typed
        self._private_key_file = private_key_file

    def estimate_inmemory_data_size(self) -> int | None:
        """Bytes of the ledgers; None for the service, which doesn't report them."""
        sizes = [part.nbytes for part in self._parts if isinstance(part, LedgerPart)]
        return sum(sizes) if len(sizes) == len(self._parts) else None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        """Return at most ``parallelism`` tasks; an empty task if there is nothing to read."""
        tasks = max(1, min(parallelism, len(self._parts)))
        groups = [self._parts[number::tasks] for number in range(tasks)]
        unknown = BlockMetadata(num_rows=None, size_bytes=None, exec_stats=None, input_files=None)
        return [
            ReadTask(
                partial(_read, group, self._columns, self._typed, self._private_key_file),
                unknown,
                per_task_row_limit=per_task_row_limit,
            )
            for group in groups
        ]


def _read(
    parts: Sequence[Part],
    columns: Sequence[str],
    typed: TypedValue | None,
    private_key_file: str | None,
) -> Iterator[pa.Table]:
    empty = True
    for part in parts:
        for batch in part.read(columns, typed, private_key_file):
            empty = False
            yield pa.Table.from_batches([batch])
    if empty:
        yield pa.Table.from_batches([record_batch([], columns, typed)])

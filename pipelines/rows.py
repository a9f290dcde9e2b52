"""Messages as rows: the columns of a topic's table, and Arrow batches of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velaray.client.arrow import array_of
from velaray.client.exceptions import InvalidConfiguration
from velaray.client.received import nulls_of
from velaray.events.ids import TopicName

if TYPE_CHECKING:
    from velaray.client.blocks import Segment
    from velaray.client.message import Message
    from velaray.pipelines.typed_values import TypedValue

COLUMNS: Mapping[str, str] = {
    "topic": "string NOT NULL",
    "partition": "int NOT NULL",
    "message_id": "struct<ledger: bigint, entry: bigint, batch_index: int> NOT NULL",
    "key": "string",
    "value": "binary",
    "properties": "map<string, string> NOT NULL",
    "publish_time": "timestamp NOT NULL",
    "event_time": "timestamp",
    "redelivery_count": "int NOT NULL",
    "schema_version": "binary",
}
"""The columns of a topic's table and their types in Spark's SQL.

``topic`` is the topic's name without the partition; ``partition`` is -1 for a topic without
partitions. ``batch_index`` is -1 for a message that was sent alone. ``key`` is null if there is
none, ``value`` is null for a tombstone. ``event_time`` and ``schema_version`` are null if the
producer set none.
"""


def ddl(columns: Sequence[str], typed: TypedValue | None = None) -> str:
    """The schema of a table with these columns, in Spark's SQL."""
    kinds = COLUMNS if typed is None else {**COLUMNS, "value": typed.ddl}
    return ", ".join(f"{name} {kinds[name]}" for name in columns)


def columns_named(names: str | None) -> tuple[str, ...]:
    """Return the columns in a list with commas; all columns for None.

    Raises `InvalidConfiguration` for unknown columns, and for an empty list.
    """
    if names is None:
        return tuple(COLUMNS)
    found = tuple(name.strip() for name in names.split(",") if name.strip())
    unknown = [name for name in found if name not in COLUMNS]
    if unknown or not found or len(set(found)) < len(found):
        raise InvalidConfiguration(
            f"columns={names!r}: name each wanted one of {', '.join(COLUMNS)} once"
        )
    return found


def record_batch(
    segments: Sequence[Segment], columns: Sequence[str], typed: TypedValue | None = None
) -> Any:
    """Convert the messages of ``segments``, in order, to a ``pyarrow.RecordBatch``.

    With ``typed`` they were received with that schema, which determines the type of column
    ``value``.
    """
    import pyarrow as pa

    arrays = [
        typed.array(segments) if typed and name == "value" else _MAKERS[name](pa, segments)
        for name in columns
    ]
    fields = [
        pa.field(name, array.type, nullable="NOT NULL" not in COLUMNS[name])
        for name, array in zip(columns, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _repeated(pa: Any, segments: Sequence[Segment], values: Sequence[Any], kind: Any) -> Any:
    """Repeat each segment's value for each of its messages."""
    import numpy as np

    which = np.repeat(np.arange(len(segments)), [len(segment) for segment in segments])
    return pa.array(values, kind).take(pa.array(which))


def _topics(pa: Any, segments: Sequence[Segment]) -> Any:
    known: dict[str, str] = {}
    values = []
    for segment in segments:
        name = segment.block.info.topic
        if name not in known:
            known[name] = str(TopicName.parse(name).of_partition(-1))
        values.append(known[name])
    return _repeated(pa, segments, values, pa.string())


def _partitions(pa: Any, segments: Sequence[Segment]) -> Any:
    values = [segment.block.info.partition for segment in segments]
    return _repeated(pa, segments, values, pa.int32())


def _message_ids(pa: Any, segments: Sequence[Segment]) -> Any:
    import numpy as np

    infos = [segment.block.info for segment in segments]
    indexes = [
        np.asarray(segment.indexes if info.batch_size else [-1], np.int32)
        for segment, info in zip(segments, infos, strict=True)
    ]
    parts = {
        "ledger": _repeated(pa, segments, [info.ledger_id for info in infos], pa.int64()),
        "entry": _repeated(pa, segments, [info.entry_id for info in infos], pa.int64()),
        "batch_index": pa.array(np.concatenate(indexes) if indexes else [], pa.int32()),
    }
    return pa.StructArray.from_arrays(list(parts.values()), list(parts))


def _values(pa: Any, segments: Sequence[Segment]) -> Any:
    return array_of(segments, nulls_of)


def _publish_times(pa: Any, segments: Sequence[Segment]) -> Any:
    values = [segment.block.info.metadata.publish_time for segment in segments]
    return _repeated(pa, segments, values, pa.int64()).cast(_milliseconds(pa)).cast(_time(pa))


def _redelivery_counts(pa: Any, segments: Sequence[Segment]) -> Any:
    values = [segment.block.info.redelivery_count for segment in segments]
    return _repeated(pa, segments, values, pa.int32())


def _schema_versions(pa: Any, segments: Sequence[Segment]) -> Any:
    values = [segment.block.info.metadata.schema_version or None for segment in segments]
    return _repeated(pa, segments, values, pa.binary())


def _milliseconds(pa: Any) -> Any:
    return pa.timestamp("ms", tz="UTC")


def _time(pa: Any) -> Any:
    return pa.timestamp("us", tz="UTC")


def _own(segments: Sequence[Segment], nothing: Any, ask: Callable[[Message], Any]) -> list[Any]:
    """Apply ``ask`` to each message; messages that have only a payload get ``nothing``."""
    found: list[Any] = []
    for segment in segments:
        block = segment.block
        if block.info.batch_size and block.layout.plain:
            found += [nothing] * len(segment)
        else:
            found += [ask(message) for message in segment.messages()]
    return found


def _keys(pa: Any, segments: Sequence[Segment]) -> Any:
    return pa.array(_own(segments, None, lambda each: each.partition_key() or None), pa.string())


def _properties(pa: Any, segments: Sequence[Segment]) -> Any:
    pairs = _own(segments, (), lambda each: list(each.properties().items()))
    return pa.array(pairs, pa.map_(pa.string(), pa.string()))


def _event_times(pa: Any, segments: Sequence[Segment]) -> Any:
    times = _own(segments, None, lambda each: each.event_timestamp() or None)
    return pa.array(times, pa.int64()).cast(_milliseconds(pa)).cast(_time(pa))


_MAKERS: Mapping[str, Callable[[Any, Sequence[Segment]], Any]] = {
    "topic": _topics,
    "partition": _partitions,
    "message_id": _message_ids,
    "key": _keys,
    "value": _values,
    "properties": _properties,
    "publish_time": _publish_times,
    "event_time": _event_times,
    "redelivery_count": _redelivery_counts,
    "schema_version": _schema_versions,
}

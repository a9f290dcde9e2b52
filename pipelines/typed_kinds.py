"""The column types of schemas: their names in Arrow and Spark, and their JSON values.

Avro's values are taken in their stored form: Arrow converts, for example, milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from velaray.client.exceptions import InvalidConfiguration
from velaray.client.schema import shapes
from velaray.client.schema.record_shape import RecordShape, Slot
from velaray.client.schema.shapes import Many, Mapped, Maybe, Shape, TextBytes, Wrong
from velaray.schemas.avro import NOTHING, AvroField, AvroType
from velaray.schemas.info import SchemaType

_UTC = pa.timestamp("us", "UTC")
_PLAIN = pa.timestamp("us")


class Kind(NamedTuple):
    """A type of column: ``ddl`` is Spark's name for it, ``arrow`` Arrow's.

    ``given`` is the type of the decoded values, which Arrow casts; ``shape`` is their JSON form.
    """

    ddl: str
    arrow: pa.DataType
    given: pa.DataType
    shape: Shape = shapes.NULL


def _same(ddl: str, arrow: pa.DataType, shape: Shape = shapes.NULL) -> Kind:
    return Kind(ddl, arrow, arrow, shape)


PRIMITIVE_KINDS = {
    SchemaType.BYTES: _same("binary", pa.binary()),
    SchemaType.STRING: _same("string", pa.string()),
    SchemaType.BOOLEAN: _same("boolean", pa.bool_()),
    SchemaType.INT8: _same("tinyint", pa.int8()),
    SchemaType.INT16: _same("smallint", pa.int16()),
    SchemaType.INT32: _same("int", pa.int32()),
    SchemaType.INT64: _same("bigint", pa.int64()),
    SchemaType.FLOAT: _same("float", pa.float32()),
    SchemaType.DOUBLE: _same("double", pa.float64()),
    SchemaType.DATE: _same("timestamp", _UTC),
    SchemaType.TIMESTAMP: _same("timestamp", _UTC),
    SchemaType.INSTANT: _same("timestamp", _UTC),
    SchemaType.LOCAL_DATE: _same("date", pa.date32()),
    SchemaType.LOCAL_DATE_TIME: _same("timestamp_ntz", _PLAIN),
}
"""The columns of schemas of single values."""
_AVRO = {
    "boolean": _same("boolean", pa.bool_(), shapes.BOOLEAN),
    "int": _same("int", pa.int32(), shapes.INT),
    "long": _same("bigint", pa.int64(), shapes.LONG),
    "float": _same("float", pa.float32(), shapes.FLOAT),
    "double": _same("double", pa.float64(), shapes.DOUBLE),
    "bytes": _same("binary", pa.binary(), TextBytes()),
    "fixed": _same("binary", pa.binary(), TextBytes()),
    "string": _same("string", pa.string(), shapes.STRING),
    "enum": _same("string", pa.string(), shapes.STRING),
}
_LOGICAL = {
    ("int", "date"): _same("date", pa.date32(), shapes.INT),
    ("long", "timestamp-millis"): Kind("timestamp", _UTC, pa.timestamp("ms", "UTC"), shapes.LONG),
    ("long", "timestamp-micros"): _same("timestamp", _UTC, shapes.LONG),
    ("long", "local-timestamp-millis"): Kind(
        "timestamp_ntz", _PLAIN, pa.timestamp("ms"), shapes.LONG
    ),
    ("long", "local-timestamp-micros"): _same("timestamp_ntz", _PLAIN, shapes.LONG),
}


def avro_kind(of: AvroType, path: str = "", above: tuple[AvroType, ...] = ()) -> Kind:
    """Return the column of an Avro type. Raises `InvalidConfiguration` for types that tables lack.

    ``path`` is the position of the type; ``above`` are the records that contain it.
    """
    match of.kind:
        case "record":
            if of in above:
                raise _refused(path, f"{of} contains itself")
            return _record(of, path, (*above, of))
        case "array":
            return _array(avro_kind(of.of[0], f"{path}/items", above))
        case "map":
            return _map(avro_kind(of.of[0], f"{path}/values", above))
        case "union":
            branches = [each for each in of.of if each.kind != "null"]
            if len(branches) != 1:
                raise _refused(path, f"a union of {', '.join(map(str, of.of)) or 'nothing'}")
            inner = avro_kind(branches[0], path, above)
            return inner._replace(shape=Maybe(inner.shape)) if len(of.of) > 1 else inner
    found = _LOGICAL.get((of.kind, str(of.properties.get("logicalType")))) or _AVRO.get(of.kind)
    if found is None:
        raise _refused(path, f"type {of}")
    return found


def _refused(path: str, what: str) -> InvalidConfiguration:
    return InvalidConfiguration(
        f"the schema has no column type, at {path or '/'}: {what};"
        ' read it with value_schema="bytes"'
    )


def _array(item: Kind) -> Kind:
    return Kind(f"array<{item.ddl}>", pa.list_(item.arrow), pa.list_(item.given), Many(item.shape))


def _map(item: Kind) -> Kind:
    arrow, given = (pa.map_(pa.string(), each) for each in (item.arrow, item.given))
    return Kind(f"map<string, {item.ddl}>", arrow, given, Mapped(item.shape))


def _record(of: AvroType, path: str, above: tuple[AvroType, ...]) -> Kind:
    if not of.fields:
        raise _refused(path, f"{of} without fields")
    parts = {each.name: avro_kind(each.type, f"{path}/{each.name}", above) for each in of.fields}
    shape = RecordShape(
        type(of.name.rpartition(".")[2], (dict,), {}), _unchanged, is_dict=True, checks=True
    )
    shape.complete([_slot(each, parts[each.name].shape) for each in of.fields])
    return struct_kind(parts)._replace(shape=shape)


def struct_kind(parts: dict[str, Kind]) -> Kind:
    """Return the column of several parts by name."""
    names = {name: name.replace("`", "``") for name in parts}
    ddl = ", ".join(f"`{names[name]}`: {part.ddl}" for name, part in parts.items())
    arrow = pa.struct([(name, part.arrow) for name, part in parts.items()])
    given = pa.struct([(name, part.given) for name, part in parts.items()])
    return Kind(f"struct<{ddl}>", arrow, given)


def _unchanged(plain: dict[str, Any]) -> dict[str, Any]:
    return plain


def _slot(of: AvroField, shape: Shape) -> Slot:
    """Return a field; a field may be missing if it has a suitable default, or may be null."""
    absent: Callable[[], Any] | None = (lambda: None) if isinstance(shape, Maybe) else None
    if of.default is not NOTHING:
        try:
            default = shape.back(of.default)
        except Wrong:
            pass  # Pulsar's clients write unsuitable defaults; they are ignored
        else:
            absent = lambda: default  # noqa: E731
    return Slot(of.name, shape, absent)

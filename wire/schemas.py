"""Schemas on the wire, and the eight bytes of a schema version."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from velaray.schemas import SchemaInfo, SchemaType
from velaray.wire import pulsar_pb2 as pb

NO_VERSION = b""
"""The schema version of messages that have none."""

VERSION_BYTES = 8
"""The size of a version in bytes."""

_TYPES: dict[SchemaType, pb.Schema.Type] = {
    SchemaType.NONE: pb.Schema.NONE,
    SchemaType.STRING: pb.Schema.String,
    SchemaType.JSON: pb.Schema.Json,
    SchemaType.PROTOBUF: pb.Schema.Protobuf,
    SchemaType.AVRO: pb.Schema.Avro,
    SchemaType.BOOLEAN: pb.Schema.Bool,
    SchemaType.INT8: pb.Schema.Int8,
    SchemaType.INT16: pb.Schema.Int16,
    SchemaType.INT32: pb.Schema.Int32,
    SchemaType.INT64: pb.Schema.Int64,
    SchemaType.FLOAT: pb.Schema.Float,
    SchemaType.DOUBLE: pb.Schema.Double,
    SchemaType.DATE: pb.Schema.Date,
    SchemaType.TIME: pb.Schema.Time,
    SchemaType.TIMESTAMP: pb.Schema.Timestamp,
    SchemaType.KEY_VALUE: pb.Schema.KeyValue,
    SchemaType.INSTANT: pb.Schema.Instant,
    SchemaType.LOCAL_DATE: pb.Schema.LocalDate,
    SchemaType.LOCAL_TIME: pb.Schema.LocalTime,
    SchemaType.LOCAL_DATE_TIME: pb.Schema.LocalDateTime,
    SchemaType.PROTOBUF_NATIVE: pb.Schema.ProtobufNative,
    SchemaType.AUTO_CONSUME: pb.Schema.AutoConsume,
    SchemaType.EXTERNAL: pb.Schema.External,
}
_NAMES = {number: name for name, number in _TYPES.items()}


def to_proto(info: SchemaInfo) -> pb.Schema:
    """The protocol's form of a schema; BYTES is NONE there.

    Raises ValueError for AUTO and AUTO_PUBLISH, which no command carries.
    """
    number = pb.Schema.NONE if info.type is SchemaType.BYTES else _TYPES.get(info.type)
    if number is None:
        raise ValueError(f"a schema of type {info.type} isn't sent")
    schema = pb.Schema(name=info.name, schema_data=info.data, type=number)
    for key, value in info.properties.items():
        schema.properties.add(key=key, value=value)
    return schema


def from_proto(schema: pb.Schema) -> SchemaInfo:
    """The inverse of `to_proto`."""
    pairs: Iterable[Any] = schema.properties
    properties = {pair.key: pair.value for pair in pairs}
    return SchemaInfo(_NAMES[schema.type], schema.name, schema.schema_data, properties)


def version_bytes(version: int | None) -> bytes:
    """A version in the form of commands and metadata; None: no version."""
    return NO_VERSION if version is None else version.to_bytes(VERSION_BYTES, "big")


def read_version(raw: bytes) -> int | None:
    """The inverse of `version_bytes`. Raises ValueError for invalid bytes."""
    if not raw:
        return None
    if len(raw) != VERSION_BYTES:
        raise ValueError(f"a schema version of {len(raw)} bytes")
    return int.from_bytes(raw, "big", signed=True)

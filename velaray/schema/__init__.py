"""Schemas: what the values of a topic are, for producers and consumers.

Names are those of ``pulsar.schema``, and velaray's own for what that lacks.
"""

from __future__ import annotations

from velaray.schema.auto import AutoConsumeSchema, AutoProduceBytesSchema, GenericRecord
from velaray.schema.base import BYTES, BytesSchema, Schema
from velaray.schema.key_value import KeyValue, KeyValueSchema
from velaray.schema.primitives import (
    BooleanSchema,
    DateSchema,
    DoubleSchema,
    FloatSchema,
    InstantSchema,
    Int8Schema,
    Int16Schema,
    Int32Schema,
    Int64Schema,
    LocalDateSchema,
    LocalDateTimeSchema,
    LocalTimeSchema,
    StringSchema,
    TimeSchema,
    TimestampSchema,
)
from velaray.schema.protobuf import ProtobufNativeSchema
from velaray.schema.record import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    Record,
    String,
)
from velaray.schema.records import AvroSchema, JsonSchema
from velaray.schemas import KeyValueEncoding, SchemaInfo, SchemaType

__all__ = [
    "BYTES",
    "Array",
    "AutoConsumeSchema",
    "AutoProduceBytesSchema",
    "AvroSchema",
    "Boolean",
    "BooleanSchema",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "DateSchema",
    "Double",
    "DoubleSchema",
    "Field",
    "Float",
    "FloatSchema",
    "GenericRecord",
    "InstantSchema",
    "Int8Schema",
    "Int16Schema",
    "Int32Schema",
    "Int64Schema",
    "Integer",
    "JsonSchema",
    "KeyValue",
    "KeyValueEncoding",
    "KeyValueSchema",
    "LocalDateSchema",
    "LocalDateTimeSchema",
    "LocalTimeSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
    "TimeSchema",
    "TimestampSchema",
]

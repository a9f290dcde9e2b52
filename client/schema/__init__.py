"""Schemas: the types of a topic's values, for producers and consumers.

Names are those of ``pulsar.schema``; schemas that it lacks have velaray's own names.
"""

from __future__ import annotations

from velaray.client.schema.auto import AutoConsumeSchema, AutoProduceBytesSchema, GenericRecord
from velaray.client.schema.base import BYTES, BytesSchema, Schema
from velaray.client.schema.key_value import KeyValue, KeyValueSchema
from velaray.client.schema.primitives import (
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
from velaray.client.schema.protobuf import ProtobufNativeSchema
from velaray.client.schema.record import (
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
from velaray.client.schema.records import AvroSchema, JsonSchema
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

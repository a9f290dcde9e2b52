"""A schema as Pulsar's clients and REST interface describe it: a type, bytes, properties."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

_LENGTH = struct.Struct(">i")


class InvalidSchemaError(ValueError):
    """A schema that can't be stored or used, for the reason in the message."""


class SchemaType(StrEnum):
    """The kinds of schemas, by Pulsar's names."""

    NONE = "NONE"
    BYTES = "BYTES"
    STRING = "STRING"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
    AVRO = "AVRO"
    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    INSTANT = "INSTANT"
    LOCAL_DATE = "LOCAL_DATE"
    LOCAL_TIME = "LOCAL_TIME"
    LOCAL_DATE_TIME = "LOCAL_DATE_TIME"
    KEY_VALUE = "KEY_VALUE"
    PROTOBUF_NATIVE = "PROTOBUF_NATIVE"
    EXTERNAL = "EXTERNAL"
    AUTO = "AUTO"
    AUTO_CONSUME = "AUTO_CONSUME"
    AUTO_PUBLISH = "AUTO_PUBLISH"


class KeyValueEncoding(StrEnum):
    """The place of the key of a KEY_VALUE message: in the payload, or in the message's key."""

    INLINE = "INLINE"
    SEPARATED = "SEPARATED"


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One schema.

    ``data`` is the schema's own text or bytes (Avro's JSON for AVRO, JSON and PROTOBUF; Pulsar's
    JSON around a file descriptor set for PROTOBUF_NATIVE; empty for primitive types). ``name`` and
    ``properties`` are for people and clients. Comparisons ignore them, except for KEY_VALUE, whose
    properties define key and value.
    """

    type: SchemaType
    name: str = ""
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


KEY_VALUE_ENCODING = "kv.encoding.type"


def key_value(
    key: SchemaInfo,
    value: SchemaInfo,
    encoding: KeyValueEncoding = KeyValueEncoding.INLINE,
    name: str = "KeyValue",
) -> SchemaInfo:
    """The KEY_VALUE schema of two others, as Pulsar's clients write it."""
    properties = {KEY_VALUE_ENCODING: str(encoding)}
    data = b""
    for part, info in (("key", key), ("value", value)):
        properties[f"{part}.schema.name"] = info.name
        properties[f"{part}.schema.type"] = str(info.type)
        properties[f"{part}.schema.properties"] = json.dumps(dict(info.properties))
        data += _LENGTH.pack(len(info.data)) + info.data
    return SchemaInfo(SchemaType.KEY_VALUE, name, data, properties)


def split_key_value(info: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """The schemas of key and value. Raises `InvalidSchemaError`."""
    rest, found = info.data, []
    for part in ("key", "value"):
        if len(rest) < _LENGTH.size:
            raise InvalidSchemaError(f"a KEY_VALUE schema whose data ends before its {part}'s")
        (length,) = _LENGTH.unpack_from(rest)
        end = _LENGTH.size + max(0, length)  # -1: none
        data, rest = rest[_LENGTH.size : end], rest[end:]
        if len(data) != max(0, length):
            raise InvalidSchemaError(f"a KEY_VALUE schema whose data ends within its {part}'s")
        found.append(_part(info.properties, part, data))
    if rest:
        raise InvalidSchemaError(f"a KEY_VALUE schema with {len(rest)} bytes after its value's")
    key, value = found
    return key, value


def encoding_of(info: SchemaInfo) -> KeyValueEncoding:
    """The encoding of a KEY_VALUE schema. Raises `InvalidSchemaError`."""
    text = info.properties.get(KEY_VALUE_ENCODING, KeyValueEncoding.INLINE)
    try:
        return KeyValueEncoding(text)
    except ValueError:
        raise InvalidSchemaError(
            f"{KEY_VALUE_ENCODING} must be INLINE or SEPARATED, not {text!r}"
        ) from None


def _part(properties: Mapping[str, str], part: str, data: bytes) -> SchemaInfo:
    """Absent types are BYTES, as for Pulsar's clients."""
    text = properties.get(f"{part}.schema.type", SchemaType.BYTES)
    try:
        type_ = SchemaType(text)
    except ValueError:
        raise InvalidSchemaError(f"{part}.schema.type {text!r} isn't a schema type") from None
    inner = _inner_properties(properties.get(f"{part}.schema.properties", ""), part)
    return SchemaInfo(type_, properties.get(f"{part}.schema.name", ""), data, inner)


def _inner_properties(text: str, part: str) -> dict[str, str]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"{part}.schema.properties isn't JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise InvalidSchemaError(f"{part}.schema.properties must be an object of texts")
    return found

"""Checks of stored messages against a schema that isn't registered yet."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from velaray.client.schema.avro_names import read_under_any_name
from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.avro import NOTHING, AvroType, parse_avro
from velaray.schemas.info import encoding_of, split_key_value
from velaray.schemas.native import parse_native

_SIZES = {
    SchemaType.BOOLEAN: 1,
    SchemaType.INT8: 1,
    SchemaType.INT16: 2,
    SchemaType.INT32: 4,
    SchemaType.INT64: 8,
    SchemaType.FLOAT: 4,
    SchemaType.DOUBLE: 8,
    SchemaType.DATE: 8,
    SchemaType.TIME: 8,
    SchemaType.TIMESTAMP: 8,
    SchemaType.LOCAL_DATE: 8,
    SchemaType.LOCAL_TIME: 8,
}
_WHOLE = {"int": 31, "long": 63}


def reading_fails(
    reader: SchemaInfo, writer: SchemaInfo | None, payload: bytes, key: bytes = b""
) -> str | None:
    """The reason why a message can't be read under ``reader``; None if it can.

    ``writer`` is the schema that the message was published under (None: unknown). ``key`` is the
    message's key, for KEY_VALUE schemas with a separate key.
    """
    try:
        return _fails(reader, writer, payload, key)
    except InvalidSchemaError as error:
        return str(error)


def _fails(reader: SchemaInfo, writer: SchemaInfo | None, payload: bytes, key: bytes) -> str | None:
    if writer is not None and writer.type is not reader.type:
        return f"it was published as {writer.type}"
    match reader.type:
        case SchemaType.AVRO:
            return _avro_fails(reader, writer or reader, payload)
        case SchemaType.JSON:
            return _json_fails(reader, payload)
        case SchemaType.PROTOBUF_NATIVE:
            return _native_fails(reader, payload)
        case SchemaType.STRING:
            return _text_fails(payload)
        case SchemaType.KEY_VALUE:
            return _key_value_fails(reader, writer, payload, key)
    size = _SIZES.get(reader.type)
    if size is not None and len(payload) != size:
        return f"{reader.type} has {size} bytes, not {len(payload)}"
    return None


def _avro_fails(reader: SchemaInfo, writer: SchemaInfo, payload: bytes) -> str | None:
    outof, into = (json.loads(each.data) for each in (writer, reader))
    written = fastavro.parse_schema(outof)
    wanted = fastavro.parse_schema(read_under_any_name(into, outof))
    raw = io.BytesIO(payload)
    try:
        fastavro.schemaless_reader(raw, written, wanted)
    except (EOFError, IndexError):
        return "the payload ends too early"
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        return f"the payload isn't of this schema ({type(error).__name__}: {error})"
    except fastavro.read.SchemaResolutionError as error:
        return str(error)
    left = len(payload) - raw.tell()
    return f"{left} bytes are left over" if left else None


def _json_fails(reader: SchemaInfo, payload: bytes) -> str | None:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        return f"it isn't JSON: {error}"
    return _misfit(parse_avro(reader.data), value, "")


def _misfit(schema: AvroType, value: Any, path: str) -> str | None:
    """The reason why a JSON value doesn't match ``schema``; None if it does."""
    match schema.kind:
        case "record" if isinstance(value, dict):
            for each in schema.fields:
                names = [name for name in (each.name, *sorted(each.aliases)) if name in value]
                if not names and each.default is NOTHING and not _optional(each.type):
                    return f"{path}/{each.name} is missing"
                if names and (wrong := _misfit(each.type, value[names[0]], f"{path}/{each.name}")):
                    return wrong
            return None
        case "union":
            fits = any(_misfit(branch, value, path) is None for branch in schema.of)
            return None if fits else f"{path or '/'} fits no branch of the union"
        case "array" if isinstance(value, list):
            inner = (_misfit(schema.of[0], each, f"{path}/{n}") for n, each in enumerate(value))
            return next((wrong for wrong in inner if wrong), None)
        case "map" if isinstance(value, dict):
            inner = (_misfit(schema.of[0], each, f"{path}/{n}") for n, each in value.items())
            return next((wrong for wrong in inner if wrong), None)
    return None if _fits(schema, value) else f"{path or '/'}: {value!r:.40} isn't {schema}"


def _fits(schema: AvroType, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match schema.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            bits = _WHOLE[schema.kind]
            return number and value == int(value) and -(1 << bits) <= value < 1 << bits
        case "float" | "double":
            return number
        case "enum":
            return value in schema.symbols or schema.default in schema.symbols
    return isinstance(value, str) and schema.kind in ("string", "bytes", "fixed")


def _optional(schema: AvroType) -> bool:
    """Whether the type allows null: clients read an absent field as null then."""
    return schema.kind == "union" and any(branch.kind == "null" for branch in schema.of)


def _native_fails(reader: SchemaInfo, payload: bytes) -> str | None:
    message = GetMessageClass(parse_native(reader.data))()
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        return str(error)
    return None if message.IsInitialized() else "a required field is missing"


def _text_fails(payload: bytes) -> str | None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        return str(error)
    return None


def _key_value_fails(
    reader: SchemaInfo, writer: SchemaInfo | None, payload: bytes, key: bytes
) -> str | None:
    wanted = split_key_value(reader)
    written = (None, None) if writer is None else split_key_value(writer)
    parts = [key, payload]
    if encoding_of(reader if writer is None else writer) is KeyValueEncoding.INLINE:
        parts = _inline(payload)
        if len(parts) != 2:
            return "key and value aren't in the payload"
    for name, into, outof, raw in zip(("key", "value"), wanted, written, parts, strict=True):
        if wrong := _fails(into, outof, raw, b""):
            return f"the {name}: {wrong}"
    return None


def _inline(payload: bytes) -> list[bytes]:
    """The inline key and value, each after its length; the length -1 stands for null."""
    parts = []
    while len(payload) >= 4:
        size = max(0, int.from_bytes(payload[:4], "big", signed=True))
        parts.append(payload[4 : 4 + size])
        payload = payload[4 + size :]
    return [] if payload else parts

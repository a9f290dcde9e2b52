"""Validates schemas before they are stored, and decides which are equal."""

from __future__ import annotations

import hashlib

from velaray.schemas.avro import canonical_avro, parse_avro, parse_json
from velaray.schemas.info import (
    InvalidSchemaError,
    SchemaInfo,
    SchemaType,
    encoding_of,
    split_key_value,
)
from velaray.schemas.native import parse_native

MAX_SCHEMA_BYTES = 512 << 10
"""The data of a schema that is stored is no larger than this."""
AVRO_FORMS = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose data is an Avro schema."""
UNSTORED = frozenset(
    {SchemaType.NONE, SchemaType.BYTES, SchemaType.EXTERNAL, SchemaType.AUTO_CONSUME}
)
"""Types for which nothing is stored or checked."""
_CLIENTS_ONLY = frozenset({SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH})
_STRINGS = (b"", b"null")  # Pulsar's Python client sends the latter


def validate(info: SchemaInfo, *, legacy_json: bool = False) -> None:
    """Raise `InvalidSchemaError`, which says why, unless ``info`` can be stored.

    ``legacy_json`` accepts JSON schemas in the form of clients before Pulsar 2.1.
    """
    if info.type in _CLIENTS_ONLY:
        raise InvalidSchemaError(f"{info.type} is for clients only: it can't be stored")
    if len(info.data) > MAX_SCHEMA_BYTES:
        size, most = len(info.data), MAX_SCHEMA_BYTES
        raise InvalidSchemaError(f"a schema of {size} bytes; at most {most} can be stored")
    match info.type:
        case SchemaType.NONE | SchemaType.BYTES | SchemaType.EXTERNAL:
            pass
        case SchemaType.JSON if legacy_json and legacy_id(info) is not None:
            pass
        case SchemaType.AVRO:
            kind = parse_avro(info.data).kind
            if kind == "union":
                raise InvalidSchemaError("an AVRO schema can't be a union: put it into a record")
        case SchemaType.JSON | SchemaType.PROTOBUF:
            parse_avro(info.data)
        case SchemaType.PROTOBUF_NATIVE:
            parse_native(info.data)
        case SchemaType.KEY_VALUE:
            encoding_of(info)
            for part in split_key_value(info):
                validate(part, legacy_json=legacy_json)
        case SchemaType.STRING:
            if info.data not in _STRINGS:
                raise InvalidSchemaError("a STRING schema has no data")
        case _:
            if info.data:
                raise InvalidSchemaError(f"a schema of type {info.type} has no data")


def legacy_id(info: SchemaInfo) -> str | None:
    """The id of a JSON schema in the older form; None if it isn't in that form."""
    try:
        found = parse_json(info.data)
    except InvalidSchemaError:
        return None
    old = isinstance(found, dict) and found.get("type") == "object"
    return str(found.get("id", "")) if old else None


def identity(info: SchemaInfo) -> bytes:
    """32 bytes that are equal for schemas that count as one, and differ for others.

    ``info`` is valid. Name and properties are ignored, except the encoding of KEY_VALUE.
    """
    if info.type in AVRO_FORMS and legacy_id(info) is None:
        content = canonical_avro(parse_avro(info.data)).encode()
    elif info.type is SchemaType.KEY_VALUE:
        parts = b"".join(identity(part) for part in split_key_value(info))
        content = encoding_of(info).encode() + parts
    elif info.type is SchemaType.STRING:
        content = b""
    else:
        content = info.data
    return hashlib.sha256(info.type.encode() + b"\n" + content).digest()

"""Schemas as Pulsar's REST interface writes them: the data is a text, also that of KEY_VALUE."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from velaray.schemas.info import (
    KEY_VALUE_ENCODING,
    InvalidSchemaError,
    KeyValueEncoding,
    SchemaInfo,
    SchemaType,
    key_value,
    split_key_value,
)

_EMPTY = '""'  # as a key or value of a primitive type may be spelled
_OBJECTS = frozenset(
    {SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE}
)


def data_text(info: SchemaInfo) -> str:
    """The data of a valid schema as text; that of KEY_VALUE as an object with key and value."""
    if info.type is not SchemaType.KEY_VALUE:
        return info.data.decode("utf-8", errors="replace")
    parts = zip(("key", "value"), split_key_value(info), strict=True)
    return json.dumps({name: _part_value(part) for name, part in parts})


def _part_value(part: SchemaInfo) -> Any:
    return json.loads(part.data) if part.type in _OBJECTS else data_text(part)


def info_from_text(
    kind: Any, text: str, properties: Mapping[str, str], name: str = ""
) -> SchemaInfo:
    """The schema of type ``kind`` whose data is ``text``. Raises `InvalidSchemaError`."""
    try:
        type_ = SchemaType(kind)
    except ValueError:
        known = ", ".join(SchemaType)
        raise InvalidSchemaError(f"type {kind!r} is none of {known}") from None
    info = SchemaInfo(type_, name, text.encode(), properties)
    return _key_value_from(info) if type_ is SchemaType.KEY_VALUE else info


def _key_value_from(info: SchemaInfo) -> SchemaInfo:
    """Key and value are objects in the text; their types are properties."""
    try:
        found = json.loads(info.data)
        values = [found[part] for part in ("key", "value")]
    except (ValueError, RecursionError, TypeError, KeyError):
        raise InvalidSchemaError(
            "the text of a KEY_VALUE schema must be an object with key and value"
        ) from None
    texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
    raw = [b"" if text == _EMPTY else text.encode() for text in texts]
    data = b"".join(len(each).to_bytes(4, "big") + each for each in raw)
    key, value = split_key_value(replace(info, data=data))
    encoding = info.properties.get(KEY_VALUE_ENCODING, str(KeyValueEncoding.INLINE))
    told = key_value(key, value).properties
    return replace(
        info, data=data, properties={**told, **info.properties, KEY_VALUE_ENCODING: encoding}
    )

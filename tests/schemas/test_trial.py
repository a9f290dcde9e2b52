"""Whether a message can be read under a schema, type by type."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many

from tests.schemas.test_avro_matrix import EDITS
from velaray.events import events_pb2
from velaray.offline.schema_trial import reading_fails
from velaray.schemas import KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.avro import parse_avro
from velaray.schemas.avro_reading import reading_problems
from velaray.schemas.info import key_value
from velaray.schemas.native import native_schema


def schema(type_: SchemaType, data: Any = None) -> SchemaInfo:
    raw = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
    return SchemaInfo(type_, "s", raw)


TEXT, INT = schema(SchemaType.STRING), schema(SchemaType.INT32)
FORM = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "whole", "type": "int"},
        {"name": "named", "type": {"type": "enum", "name": "E", "symbols": ["A"]}, "default": "A"},
        {"name": "maybe", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "by", "type": {"type": "map", "values": "boolean"}, "default": {}},
        {"name": "half", "type": "double", "default": 0},
    ],
}
JSON = schema(SchemaType.JSON, FORM)


@pytest.mark.parametrize("edit", EDITS)
def test_compatible_values_can_be_decoded(edit: str) -> None:
    """Fastavro, which reads real messages, agrees with them wherever they say yes."""
    old, new, backward, _ = EDITS[edit]
    if not backward:
        return
    writer, reader = fastavro.parse_schema(old), schema(SchemaType.AVRO, new)
    assert not reading_problems(parse_avro(reader.data), parse_avro(json.dumps(old).encode()))
    for value in generate_many(writer, 20):
        raw = io.BytesIO()
        fastavro.schemaless_writer(raw, writer, value)
        wrong = reading_fails(reader, schema(SchemaType.AVRO, old), raw.getvalue())
        assert wrong is None, (edit, value, wrong)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"whole": 1}, None),
        ({"whole": 1.0, "maybe": ["x"], "by": {"a": True}, "half": 1, "named": "A"}, None),
        ({"whole": 1, "other": 2}, None),
        ({}, "/whole is missing"),
        ({"whole": 1.5}, "/whole: 1.5 isn't int"),
        ({"whole": True}, "/whole: True isn't int"),
        ({"whole": 1 << 40}, "isn't int"),
        ({"whole": 1, "maybe": [1]}, "/maybe fits no branch"),
        ({"whole": 1, "by": {"a": 1}}, "/by/a: 1 isn't boolean"),
        ({"whole": 1, "named": "B"}, "/named: 'B' isn't enum E"),
        ({"whole": 1, "half": "x"}, "/half: 'x' isn't double"),
        ([], "isn't record R"),
    ],
)
def test_values_of_json_schemas_are_checked(value: Any, problem: str | None) -> None:
    found = reading_fails(JSON, None, json.dumps(value).encode())
    assert found is problem if problem is None else problem in found


def event() -> bytes:
    return events_pb2.SubscriptionName(topic="t", subscription="s").SerializeToString()


NATIVE = schema(SchemaType.PROTOBUF_NATIVE, native_schema(events_pb2.SubscriptionName.DESCRIPTOR))


@pytest.mark.parametrize(
    ("reader", "writer", "payload", "problem"),
    [
        (TEXT, None, b"text", None),
        (TEXT, TEXT, b"\xff", "can't decode"),
        (TEXT, INT, b"\0\0\0\0", "published as INT32"),
        (INT, None, b"\0\0\0\0", None),
        (INT, None, b"\0", "INT32 has 4 bytes, not 1"),
        (JSON, None, b"{", "isn't JSON"),
        (NATIVE, NATIVE, event(), None),
        (NATIVE, None, b"\xff", "parsing"),
        (schema(SchemaType.AVRO, "int"), None, b"\2", None),
        (schema(SchemaType.AVRO, "int"), None, b"\2\2", "1 bytes are left over"),
        (schema(SchemaType.AVRO, "int"), None, b"", "ends too early"),
        (schema(SchemaType.JSON, b"{"), None, b"{}", "isn't JSON"),
    ],
)
def test_every_type_is_decoded(
    reader: SchemaInfo, writer: SchemaInfo | None, payload: bytes, problem: str | None
) -> None:
    found = reading_fails(reader, writer, payload)
    assert found is None if problem is None else problem in str(found)


def test_keys_and_values_are_decoded_in_both_encodings() -> None:
    inline, separated = (key_value(TEXT, INT, encoding) for encoding in KeyValueEncoding)
    both = b"\0\0\0\1k\0\0\0\4\0\0\0\7"
    assert reading_fails(inline, inline, both) is None
    assert reading_fails(inline, None, b"\xff\xff\xff\xff\0\0\0\4\0\0\0\7") is None
    assert reading_fails(inline, None, both[:-1]) is not None
    assert "aren't in the payload" in str(reading_fails(inline, None, b"\0\0\0\1k"))
    assert reading_fails(separated, separated, b"\0\0\0\7", b"k") is None
    assert "the key:" in str(reading_fails(separated, None, b"\0\0\0\7", b"\xff"))
    assert "the value:" in str(reading_fails(separated, None, b"", b"k"))

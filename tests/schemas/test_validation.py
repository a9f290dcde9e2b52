"""Accepted and refused schemas, and schemas that count as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import timestamp_pb2

from velaray.events import events_pb2
from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.info import key_value
from velaray.schemas.native import native_schema, parse_native
from velaray.schemas.validation import AVRO_FORMS, MAX_SCHEMA_BYTES, identity, validate

FIELD = {"name": "a", "type": "int"}
RECORD = {"type": "record", "name": "R", "fields": [FIELD]}
LEGACY = {"type": "object", "id": "urn:jsonschema:a", "properties": {}}
EVENT = native_schema(events_pb2.Event.DESCRIPTOR)


def schema(type_: SchemaType, data: Any = b"", **properties: str) -> SchemaInfo:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return SchemaInfo(type_, "s", raw, properties)


TEXT = schema(SchemaType.STRING)


@pytest.mark.parametrize(
    "good",
    [
        *(schema(form, RECORD) for form in sorted(AVRO_FORMS)),
        schema(SchemaType.JSON, ["null", RECORD]),
        schema(SchemaType.AVRO, "string"),
        schema(SchemaType.AVRO, {**RECORD, "name": "Outer$Inner"}),
        schema(SchemaType.AVRO, {**RECORD, "fields": [{**FIELD, "default": "no number"}]}),
        schema(
            SchemaType.AVRO, {**RECORD, "fields": [{"name": "a", "type": ["null", {"type": "R"}]}]}
        ),
        schema(SchemaType.PROTOBUF_NATIVE, EVENT),
        TEXT,
        schema(SchemaType.AVRO, {**RECORD, "type": "error"}),
        schema(SchemaType.STRING, b"null"),
        schema(SchemaType.INT64),
        schema(SchemaType.BYTES),
        key_value(TEXT, schema(SchemaType.AVRO, RECORD), KeyValueEncoding.SEPARATED),
    ],
    ids=lambda each: f"{each.type}-{each.data[:30]!r}",
)
def test_consistent_schemas_are_accepted(good: SchemaInfo) -> None:
    validate(good)
    assert len(identity(good)) == 32


_FILES = "fileDescriptorSet"


def deep(levels: int) -> Any:
    """Arrays within arrays."""
    found: Any = "int"
    for _ in range(levels):
        found = {"type": {"type": "array", "items": found}}
    return found


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (schema(SchemaType.AVRO, b"{"), "isn't JSON"),
        (schema(SchemaType.AVRO, b"[" * 100_000), "isn't JSON|nested deeper"),
        (schema(SchemaType.AVRO, ["null", RECORD]), "can't be a union"),
        (schema(SchemaType.AVRO, deep(150)), "nested deeper than 200 levels"),
        (schema(SchemaType.AVRO, "Unknown"), "'Unknown' is not defined"),
        (schema(SchemaType.AVRO, {**RECORD, "fields": [{**FIELD, "type": RECORD}]}), "twice"),
        (schema(SchemaType.AVRO, {**RECORD, "fields": ["a"]}), "a field that isn't an object"),
        (schema(SchemaType.AVRO, {"type": "record", "name": "R"}), "lacks fields"),
        (schema(SchemaType.AVRO, {**RECORD, "name": "1R"}), "'1R' isn't a name"),
        (schema(SchemaType.AVRO, {**RECORD, "name": 1}), "lacks name"),
        (
            schema(SchemaType.AVRO, {**RECORD, "fields": [FIELD, FIELD]}),
            "two fields of the same name",
        ),
        (
            schema(SchemaType.AVRO, {**RECORD, "fields": [{"name": "a"}]}),
            "/a: the field lacks type",
        ),
        (schema(SchemaType.AVRO, {**RECORD, "fields": [{**FIELD, "order": "up"}]}), "order 'up'"),
        (schema(SchemaType.AVRO, {**RECORD, "aliases": "R"}), "aliases must be a list"),
        (schema(SchemaType.AVRO, {"type": "array"}), "array lacks items"),
        (schema(SchemaType.AVRO, {"type": "fixed", "name": "F", "size": -1}), "size of -1"),
        (schema(SchemaType.AVRO, {"type": "enum", "name": "E", "symbols": ["A", "A"]}), "twice"),
        (schema(SchemaType.JSON, ["int", "int"]), "equal branches"),
        (schema(SchemaType.JSON, ["int", ["null"]]), "can't contain another"),
        (schema(SchemaType.JSON, {"type": "map", "values": 7}), "7 isn't an Avro type"),
        (schema(SchemaType.JSON, LEGACY), "'object' is not defined"),
        (schema(SchemaType.PROTOBUF, b"\xff"), "isn't JSON"),
        (schema(SchemaType.PROTOBUF_NATIVE, []), "must be a JSON object"),
        (schema(SchemaType.PROTOBUF_NATIVE, {_FILES: ""}), "rootMessageTypeName"),
        (
            schema(SchemaType.PROTOBUF_NATIVE, {_FILES: "%", "rootMessageTypeName": "A"}),
            "can't be read",
        ),
        (
            schema(SchemaType.PROTOBUF_NATIVE, {_FILES: "", "rootMessageTypeName": "A"}),
            "'A' can't be made",
        ),
        (schema(SchemaType.STRING, b"text"), "a STRING schema has no data"),
        (schema(SchemaType.INT32, b"4"), "of type INT32 has no data"),
        (schema(SchemaType.AUTO_CONSUME), "for clients only"),
        (schema(SchemaType.AUTO_PUBLISH), "for clients only"),
        (schema(SchemaType.KEY_VALUE), "ends before its key's"),
        (key_value(TEXT, schema(SchemaType.AVRO, b"{")), "isn't JSON"),
        (schema(SchemaType.AVRO, b" " * (MAX_SCHEMA_BYTES + 1)), "at most"),
    ],
    ids=lambda each: each[:30] if isinstance(each, str) else str(each.type),
)
def test_inconsistent_schemas_are_refused_with_the_reason(bad: SchemaInfo, problem: str) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        validate(bad)


def test_the_older_form_of_json_schemas_is_accepted_where_it_is_allowed() -> None:
    validate(schema(SchemaType.JSON, LEGACY), legacy_json=True)
    with pytest.raises(InvalidSchemaError):
        validate(schema(SchemaType.AVRO, LEGACY), legacy_json=True)


def field(**more: Any) -> dict[str, Any]:
    return {**RECORD, "fields": [{**FIELD, **more}]}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (RECORD, {"name": "R", "fields": [FIELD], "type": "record"}, True),
        (RECORD, {**RECORD, "doc": "text"}, True),
        (RECORD, {**RECORD, "aliases": ["Q"]}, True),
        (RECORD, field(type={"type": "int"}), True),
        (RECORD, field(doc="text"), True),
        (RECORD, field(order="ascending"), True),
        (RECORD, field(order="ignore"), False),
        (RECORD, field(default=1), False),
        (RECORD, {**RECORD, "namespace": "x"}, False),
        ({**RECORD, "name": "x.R"}, {**RECORD, "namespace": "x"}, True),
        (RECORD, {**RECORD, "avro.java.string": "String"}, False),
        (RECORD, field(type={"type": "int", "logicalType": "date"}), False),
        (enum("A", "B"), enum("A", "B", doc="text"), True),
        (enum("A", "B"), enum("B", "A"), False),
        (enum("A", "B"), enum("A", "B", default="A"), False),
        (fixed(4), fixed(8), False),
        (fixed(4), {**fixed(4), "aliases": ["G"]}, True),
        (array("int"), array({"type": "int"}), True),
        (array("int"), array("long"), False),
        (array("int"), {"type": "map", "values": "int"}, False),
        (field(type=["null", "int"]), field(type=["int", "null"]), False),
        (field(type=["null", "R"]), field(type=["null", {"type": "R"}]), True),
    ],
)
def test_avro_schemas_are_equal_if_avro_considers_them_equal(
    one: Any, other: Any, same: bool
) -> None:
    for form in AVRO_FORMS:
        assert (identity(schema(form, one)) == identity(schema(form, other))) is same


def test_schemas_are_distinguished_by_type_and_encoding_not_by_name_or_properties() -> None:
    record = schema(SchemaType.AVRO, RECORD)
    assert identity(record) == identity(
        SchemaInfo(SchemaType.AVRO, "other", record.data, {"a": "b"})
    )
    assert identity(record) != identity(schema(SchemaType.JSON, RECORD))
    assert identity(TEXT) == identity(schema(SchemaType.STRING, b"null"))
    assert identity(TEXT) != identity(schema(SchemaType.INT8))
    inline, separated = (key_value(TEXT, record, encoding) for encoding in KeyValueEncoding)
    assert identity(inline) != identity(separated)
    spaced = schema(SchemaType.AVRO, json.dumps(RECORD, indent=2).encode())
    assert identity(inline) == identity(key_value(TEXT, spaced))


def test_a_message_is_found_in_files_in_any_order() -> None:
    assert parse_native(EVENT).full_name == "velaray.events.Event"
    time = native_schema(timestamp_pb2.Timestamp.DESCRIPTOR)
    assert [each.name for each in parse_native(time).fields] == ["seconds", "nanos"]

"""Schemas as clients describe them, and how they travel."""

from __future__ import annotations

import pytest

from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.info import encoding_of, key_value, split_key_value
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.schemas import from_proto, read_version, to_proto, version_bytes

TEXT = SchemaInfo(SchemaType.STRING, "s")
RECORD = SchemaInfo(SchemaType.AVRO, "r", b'{"type": "string"}', {"a": "b"})


@pytest.mark.parametrize("type_", SchemaType)
def test_a_schema_survives_the_wire(type_: SchemaType) -> None:
    info = SchemaInfo(type_, "name", b"data", {"a": "b"})
    if type_ in (SchemaType.AUTO, SchemaType.AUTO_PUBLISH):
        with pytest.raises(ValueError, match="isn't sent"):
            to_proto(info)
        return
    sent = pb.Schema.FromString(to_proto(info).SerializeToString())
    read = SchemaType.NONE if type_ is SchemaType.BYTES else type_
    assert from_proto(sent) == SchemaInfo(read, "name", b"data", {"a": "b"})


def test_every_type_on_the_wire_has_a_name() -> None:
    for number in pb.Schema.Type.values():
        from_proto(pb.Schema(name="", schema_data=b"", type=number))


@pytest.mark.parametrize(
    ("version", "raw"), [(None, b""), (0, bytes(8)), (258, b"\0" * 6 + b"\1\2")]
)
def test_a_version_is_eight_bytes_or_absent(version: int | None, raw: bytes) -> None:
    assert version_bytes(version) == raw
    assert read_version(raw) == version


def test_invalid_version_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        read_version(b"abc")


@pytest.mark.parametrize("encoding", KeyValueEncoding)
def test_key_and_value_schemas_are_split_again(encoding: KeyValueEncoding) -> None:
    both = key_value(TEXT, RECORD, encoding)
    assert both.data == bytes(4) + len(RECORD.data).to_bytes(4, "big") + RECORD.data
    assert split_key_value(both) == (TEXT, RECORD)
    assert encoding_of(both) is encoding


def test_a_length_of_minus_one_means_absent_bytes() -> None:
    both = key_value(TEXT, RECORD)
    without = SchemaInfo(both.type, both.name, b"\xff" * 4 + both.data[4:], both.properties)
    assert split_key_value(without) == (TEXT, RECORD)


@pytest.mark.parametrize(
    ("data", "properties", "problem"),
    [
        (b"", {}, "ends before its key's"),
        (b"\0\0\0\5ab", {}, "ends within its key's"),
        (bytes(6), {}, "ends before its value's"),
        (bytes(9), {}, "1 bytes after"),
        (bytes(8), {"key.schema.type": "TREE"}, "isn't a schema type"),
        (bytes(8), {"value.schema.properties": "{"}, "isn't JSON"),
        (bytes(8), {"value.schema.properties": '{"a": 1}'}, "object of texts"),
    ],
)
def test_errors_of_broken_key_value_schemas_name_the_reason(
    data: bytes, properties: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidSchemaError, match=problem):
        split_key_value(SchemaInfo(SchemaType.KEY_VALUE, "", data, properties))


def test_an_unknown_encoding_is_refused() -> None:
    info = SchemaInfo(SchemaType.KEY_VALUE, "", b"", {"kv.encoding.type": "BOTH"})
    with pytest.raises(InvalidSchemaError, match="BOTH"):
        encoding_of(info)

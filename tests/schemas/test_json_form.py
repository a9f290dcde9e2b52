"""Schemas as REST writes them: their data as text, there and back."""

from __future__ import annotations

import json

import pytest

from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.info import KEY_VALUE_ENCODING, encoding_of, key_value, split_key_value
from velaray.schemas.json_form import data_text, info_from_text

RECORD = b'{"type": "record", "name": "R", "fields": []}'
AVRO = SchemaInfo(SchemaType.AVRO, "R", RECORD)
TEXT = SchemaInfo(SchemaType.STRING, "String")


@pytest.mark.parametrize("info", [AVRO, TEXT, SchemaInfo(SchemaType.INT64, "n")])
def test_schema_data_is_a_string(info: SchemaInfo) -> None:
    assert data_text(info) == info.data.decode()
    again = info_from_text(str(info.type), data_text(info), {"a": "b"}, info.name)
    assert again == SchemaInfo(info.type, info.name, info.data, {"a": "b"})


@pytest.mark.parametrize("encoding", KeyValueEncoding)
def test_key_and_value_are_objects(encoding: KeyValueEncoding) -> None:
    pair = key_value(TEXT, AVRO, encoding)
    text = data_text(pair)
    assert json.loads(text) == {"key": "", "value": json.loads(RECORD)}
    again = info_from_text("KEY_VALUE", text, pair.properties)
    key, value = split_key_value(again)
    assert (key, json.loads(value.data)) == (TEXT, json.loads(RECORD))
    assert encoding_of(again) is encoding


def test_a_primitive_part_may_be_quoted_and_the_encoding_omitted() -> None:
    told = {"key.schema.type": "STRING", "value.schema.type": "AVRO"}
    text = json.dumps({"key": '""', "value": RECORD.decode()})
    found = info_from_text("KEY_VALUE", text, told)
    assert [part.data for part in split_key_value(found)] == [b"", RECORD]
    assert found.properties[KEY_VALUE_ENCODING] == "INLINE"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"key": {}}', "[" * 100_000])
def test_a_pair_that_is_not_an_object_with_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError, match="must be an object with key and value"):
        info_from_text("KEY_VALUE", text, {})


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidSchemaError, match="type 'TREE' is none of NONE, BYTES"):
        info_from_text("TREE", "", {})

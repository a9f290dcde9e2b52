"""Strategies: who must read whom, for producers and for consumers, of every type."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from velaray.schemas import KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.compatibility import (
    Known,
    Rules,
    Strategy,
    consumer_problems,
    producer_problems,
)
from velaray.schemas.info import key_value
from velaray.schemas.native import native_schema
from velaray.schemas.validation import AVRO_FORMS

ALL = list(Strategy)


def avro(*fields: Any, type_: SchemaType = SchemaType.AVRO) -> SchemaInfo:
    named = [{"name": name, "type": "int", **more} for name, more in fields]
    data = json.dumps({"type": "record", "name": "R", "fields": named})
    return SchemaInfo(type_, "R", data.encode())


def schema(type_: SchemaType) -> SchemaInfo:
    return SchemaInfo(type_, "s")


F1, F2, F2_DEFAULT = ("f1", {}), ("f2", {}), ("f2", {"default": 1})
ONE, TWO, THREE = avro(F1), avro(F1, F2_DEFAULT), avro(F1, F2)


def known(*infos: SchemaInfo) -> list[Known]:
    return [Known(number, info) for number, info in enumerate(infos)]


def may_produce(info: SchemaInfo, *live: SchemaInfo) -> set[Strategy]:
    """The strategies under which ``info`` may become the next version."""
    return {each for each in ALL if not producer_problems(info, known(*live), Rules(each))}


def may_consume(info: SchemaInfo, *live: SchemaInfo) -> set[Strategy]:
    return {each for each in ALL if not consumer_problems(info, known(*live), Rules(each))}


S = Strategy
ANY = S.ALWAYS_COMPATIBLE
BACK, BACK_ALL = S.BACKWARD, S.BACKWARD_TRANSITIVE
FORTH, FORTH_ALL = S.FORWARD, S.FORWARD_TRANSITIVE
FULL, FULL_ALL = S.FULL, S.FULL_TRANSITIVE


@pytest.mark.parametrize("form", sorted(AVRO_FORMS))
def test_pulsars_transitive_example(form: SchemaType) -> None:
    """The third schema gets along with the second, but can't read what the first wrote."""
    one, two = avro(F1, type_=form), avro(F1, F2_DEFAULT, type_=form)
    three = avro(F1, F2, type_=form)
    everything = set(ALL) - {S.ALWAYS_INCOMPATIBLE}
    assert may_produce(two, one) == everything
    assert may_produce(three, two) == everything
    assert may_produce(three, one, two) == everything - {BACK_ALL, FULL_ALL}


def test_producers_are_compared_in_the_direction_of_the_strategy() -> None:
    assert may_produce(ONE) == set(ALL)  # the first one has nothing to get along with
    assert may_produce(THREE, ONE) == {ANY, FORTH, FORTH_ALL}
    assert may_produce(ONE, THREE) == {ANY, BACK, BACK_ALL}
    assert may_produce(avro(("other", {})), ONE) == {ANY}


def test_the_strategy_decides_which_versions_a_consumer_must_read() -> None:
    """FORWARD, FORWARD_TRANSITIVE and FULL too: the consumer reads the latest, no more."""
    latest_only = {ANY, BACK, FORTH, FORTH_ALL, FULL}
    assert may_consume(THREE, ONE, TWO) == latest_only
    assert may_consume(ONE, THREE) == latest_only | {BACK_ALL}  # FULL_ALL: it couldn't be read
    assert may_consume(THREE, ONE) == {ANY}
    assert may_consume(TWO, ONE, TWO) == set(ALL)


def test_a_consumer_with_a_known_schema_is_accepted_under_always_incompatible() -> None:
    """Pulsar is said to refuse even that one; here it changes nothing, so it may."""
    for live in ([ONE], [ONE, TWO]):
        assert S.ALWAYS_INCOMPATIBLE in may_consume(ONE, *live)
        assert S.ALWAYS_INCOMPATIBLE not in may_consume(THREE, *live)
        assert S.ALWAYS_INCOMPATIBLE not in may_produce(THREE, *live)


STRUCTS = {type_: avro(F1, type_=type_) for type_ in sorted(AVRO_FORMS)}
PRIMITIVES = {type_: schema(type_) for type_ in (SchemaType.STRING, SchemaType.INT32)}
EVERY = {**STRUCTS, **PRIMITIVES, SchemaType.KEY_VALUE: key_value(ONE, ONE)}


@pytest.mark.parametrize("old", EVERY)
@pytest.mark.parametrize("new", EVERY)
def test_another_type_is_compatible_only_under_always_compatible(
    old: SchemaType, new: SchemaType
) -> None:
    allowed = set(ALL) - {S.ALWAYS_INCOMPATIBLE} if old is new else {ANY}
    assert may_produce(EVERY[new], EVERY[old]) == allowed
    assert may_consume(EVERY[new], EVERY[old]) - {S.ALWAYS_INCOMPATIBLE} == allowed


def test_a_refusal_names_the_version_the_direction_and_the_field() -> None:
    (found,) = producer_problems(THREE, known(ONE), Rules(FULL))
    assert (found.version, found.reads, found.path) == (0, True, "/f2")
    assert str(found) == (
        "it can't read version 0, at /f2: record R lacks the field, which has no default"
    )
    (other,) = producer_problems(ONE, known(TWO, THREE), Rules(FULL))
    assert str(other).startswith("it can't be read by version 1, at /f2:")
    both = producer_problems(THREE, known(ONE, ONE), Rules(BACK_ALL))
    assert [each.version for each in both] == [1, 0]


# -- keys and values ---------------------------------------------------------------


def test_key_and_value_are_compared_separately() -> None:
    both = set(ALL) - {S.ALWAYS_INCOMPATIBLE}
    assert may_produce(key_value(TWO, TWO), key_value(ONE, ONE)) == both
    for new in (key_value(THREE, ONE), key_value(ONE, THREE)):
        assert may_produce(new, key_value(ONE, ONE)) == {ANY, FORTH, FORTH_ALL}
    # One may only be read by, the other only read: nothing but ANY holds for both.
    assert may_produce(key_value(THREE, ONE), key_value(ONE, THREE)) == {ANY}
    text = schema(SchemaType.STRING)
    assert may_produce(key_value(text, ONE), key_value(ONE, ONE)) == {ANY}
    (found,) = producer_problems(key_value(ONE, THREE), known(key_value(ONE, ONE)), Rules(BACK))
    assert found.path == "/value/f2"


def test_the_encoding_of_keys_cannot_change() -> None:
    inline, separated = (key_value(ONE, ONE, encoding) for encoding in KeyValueEncoding)
    assert may_produce(separated, inline) == {ANY}


# -- native protobuf ---------------------------------------------------------------

P = FieldDescriptorProto
Field = tuple[str, int, int, int]


def message(
    *fields: Field, name: str = "M", enum: tuple[int, ...] = (), closed: bool = False
) -> SchemaInfo:
    """A message ``test.<name>`` with fields (name, number, type, label)."""
    file = FileDescriptorProto(
        name="m.proto", package="test", syntax="proto2" if closed else "proto3"
    )
    made = file.message_type.add(name=name)
    if enum:
        colors = file.enum_type.add(name="Color")
        for number in enum:
            colors.value.add(name=f"C{number}", number=number)
    for title, number, type_, label in fields:
        each = made.field.add(name=title, number=number, type=type_, label=label)
        if type_ == P.TYPE_ENUM:
            each.type_name = ".test.Color"
        if type_ == P.TYPE_MESSAGE:
            each.type_name = f".test.{name}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"test.{name}")
    return SchemaInfo(SchemaType.PROTOBUF_NATIVE, name, native_schema(descriptor))


def one(type_: int, label: int = P.LABEL_OPTIONAL, number: int = 1, title: str = "a") -> Field:
    return title, number, type_, label


NAMED = message(one(P.TYPE_INT32))
_CLOSED = {"closed": True}
_COLOR = one(P.TYPE_ENUM)
# new, old, whether new reads old, whether old reads new
FIELDS: dict[str, tuple[SchemaInfo, SchemaInfo, bool, bool]] = {
    "the same": (NAMED, NAMED, True, True),
    "a field more": (
        message(one(P.TYPE_INT32), one(P.TYPE_BOOL, number=2, title="b")),
        NAMED,
        True,
        True,
    ),
    "another name of the field": (message(one(P.TYPE_INT32, title="z")), NAMED, True, True),
    "another number": (message(one(P.TYPE_INT32, number=2)), NAMED, False, False),
    "wider": (message(one(P.TYPE_INT64)), NAMED, True, False),
    "another type": (message(one(P.TYPE_STRING)), NAMED, False, False),
    "zigzag": (message(one(P.TYPE_SINT32)), NAMED, False, False),
    "many": (message(one(P.TYPE_INT32, P.LABEL_REPEATED)), NAMED, True, False),
    "bytes of a text": (message(one(P.TYPE_BYTES)), message(one(P.TYPE_STRING)), True, False),
    "required": (
        message(one(P.TYPE_INT32, P.LABEL_REQUIRED), closed=True),
        message(one(P.TYPE_INT32), closed=True),
        False,
        True,
    ),
    "a required one more": (
        message(one(P.TYPE_INT32, P.LABEL_REQUIRED), closed=True),
        message(closed=True),
        False,
        True,
    ),
    "a value less": (message(_COLOR, enum=(0,)), message(_COLOR, enum=(0, 1)), True, True),
    "a value less, closed": (
        message(_COLOR, enum=(0,), closed=True),
        message(_COLOR, enum=(0, 1), closed=True),
        False,
        True,
    ),
    "in a message inside": (
        message(one(P.TYPE_STRING), one(P.TYPE_MESSAGE, number=2, title="m")),
        message(one(P.TYPE_INT32), one(P.TYPE_MESSAGE, number=2, title="m")),
        False,
        False,
    ),
}


@pytest.mark.parametrize("edit", FIELDS)
def test_fields_of_native_messages_are_compared_on_request(edit: str) -> None:
    new, old, reads, is_read = FIELDS[edit]
    for strategy, good in ((BACK, reads), (FORTH, is_read), (FULL, reads and is_read)):
        found = producer_problems(new, known(old), Rules(strategy, native_fields=True))
        assert (not found) is good, (strategy, found)
        assert not producer_problems(new, known(old), Rules(strategy))  # Pulsar looks at the name


def test_another_message_is_never_compatible() -> None:
    assert may_produce(message(one(P.TYPE_INT32), name="N"), NAMED) == {ANY}


# -- json in the form that it had before Pulsar 2.1 --------------------------------


def legacy(id_: str) -> SchemaInfo:
    text = json.dumps({"type": "object", "id": id_, "properties": {}})
    return SchemaInfo(SchemaType.JSON, "R", text.encode())


def test_the_older_form_of_json_is_compared_by_id_and_compatible_with_the_newer() -> None:
    newer = avro(F1, type_=SchemaType.JSON)
    every = set(ALL) - {S.ALWAYS_INCOMPATIBLE}
    assert may_produce(legacy("a"), legacy("a")) == every
    assert may_produce(legacy("b"), legacy("a")) == {ANY}
    assert may_produce(newer, legacy("a")) == may_produce(legacy("a"), newer) == every


def test_every_strategy_has_a_transitive_form() -> None:
    assert Rules(FORTH, native_fields=True).transitive() == Rules(FORTH_ALL, native_fields=True)
    assert Rules(FULL_ALL).transitive() == Rules(FULL_ALL)
    assert Rules(ANY).transitive() == Rules(ANY)


def test_an_unusable_stored_version_is_named() -> None:
    broken = SchemaInfo(SchemaType.AVRO, "R", b"{")
    live = [Known(0, ONE), Known(1, broken)]
    for strategy in (BACK, FORTH, FULL, BACK_ALL, FORTH_ALL, FULL_ALL):
        found = producer_problems(TWO, live, Rules(strategy))
        assert {each.version for each in found} == {1}
        assert "the stored schema of that version is invalid: the schema isn't JSON" in str(
            found[0]
        )
    assert not producer_problems(TWO, live, Rules(ANY))
    assert not producer_problems(TWO, [Known(0, broken), Known(1, ONE)], Rules(FULL))

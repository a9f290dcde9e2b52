"""Which edits of an Avro schema old and new programs survive: Avro's rules, as a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from velaray.schemas.avro import parse_avro
from velaray.schemas.avro_reading import reading_problems


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def has(name: str, type_: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


A, B = has("a"), has("b", default=1)
NEXT = has("next", ["null", "R"])

# what is edited: old, new, whether new reads old (BACKWARD), whether old reads new (FORWARD)
EDITS: dict[str, tuple[Any, Any, bool, bool]] = {
    "nothing": (record(A), record(A), True, True),
    "a field with a default more": (record(A), record(A, B), True, True),
    "a field without a default more": (record(A), record(A, has("b")), False, True),
    "a field that had a default less": (record(A, B), record(A), True, True),
    "a field without a default less": (record(A, has("b")), record(A), True, False),
    "renamed": (record(A), record(has("z")), False, False),
    "renamed with an alias": (record(A), record(has("z", aliases=["a"])), True, False),
    "renamed, all defaulted": (record(B), record(has("z", default=1)), True, True),
    "int to long": (record(A), record(has("a", "long")), True, False),
    "int to float": (record(A), record(has("a", "float")), True, False),
    "int to double": (record(A), record(has("a", "double")), True, False),
    "long to float": (record(has("a", "long")), record(has("a", "float")), True, False),
    "float to double": (record(has("a", "float")), record(has("a", "double")), True, False),
    "string to bytes": (record(has("a", "string")), record(has("a", "bytes")), True, True),
    "int to string": (record(A), record(has("a", "string")), False, False),
    "a symbol more": (enum("X"), enum("X", "Y"), True, False),
    "a symbol more, a default": (enum("X", default="X"), enum("X", "Y", default="X"), True, True),
    "a symbol less": (enum("X", "Y"), enum("X"), False, True),
    "a symbol less, a default": (enum("X", "Y"), enum("X", default="X"), True, True),
    "a default that is no symbol": (enum("X", "Y"), enum("X", default="Z"), False, True),
    "optional now": (record(A), record(has("a", ["null", "int"])), True, False),
    "a branch more": (["null", "int"], ["null", "int", "string"], True, False),
    "branches in another order": (["null", "int"], ["int", "null"], True, True),
    "a branch that promotes": (["null", "int"], ["null", "long"], True, False),
    "a union of what it was": (record(A), [record(A)], True, True),
    "another record name": (record(A), record(A, name="S"), True, True),
    "another record name, an alias": (record(A), record(A, name="S", aliases=["R"]), True, True),
    "another namespace": (record(A, namespace="x"), record(A, namespace="y"), True, True),
    "an alias with a namespace": (
        record(A, namespace="x"),
        record(A, namespace="y", aliases=["x.R"]),
        True,
        True,
    ),
    "an alias in the own namespace": (
        record(A, namespace="x"),
        record(A, name="S", namespace="x", aliases=["R"]),
        True,
        True,
    ),
    "another record name in a union": (
        ["null", record(A)],
        ["null", record(A, name="S")],
        True,
        True,
    ),
    "another namespace in a union": (
        ["null", record(A, namespace="x")],
        ["null", record(A, namespace="y")],
        True,
        True,
    ),
    "another record name in a field": (
        record(has("in", record(A, name="I"))),
        record(has("in", record(A, name="J"))),
        True,
        True,
    ),
    "another record name, a field more": (
        record(A),
        record(A, has("b"), name="S"),
        False,
        True,
    ),
    "another record name in a union, two that fit": (
        ["null", record(A)],
        ["null", record(A, name="S"), record(A, name="T")],
        True,
        True,
    ),
    "the record of this name in a union doesn't fit": (
        record(A),
        [record(has("a", "string")), record(A, name="S")],
        False,
        False,
    ),
    "another record name in a recursive record": (
        record(A, NEXT),
        record(A, has("next", ["null", "S"]), name="S"),
        True,
        True,
    ),
    "another namespace of an enum in a union": (
        ["null", enum("X")],
        ["null", enum("X", namespace="x")],
        True,
        True,
    ),
    "a union of an enum of another namespace": (
        enum("X"),
        ["null", enum("X", namespace="x")],
        True,
        False,
    ),
    "another namespace of a fixed, a branch more": (
        ["null", {"type": "fixed", "name": "F", "size": 4}],
        ["null", {"type": "fixed", "name": "F", "size": 4, "namespace": "x"}, "int"],
        True,
        False,
    ),
    "another enum name in a union": (
        ["null", enum("X")],
        ["null", {**enum("X"), "name": "F"}],
        False,
        False,
    ),
    "another enum name, an alias": (
        enum("X"),
        {**enum("X"), "name": "F", "aliases": ["E"]},
        True,
        False,
    ),
    "another enum name": (enum("X"), {**enum("X"), "name": "F"}, False, False),
    "another namespace of an enum": (enum("X"), enum("X", namespace="x"), True, True),
    "another fixed name": (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "G", "size": 4},
        False,
        False,
    ),
    "another namespace of a fixed": (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 4, "namespace": "x"},
        True,
        True,
    ),
    "fields in another order": (record(A, B), record(B, A), True, True),
    "other documentation": (record(A, doc="old"), record(A, doc="new"), True, True),
    "a default of null": (
        record(A),
        record(A, has("b", ["null", "int"], default=None)),
        True,
        True,
    ),
    "a longer fixed": (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 8},
        False,
        False,
    ),
    "items that promote": (
        {"type": "array", "items": "int"},
        {"type": "array", "items": "long"},
        True,
        False,
    ),
    "values of another type": (
        {"type": "map", "values": "int"},
        {"type": "map", "values": "string"},
        False,
        False,
    ),
    "an array of a map": (
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        False,
        False,
    ),
    "deep inside of a recursive record": (
        record(A, NEXT),
        record(has("a", "string"), NEXT),
        False,
        False,
    ),
    "a recursive record, a default more": (record(A, NEXT), record(A, B, NEXT), True, True),
    "a record in a field, a field less": (
        record(has("in", record(A, name="I"))),
        record(has("in", record(name="I"))),
        True,
        False,
    ),
    "primitives written as objects": ("int", {"type": "int"}, True, True),
}

JAVA: dict[str, tuple[bool, bool]] = {
    "a symbol more": (True, True),
    "a symbol less": (True, True),
    "a union of an enum of another namespace": (False, False),
    "another namespace of a fixed, a branch more": (False, False),
}
"""Where Java's Avro, with which Pulsar's brokers compare, doesn't say what is said here:
`tests/official/test_java_schemas.py` asks it. It ignores symbols that a reader lacks: they fail
when such a message is read. It takes an enum of another namespace everywhere but in a union that
differs from the other one in something else too."""


def problems(reader: Any, writer: Any) -> list[str]:
    found = reading_problems(
        parse_avro(json.dumps(reader).encode()), parse_avro(json.dumps(writer).encode())
    )
    return [f"{each.path} {each.text}" for each in found]


@pytest.mark.parametrize("edit", EDITS)
def test_schema_resolution_matches_the_matrix_in_both_directions(edit: str) -> None:
    old, new, backward, forward = EDITS[edit]
    assert (problems(new, old) == []) is backward
    assert (problems(old, new) == []) is forward


def test_a_failure_names_the_place_and_the_reason() -> None:
    old = record(has("in", {"type": "array", "items": record(A, name="I")}))
    new = record(
        has("in", {"type": "array", "items": record(has("a", "string"), has("b"), name="I")})
    )
    assert problems(new, old) == [
        "/in/items/b record I lacks the field, which has no default",
        "/in/items/a string can't read int",
    ]
    assert problems(["null", "int"], ["null", "string"]) == [
        "/ no branch of the reader's union reads string"
    ]
    assert problems(["null", record(has("a", "string"))], record(A)) == ["/a string can't read int"]


def test_mutually_recursive_types_are_compared_as_a_whole() -> None:
    def pair(leaf: str) -> Any:
        inner = record(has("back", ["null", "Outer"]), has("leaf", leaf), name="Inner")
        return record(has("inner", ["null", inner]), name="Outer")

    assert problems(pair("int"), pair("int")) == []
    assert problems(pair("int"), pair("string")) == ["/inner/leaf int can't read string"]


def test_types_that_share_many_others_are_compared_in_reasonable_time() -> None:
    """Each type is used twice by the one before: there are 2 ** 60 ways down."""

    def deep(leaf: str) -> Any:
        named: Any = record(has("leaf", leaf), name="T60")
        for number in range(59, 0, -1):
            named = record(has("x", named), has("y", f"T{number + 1}"), name=f"T{number}")
        return named

    assert problems(deep("long"), deep("int")) == []
    assert problems(deep("int"), deep("long"))[0].endswith("/leaf int can't read long")

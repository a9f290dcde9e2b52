"""Parses Avro schemas: resolves names, and gives equal schemas one canonical text.

As strict as Pulsar's brokers: names may contain ``$``, and defaults aren't checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from velaray.schemas.info import InvalidSchemaError

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED = frozenset({"record", "enum", "fixed"})
MAX_DEPTH = 200
"""Schemas are nested no deeper than this."""

_TYPE_KEYS = {
    "record": {"type", "name", "namespace", "aliases", "doc", "fields"},
    "enum": {"type", "name", "namespace", "aliases", "doc", "symbols", "default"},
    "fixed": {"type", "name", "namespace", "aliases", "doc", "size"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_FIELD_KEYS = {"name", "type", "default", "aliases", "doc", "order"}


class _Nothing(Enum):
    NOTHING = "there is no default"


NOTHING = _Nothing.NOTHING
"""Stands for a missing default, since null is a valid one."""


@dataclass(slots=True, eq=False)
class AvroType:
    """A type: ``kind`` is Avro's name for it, or ``union``; fields that don't apply are empty.

    ``name`` and ``aliases`` are full names. ``properties`` are attributes that Avro doesn't define,
    and logical types.
    """

    kind: str
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | _Nothing = NOTHING
    size: int = 0
    of: list[AvroType] = field(default_factory=list)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: frozenset[str]
    default: Any
    order: str
    properties: Mapping[str, Any]


def parse_json(data: bytes) -> Any:
    """The JSON value in ``data``. Raises `InvalidSchemaError`."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema isn't JSON: {error}") from error


def parse_avro(data: bytes) -> AvroType:
    """The schema whose JSON form is ``data``. Raises `InvalidSchemaError`."""
    return _Parser().parse(parse_json(data), "", "", 0)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, raw: Any, space: str, path: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels")
        match raw:
            case str():
                return self._reference(raw, space, path)
            case list():
                return self._union(raw, space, path, depth)
            case {"type": str(kind)} if kind in _TYPE_KEYS:
                return self._composite(kind, raw, space, path, depth)
            case {"type": "error"}:
                return self._composite("record", raw, space, path, depth)
            case {"type": str(kind)} if kind in PRIMITIVES:
                return AvroType(kind, properties=_others(raw, {"type"}))
            case {"type": inner}:
                return self.parse(inner, space, path, depth + 1)
        raise _wrong(path, f"{json.dumps(raw)[:80]} isn't an Avro type")

    def _reference(self, text: str, space: str, path: str) -> AvroType:
        if text in PRIMITIVES:
            return AvroType(text)
        found = self._named.get(_full(text, space)) or self._named.get(text)
        if found is None:
            raise _wrong(path, f"type {text!r} is not defined")
        return found

    def _union(self, raw: list[Any], space: str, path: str, depth: int) -> AvroType:
        branches = [self.parse(each, space, f"{path}/{n}", depth + 1) for n, each in enumerate(raw)]
        kinds = [str(branch) for branch in branches]
        if "union" in kinds:
            raise _wrong(path, "a union can't contain another union")
        if len(set(kinds)) < len(kinds):
            raise _wrong(path, f"a union with equal branches: {', '.join(kinds)}")
        return AvroType("union", of=branches)

    def _composite(
        self, kind: str, raw: dict[str, Any], space: str, path: str, depth: int
    ) -> AvroType:
        found = AvroType(kind, properties=_others(raw, _TYPE_KEYS[kind]))
        if kind in NAMED:
            space = self._define(found, raw, space, path)
        if kind == "record":
            fields = _required(raw, "fields", list, path)
            found.fields = [self._field(each, space, path, depth + 1) for each in fields]
            names = [each.name for each in found.fields]
            if len(set(names)) < len(names):
                raise _wrong(path, f"{found} has two fields of the same name")
        elif kind == "enum":
            symbols = _required(raw, "symbols", list, path)
            found.symbols = tuple(_name(each, path) for each in symbols)
            if len(set(symbols)) < len(symbols):
                raise _wrong(path, f"{found} has a symbol twice")
            found.default = raw.get("default", NOTHING)
        elif kind == "fixed":
            found.size = _required(raw, "size", int, path)
            if found.size < 0:
                raise _wrong(path, f"{found} has a size of {found.size}")
        else:
            inner = "items" if kind == "array" else "values"
            if inner not in raw:
                raise _wrong(path, f"{kind} lacks {inner}")
            found.of = [self.parse(raw[inner], space, f"{path}/{inner}", depth + 1)]
        return found

    def _define(self, found: AvroType, raw: dict[str, Any], space: str, path: str) -> str:
        """Register a named type; return the namespace for names inside it."""
        given = _required(raw, "name", str, path)
        if "." not in given and isinstance(raw.get("namespace"), str):
            space = raw["namespace"]
        found.name = _full(given, space)
        for part in found.name.split("."):
            _name(part, path)
        if found.name in self._named:
            raise _wrong(path, f"{found.name} is defined twice")
        self._named[found.name] = found
        space = found.name.rpartition(".")[0]
        found.aliases = frozenset(_full(each, space) for each in _aliases(raw, path))
        return space

    def _field(self, raw: Any, space: str, path: str, depth: int) -> AvroField:
        if not isinstance(raw, dict):
            raise _wrong(path, "a field that isn't an object")
        name = _name(_required(raw, "name", str, path), path)
        path = f"{path}/{name}"
        if "type" not in raw:
            raise _wrong(path, "the field lacks type")
        order = raw.get("order", "ascending")
        if order not in ("ascending", "descending", "ignore"):
            raise _wrong(path, f"order {order!r}")
        return AvroField(
            name=name,
            type=self.parse(raw["type"], space, path, depth),
            aliases=frozenset(_aliases(raw, path)),
            default=raw.get("default", NOTHING),
            order=order,
            properties=_others(raw, _FIELD_KEYS),
        )


def _full(name: str, space: str) -> str:
    if "." in name:
        return name.removeprefix(".")
    return f"{space}.{name}" if space else name


def _name(text: Any, path: str) -> str:
    """Letters, digits, ``_`` and ``$``, no digit first."""
    if isinstance(text, str) and text.replace("$", "_").isidentifier():
        return text
    raise _wrong(path, f"{text!r} isn't a name")


def _aliases(raw: dict[str, Any], path: str) -> list[str]:
    found = raw.get("aliases", [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _wrong(path, "aliases must be a list of names")
    return found


def _required(raw: dict[str, Any], key: str, kind: type, path: str) -> Any:
    found = raw.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise _wrong(path, f"{raw.get('type', 'field')} lacks {key}, or it has the wrong type")
    return found


def _others(raw: dict[str, Any], known: set[str]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in known}


def _wrong(path: str, problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"not an Avro schema, at {path or '/'}: {problem}")


# -- one text for equal schemas ----------------------------------------------------


def canonical_avro(schema: AvroType) -> str:
    """A text that is equal for schemas that are equal to Avro.

    Documentation, aliases, the order of keys and the spelling of names don't count; defaults and
    properties that Avro doesn't define do.
    """
    return json.dumps(_plain(schema, set()), sort_keys=True, separators=(",", ":"))


def _plain(schema: AvroType, seen: set[str]) -> Any:
    if schema.kind == "union":
        return [_plain(each, seen) for each in schema.of]
    if schema.name in seen:
        return schema.name
    found: dict[str, Any] = {**schema.properties, "type": schema.kind}
    if schema.kind in NAMED:
        seen.add(schema.name)
        found["name"] = schema.name
    match schema.kind:
        case "record":
            found["fields"] = [_plain_field(each, seen) for each in schema.fields]
        case "enum":
            found["symbols"] = list(schema.symbols)
            _set_default(found, schema.default)
        case "fixed":
            found["size"] = schema.size
        case "array" | "map":
            found["of"] = _plain(schema.of[0], seen)
    return found if len(found) > 1 else schema.kind


def _plain_field(each: AvroField, seen: set[str]) -> dict[str, Any]:
    found = {**each.properties, "name": each.name, "type": _plain(each.type, seen)}
    _set_default(found, each.default)
    if each.order != "ascending":
        found["order"] = each.order
    return found


def _set_default(found: dict[str, Any], default: Any) -> None:
    if default is not NOTHING:
        found["default"] = default

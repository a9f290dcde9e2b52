"""The types of policies: what values they take, in Python and as JSON schemas.

As Pulsar's JSON reader does, they accept numbers and booleans as texts, and ignore fields of
objects that are null or an empty text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_MOST = 1 << 63


class PolicyType(Protocol):
    """What values a policy, or a field of one, takes."""

    def parse(self, value: Any) -> Any:
        """A parsed JSON value in its stored form. Raises `ValueError` if it isn't valid."""
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the stored form, and of fields that may be given without effect."""
        ...


@dataclass(frozen=True, slots=True)
class Boolean:
    """True or false."""

    def parse(self, value: Any) -> bool:
        """As `PolicyType.parse`."""
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return bool(value == "true")
        raise ValueError("must be true or false")

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of at least ``least``."""

    least: int = 0

    def parse(self, value: Any) -> int:
        """As `PolicyType.parse`."""
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and self.least <= value < _MOST):
            raise ValueError(f"must be a whole number >= {self.least}")
        return int(value)

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several texts."""

    choices: tuple[str, ...]

    def parse(self, value: Any) -> str:
        """As `PolicyType.parse`."""
        if value not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return str(value)

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"enum": list(self.choices)}


@dataclass(frozen=True, slots=True)
class Text:
    """A text that isn't empty."""

    def parse(self, value: Any) -> str:
        """As `PolicyType.parse`."""
        if not (isinstance(value, str) and value):
            raise ValueError("must be a text, not empty")
        return value

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one type."""

    each: PolicyType
    may_be_empty: bool = False

    def parse(self, value: Any) -> list[Any]:
        """As `PolicyType.parse`."""
        if not (isinstance(value, list) and (value or self.may_be_empty)):
            empty = "which may be empty" if self.may_be_empty else "not empty"
            raise ValueError(f"must be a list, {empty}")
        return [_read_field(f"[{at}]", self.each, found) for at, found in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        found = {"type": "array", "items": self.each.schema()}
        return found if self.may_be_empty else {**found, "minItems": 1}


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by name."""

    def parse(self, value: Any) -> dict[str, str]:
        """As `PolicyType.parse`."""
        if not (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
            raise ValueError("must be an object whose values are texts")
        return dict(value)

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": "object", "additionalProperties": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class ByName:
    """Values of one type by name."""

    each: PolicyType

    def parse(self, value: Any) -> dict[str, Any]:
        """As `PolicyType.parse`."""
        if not isinstance(value, dict):
            raise ValueError("must be an object with a value for each name")
        return {name: _read_field(name, self.each, found) for name, found in value.items()}

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": "object", "additionalProperties": self.each.schema()}


_WITHOUT_EFFECT = (None, "", "None", "UNDEFINED", False, 0, -1)
_NOTHING_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"enum": list(_WITHOUT_EFFECT)},
        {"type": "array", "maxItems": 0},
        {"type": "object", "description": "All fields have such values."},
    ]
}


def says_nothing(value: Any) -> bool:
    """Whether a field has a value that Pulsar's tools send for "not set"."""
    if isinstance(value, dict):
        return all(says_nothing(each) for each in value.values())
    if isinstance(value, list):
        return not value
    return value in _WITHOUT_EFFECT


@dataclass(frozen=True, slots=True)
class Nothing:
    """The values that mean "not set"."""

    def parse(self, value: Any) -> Any:
        """As `PolicyType.parse`."""
        if not says_nothing(value):
            raise ValueError("must be a value without effect")
        return value

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return dict(_NOTHING_SCHEMA)


@dataclass(frozen=True, slots=True)
class NothingIn:
    """Null, or an object whose ``field`` says nothing; its other fields mean nothing alone."""

    field: str

    def parse(self, value: Any) -> Any:
        """As `PolicyType.parse`."""
        if not (value is None or (isinstance(value, dict) and says_nothing(value.get(self.field)))):
            raise ValueError(f"must be a value without effect: no {self.field}")
        return value

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"type": ["object", "null"], "properties": {self.field: dict(_NOTHING_SCHEMA)}}


@dataclass(frozen=True, slots=True)
class Only:
    """One value."""

    value: Any

    def parse(self, value: Any) -> Any:
        """As `PolicyType.parse`."""
        if value is not self.value:
            raise ValueError(f"must be {json.dumps(self.value)}")
        return value

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        return {"const": self.value}


def no_problem(found: Mapping[str, Any]) -> None:
    """Accept any fields together."""


@dataclass(frozen=True, slots=True)
class Record:
    """An object with fields.

    ``without_effect`` are fields that aren't applied, each with the only accepted value, which
    changes nothing. ``check`` raises `ValueError` if the fields don't fit together.
    """

    required: Mapping[str, PolicyType] = field(default_factory=dict)
    optional: Mapping[str, PolicyType] = field(default_factory=dict)
    without_effect: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] = no_problem

    def parse(self, value: Any) -> dict[str, Any]:
        """As `PolicyType.parse`."""
        fields = {**self.required, **self.optional}
        if not isinstance(value, dict):
            raise ValueError(f"must be an object with {', '.join(fields)}")
        given = {name: found for name, found in value.items() if found not in (None, "")}
        for name in self.required:
            if name not in given:
                raise ValueError(f"lacks {name}")
        read = {}
        for name, found in given.items():
            if name in fields:
                read[name] = _read_field(name, fields[name], found)
            elif name not in self.without_effect:
                raise ValueError(f"has no field {name}; it has {', '.join(fields)}")
            elif found != self.without_effect[name]:
                raise ValueError(
                    f"has {name}, which velaray doesn't apply: leave it out, "
                    f"or give {json.dumps(self.without_effect[name])}"
                )
        self.check(read)
        return read

    def schema(self) -> dict[str, Any]:
        """As `PolicyType.schema`."""
        fields = {**self.required, **self.optional}
        found: dict[str, Any] = {
            "type": "object",
            "properties": {
                **{name: each.schema() for name, each in fields.items()},
                **{name: {"const": only} for name, only in self.without_effect.items()},
            },
            "additionalProperties": False,
        }
        return {**found, "required": list(self.required)} if self.required else found


def _read_field(name: str, kind: PolicyType, value: Any) -> Any:
    try:
        return kind.parse(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error

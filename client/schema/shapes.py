"""The types of record fields: their Avro schemas, and conversion in both directions.

Values go *out* to the form that `json` and `fastavro` write, and *back* from the form that these
read. Both directions check their input. Shapes are made for JSON or for Avro, which differ in bytes
and times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any, Literal

Way = Literal["out", "back"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO = date(1970, 1, 1)


ALWAYS = "True"
"""The `Shape.test` of values that fastavro checks itself."""


class Wrong(ValueError):
    """A value that doesn't fit; `fault` finds the wrong part."""


class Shape:
    """One type. Subclasses define its Avro name and its values."""

    expected = ""
    """The expected values, for error messages."""

    test = ""
    """Python's condition under which ``{}`` needs no conversion; "" if there is none."""

    def avro(self, known: set[str]) -> Any:
        """The Avro schema, as JSON values; types in ``known`` are given by name alone."""
        raise NotImplementedError

    def out(self, value: Any) -> Any:
        """Return the form to write. Raises `Wrong`."""
        raise NotImplementedError

    def back(self, plain: Any) -> Any:
        """Return the value of the read form. Raises `Wrong`."""
        return self.out(plain)

    def parts(self, value: Any, way: Way) -> Iterator[tuple[str, Shape, Any]]:
        """Yield the parts of ``value``: position, shape, and part."""
        return iter(())


def fault(shape: Shape, value: Any, way: Way, path: str = "") -> str | None:
    """Return the wrong part of a value and what is expected; None if the value fits."""
    for step, part, each in shape.parts(value, way):
        found = fault(part, each, way, path + step)
        if found is not None:
            return found
    try:
        shape.out(value) if way == "out" else shape.back(value)
    except Wrong:
        where = f"field {path.lstrip('.')}" if path else "the value"
        return f"{where} must be {shape.expected}, not {_told(value)}"
    except (ValueError, TypeError):
        pass  # a user's class refuses it; its error has more detail
    return None


def _told(value: Any) -> str:
    if value is None or value is MISSING:
        return "None" if value is None else "left out"
    return f"{type(value).__name__} {value!r:.80}"


class _Missing(Enum):
    MISSING = "missing"


MISSING = _Missing.MISSING
"""Stands for a missing value or default."""


class Scalar(Shape):
    """A type that Avro and JSON have; ``kinds`` are Python's types, without foreign subclasses."""

    def __init__(self, name: str, expected: str, kind: type, test: str = "") -> None:
        self.name = name
        self.expected = expected
        self.kind = kind
        self.test = test or f"type({{}}) is {kind.__name__}"

    def avro(self, known: set[str]) -> Any:
        """The type's name."""
        return self.name

    def out(self, value: Any) -> Any:
        """The value itself."""
        if isinstance(value, self.kind) and not isinstance(value, Enum):
            return value
        raise Wrong


class Whole(Scalar):
    """Integers of a given number of bits."""

    def __init__(self, name: str, bits: int) -> None:
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        test = f"type({{0}}) is int and {low} <= {{0}} <= {high}"
        super().__init__(name, f"an int of {bits} bits", int, test)
        self.range = range(low, high + 1)

    def out(self, value: Any) -> Any:
        """The value itself, checked against the range."""
        if isinstance(value, int) and not isinstance(value, bool) and int(value) in self.range:
            return int(value)
        raise Wrong


class Real(Scalar):
    """Floating point numbers; integers are accepted."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "a float", float)

    def out(self, value: Any) -> Any:
        """The value as a float."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Wrong
        try:
            return float(value)
        except OverflowError:
            raise Wrong from None


class SingleReal(Real):
    """Floating point numbers of single precision; larger numbers can't be written."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.test = "type({0}) is float and -3.4028235e38 <= {0} <= 3.4028235e38"

    def out(self, value: Any) -> Any:
        """The value as a float within the range of single precision."""
        found = super().out(value)
        if math.isfinite(found) and abs(found) > 3.4028235677973366e38:
            raise Wrong
        return found


NULL = Scalar("null", "None", type(None), "{} is None")
BOOLEAN = Scalar("boolean", "a bool", bool)
STRING = Scalar("string", "a str", str)
INT = Whole("int", 32)
LONG = Whole("long", 64)
FLOAT = SingleReal("float")
DOUBLE = Real("double")
AVRO_STRING = Scalar("string", "a str", str, ALWAYS)
AVRO_BYTES = Scalar("bytes", "bytes", bytes, ALWAYS)


class TextBytes(Shape):
    """Bytes in JSON, as the UTF-8 text that they encode: the form of Pulsar's Python client."""

    expected = "bytes that are UTF-8, in JSON (Avro takes all)"

    def avro(self, known: set[str]) -> Any:
        """``bytes``."""
        return "bytes"

    def out(self, value: Any) -> Any:
        """The text."""
        try:
            if isinstance(value, bytes):
                return value.decode()
        except UnicodeDecodeError:
            pass
        raise Wrong

    def back(self, plain: Any) -> Any:
        """The bytes of the text."""
        if isinstance(plain, str):
            return plain.encode("utf-8", "surrogatepass")
        raise Wrong


class Moment(Shape):
    """Points in time: microseconds since 1970."""

    expected = "a datetime with a time zone"

    def avro(self, known: set[str]) -> Any:
        """``long`` with Avro's logical type."""
        return {"type": "long", "logicalType": "timestamp-micros"}

    def out(self, value: Any) -> Any:
        """Microseconds since 1970."""
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise Wrong
        return (value - _EPOCH) // timedelta(microseconds=1)

    def back(self, plain: Any) -> Any:
        """The datetime, in UTC."""
        if isinstance(plain, datetime):
            return plain
        if type(plain) is not int:
            raise Wrong
        try:
            return _EPOCH + timedelta(microseconds=plain)
        except OverflowError:
            raise Wrong from None


class Day(Shape):
    """Days: their number since 1970."""

    expected = "a date"

    def avro(self, known: set[str]) -> Any:
        """``int`` with Avro's logical type."""
        return {"type": "int", "logicalType": "date"}

    def out(self, value: Any) -> Any:
        """Days since 1970."""
        if not isinstance(value, date) or isinstance(value, datetime):
            raise Wrong
        return (value - _DAY_ZERO).days

    def back(self, plain: Any) -> Any:
        """The date."""
        if isinstance(plain, date):
            return plain
        if type(plain) is not int:
            raise Wrong
        try:
            return _DAY_ZERO + timedelta(days=plain)
        except OverflowError:
            raise Wrong from None


class OneOf(Shape):
    """Members of an enumeration, by name."""

    def __init__(self, kind: type[Enum]) -> None:
        self.kind = kind
        self.names = {member: name for name, member in kind.__members__.items()}
        self.expected = f"one of {kind.__name__}'s {', '.join(kind.__members__)}"

    def avro(self, known: set[str]) -> Any:
        """An enum with the members' names."""
        name = self.kind.__name__
        if name in known:
            return name
        known.add(name)
        return {"type": "enum", "name": name, "symbols": [each.name for each in self.kind]}

    def out(self, value: Any) -> Any:
        """The member's name."""
        if isinstance(value, self.kind):
            return value.name
        raise Wrong

    def back(self, plain: Any) -> Any:
        """The member of this name, or of this value, which Pulsar's Python client writes."""
        if isinstance(plain, str) and plain in self.kind.__members__:
            return self.kind.__members__[plain]
        try:
            return self.kind(plain)
        except (ValueError, TypeError):
            raise Wrong from None


class Many(Shape):
    """Lists of one shape; ``make`` converts a read list to the type of the class."""

    def __init__(self, item: Shape, make: Callable[[list[Any]], Any] = list) -> None:
        self.item = item
        self.make = make
        self.expected = "a tuple" if make is tuple else "a list"

    def avro(self, known: set[str]) -> Any:
        """An array."""
        return {"type": "array", "items": self.item.avro(known)}

    def out(self, value: Any) -> Any:
        """A list of the items' written forms."""
        if not isinstance(value, list | tuple):
            raise Wrong
        return list(map(self.item.out, value))

    def back(self, plain: Any) -> Any:
        """The list, converted by ``make``."""
        if not isinstance(plain, list):
            raise Wrong
        return self.make(list(map(self.item.back, plain)))

    def parts(self, value: Any, way: Way) -> Iterator[tuple[str, Shape, Any]]:
        """The items."""
        if isinstance(value, list | tuple):
            for index, each in enumerate(value):
                yield f"[{index}]", self.item, each


class Mapped(Shape):
    """Dicts from text to one shape."""

    expected = "a dict with keys of text"

    def __init__(self, item: Shape) -> None:
        self.item = item

    def avro(self, known: set[str]) -> Any:
        """A map."""
        return {"type": "map", "values": self.item.avro(known)}

    def out(self, value: Any) -> Any:
        """A dict of the values' written forms."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise Wrong
        out = self.item.out
        return {key: out(each) for key, each in value.items()}

    def back(self, plain: Any) -> Any:
        """The dict."""
        if not isinstance(plain, dict):
            raise Wrong
        back = self.item.back
        return {key: back(each) for key, each in plain.items()}

    def parts(self, value: Any, way: Way) -> Iterator[tuple[str, Shape, Any]]:
        """The values."""
        if isinstance(value, dict):
            for key, each in value.items():
                if isinstance(key, str):
                    yield f"[{key!r}]", self.item, each


class Maybe(Shape):
    """A shape, or None.

    ``null_last`` is for a default of the shape: Avro requires its type first.
    """

    def __init__(self, inner: Shape, null_last: bool = False) -> None:
        self.inner = inner
        self.null_last = null_last
        self.expected = f"{inner.expected}, or None"
        if inner.test == ALWAYS:
            self.test = ALWAYS
        elif inner.test:
            self.test = f"{{0}} is None or {inner.test.replace('{}', '{0}')}"

    def avro(self, known: set[str]) -> Any:
        """A union with null."""
        inner = self.inner.avro(known)
        return [inner, "null"] if self.null_last else ["null", inner]

    def out(self, value: Any) -> Any:
        """None, or the value's written form."""
        return None if value is None else self.inner.out(value)

    def back(self, plain: Any) -> Any:
        """None, or the value."""
        return None if plain is None else self.inner.back(plain)

    def parts(self, value: Any, way: Way) -> Iterator[tuple[str, Shape, Any]]:
        """The parts of the value, if there is one."""
        return iter(()) if value is None else self.inner.parts(value, way)

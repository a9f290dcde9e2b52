"""`Record` classes: fields declared as in Pulsar's Python client, with its schemas."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, ClassVar, Self

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage
from velaray.client.schema import shapes
from velaray.client.schema.record_shape import RecordShape, Slot
from velaray.client.schema.shapes import (
    MISSING,
    Many,
    Mapped,
    Maybe,
    OneOf,
    Shape,
    TextBytes,
    Wrong,
)


class WrongFieldError(InvalidMessage, TypeError):
    """A value of another type than its field's."""


class Known:
    """The shapes of records under construction, for JSON or for Avro."""

    def __init__(self, json: bool) -> None:
        self.json = json
        self.of: dict[type, RecordShape] = {}


class Field:
    """One field of a `Record`.

    default: the value, unless the record sets another one.
    required: the value is never None; the schema has no null then.
    required_default: the schema contains the default, so that readers know it too.
    """

    def __init__(
        self, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self._required = required
        self._required_default = required_default
        self._default = default if default is None else self.accept("default", default)

    def shape(self, known: Known) -> Shape:
        """The type of values other than None."""
        raise NotImplementedError

    def accept(self, name: str, value: Any) -> Any:
        """Return ``value`` in the record's form. Raises `WrongFieldError`."""
        shape = self.shape(Known(True))
        wrong = shapes.fault(shape, value, "out", name)
        if wrong is not None:
            raise WrongFieldError(wrong)
        return value

    def default(self) -> Any:
        """The value, unless the record sets another one."""
        return self._default

    def required_default(self) -> bool:
        """Whether the schema contains the default."""
        return self._required_default

    def required(self) -> bool:
        """Whether the value is never None."""
        return self._required


class _Plain(Field):
    _shape: ClassVar[Shape]

    def shape(self, known: Known) -> Shape:
        """The type."""
        return self._shape


class Null(_Plain):
    """None."""

    _shape = shapes.NULL


class Boolean(_Plain):
    """True or False; False by default."""

    _shape = shapes.BOOLEAN

    def default(self) -> Any:
        """The value, unless the record sets another one."""
        return bool(self._default)


class Integer(_Plain):
    """An integer of 32 bits."""

    _shape = shapes.INT


class Long(_Plain):
    """An integer of 64 bits."""

    _shape = shapes.LONG


class Float(_Plain):
    """A number of single precision."""

    _shape = shapes.FLOAT


class Double(_Plain):
    """A number of double precision."""

    _shape = shapes.DOUBLE


class String(Field):
    """Text; UTF-8 bytes are converted to text."""

    def shape(self, known: Known) -> Shape:
        """The type."""
        return shapes.STRING if known.json else shapes.AVRO_STRING

    def accept(self, name: str, value: Any) -> Any:
        """Return the text."""
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError as error:
                raise WrongFieldError(f"field {name} must be text: {error}") from error
        return super().accept(name, value)


class Bytes(Field):
    """Bytes; text is converted to its UTF-8."""

    def shape(self, known: Known) -> Shape:
        """The type."""
        return TextBytes() if known.json else shapes.AVRO_BYTES

    def accept(self, name: str, value: Any) -> Any:
        """Return the bytes."""
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytes):
            return value
        raise WrongFieldError(f"field {name} must be bytes, not {type(value).__name__}")


class CustomEnum(Field):
    """A member of an enumeration; its name and its value are accepted as well."""

    def __init__(
        self,
        enum_type: type[Enum],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not (isinstance(enum_type, type) and issubclass(enum_type, Enum)):
            raise InvalidConfiguration(f"CustomEnum needs an Enum class: {enum_type!r}")
        self._members = OneOf(enum_type)
        super().__init__(default, required, required_default)

    def shape(self, known: Known) -> Shape:
        """The type."""
        return self._members

    def accept(self, name: str, value: Any) -> Any:
        """Return the member."""
        if isinstance(value, self._members.kind):
            return value
        try:
            return self._members.back(value)
        except Wrong:
            expected = self._members.expected
            raise WrongFieldError(f"field {name} must be {expected}, not {value!r}") from None


class Array(Field):
    """A list whose items have the type of another field or record."""

    def __init__(
        self,
        array_type: Field | Record | type[Record],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        self._item = _inner(array_type, "Array")
        super().__init__(default, required, required_default)

    def shape(self, known: Known) -> Shape:
        """The type."""
        return Many(self._item.shape(known))

    def accept(self, name: str, value: Any) -> Any:
        """Return the list, with dicts converted to records."""
        if not isinstance(value, list):
            raise WrongFieldError(f"field {name} must be a list, not {type(value).__name__}")
        return [self._item.accept(f"{name}[{at}]", each) for at, each in enumerate(value)]


class Map(Field):
    """A dict from text to values with the type of another field or record."""

    def __init__(
        self,
        value_type: Field | Record | type[Record],
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        self._item = _inner(value_type, "Map")
        super().__init__(default, required, required_default)

    def shape(self, known: Known) -> Shape:
        """The type."""
        return Mapped(self._item.shape(known))

    def accept(self, name: str, value: Any) -> Any:
        """Return the dict, with its dicts converted to records."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise WrongFieldError(f"field {name} must be a dict with keys of text")
        return {key: self._item.accept(f"{name}[{key!r}]", each) for key, each in value.items()}


class _RecordMeta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordMeta:
        found: dict[str, Field | Record] = {}
        for base in reversed(bases):
            found |= getattr(base, "_fields", {})
        for each, value in body.items():
            if isinstance(value, type) and issubclass(value, Enum):
                found[each] = CustomEnum(value)
            elif isinstance(value, _RecordMeta):
                found[each] = value()
            elif isinstance(value, Field | Record) if bases else False:
                found[each] = value
        body["_fields"] = found
        body.setdefault("_required", False)
        return super().__new__(cls, name, bases, body)


class Record(metaclass=_RecordMeta):
    """A class whose attributes are fields::

        class Reading(Record):
            sensor = String(required=True)
            celsius = Double()

    Fields that aren't given get their defaults; nested records are records of defaults. A class
    attribute ``_avro_namespace`` is the namespace of its schema; ``_sorted_fields = True`` sorts
    the schema's fields alphabetically. The arguments ``default``, ``required`` and
    ``required_default`` are those of a `Field`, for nested records. Raises `WrongFieldError` (an
    `InvalidMessage` and a TypeError) for a value of another type.
    """

    _avro_namespace: ClassVar[str | None] = None
    _sorted_fields: ClassVar[bool] = False
    _fields: ClassVar[dict[str, Field | Record]]

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        **values: Any,
    ) -> None:
        own = self.__dict__
        own["_as_field"] = (default, required_default, required)
        for name in values.keys() - self._fields.keys():
            raise WrongFieldError(f"{type(self).__name__} has no field {name}")
        for name, field in self._fields.items():
            if name in values:
                setattr(self, name, values[name])
            else:
                own[name] = type(field)() if isinstance(field, Record) else field.default()

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._fields.get(name)
        if field is None:
            raise AttributeError(f"{type(self).__name__} has no field {name}")
        if value is None:
            if field.required():
                raise WrongFieldError(f"field {name} is required: it can't be None")
            value = field.default()
        else:
            value = field.accept(name, value)
        self.__dict__[name] = value

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The Avro schema, as JSON values."""
        schema: dict[str, Any] = record_shape(cls, True).avro(set())
        return schema

    def shape(self, known: Known) -> Shape:
        """The type, for a nested record."""
        return _shape_of(type(self), known)

    def accept(self, name: str, value: Any) -> Any:
        """Return the record; a dict is converted."""
        kind = type(self)
        if isinstance(value, kind):
            return value
        if isinstance(value, dict):
            return kind(**value)
        raise WrongFieldError(
            f"field {name} must be a {kind.__name__}, not {type(value).__name__} {value!r:.80}"
        )

    def default(self) -> Any:
        """As a field: the value, unless the outer record sets another one."""
        return self.__dict__["_as_field"][0]

    def required_default(self) -> bool:
        """As a field: whether the schema contains the default."""
        return bool(self.__dict__["_as_field"][1])

    def required(self) -> bool:
        """As a field: whether the value is never None."""
        return bool(self.__dict__["_as_field"][2])

    def _values(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.__dict__[name]) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return dict(self._values()) == dict(other._values())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._values())
        return f"{type(self).__name__}({told})"

    @classmethod
    def _of(cls, **values: Any) -> Self:
        """Make a record of values that are known to be correct."""
        made = object.__new__(cls)
        own = made.__dict__
        own.update(values)
        own["_as_field"] = (None, False, False)
        return made


def _inner(item: Any, what: str) -> Field | Record:
    if isinstance(item, type) and issubclass(item, Record | Field):
        item = item()
    if isinstance(item, Field | Record):
        return item
    raise InvalidConfiguration(f"{what} needs a Field or a Record, as in {what}(String()): {item}")


def record_shape(kind: type[Record], json: bool) -> RecordShape:
    """Return the shape of a `Record` class, for JSON or for Avro."""
    return _shape_of(kind, Known(json))


def _shape_of(kind: type[Record], known: Known) -> RecordShape:
    shape = known.of.get(kind)
    if shape is None:
        make = kind._of if kind.__init__ is Record.__init__ else kind
        shape = known.of[kind] = RecordShape(kind, make, is_dict=False, checks=known.json)
        names = sorted(kind._fields) if kind._sorted_fields else kind._fields
        shape.complete([_slot(name, kind._fields[name], known) for name in names])
    return shape


def _slot(name: str, field: Field | Record, known: Known) -> Slot:
    inner = field.shape(known)
    shape = inner if field.required() else Maybe(inner)
    default: Any = MISSING
    if field.required_default():
        value = field.default()
        default = value.name if isinstance(value, Enum) else value
        if isinstance(default, bytes):
            default = default.decode("latin-1")  # Avro's own form of bytes in JSON
    return Slot(name, shape, field.default, default)

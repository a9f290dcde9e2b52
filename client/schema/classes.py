"""Shapes of ordinary classes: dataclasses, pydantic models, `TypedDict`, and their field types.

pydantic isn't imported: its classes have the necessary methods.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, NotRequired, Required, Union, get_args, get_origin

from velaray.client.exceptions import InvalidConfiguration
from velaray.client.schema import shapes
from velaray.client.schema.record import Field, Known, Record, record_shape
from velaray.client.schema.record_shape import RecordShape, Slot
from velaray.client.schema.shapes import (
    MISSING,
    Day,
    Many,
    Mapped,
    Maybe,
    Moment,
    OneOf,
    Shape,
    Wrong,
)

_SCALARS: dict[Any, Shape] = {
    bool: shapes.BOOLEAN,
    int: shapes.LONG,
    float: shapes.DOUBLE,
    datetime: Moment(),
    date: Day(),
}

SUPPORTED = (
    "bool, int, float, str, bytes, datetime, date, Enum, list, tuple[…, ...], dict[str, …],"
    " Optional, dataclasses, pydantic models, TypedDict, Record classes, and"
    " Annotated[…, Integer()] for another Avro type"
)


def class_shape(kind: type, json: bool) -> RecordShape:
    """The shape of a class whose values are records, for JSON or for Avro.

    Raises `InvalidConfiguration` for other classes, and for field types that Avro lacks.
    """
    shape = _Reader(json).record(kind)
    if shape is None:
        raise InvalidConfiguration(
            f"{kind!r} isn't a class with fields: give a Record, a dataclass, a pydantic model or"
            " a TypedDict"
        )
    return shape


@dataclasses.dataclass(frozen=True)
class _Given:
    """A field as its class declares it; ``absent`` makes its default, if it has one."""

    name: str
    annotation: Any
    absent: Callable[[], Any] | None = None
    optional: bool = False


class _Reader:
    def __init__(self, json: bool) -> None:
        self._json = json
        self._known: dict[type, RecordShape] = {}

    def record(self, kind: Any) -> RecordShape | None:
        """Return the shape of a class with fields; None for any other class."""
        if not isinstance(kind, type):
            return None
        if issubclass(kind, Record):
            return record_shape(kind, self._json)
        if kind in self._known:
            return self._known[kind]
        make: Callable[..., Any]
        is_dict = typing.is_typeddict(kind)
        if is_dict:
            fields, make = _typed_dict(kind), _dict_maker(kind)
        elif dataclasses.is_dataclass(kind):
            fields, make = _dataclass(kind), kind
        elif hasattr(kind, "__pydantic_fields__"):
            fields, make = _model(kind), _by_alias(kind)
        else:
            return None
        shape = RecordShape(kind, make, is_dict=is_dict, checks=self._json)
        self._known[kind] = shape
        shape.complete([self._slot(kind, each) for each in fields])
        return shape

    def _slot(self, kind: type, given: _Given) -> Slot:
        shape = self.of(given.annotation, f"{kind.__name__}.{given.name}")
        absent, default = given.absent, MISSING
        if given.optional:
            shape = shape if isinstance(shape, Maybe) else Maybe(shape)
            return Slot(given.name, shape, lambda: None, None, optional=True)
        if absent is not None:
            default = _default(shape, absent())
            if isinstance(shape, Maybe) and default not in (None, MISSING):
                shape = Maybe(shape.inner, null_last=True)
        elif isinstance(shape, Maybe):
            absent = _always(None)  # other classes omit nulls from their JSON
        return Slot(given.name, shape, absent, default)

    def of(self, annotation: Any, where: str) -> Shape:
        """Return the shape of a type.

        Raises `InvalidConfiguration`; the text contains ``where``.
        """
        if annotation is bytes:
            return shapes.TextBytes() if self._json else shapes.AVRO_BYTES
        if annotation is str:
            return shapes.STRING if self._json else shapes.AVRO_STRING
        if annotation in (None, type(None)):
            return shapes.NULL
        found = _SCALARS.get(annotation) if isinstance(annotation, type) else None
        found = found or self._composed(annotation, where) or self.record(annotation)
        if found is None:
            raise InvalidConfiguration(f"{where}: {annotation!r} isn't supported; use {SUPPORTED}")
        return found

    def _composed(self, annotation: Any, where: str) -> Shape | None:
        origin, args = get_origin(annotation), get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return OneOf(annotation)
        if origin is Annotated:
            return self._annotated(args, where)
        if origin in (Union, types.UnionType):
            inner = [each for each in args if each is not type(None)]
            if len(inner) == 1 and len(args) == 2:
                return Maybe(self.of(inner[0], where))
            return None
        if origin in (list, Sequence) and args:
            return Many(self.of(args[0], where))
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return Many(self.of(args[0], where), tuple)
        if origin in (dict, Mapping) and args and args[0] is str:
            return Mapped(self.of(args[1], where))
        return None

    def _annotated(self, args: tuple[Any, ...], where: str) -> Shape:
        for each in args[1:]:
            each = each() if isinstance(each, type) and issubclass(each, Field) else each
            if isinstance(each, Field):
                return each.shape(Known(self._json))
        return self.of(args[0], where)


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except NameError as error:
        module = sys.modules.get(kind.__module__)
        raise InvalidConfiguration(
            f"{kind.__name__}: can't find a type in {module or kind.__module__}: {error};"
            " define it at the top level of the module that defines the class"
        ) from error


def _dataclass(kind: type) -> list[_Given]:
    hints = _hints(kind)
    found = []
    for each in dataclasses.fields(kind):
        if not each.init:
            continue
        absent: Callable[[], Any] | None = None
        if each.default is not dataclasses.MISSING:
            absent = _always(each.default)
        elif each.default_factory is not dataclasses.MISSING:
            absent = each.default_factory
        found.append(_Given(each.name, hints[each.name], absent))
    return found


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


def _model(kind: Any) -> list[_Given]:
    found = []
    for name, each in kind.__pydantic_fields__.items():
        absent = None
        if not (each.is_required() or each.default_factory_takes_validated_data):
            absent = each.default_factory or _always(each.default)
        annotation = each.annotation
        for note in each.metadata:
            if isinstance(note, Field):
                annotation = Annotated[annotation, note]
        found.append(_Given(name, annotation, absent))
    return found


def _by_alias(kind: Any) -> Callable[..., Any]:
    """Return the constructor for fields by name: pydantic may need their aliases."""
    fields = kind.__pydantic_fields__.items()
    names = {name: each.alias for name, each in fields if isinstance(each.alias, str)}
    if not names:
        return kind  # type: ignore[no-any-return]
    return lambda **given: kind(**{names.get(name, name): each for name, each in given.items()})


def _typed_dict(kind: Any) -> list[_Given]:
    found = []
    for name, annotation in _hints(kind).items():
        while get_origin(annotation) in (Required, NotRequired):
            annotation = get_args(annotation)[0]
        found.append(_Given(name, annotation, optional=name in kind.__optional_keys__))
    return found


def _dict_maker(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """Return a function that omits optional keys whose value is null."""
    optional = kind.__optional_keys__

    def make(given: dict[str, Any]) -> dict[str, Any]:
        for name in optional:
            if given[name] is None:
                del given[name]
        return given

    return make if optional else lambda given: given


def _default(shape: Shape, value: Any) -> Any:
    """Return a default in the schema's form; MISSING if it has none."""
    try:
        plain = shape.out(value)
    except Wrong:
        return MISSING
    return plain.decode("latin-1") if isinstance(plain, bytes) else plain

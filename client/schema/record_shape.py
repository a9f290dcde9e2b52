"""Records: the shape of values with named fields, with functions generated for each class.

A loop over the fields takes as long as writing them. So two functions are generated for each class
from text, as in `dataclasses`: they name every field once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from velaray.client.exceptions import InvalidConfiguration
from velaray.client.schema.shapes import ALWAYS, MISSING, Shape, Way, Wrong


@dataclass(frozen=True, slots=True)
class Slot:
    """One field.

    ``absent`` makes the value when the field is missing from the input (None: the field is
    mandatory). ``default`` is the schema's default, in Avro's JSON form. ``optional`` keys may be
    missing from values that are dicts.
    """

    name: str
    shape: Shape
    absent: Callable[[], Any] | None = None
    default: Any = MISSING
    optional: bool = False


class RecordShape(Shape):
    """Values of a class with fields.

    ``make`` gets the fields by name (a dict for dicts) and returns the value. ``checks``: whether
    input must be checked; fastavro's output always fits the schema. A shape gets its fields after
    its creation, since fields may have the same class.
    """

    def __init__(
        self, kind: type, make: Callable[..., Any], *, is_dict: bool, checks: bool
    ) -> None:
        self.kind = kind
        self.make = make
        self.expected = f"a {kind.__name__}"
        self.slots: list[Slot] = []
        self.space: str | None = getattr(kind, "_avro_namespace", None)
        self._is_dict = is_dict
        self._checks = checks

    def complete(self, slots: list[Slot]) -> None:
        """Set its fields, in the schema's order."""
        self.slots = slots
        scope = {"kind": self.kind, "taken": self._taken, "make": self.make, "Wrong": Wrong}
        scope |= {"MISSING": MISSING, "back_slot": self._back_slot}
        for slot in slots:
            if not (slot.name.isidentifier() and slot.name.isascii()):
                raise InvalidConfiguration(
                    f"{self.kind.__name__}: {slot.name!r} can't be a field's name in Avro, which"
                    " has letters without accents, digits and _"
                )
        for number, slot in enumerate(slots):
            scope |= {f"out{number}": slot.shape.out, f"slot{number}": slot}
        exec(
            _out_text(slots, self._is_dict) + _back_text(slots, self._is_dict, self._checks), scope
        )
        self.out = scope["out"]  # type: ignore[assignment, method-assign]
        self.back = scope["back"]  # type: ignore[assignment, method-assign]

    def avro(self, known: set[str]) -> Any:
        """A record."""
        name = self.kind.__name__
        full = f"{self.space}.{name}" if self.space is not None else name
        if full in known:
            return full
        known.add(full)
        schema: dict[str, Any] = {"type": "record", "name": name}
        if self.space is not None:
            schema["namespace"] = self.space
        schema["fields"] = [self._avro_field(slot, known) for slot in self.slots]
        return schema

    def _avro_field(self, slot: Slot, known: set[str]) -> dict[str, Any]:
        field = {"name": slot.name, "type": slot.shape.avro(known)}
        return field if slot.default is MISSING else field | {"default": slot.default}

    def _taken(self, value: Any) -> Any:
        """Accept an instance of a subclass, or a mapping if values are dicts.

        Raises `Wrong` for other values.
        """
        if isinstance(value, Mapping if self._is_dict else self.kind):
            return value
        raise Wrong

    @staticmethod
    def _back_slot(slot: Slot, plain: Any) -> Any:
        if plain is not MISSING:
            return slot.shape.back(plain)
        if slot.absent is None:
            raise Wrong
        return slot.absent()

    def parts(self, value: Any, way: Way) -> Iterator[tuple[str, Shape, Any]]:
        """The fields."""
        for slot in self.slots:
            if way == "back" or self._is_dict:
                if not isinstance(value, Mapping):
                    return
                part = value.get(slot.name, MISSING)
            elif not isinstance(value, self.kind):
                return
            else:
                part = getattr(value, slot.name, MISSING)
            absent = slot.absent is not None if way == "back" else slot.optional
            if part is not MISSING or not absent:
                yield f".{slot.name}", slot.shape, part


def _out_text(slots: list[Slot], is_dict: bool) -> str:
    lines = ["def out(value):"]
    if is_dict:  # other mappings are copied, since lookups may create missing keys
        lines += [" if type(value) is not dict: value = dict(taken(value))"]
    else:
        lines += [" if type(value) is not kind: value = taken(value)"]
    lines += [" try:"]
    for number, slot in enumerate(slots):
        found = f"value.{slot.name}"
        if is_dict:  # indexing an existing key is faster than get
            name = repr(slot.name)
            found = f"value.get({name})" if slot.optional else f"value[{name}]"
        lines.append(f"  f{number} = {found}")
    lines += ["  pass", " except (AttributeError, KeyError): raise Wrong from None"]
    for number, slot in enumerate(slots):
        field, test = f"f{number}", slot.shape.test.format(f"f{number}")
        if test != ALWAYS:
            condition = f"if not ({test}): " if test else ""
            lines.append(f" {condition}{field} = out{number}({field})")
    plain = ", ".join(f"{slot.name!r}: f{number}" for number, slot in enumerate(slots))
    return "\n".join([*lines, f" return {{{plain}}}", ""])


def _back_text(slots: list[Slot], is_dict: bool, checks: bool) -> str:
    if not checks and all(slot.shape.test for slot in slots):
        return f"def back(plain): return make({'' if is_dict else '**'}plain)\n"
    lines = ["def back(plain):", " if type(plain) is not dict: raise Wrong", " get = plain.get"]
    for number, slot in enumerate(slots):
        field, test = f"f{number}", slot.shape.test.format(f"f{number}")
        lines.append(f" {field} = get({slot.name!r}, MISSING)")
        if checks or not test:
            condition = f"if not ({test}): " if test else ""
            lines.append(f" {condition}{field} = back_slot(slot{number}, {field})")
    if is_dict:
        given = ", ".join(f"{slot.name!r}: f{number}" for number, slot in enumerate(slots))
        return "\n".join([*lines, f" return make({{{given}}})", ""])
    given = ", ".join(f"{slot.name}=f{number}" for number, slot in enumerate(slots))
    return "\n".join([*lines, f" return make({given})", ""])

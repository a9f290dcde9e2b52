"""The golden bytes of every journaled event, kept in ``golden.json`` beside this file.

A sample, once committed, is never edited: journals that were written with it must stay
readable. ``python -m tests.events.golden`` appends samples for events and fields that have
none yet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from velaray.events.codec import encode, event_types

FILE = Path(__file__).with_suffix(".json")


class Sample(NamedTuple):
    """One event: its type's stable number and name, its fields as JSON, its bytes as hex."""

    number: int
    event: str
    fields: dict[str, object]
    bytes: str

    def message(self, kind: type[Message]) -> Message:
        """The event that the sample's fields describe. Raises `json_format.ParseError`."""
        return json_format.ParseDict(self.fields, kind())


def load() -> list[Sample]:
    """The committed samples."""
    return [Sample(**sample) for sample in json.loads(FILE.read_text(encoding="utf-8"))]


def fields_of(kind: Descriptor, prefix: str = "") -> Iterator[str]:
    """The dotted paths of every field of ``kind``, those of nested messages included."""
    for field in kind.fields:
        path = f"{prefix}{field.name}"
        yield path
        if _is_nested(field):
            yield from fields_of(field.message_type, f"{path}.")


def fields_set(message: Message, prefix: str = "") -> Iterator[str]:
    """The dotted paths of the fields that ``message`` sets."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        yield path
        if _is_nested(field):
            for nested in [value] if isinstance(value, Message) else value:
                yield from fields_set(nested, f"{path}.")


def _is_nested(field: FieldDescriptor) -> bool:
    nested = field.message_type
    return nested is not None and not nested.GetOptions().map_entry


def uncovered(samples: list[Sample]) -> dict[int, set[str]]:
    """Per event number, the fields that no sample sets; events without a sample included."""
    gaps = {}
    for number, kind in event_types().items():
        own = [sample for sample in samples if sample.number == number]
        known = {path for sample in own for path in fields_set(sample.message(kind))}
        missing = set(fields_of(kind.DESCRIPTOR)) - known
        if missing or not own:
            gaps[number] = missing
    return gaps


def filled(kind: type[Message]) -> Message:
    """An event of ``kind`` with every field set, each to a value of its own."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        _fill(message, field)
    return message


def _fill(message: Message, field: FieldDescriptor) -> None:
    value = getattr(message, field.name)
    if _is_nested(field):
        nested = value.add() if hasattr(value, "add") else value
        for inner in field.message_type.fields:
            _fill(nested, inner)
        nested.SetInParent()
    elif field.message_type is not None:
        value[f"{field.name} key"] = f"{field.name} value"
    elif hasattr(value, "append"):
        value.extend([_scalar(field, 1), _scalar(field, 2)])
    else:
        setattr(message, field.name, _scalar(field, 0))


def _scalar(field: FieldDescriptor, salt: int) -> object:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = f"{field.name}-{salt}-é"
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    return 1000 * field.number + 7 * salt + 1


def main() -> None:
    """Append samples for what has none yet."""
    samples = load() if FILE.exists() else []
    for number in sorted(uncovered(samples)):
        kind = event_types()[number]
        message = filled(kind)
        fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
        samples.append(Sample(number, kind.DESCRIPTOR.name, fields, encode(message).hex()))
        print(f"added {kind.DESCRIPTOR.name} ({number})")
    text = json.dumps([sample._asdict() for sample in samples], indent=1, ensure_ascii=False)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

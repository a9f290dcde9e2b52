"""Commands of every kind that the protocol has, with random values in random fields."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from velaray.wire import pulsar_pb2 as pb

KINDS: Sequence[type[Message]] = tuple(
    getattr(pb, field.message_type.name)
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None and field.name != "send"
)
"""All but SEND, which an entry follows."""

NUMBERS = (0, 1, 2, 7, 1000, (1 << 31) - 1)
DEPTH = 2
OPTIONAL = 0.4
"""The part of the optional fields that have a value."""


def any_command(chance: random.Random, number: int, texts: Sequence[str]) -> Any:
    """A command of any kind. Its request id, if it has one, is ``number``; its texts are some of
    ``texts``."""
    command = chance.choice(KINDS)()
    _fill(command, chance, texts, DEPTH)
    if "request_id" in command.DESCRIPTOR.fields_by_name:
        command.request_id = number  # type: ignore[attr-defined]
    return command


def _fill(message: Any, chance: random.Random, texts: Sequence[str], depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        required = field.label == FieldDescriptor.LABEL_REQUIRED
        if not required and (not depth or chance.random() > OPTIONAL):
            continue
        if field.label == FieldDescriptor.LABEL_REPEATED:
            for _ in range(chance.randrange(3)):
                if field.message_type is not None:
                    _fill(getattr(message, field.name).add(), chance, texts, depth - 1)
                else:
                    getattr(message, field.name).append(_value(field, chance, texts))
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.SetInParent()
            _fill(part, chance, texts, depth - 1)
        else:
            setattr(message, field.name, _value(field, chance, texts))


def _value(field: FieldDescriptor, chance: random.Random, texts: Sequence[str]) -> Any:
    if field.enum_type is not None:
        return chance.choice(field.enum_type.values).number
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice(texts)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice(texts).encode()
    if field.type == FieldDescriptor.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return chance.random() * 1000
    return chance.choice(NUMBERS)

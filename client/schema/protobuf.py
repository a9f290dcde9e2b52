"""Native Protobuf: values are messages of a generated class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage
from velaray.client.schema.base import Schema, undecodable
from velaray.schemas import SchemaInfo, SchemaType
from velaray.schemas.native import native_schema

M = TypeVar("M", bound=Message)


class ProtobufNativeSchema(Schema[M]):
    """Messages of a class that protoc generated, in Protobuf's own bytes.

    The registry gets the message's descriptor with all files that it needs.
    """

    def __init__(self, record_cls: type[M]) -> None:
        if not (isinstance(record_cls, type) and issubclass(record_cls, Message)):
            raise InvalidConfiguration(f"{record_cls!r} is no generated Protobuf message class")
        self._kind = record_cls
        data = native_schema(record_cls.DESCRIPTOR)  # type: ignore[arg-type]
        kind = SchemaType.PROTOBUF_NATIVE
        self.info = SchemaInfo(kind, str(kind), data)

    def encode(self, value: M) -> bytes:
        """The message's bytes. Raises `InvalidMessage`, also if a required field is missing."""
        if not isinstance(value, self._kind):
            name = self._kind.__name__
            raise InvalidMessage(f"the value must be a {name}, not {type(value).__name__}")
        try:
            return value.SerializeToString()
        except EncodeError as error:
            raise InvalidMessage(f"{self._kind.__name__} can't be encoded: {error}") from error

    def decode(self, data: bytes) -> M:
        """The message. Raises `UndecodableMessage`."""
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise undecodable(self._kind.__name__, error) from error

    def __repr__(self) -> str:
        return f"ProtobufNativeSchema({self._kind.__name__})"


def as_dict(message: Message) -> dict[str, Any]:
    """A message's fields by name, messages within it as dicts; enums by the names of members.

    Fields that know whether they're set, and aren't, are None.
    """
    return {each.name: _value(message, each) for each in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if isinstance(value, Mapping):
        inner = field.message_type.fields_by_name["value"]
        return {key: _plain(each, inner) for key, each in value.items()}
    if not field.has_presence and not isinstance(value, str | bytes) and hasattr(value, "__len__"):
        return [_plain(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, field)


def _plain(value: Any, field: Any) -> Any:
    if isinstance(value, Message):
        return as_dict(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value

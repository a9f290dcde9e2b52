"""What a schema does for a client: values to bytes and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage, UndecodableMessage
from velaray.schemas import SchemaInfo, SchemaType

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")

Decode = Callable[[Any, bytes | None], Any]
"""From a payload to its value; raises `UndecodableMessage`.

Schemas with a `Schema.separate_key` get the message's key too, and None as payload of a tombstone.
"""


class Schema(Generic[T]):
    """Turns values into payloads and back, and says of itself what the registry stores."""

    info: SchemaInfo
    """What the registry stores of it."""

    by_writer: bool = False
    """Whether decoding depends on the schema that a message was written with."""

    separate_key: bool = False
    """Whether a part of the value travels as the message's key."""

    def encode(self, value: T) -> bytes:
        """The payload. Raises `InvalidMessage`, which says what is wrong with ``value``."""
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """The value of a payload. Raises `UndecodableMessage`."""
        raise NotImplementedError

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """How to decode what was written with ``writer``; None if that is unknown.

        Raises `UndecodableMessage` if none of it can be decoded.
        """
        decode = self.decode
        return lambda data, _: decode(data)

    def has_separate_key(self, writer: SchemaInfo | None) -> bool:
        """Whether `decoder`'s for ``writer`` wants the message's key."""
        return self.separate_key

    def schema_info(self) -> SchemaInfo:
        """What the registry stores of it."""
        return self.info

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class BytesSchema(Schema[bytes]):
    """Payloads are bytes and stay as they are."""

    info = SchemaInfo(SchemaType.BYTES, "BYTES")

    def encode(self, value: bytes | bytearray | memoryview) -> bytes:
        """``value`` as bytes. Raises `InvalidMessage` if it isn't bytes-like."""
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidMessage(
            f"content must be bytes, not {type(value).__name__}; encode it first, or give the"
            " producer a schema"
        )

    def decode(self, data: bytes) -> bytes:
        """``data`` unchanged."""
        return data


BYTES = BytesSchema()


def typed(schema: Schema[Any] | None) -> Schema[Any] | None:
    """``schema``, or None if payloads stay as they are.

    Raises `InvalidConfiguration` for what is no schema.
    """
    if schema is None or isinstance(schema, BytesSchema):
        return None
    if isinstance(schema, Schema):
        return schema
    kind = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    hint = "an object, not the class" if isinstance(schema, type) else "JsonSchema(…), for example"
    raise InvalidConfiguration(f"schema must be one of velaray.schema's: {kind}; give {hint}")


def undecodable(what: str, error: Exception) -> UndecodableMessage:
    """The error for a payload that is no ``what``."""
    return UndecodableMessage(f"it is no {what}: {error}")

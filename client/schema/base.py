"""The client's schema interface: conversion between values and payloads."""

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
"""Converts a payload to its value; raises `UndecodableMessage`.

Decoders of schemas with a `Schema.separate_key` also get the message's key, and None as the payload
of a tombstone.
"""


class Schema(Generic[T]):
    """Converts values to payloads and back, and provides the registry's definition."""

    info: SchemaInfo
    """The definition that the registry stores."""

    by_writer: bool = False
    """Whether decoding depends on the schema that a message was written with."""

    separate_key: bool = False
    """Whether a part of the value is sent as the message's key."""

    def encode(self, value: T) -> bytes:
        """Return the payload.

        Raises `InvalidMessage`; the text describes the error in ``value``.
        """
        raise NotImplementedError

    def decode(self, data: bytes) -> T:
        """Return the value of a payload. Raises `UndecodableMessage`."""
        raise NotImplementedError

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """Return the decoder for the writer's schema ``writer``; None: it is unknown.

        Raises `UndecodableMessage` if no message of that schema can be decoded.
        """
        decode = self.decode
        return lambda data, _: decode(data)

    def has_separate_key(self, writer: SchemaInfo | None) -> bool:
        """Whether the `decoder` for ``writer`` needs the message's key."""
        return self.separate_key

    def schema_info(self) -> SchemaInfo:
        """The definition that the registry stores."""
        return self.info

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class BytesSchema(Schema[bytes]):
    """Payloads are bytes and stay as they are."""

    info = SchemaInfo(SchemaType.BYTES, "BYTES")

    def encode(self, value: bytes | bytearray | memoryview) -> bytes:
        """Return ``value`` as bytes. Raises `InvalidMessage` if it isn't bytes-like."""
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidMessage(
            f"content must be bytes, not {type(value).__name__}; encode it first, or give the"
            " producer a schema"
        )

    def decode(self, data: bytes) -> bytes:
        """Return ``data`` unchanged."""
        return data


BYTES = BytesSchema()


def typed(schema: Schema[Any] | None) -> Schema[Any] | None:
    """Return ``schema``, or None if payloads stay as they are.

    Raises `InvalidConfiguration` if ``schema`` isn't a schema.
    """
    if schema is None or isinstance(schema, BytesSchema):
        return None
    if isinstance(schema, Schema):
        return schema
    kind = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    hint = "an object, not the class" if isinstance(schema, type) else "JsonSchema(…), for example"
    raise InvalidConfiguration(f"schema must be one of velaray.schema's: {kind}; give {hint}")


def undecodable(what: str, error: Exception) -> UndecodableMessage:
    """Make the error for a payload that isn't ``what``, a phrase with its article."""
    return UndecodableMessage(f"it isn't {what}: {error}")

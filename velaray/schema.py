"""Schemas. This release has `BytesSchema` only; typed schemas need the registry."""

from __future__ import annotations

from velaray.exceptions import InvalidMessage, OperationNotSupported


class BytesSchema:
    """Payloads are bytes and stay as they are."""

    def encode(self, value: bytes | bytearray | memoryview) -> bytes:
        """``value`` as bytes. Raises `InvalidMessage` if it isn't bytes-like."""
        if type(value) is bytes:
            return value
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        raise InvalidMessage(f"content must be bytes, not {type(value).__name__}; encode it first")

    def decode(self, data: bytes) -> bytes:
        """``data`` unchanged."""
        return data


BYTES = BytesSchema()


def require_bytes_schema(schema: object) -> BytesSchema:
    """``schema`` if it is a `BytesSchema` (None means one too).

    Raises `OperationNotSupported` for any other schema.
    """
    if schema is None:
        return BYTES
    if isinstance(schema, BytesSchema):
        return schema
    raise OperationNotSupported(
        f"schema {type(schema).__name__}: this release sends and receives bytes only; "
        "leave schema out and encode the values yourself"
    )

"""Pairs of a key and a value, each with its own schema."""

from __future__ import annotations

import struct
from typing import Any, Generic, NamedTuple, TypeVar

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage, UndecodableMessage
from velaray.client.schema.base import Decode, Schema
from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.info import key_value, split_key_value

K = TypeVar("K")
V = TypeVar("V")

_LENGTH = struct.Struct(">i")
_NONE = -1


class KeyValue(NamedTuple, Generic[K, V]):
    """A value of a `KeyValueSchema`; key or value may be None."""

    key: K
    value: V


class KeyValueSchema(Schema[KeyValue[K, V]]):
    """Pairs whose parts are encoded by two other schemas.

    ``encoding`` INLINE puts both parts into the payload. SEPARATED makes the first part the
    message's key, which determines routing, order and compaction; the payload is the value then.
    """

    def __init__(
        self,
        key_schema: Schema[K],
        value_schema: Schema[V],
        encoding: KeyValueEncoding | str = KeyValueEncoding.INLINE,
    ) -> None:
        for schema in (key_schema, value_schema):
            if not isinstance(schema, Schema) or isinstance(schema, KeyValueSchema):
                raise InvalidConfiguration(f"key and value need a schema of one value: {schema!r}")
        if encoding not in list(KeyValueEncoding):
            raise InvalidConfiguration(f"encoding must be INLINE or SEPARATED: {encoding!r}")
        self.key_schema = key_schema
        self.value_schema = value_schema
        self.separate_key = encoding == KeyValueEncoding.SEPARATED
        self.by_writer = key_schema.by_writer or value_schema.by_writer
        self.info = key_value(key_schema.info, value_schema.info, KeyValueEncoding(encoding))

    def encode(self, value: KeyValue[K, V] | tuple[K, V]) -> bytes:
        """Encode both parts, each after its length; with SEPARATED only the value.

        Raises `InvalidMessage`.
        """
        key, inner = self.encode_parts(value)
        if self.separate_key:
            return inner or b""
        return b"".join(
            _LENGTH.pack(_NONE) if part is None else _LENGTH.pack(len(part)) + part
            for part in (key, inner)
        )

    def encode_parts(
        self, value: KeyValue[K, V] | tuple[K, V]
    ) -> tuple[bytes | None, bytes | None]:
        """Encode key and value separately, None as None. Raises `InvalidMessage`."""
        if not isinstance(value, tuple) or len(value) != 2:
            raise InvalidMessage(f"the value must be a KeyValue, not {type(value).__name__}")
        found: list[bytes | None] = []
        schemas: tuple[Schema[Any], Schema[Any]] = (self.key_schema, self.value_schema)
        for part, schema, each in zip(("key", "value"), schemas, value, strict=True):
            try:
                found.append(None if each is None else schema.encode(each))
            except InvalidMessage as error:
                raise InvalidMessage(f"{part}: {error}") from error
        return found[0], found[1]

    def decode(self, data: bytes) -> KeyValue[K, V]:
        """Return the pair; with SEPARATED without its key. Raises `UndecodableMessage`."""
        return self.decoder(None)(data, None)  # type: ignore[no-any-return]

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """Return the decoder for ``writer``; each part is decoded by its own schema."""
        of_key, of_value = _written(writer)
        key_of, value_of = self.key_schema.decoder(of_key), self.value_schema.decoder(of_value)
        separate = self.separate_key

        def decode(data: bytes | None, key: bytes | None) -> KeyValue[K, V]:
            value = data
            if not separate:
                key, value = _split(data or b"")
            return KeyValue(
                _part("key", key_of, key),
                _part("value", value_of, value),
            )

        return decode

    def __repr__(self) -> str:
        encoding = "SEPARATED" if self.separate_key else "INLINE"
        return f"KeyValueSchema({self.key_schema!r}, {self.value_schema!r}, {encoding})"


def _written(writer: SchemaInfo | None) -> tuple[SchemaInfo | None, SchemaInfo | None]:
    if writer is None:
        return None, None
    if writer.type is not SchemaType.KEY_VALUE:
        raise UndecodableMessage(f"it was written with a schema of type {writer.type}")
    try:
        return split_key_value(writer)
    except InvalidSchemaError as error:
        raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error


def _part(name: str, decode: Decode, data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return decode(data, None)
    except UndecodableMessage as error:
        raise UndecodableMessage(f"{name}: {error.reason}") from error


def _split(data: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    for _ in range(2):
        if at + _LENGTH.size > len(data):
            raise UndecodableMessage("it ends within its key or value")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        end = at + max(length, 0)
        if length < _NONE or end > len(data):
            raise UndecodableMessage(
                f"its key or value announces {length} bytes, {len(data) - at} are left"
            )
        found.append(None if length == _NONE else data[at:end])
        at = end
    if at != len(data):
        raise UndecodableMessage(f"{len(data) - at} bytes follow its key and value")
    return found

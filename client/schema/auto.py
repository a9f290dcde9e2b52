"""Schemas that are the topic's: whatever its messages were written with."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage, UndecodableMessage
from velaray.client.schema.base import BytesSchema, Decode, Schema, undecodable
from velaray.client.schema.key_value import KeyValueSchema
from velaray.client.schema.primitives import PRIMITIVES
from velaray.client.schema.protobuf import as_dict
from velaray.client.schema.records import AvroSchema, from_json
from velaray.schemas import InvalidSchemaError, KeyValueEncoding, SchemaInfo, SchemaType
from velaray.schemas.info import encoding_of, split_key_value
from velaray.schemas.native import parse_native


class GenericRecord(dict[str, Any]):
    """A record as a dict of its fields, with the ``schema`` that it was written with."""

    __slots__ = ("schema",)

    def __init__(self, fields: dict[str, Any], schema: SchemaInfo) -> None:
        super().__init__(fields)
        self.schema = schema


class AutoConsumeSchema(Schema[Any]):
    """For consumers and readers: each message decoded by the schema that it was written with.

    Records are `GenericRecord` dicts, other values as their own schemas decode them, and what
    was written without a schema is bytes.
    """

    by_writer = True
    info = SchemaInfo(SchemaType.AUTO_CONSUME, "AUTO_CONSUME")

    def encode(self, value: Any) -> bytes:
        """Raises `InvalidMessage`: it's no schema for producers."""
        raise InvalidMessage("AutoConsumeSchema is for consumers; producers have a schema to write")

    def decode(self, data: bytes) -> Any:
        """``data``: nothing is known of it."""
        return data

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """How to decode what was written with ``writer``."""
        return (lambda data, _: data) if writer is None else _generic(writer).decoder(writer)

    def has_separate_key(self, writer: SchemaInfo | None) -> bool:
        """Whether it was written as a pair whose key is the message's."""
        if writer is None or writer.type is not SchemaType.KEY_VALUE:
            return False
        return encoding_of(writer) is KeyValueEncoding.SEPARATED


class AutoProduceBytesSchema(Schema[bytes]):
    """For producers of bytes that are encoded already, by the schema that the topic has.

    Each payload is checked against the newest schema as of when the producer was made, and
    stamped with its version. A topic without schema takes any bytes.
    """

    info = BytesSchema.info

    def __init__(self) -> None:
        self._decode: Decode | None = None

    def bound(self, info: SchemaInfo | None) -> AutoProduceBytesSchema:
        """The same for a topic whose newest schema is ``info``; None if it has none.

        Raises `InvalidConfiguration` for a schema by which nothing can be checked.
        """
        found = AutoProduceBytesSchema()
        if info is not None:
            found.info = info
            try:
                found._decode = _generic(info).decoder(info)
            except UndecodableMessage as error:
                raise InvalidConfiguration(f"the topic's schema: {error}") from error
        return found

    def encode(self, value: bytes) -> bytes:
        """``value``, if it can be decoded. Raises `InvalidMessage`."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidMessage(f"content must be encoded bytes, not {type(value).__name__}")
        data = bytes(value)
        if self._decode is not None:
            try:
                self._decode(data, None)
            except UndecodableMessage as error:
                reason = error.reason
                raise InvalidMessage(
                    f"the payload doesn't fit the topic's {self.info.type} schema: {reason}"
                ) from error
        return data

    def decode(self, data: bytes) -> bytes:
        """``data`` unchanged."""
        return data


class _GenericJson(Schema[Any]):
    def __init__(self, info: SchemaInfo) -> None:
        self.info = info

    def decode(self, data: bytes) -> Any:
        found = from_json(data)
        return GenericRecord(found, self.info) if isinstance(found, dict) else found


class _GenericAvro(AvroSchema[Any]):
    def __init__(self, info: SchemaInfo) -> None:
        try:
            definition = json.loads(info.data)
            super().__init__(
                None, definition if isinstance(definition, dict) else {"type": definition}
            )
        except (ValueError, InvalidConfiguration) as error:
            raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error
        self.info = info

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        read, info = super().decoder(writer), self.info

        def decode(data: bytes, key: bytes | None) -> Any:
            found = read(data, key)
            return GenericRecord(found, info) if isinstance(found, dict) else found

        return decode


class _GenericProtobuf(Schema[Any]):
    def __init__(self, info: SchemaInfo) -> None:
        self.info = info
        try:
            self._kind = GetMessageClass(parse_native(info.data))
        except InvalidSchemaError as error:
            raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return GenericRecord(as_dict(self._kind.FromString(data)), self.info)
        except DecodeError as error:
            raise undecodable("message of its schema", error) from error


def _generic(info: SchemaInfo) -> Schema[Any]:
    """A schema that decodes what was written with ``info``. Raises `UndecodableMessage`."""
    match info.type:
        case SchemaType.NONE | SchemaType.BYTES:
            return BytesSchema()
        case SchemaType.JSON:
            return _GenericJson(info)
        case SchemaType.AVRO:
            return _GenericAvro(info)
        case SchemaType.PROTOBUF_NATIVE:
            return _GenericProtobuf(info)
        case SchemaType.KEY_VALUE:
            try:
                parts = [_generic(part) for part in split_key_value(info)]
                return KeyValueSchema(parts[0], parts[1], encoding_of(info))
            except InvalidSchemaError as error:
                raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error
    if info.type in PRIMITIVES:
        return PRIMITIVES[info.type]
    raise UndecodableMessage(
        f"schemas of type {info.type} don't say how to decode it; use a schema of your own"
    )

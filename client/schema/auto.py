"""Schemas that follow the topic: AUTO_CONSUME and AUTO_PRODUCE_BYTES."""

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
    """For consumers and readers: decodes each message with the schema of its writer.

    Records are `GenericRecord` dicts. Other values are decoded by their own schemas. Messages
    without a schema are bytes.
    """

    by_writer = True
    info = SchemaInfo(SchemaType.AUTO_CONSUME, "AUTO_CONSUME")

    def encode(self, value: Any) -> bytes:
        """Raises `InvalidMessage`: the schema isn't for producers."""
        raise InvalidMessage("AutoConsumeSchema is for consumers; producers have a schema to write")

    def decode(self, data: bytes) -> Any:
        """Return ``data`` unchanged: its schema is unknown."""
        return data

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """Return the decoder for the writer's schema ``writer``."""
        return (lambda data, _: data) if writer is None else _generic(writer).decoder(writer)

    def has_separate_key(self, writer: SchemaInfo | None) -> bool:
        """Whether the message was written as a pair whose key is the message's key."""
        if writer is None or writer.type is not SchemaType.KEY_VALUE:
            return False
        return encoding_of(writer) is KeyValueEncoding.SEPARATED


class AutoProduceBytesSchema(Schema[bytes]):
    """For producers of bytes that are already encoded with the topic's schema.

    Each payload is checked against the topic's newest schema at the producer's creation, and
    stamped with its version. A topic without a schema takes any bytes.
    """

    info = BytesSchema.info

    def __init__(self) -> None:
        self._decode: Decode | None = None

    def bound(self, info: SchemaInfo | None) -> AutoProduceBytesSchema:
        """Return the schema for a topic with newest schema ``info``; None if the topic has none.

        Raises `InvalidConfiguration` for a schema that can't check payloads.
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
        """Return ``value`` if it can be decoded. Raises `InvalidMessage`."""
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
        """Return ``data`` unchanged."""
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
            raise undecodable("a message of its schema", error) from error


def _generic(info: SchemaInfo) -> Schema[Any]:
    """Return a schema that decodes messages written with ``info``. Raises `UndecodableMessage`."""
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
        f"AutoConsumeSchema can't decode schemas of type {info.type}; give your own schema"
    )

"""JSON and Avro: values of classes with fields, written by `json` and by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from json import encoder as json_encoder
from typing import Any

import fastavro
from fastavro import schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from velaray.client.exceptions import InvalidConfiguration, InvalidMessage, UndecodableMessage
from velaray.client.schema.avro_names import read_under_any_name
from velaray.client.schema.base import Decode, Schema, T, undecodable
from velaray.client.schema.classes import class_shape
from velaray.client.schema.record_shape import RecordShape
from velaray.client.schema.shapes import Wrong, fault
from velaray.schemas import InvalidSchemaError, SchemaInfo, SchemaType

_REFUSED = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors that json, fastavro and the users' own classes raise for unsuitable values."""
_NO_SCHEMA = (*_REFUSED, LookupError, SchemaParseException, UnknownType)
_UNREADABLE = (*_REFUSED, LookupError, EOFError, SchemaResolutionError)

_writer = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_first_of_json = json.JSONDecoder().raw_decode


def _json_of() -> Callable[[Any], str]:
    """Make the function that converts plain values to JSON text.

    `json` creates its C encoder for each call, which takes as long as encoding a record.
    """
    make = getattr(json_encoder, "c_make_encoder", None)
    if make is None:
        return _writer.encode
    encode = make(
        *(None, _writer.default, json_encoder.encode_basestring, None),
        *(_writer.key_separator, _writer.item_separator),
        *(_writer.sort_keys, _writer.skipkeys, _writer.allow_nan),
    )
    join = "".join
    return lambda plain: join(encode(plain, 0))


_to_json = _json_of()


def _info(kind: SchemaType, definition: Any) -> SchemaInfo:
    return SchemaInfo(kind, str(kind), json.dumps(definition).encode())


def _refusal(shape: RecordShape, value: Any, error: Exception) -> InvalidMessage:
    told = fault(shape, value, "out") or f"{value!r:.80} can't be encoded: {error}"
    return InvalidMessage(f"{shape.kind.__name__}: {told}")


def from_json(data: bytes) -> Any:
    """Return the JSON value in UTF-8 bytes. Raises `UndecodableMessage`."""
    try:
        text = data.decode()
        plain, end = _first_of_json(text)
        # The value is nearly always all of the text. json.loads searches for spaces first, which
        # takes as long as decoding.
        return plain if end == len(text) else json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise undecodable("JSON", error) from error


def _back(shape: RecordShape, plain: Any) -> Any:
    try:
        return shape.back(plain)
    except Wrong:
        told = fault(shape, plain, "back")
        raise UndecodableMessage(f"it isn't a {shape.kind.__name__}: {told}") from None
    except _REFUSED as error:
        raise undecodable(f"a {shape.kind.__name__}", error) from error


class JsonSchema(Schema[T]):
    """Values as JSON objects.

    ``record_cls`` is a `Record`, a dataclass, a pydantic model or a `TypedDict`. Input may lack
    fields that have a default or may be None. Unknown fields are ignored. Bytes must be UTF-8;
    not-a-number and infinity can't be written.
    """

    def __init__(self, record_cls: type[T]) -> None:
        self._shape = class_shape(record_cls, True)
        self.info = _info(SchemaType.JSON, self._shape.avro(set()))

    def encode(self, value: T) -> bytes:
        """Return JSON in UTF-8. Raises `InvalidMessage`; the text names the wrong field."""
        try:
            return _to_json(self._shape.out(value)).encode()
        except _REFUSED as error:
            raise _refusal(self._shape, value, error) from error

    def decode(self, data: bytes) -> T:
        """Return the value. Raises `UndecodableMessage`; the text names the wrong field."""
        plain = from_json(data)
        try:
            return self._shape.back(plain)  # type: ignore[no-any-return]
        except _REFUSED:
            return _back(self._shape, plain)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"JsonSchema({self._shape.kind.__name__})"


class AvroSchema(Schema[T]):
    """Values in Avro's binary form.

    ``record_cls`` is a `Record`, a dataclass, a pydantic model or a `TypedDict`; or None, and
    values are dicts with the fields of ``schema_definition``, a record schema as JSON values.
    Messages of other versions are read by Avro's rules of resolution.
    """

    by_writer = True

    def __init__(
        self, record_cls: type[T] | None, schema_definition: Mapping[str, Any] | None = None
    ) -> None:
        self._shape: RecordShape | None = None
        if record_cls is not None:
            self._shape = class_shape(record_cls, False)
            schema_definition = self._shape.avro(set())
        elif not isinstance(schema_definition, Mapping):
            raise InvalidConfiguration("AvroSchema needs a record class or a schema_definition")
        self._definition = dict(schema_definition)
        self.info = _info(SchemaType.AVRO, self._definition)
        self._parsed = self._parse(self._definition)
        self._own = self._reading(self._parsed, None)

    def _parse(self, definition: Any) -> Any:
        try:
            # Records of Pulsar's clients have defaults that don't match a union's first branch.
            return fastavro.parse_schema(definition, _ignore_default_error=True)
        except _NO_SCHEMA as error:
            raise InvalidConfiguration(f"fastavro can't use the schema: {error!r}") from error

    def encode(self, value: T) -> bytes:
        """Return Avro's binary form. Raises `InvalidMessage`; the text names the wrong field."""
        buffer = io.BytesIO()
        shape = self._shape
        try:
            plain = value if shape is None else shape.out(value)
            schemaless_writer(buffer, self._parsed, plain)
        except (*_REFUSED, LookupError, AttributeError) as error:
            if shape is not None:
                raise _refusal(shape, value, error) from error
            raise InvalidMessage(f"{value!r:.80} doesn't fit the schema: {error!r}") from error
        return buffer.getvalue()

    def decode(self, data: bytes) -> T:
        """Decode a value that was written with this very schema. Raises `UndecodableMessage`."""
        return self._own(data, None)  # type: ignore[no-any-return]

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """Return the decoder for ``writer``, by Avro's rules of resolution."""
        if writer is None or writer.data == self.info.data:
            return self._own
        if writer.type is not SchemaType.AVRO:
            raise UndecodableMessage(f"it was written with a schema of type {writer.type}")
        try:
            definition = json.loads(writer.data)
            written = self._parse(definition)
            wanted = read_under_any_name(self._definition, definition)
        except (ValueError, InvalidConfiguration, InvalidSchemaError) as error:
            raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error
        return self._reading(written, self._parse(wanted))

    def _reading(self, writer: Any, reader: Any) -> Decode:
        shape = self._shape

        def decode(data: bytes, _: bytes | None) -> Any:
            buffer = io.BytesIO(data)
            try:
                plain = schemaless_reader(buffer, writer, reader)
            except _UNREADABLE as error:
                raise undecodable("an Avro value of its schema", error) from error
            if buffer.tell() != len(data):
                left = len(data) - buffer.tell()
                raise UndecodableMessage(f"{left} bytes are left over after its Avro value")
            if shape is None:
                return plain
            try:
                return shape.back(plain)
            except _REFUSED:
                return _back(shape, plain)

        return decode

    def __repr__(self) -> str:
        name = self._definition.get("name") if self._shape is None else self._shape.kind.__name__
        return f"AvroSchema({name})"

"""Values as typed columns: messages decoded to the type of their topic's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velaray.client.core import topic_name
from velaray.client.exceptions import InvalidConfiguration, UndecodableMessage
from velaray.client.received import ReceivedBatch
from velaray.client.schema.auto import AutoConsumeSchema
from velaray.client.schema.base import BytesSchema, Decode, Schema, undecodable
from velaray.client.schema.key_value import KeyValueSchema
from velaray.client.schema.primitives import PRIMITIVES
from velaray.client.schema.records import AvroSchema, from_json
from velaray.client.schema.shapes import Wrong, fault
from velaray.offline.stored_schemas import stored_schema
from velaray.pipelines.typed_kinds import PRIMITIVE_KINDS, Kind, avro_kind, struct_kind
from velaray.schemas import InvalidSchemaError, SchemaInfo, SchemaType
from velaray.schemas.avro import parse_avro
from velaray.schemas.info import encoding_of, split_key_value
from velaray.schemas.validation import identity

if TYPE_CHECKING:
    from velaray import Client
    from velaray.client.blocks import Segment
    from velaray.pipelines.spark_client import Service

_UNFIT = (pa.ArrowException, OverflowError)
"""Arrow's errors for numbers that are out of a column's range."""


class TypedValue(Schema[Any]):
    """The type of column ``value`` in one query: the topics' newest schema at planning time.

    The object is sent to the tasks. Messages of other versions are read as by a consumer with this
    schema. An undecodable message is null with ``lenient``, otherwise an error.
    """

    by_writer = True
    info = AutoConsumeSchema.info  # the service compares nothing: each message decides

    def __init__(self, wanted: SchemaInfo, *, lenient: bool = False) -> None:
        """Raises `InvalidConfiguration` for a schema that has no column type."""
        self.wanted = wanted
        self.lenient = lenient
        try:
            self._inner, self._kind = _typed(wanted)
        except InvalidSchemaError as error:
            raise InvalidConfiguration(f"the topic's schema can't be used: {error}") from error
        self.separate_key = self._inner.separate_key

    @property
    def ddl(self) -> str:
        """The column's type, in Spark's SQL."""
        return self._kind.ddl

    def __reduce__(self) -> tuple[Callable[..., TypedValue], tuple[Any, ...]]:
        return _remade, (self.wanted, self.lenient)

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        """Return the decoder for messages written with ``writer``, in Arrow's input form."""
        return self._inner.decoder(writer)

    def array(self, segments: Sequence[Segment]) -> pa.Array:
        """Return the values of messages that were received with this schema, tombstones as nulls.

        Raises `UndecodableMessage`, whose text names the message, unless ``lenient`` makes it null.
        """
        batch: ReceivedBatch[Any] = ReceivedBatch(list(segments))
        try:
            return self._array(batch.values())
        except (UndecodableMessage, *_UNFIT):
            return self._array([self._fitting(message) for message in batch.messages()])

    def _array(self, values: list[Any]) -> pa.Array:
        return pa.array(values, self._kind.given).cast(self._kind.arrow)

    def _fitting(self, message: Any) -> Any:
        try:
            value = message.value()
            self._array([value])
        except UndecodableMessage:
            if not self.lenient:
                raise
            return None
        except _UNFIT as error:
            if not self.lenient:
                version = int.from_bytes(message.schema_version(), "big")
                wrong = undecodable(f"a value of type {self.ddl}", error)
                raise wrong.of(message.topic_name(), message.message_id(), version) from error
            return None
        return value


def _remade(wanted: SchemaInfo, lenient: bool) -> TypedValue:
    return TypedValue(wanted, lenient=lenient)


def _agreed(found: Mapping[str, SchemaInfo | None]) -> SchemaInfo:
    """Return the schema that all these topics share.

    Raises `InvalidConfiguration` if there are several, or a topic has none.
    """
    if not found:
        raise InvalidConfiguration("value_schema='typed' needs a topic: there is none yet")
    first, wanted = next(iter(found.items()))
    for topic, info in found.items():
        if info is None or wanted is None:
            raise InvalidConfiguration(
                f"{topic} has no schema, so its values have no column type; read it with"
                ' value_schema="bytes"'
            )
        if identity(info) != identity(wanted):
            raise InvalidConfiguration(
                f"{first} and {topic} have different schemas, and a column has one type: read"
                " them one by one"
            )
    assert wanted is not None
    return wanted


def typed_by_service(
    service: Service, topics: Callable[[Client], Sequence[str]], lenient: bool
) -> TypedValue:
    """Return the current schema of the topics.

    Raises `InvalidConfiguration` if they have several or none, `TopicNotFound`, and the service's
    errors.
    """
    with service.client() as client:
        names = topics(client)
        for name in names:
            client.get_topic_partitions(name, create=False)
        found = {name: client.get_schema(name) for name in names}
    return TypedValue(_agreed(found), lenient=lenient)


def typed_by_files(
    data_dir: str, topics: Sequence[str], lenient: bool, encryption_keys: str | None = None
) -> TypedValue:
    """Return the current schema of the topics in a cluster's files.

    Raises as `stored_schema`, too.
    """
    found = {topic: stored_schema(data_dir, topic_name(topic), encryption_keys) for topic in topics}
    return TypedValue(_agreed(found), lenient=lenient)


def _typed(info: SchemaInfo) -> tuple[Schema[Any], Kind]:
    """Return a schema's decoder and column. Raises `InvalidSchemaError`, too."""
    match info.type:
        case SchemaType.AVRO:
            return _StoredAvro(info), avro_kind(parse_avro(info.data))
        case SchemaType.JSON:
            kind = avro_kind(parse_avro(info.data))
            return _Json(info, kind), kind
        case SchemaType.KEY_VALUE:
            (key, of_key), (value, of_value) = map(_typed, split_key_value(info))
            pair = KeyValueSchema(key, value, encoding_of(info))
            return pair, struct_kind({"key": of_key, "value": of_value})
    if info.type in PRIMITIVE_KINDS:
        return _Single(info), PRIMITIVE_KINDS[info.type]
    raise InvalidConfiguration(
        f"values of a schema of type {info.type} have no column type; read them with"
        ' value_schema="bytes"'
    )


def _same_type(own: SchemaInfo, writer: SchemaInfo | None) -> None:
    if writer is not None and writer.type is not own.type:
        raise UndecodableMessage(f"it was written with a schema of type {writer.type}")


class _Single(Schema[Any]):
    """Single values, which are read only as their own type."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info
        self._one = BytesSchema() if info.type is SchemaType.BYTES else PRIMITIVES[info.type]

    by_writer = True

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        _same_type(self.info, writer)
        return self._one.decoder(None)


class _Json(Schema[Any]):
    """JSON, with the fields of its schema."""

    by_writer = True

    def __init__(self, info: SchemaInfo, kind: Kind) -> None:
        self.info = info
        self._shape = kind.shape

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        _same_type(self.info, writer)
        shape = self._shape

        def decode(data: bytes, _: bytes | None) -> Any:
            plain = from_json(data)
            try:
                return shape.back(plain)
            except Wrong:
                raise UndecodableMessage(
                    f"it doesn't fit its schema: {fault(shape, plain, 'back')}"
                ) from None

        return decode


class _StoredAvro(AvroSchema[Any]):
    """Avro values in their stored form: times are numbers."""

    def __init__(self, info: SchemaInfo) -> None:
        definition = _without_logical(json.loads(info.data))
        super().__init__(None, definition if isinstance(definition, dict) else {"type": definition})

    def decoder(self, writer: SchemaInfo | None) -> Decode:
        if writer is not None and writer.type is SchemaType.AVRO:
            try:
                plain = json.dumps(_without_logical(json.loads(writer.data))).encode()
            except ValueError as error:
                raise UndecodableMessage(f"its writer's schema can't be used: {error}") from error
            writer = replace(writer, data=plain)
        return super().decoder(writer)


def _without_logical(definition: Any) -> Any:
    if isinstance(definition, list):
        return [_without_logical(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    return {
        key: value if key == "default" else _without_logical(value)
        for key, value in definition.items()
        if key != "logicalType"
    }

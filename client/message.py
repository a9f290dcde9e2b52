"""Received messages, and outgoing messages of a producer."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import time
from typing import Any, Generic, NamedTuple

from velaray.client.encryption_keys import EncryptionContext
from velaray.client.exceptions import InvalidMessage, UndecodableMessage
from velaray.client.message_id import MessageId
from velaray.client.schema.base import BYTES, Decode, Schema, T
from velaray.client.schema.key_value import KeyValueSchema
from velaray.events.ids import MessageId as StoredId
from velaray.events.ids import TransactionId
from velaray.schemas import SchemaInfo
from velaray.wire.batches import PLAIN
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from velaray.wire.schemas import VERSION_BYTES, read_version

LOCAL_CLUSTER_ONLY = "__local__"
"""The protocol's mark of a message that must not be replicated."""


@dataclass(slots=True, eq=False)
class EntryInfo:
    """The data that all messages of one delivered entry share."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    metadata: MessageMetadata
    redelivery_count: int = 0
    batch_size: int = 0
    first_chunk: StoredId | None = None
    generation: int = 0
    """The consumer's session in which it was received, if the consumer moves messages."""
    decode: Decode | None = None
    """The decoder of the messages' values; None: values are the payloads."""
    pairs: bool = False
    """Whether values are pairs whose first item is the message's key."""
    sealed: str = ""
    """Why the entry couldn't be decrypted: its one message is the encrypted payload. "" if not."""

    @property
    def where(self) -> tuple[int, int]:
        """Ledger id and entry id."""
        return (self.ledger_id, self.entry_id)

    def message_id(self, index: int) -> MessageId:
        """The id of the message with this index within the batch; -1 if the entry is no batch."""
        return MessageId(
            self.partition,
            self.ledger_id,
            self.entry_id,
            index,
            batch_size=self.batch_size,
            topic=self.topic,
            first_chunk=self.first_chunk,
        )


class Message(Generic[T]):
    """A received message. Its methods are those of Pulsar's Python client."""

    __slots__ = ("_payload", "_single", "index", "info")

    def __init__(
        self,
        info: EntryInfo,
        payload: bytes,
        index: int = -1,
        single: SingleMessageMetadata | None = None,
    ) -> None:
        self.info = info
        self._payload = payload
        self.index = index  # within its batch, -1 if it was sent alone
        self._single = single

    def data(self) -> bytes:
        """The payload."""
        return self._payload

    def value(self) -> T:
        """The payload, decoded by the consumer's schema.

        A tombstone is None, and b"" if the schema is bytes.

        Raises `UndecodableMessage` if it doesn't fit the schema.
        """
        decode = self.info.decode
        if decode is None:
            return self._payload  # type: ignore[return-value]
        null = self.metadata.null_value
        try:
            if self.info.pairs:
                key = self.partition_key_bytes() if self.metadata.partition_key else None
                return decode(None if null else self._payload, key)  # type: ignore[no-any-return]
            return None if null else decode(self._payload, None)  # type: ignore[return-value]
        except UndecodableMessage as error:
            version = version_of(self.info.metadata)
            raise error.of(self.info.topic, self.message_id(), version) from error

    def properties(self) -> dict[str, str]:
        """The producer's properties, as a new dict."""
        return {pair.key: pair.value for pair in self.metadata.properties}

    def partition_key(self) -> str:
        """The key that chose the partition; "" if there is none."""
        return self.metadata.partition_key

    def partition_key_bytes(self) -> bytes:
        """The key as bytes, for keys that aren't text."""
        own = self.metadata
        if own.partition_key_b64_encoded:
            return base64.b64decode(own.partition_key)
        return own.partition_key.encode()

    def ordering_key(self) -> str:
        """The key that orders messages of a KeyShared subscription; "" if there is none."""
        return self.metadata.ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """When the producer sent it, in milliseconds since 1970."""
        return self.info.metadata.publish_time

    def event_timestamp(self) -> int:
        """The producer's event time, in milliseconds since 1970; 0 if there is none."""
        return self.metadata.event_time

    def message_id(self) -> MessageId:
        """The position of the message."""
        return self.info.message_id(self.index)

    @property
    def where(self) -> tuple[int, int]:
        """Ledger id and entry id of the entry that holds it."""
        return self.info.where

    def topic_name(self) -> str:
        """The full name of the topic partition."""
        return self.info.topic

    def redelivery_count(self) -> int:
        """The number of earlier deliveries that ended without an acknowledgement."""
        return self.info.redelivery_count

    def schema_version(self) -> bytes:
        """The version of the topic's schema that the message was written with; b"" if none."""
        return self.info.metadata.schema_version

    def producer_name(self) -> str:
        """The name of its producer."""
        return self.info.metadata.producer_name

    def has_null_value(self) -> bool:
        """Whether it is a tombstone: sent with content None."""
        return self.metadata.null_value

    def encryption_context(self) -> EncryptionContext | None:
        """How it was encrypted; None if it was sent without encryption."""
        if not self.info.metadata.encryption_keys:
            return None
        return EncryptionContext(self.info.metadata, bool(self.info.sealed))

    @property
    def metadata(self) -> MessageMetadata | SingleMessageMetadata:
        """The message's metadata, or the entry's if the message was sent alone."""
        if self._single is not None:
            return self._single
        return self.info.metadata if self.index < 0 else PLAIN

    def __len__(self) -> int:
        return len(self._payload)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<Message {self.message_id()} of {self.info.topic}, {len(self)} bytes>"


def version_of(metadata: MessageMetadata) -> int | None:
    """The schema version of an entry; None if there is none, or none in Pulsar's form."""
    raw = metadata.schema_version
    return read_version(raw) if len(raw) == VERSION_BYTES else None


class Content(NamedTuple):
    """An encoded value: payload, key, and the schema if it isn't the producer's own."""

    payload: bytes | None
    key: str | None
    key_encoded: bool
    schema: SchemaInfo | None

    @property
    def plain(self) -> bool:
        """Whether a payload and a text key describe it completely."""
        return self.schema is None and not self.key_encoded


def content_of(
    value: Any, key: str | None, own: Schema[Any] | None, other: Schema[Any] | None
) -> Content:
    """Encode ``value`` by the producer's own schema, or by another one.

    Raises `InvalidMessage`; the text describes the error in the value.
    """
    schema = other or own or BYTES
    info = None if other is None else other.info
    if value is None:
        return Content(None, key, False, info)
    if not isinstance(schema, KeyValueSchema) or not schema.separate_key:
        return Content(schema.encode(value), key, False, info)
    if key is not None:
        raise InvalidMessage("partition_key: a SEPARATED KeyValue brings its own key")
    raw, payload = schema.encode_parts(value)
    text = None if raw is None else base64.b64encode(raw).decode()
    return Content(payload, text, text is not None, info)


class OutgoingMessage:
    """A message to send; also passed to a ``message_router``."""

    __slots__ = ("_content", "deliver_at", "event_time", "key", "key_encoded", "order_key",
                 "pairs", "replicate_to", "schema", "sequence_id", "transaction")  # fmt: skip

    def __init__(
        self,
        content: bytes | None,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: Sequence[str] | None = None,
        disable_replication: bool | None = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
        encoded: Content | None = None,
    ) -> None:
        """``encoded`` is the schema's result for the value; content and key are taken from it."""
        if type(content) is not bytes and content is not None:
            content = BYTES.encode(content)
        self._content = content
        self.pairs = properties
        self.key = partition_key
        self.order_key = ordering_key
        self.sequence_id = sequence_id
        self.event_time = event_timestamp
        self.replicate_to = [LOCAL_CLUSTER_ONLY] if disable_replication else replication_clusters
        self.deliver_at = deliver_at
        self.transaction: TransactionId | None = None
        self.key_encoded = encoded is not None and encoded.key_encoded
        self.schema = None if encoded is None else encoded.schema  # None: the producer's own
        if deliver_after is not None:
            self.deliver_at = int((time() + deliver_after.total_seconds()) * 1000)
        if not self.plain:
            self._check()

    def _check(self) -> None:
        """Raise `InvalidMessage` for arguments of the wrong type or range."""
        for name, value in (self.pairs or {}).items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidMessage(f"properties must map str to str: {name!r}: {value!r}")
        for label, text in (("partition_key", self.key), ("ordering_key", self.order_key)):
            if not isinstance(text, str | None):
                raise InvalidMessage(f"{label} must be a str: {text!r}")
        numbers = (
            ("sequence_id", self.sequence_id),
            ("event_timestamp", self.event_time),
            ("deliver_at", self.deliver_at),
        )
        for label, number in numbers:
            if number is not None and (not isinstance(number, int) or number < 0):
                raise InvalidMessage(f"{label} must be an int of at least 0: {number!r}")

    @property
    def plain(self) -> bool:
        """Whether there is only content: no key, properties, times or own sequence id."""
        return (
            self.key is None
            and self.pairs is None
            and self.event_time is None
            and self.order_key is None
            and self.sequence_id is None
            and self.deliver_at is None
            and self.replicate_to is None
            and self.schema is None
        )

    @property
    def batchable(self) -> bool:
        """Whether it may share an entry: fields that concern the whole entry prevent that."""
        return self.deliver_at is None and not self.replicate_to

    @property
    def payload(self) -> bytes:
        """The stored payload, which is empty for a tombstone."""
        return self._content or b""

    def data(self) -> bytes:
        """The payload."""
        return self.payload

    def partition_key(self) -> str:
        """The key, "" if there is none."""
        return self.key or ""

    def ordering_key(self) -> str:
        """The ordering key, "" if there is none."""
        return self.order_key or ""

    def properties(self) -> dict[str, str]:
        """The properties, as a new dict."""
        return dict(self.pairs or {})

    def event_timestamp(self) -> int:
        """The event time in milliseconds since 1970, 0 if there is none."""
        return self.event_time or 0

    def has_null_value(self) -> bool:
        """Whether it is a tombstone."""
        return self._content is None

    def describe(self, into: MessageMetadata | SingleMessageMetadata) -> None:
        """Set the fields that both kinds of metadata have."""
        if self.pairs:
            for name, value in self.pairs.items():
                into.properties.add(key=name, value=value)
        if self.key:
            into.partition_key = self.key
            if self.key_encoded:
                into.partition_key_b64_encoded = True
        if self.order_key:
            into.ordering_key = self.order_key.encode("utf-8", "surrogateescape")
        if self.event_time:
            into.event_time = self.event_time
        if self._content is None:
            into.null_value = True

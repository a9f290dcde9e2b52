"""Messages: as a consumer gets them, and as a producer is about to send them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import time
from typing import Any, Generic, NamedTuple

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
"""The protocol's way to say that a message is not to be replicated."""


@dataclass(slots=True, eq=False)
class EntryInfo:
    """What all messages of one delivered entry have in common."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    metadata: MessageMetadata
    redelivery_count: int = 0
    batch_size: int = 0
    first_chunk: StoredId | None = None
    generation: int = 0
    """In which of its sessions the consumer got it, if it moves messages elsewhere."""
    decode: Decode | None = None
    """How to get its messages' values; None: payloads are what they are."""
    pairs: bool = False
    """Whether values are pairs whose first is the message's key."""

    @property
    def where(self) -> tuple[int, int]:
        """Ledger id and entry id."""
        return (self.ledger_id, self.entry_id)

    def message_id(self, index: int) -> MessageId:
        """The id of the message with this index within the batch; -1 if it's no batch."""
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
        """The payload, decoded by the consumer's schema; None for a tombstone, b"" for bytes.

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
        """What the producer attached, as a new dict."""
        return {pair.key: pair.value for pair in self.metadata.properties}

    def partition_key(self) -> str:
        """The key that chose the partition, "" if there is none."""
        return self.metadata.partition_key

    def partition_key_bytes(self) -> bytes:
        """The key as bytes, for producers that use keys which aren't text."""
        own = self.metadata
        if own.partition_key_b64_encoded:
            return base64.b64decode(own.partition_key)
        return own.partition_key.encode()

    def ordering_key(self) -> str:
        """The key that orders messages of a KeyShared subscription, "" if there is none."""
        return self.metadata.ordering_key.decode("utf-8", "surrogateescape")

    def publish_timestamp(self) -> int:
        """When the producer sent it, in milliseconds since 1970."""
        return self.info.metadata.publish_time

    def event_timestamp(self) -> int:
        """The time that the producer gave it, in milliseconds since 1970; 0 if none."""
        return self.metadata.event_time

    def message_id(self) -> MessageId:
        """Where the message is stored."""
        return self.info.message_id(self.index)

    @property
    def where(self) -> tuple[int, int]:
        """Ledger id and entry id of the entry that holds it."""
        return self.info.where

    def topic_name(self) -> str:
        """The full name of the topic partition that it came from."""
        return self.info.topic

    def redelivery_count(self) -> int:
        """How often the service has redelivered it."""
        return self.info.redelivery_count

    def schema_version(self) -> bytes:
        """The version of the topic's schema that it was written with, b"" if none."""
        return self.info.metadata.schema_version

    def producer_name(self) -> str:
        """The name of its producer."""
        return self.info.metadata.producer_name

    def has_null_value(self) -> bool:
        """Whether it is a tombstone: sent with content None."""
        return self.metadata.null_value

    def encryption_context(self) -> None:
        """None: velaray has no end-to-end encryption."""

    @property
    def metadata(self) -> MessageMetadata | SingleMessageMetadata:
        """What the producer said of it; of its entry, if it was sent alone."""
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
    """The schema version that an entry is stamped with; None: none, or none of Pulsar's."""
    raw = metadata.schema_version
    return read_version(raw) if len(raw) == VERSION_BYTES else None


class Content(NamedTuple):
    """What a value became: payload and key, and the schema if it isn't the producer's own."""

    payload: bytes | None
    key: str | None
    key_encoded: bool
    schema: SchemaInfo | None

    @property
    def plain(self) -> bool:
        """Whether there's nothing that a payload and a key of text don't say."""
        return self.schema is None and not self.key_encoded


def content_of(
    value: Any, key: str | None, own: Schema[Any] | None, other: Schema[Any] | None
) -> Content:
    """Encode ``value`` by the producer's own schema, or by another one.

    Raises `InvalidMessage`, which says what is wrong with the value.
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
    """A message on its way to the service; a ``message_router`` gets it to look at."""

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
        """``encoded`` is what a schema made of the value, with ``content`` and key from there."""
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
        """Whether there's nothing but content: no key, properties, times or own sequence id."""
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
        """Whether it may share an entry: what concerns the whole entry keeps it alone."""
        return self.deliver_at is None and not self.replicate_to

    @property
    def payload(self) -> bytes:
        """What is stored: a tombstone's payload is empty."""
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
        """Write what both kinds of metadata can hold."""
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

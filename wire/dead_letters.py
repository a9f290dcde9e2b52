"""Makes the copy of an entry for a dead-letter topic, with Pulsar's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from velaray.events.ids import MessageId
from velaray.wire.batches import BatchLayout
from velaray.wire.compression import Compression, compress, decompress
from velaray.wire.messages import build_batch, build_entry, is_batch, split_entry
from velaray.wire.pulsar_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata
from velaray.wire.schemas import NO_VERSION

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_ID_OLD = "ORIGIN_MESSAGE_IDY_TIME"
"""A misspelt name of the same property, for older clients."""


def dead_letter_topic(topic: str, subscription: str) -> str:
    """The default dead-letter topic of Pulsar's clients."""
    return f"{topic}-{subscription}-DLQ"


class Courier:
    """Copies entries of one subscription under one producer name."""

    def __init__(self, producer: str, topic: str, subscription: str) -> None:
        """``topic`` is the one without partition."""
        self._producer = producer
        self._fixed = {REAL_TOPIC: topic, REAL_SUBSCRIPTION: subscription}

    def copy(
        self,
        entry: bytes | memoryview,
        at: MessageId,
        number: int,
        mask: int | None,
        now_ms: int,
        schema_version: bytes = NO_VERSION,
    ) -> tuple[bytes, int]:
        """The copy of an entry, and its number of messages.

        The copy keeps key, ordering key, event time, properties, payload and chunk number. Of a
        batch it has the messages in ``mask`` (None: all), of an encrypted batch all messages. Its
        ``schema_version`` is that of the dead-letter topic. Raises `MalformedEntryError` and
        `CompressionError`.
        """
        metadata, payload = split_entry(entry)
        copied = MessageMetadata()
        copied.CopyFrom(metadata)
        for name in ("highest_sequence_id", "deliver_at_time", "schema_version"):
            copied.ClearField(name)
        copied.producer_name, copied.sequence_id = self._producer, number
        copied.publish_time = now_ms
        if schema_version:
            copied.schema_version = schema_version
        if not is_batch(metadata) or metadata.encryption_keys:
            self._mark(copied.properties, at)
            return build_entry(copied, payload), max(metadata.num_messages_in_batch, 1)
        kind = Compression(metadata.compression)
        plain = decompress(kind, payload, metadata.uncompressed_size or len(payload))
        layout = BatchLayout(plain, 0, metadata.num_messages_in_batch)
        messages = []
        for index, value in enumerate(layout.values(0, metadata.num_messages_in_batch)):
            if mask is None or mask >> index & 1:
                single = SingleMessageMetadata()
                single.CopyFrom(layout.single(index) or SingleMessageMetadata(payload_size=0))
                single.ClearField("sequence_id")
                self._mark(single.properties, replace(at, batch_index=index))
                messages.append((single, value))
        batch = build_batch(messages)
        copied.num_messages_in_batch = len(messages)
        copied.uncompressed_size = len(batch)
        return build_entry(copied, compress(kind, batch)), len(messages)

    def _mark(self, properties: Iterable[KeyValue], at: MessageId) -> None:
        """Add the properties of the message's origin, unless it has them."""
        parts = [at.ledger_id, at.entry_id, at.partition]
        if at.batch_index >= 0:
            parts.append(at.batch_index)
        origin = ":".join(map(str, parts))
        known = {pair.key for pair in properties}
        marks = {**self._fixed, ORIGIN_MESSAGE_ID: origin, ORIGIN_MESSAGE_ID_OLD: origin}
        for key, value in marks.items():
            if key not in known:
                properties.add(key=key, value=value)  # type: ignore[attr-defined]

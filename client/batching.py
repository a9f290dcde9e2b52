"""The open batches of one producer: message numbering and division into entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from velaray.client.batcher import Done, Entry, EntryBuilder, EntryDone, PackedBatch
from velaray.client.message import OutgoingMessage
from velaray.client.options import ProducerOptions
from velaray.events.ids import TransactionId
from velaray.schemas import SchemaInfo
from velaray.wire.schemas import NO_VERSION


class Batching:
    """Gives messages their sequence ids and passes full batches to ``transmit``.

    A batch is also passed on when the configured publish delay is over. All messages of an entry
    belong to one transaction and one schema.
    """

    def __init__(
        self,
        options: ProducerOptions[Any],
        loop: asyncio.AbstractEventLoop,
        transmit: Callable[[Entry], None],
    ) -> None:
        self.builder: EntryBuilder | None = None
        """None until `begin`."""
        self.next_sequence_id = 0
        self._options = options
        self._loop = loop
        self._transmit = transmit
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, name: str, next_sequence_id: int, max_message_size: int) -> None:
        """Begin, after the first registration of the producer under this name."""
        self.builder = EntryBuilder(self._options, name, max_message_size)
        self.next_sequence_id = next_sequence_id

    @property
    def open(self) -> bool:
        """Whether there is an open batch that takes more messages."""
        return self.builder is not None and self.builder.open

    def add(
        self, message: OutgoingMessage, version: bytes, schema: SchemaInfo | None, done: Done
    ) -> None:
        """Number a message and add it to a batch.

        Raises `MessageTooBig` and `CryptoError`; the message gets no number then.
        """
        builder = self._builder_of(message.transaction, version, schema)
        sequence_id = message.sequence_id
        if sequence_id is None:
            sequence_id = self.next_sequence_id
        entries = builder.add(message, sequence_id, done)
        if message.sequence_id is None:
            self.next_sequence_id = sequence_id + 1
        for entry in entries:
            self._transmit(entry)
        if builder.open and self._timer is None:
            delay = self._options.batching_max_publish_delay_ms / 1000
            self._timer = self._loop.call_later(delay, self.flush)

    def add_packed(
        self,
        batch: PackedBatch,
        transaction: TransactionId | None,
        version: bytes,
        schema: SchemaInfo | None,
        done: EntryDone,
    ) -> None:
        """Number the messages of a packed batch, which becomes an entry of its own.

        Raises `CryptoError`; the messages get no numbers then.
        """
        self.flush()
        builder = self._builder_of(transaction, version, schema)
        entry = builder.packed(batch, self.next_sequence_id, done)
        self.next_sequence_id = entry.last_sequence_id + 1
        self._transmit(entry)

    def _builder_of(
        self, transaction: TransactionId | None, version: bytes, schema: SchemaInfo | None
    ) -> EntryBuilder:
        builder = self.builder
        assert builder is not None
        if transaction != builder.transaction or version != builder.schema_version:
            self.flush()
            builder.transaction = transaction
            builder.schema_version = version
            builder.schema = schema if version else None
        return builder

    def forget_schema(self) -> None:
        """Stamp the next message again, even if its schema version is the previous one's."""
        if self.builder is not None:
            self.builder.schema_version, self.builder.schema = NO_VERSION, None

    def flush(self) -> None:
        """Pass on the open batches without waiting for more messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.builder is not None:
            for entry in self.builder.flush():
                self._transmit(entry)

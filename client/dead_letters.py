"""Moves messages to the retry topic and to the dead-letter topic.

The copy is published first, and the original is acknowledged afterwards. Each copy has a producer
of its own, whose name is derived from the message's id. After a crash in between, the next consumer
of the message repeats the same publication, and the service drops it as a duplicate. Once the
acknowledgement is durable the producer is closed, and the service deletes its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any, NamedTuple

from velaray.client.batcher import Done
from velaray.client.core import Core, topic_name
from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.exceptions import (
    AlreadyClosed,
    CryptoError,
    IncompatibleSchema,
    InvalidMessage,
    TopicNotFound,
    VelarayError,
)
from velaray.client.message import Message, OutgoingMessage
from velaray.client.message_id import MessageId
from velaray.client.options import ProducerOptions
from velaray.client.partition_producer import PartitionProducer
from velaray.client.transactions import Transaction
from velaray.events.ids import TopicName
from velaray.wire.dead_letters import (
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_OLD,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    dead_letter_topic,
)
from velaray.wire.hashing import partition_of
from velaray.wire.pulsar_pb2 import MessageMetadata, SingleMessageMetadata

logger = logging.getLogger("velaray")

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
EXCEPTION = "EXCEPTION"
"""The property that contains the reason why a message couldn't be processed."""

MOVES_AT_ONCE = 32
"""Number of messages that one consumer moves at a time."""

Settle = Callable[[], Awaitable[bool]]
"""Acknowledges the original durably; returns whether this consumer held it all the time."""


@dataclass(frozen=True)
class DeadLetterPolicy:
    """When messages are moved, and where to."""

    max_redeliver_count: int
    undecodable: bool = False
    """Whether messages that don't fit the schema are moved at once."""

    dead_letter_topic: str | None = None
    """None: each topic has its own, named after the topic and the subscription."""

    retry_letter_topic: str | None = None
    """None: messages can't be consumed later."""

    initial_subscription: str | None = None


class DeadLetter(OutgoingMessage):
    """A copy of a received message, with other properties."""

    __slots__ = ("_order_bytes", "key_names")

    def __init__(
        self, message: Message[Any], properties: Mapping[str, str], deliver_at: int | None = None
    ) -> None:
        own = message.metadata
        super().__init__(
            None if message.has_null_value() else message.data(),
            properties,
            own.partition_key or None,
            sequence_id=0,
            event_timestamp=own.event_time or None,
            deliver_at=deliver_at,
        )
        self.key_encoded = own.partition_key_b64_encoded
        self._order_bytes = own.ordering_key
        self.key_names = tuple(key.key for key in message.info.metadata.encryption_keys)

    def describe(self, into: MessageMetadata | SingleMessageMetadata) -> None:
        """Set the fields that both kinds of metadata have, including keys that aren't text."""
        super().describe(into)
        if self._order_bytes:
            into.ordering_key = self._order_bytes


class Addressed(NamedTuple):
    """A copy and its target topic."""

    dead_letter: DeadLetter
    topic: str
    suffix: str


class DeadLetterProducers:
    """Publishes the copies of one consumer; on the loop's thread."""

    def __init__(
        self,
        core: Core,
        subscription: str,
        rules: DeadLetterPolicy,
        key_reader: EncryptionKeyReader | None = None,
    ) -> None:
        """``key_reader`` reads the public keys for copies of encrypted messages."""
        self._key_reader = key_reader
        self.rules = rules
        self.max_redeliver_count = rules.max_redeliver_count
        self._core = core
        self._subscription = subscription
        self._partitions: dict[str, int] = {}
        self._producers: dict[str, PartitionProducer] = {}
        self._shared: dict[tuple[TopicName, tuple[str, ...]], asyncio.Task[PartitionProducer]] = {}
        self._room = asyncio.Semaphore(MOVES_AT_ONCE)
        self._closed = False

    # --- targets ---

    def dead(self, message: Message[Any], extra: Mapping[str, str] | None = None) -> Addressed:
        """Make the copy of ``message`` for the dead-letter topic."""
        return self._dead(message, self._properties(message) | dict(extra or {}))

    def _dead(self, message: Message[Any], properties: Mapping[str, str]) -> Addressed:
        topic = self.rules.dead_letter_topic
        if topic is None:
            topic = dead_letter_topic(origin_topic(message), self._subscription)
        return Addressed(DeadLetter(message, properties), topic, "DLQ")

    def later(
        self, message: Message[Any], delay_ms: int, extra: Mapping[str, str] | None
    ) -> Addressed:
        """Make the copy for the retry topic, or for the dead-letter topic after the last retry."""
        properties = self._properties(message) | dict(extra or {})
        known = message.properties().get(RECONSUMETIMES, "0")
        if not known.isdecimal():
            raise InvalidMessage(f"property {RECONSUMETIMES} of {message!r} is {known!r}")
        times = int(known) + 1
        properties[RECONSUMETIMES] = str(times)
        properties[DELAY_TIME] = str(delay_ms)
        retry = self.rules.retry_letter_topic
        if times > self.max_redeliver_count or retry is None:
            return self._dead(message, properties)
        deliver_at = int(time() * 1000) + delay_ms if delay_ms else None
        return Addressed(DeadLetter(message, properties, deliver_at), retry, "RETRY")

    def _properties(self, message: Message[Any]) -> dict[str, str]:
        properties = message.properties()
        origin = described_id(message.message_id())
        properties.setdefault(REAL_TOPIC, origin_topic(message))
        properties.setdefault(ORIGIN_MESSAGE_ID, origin)
        properties.setdefault(ORIGIN_MESSAGE_ID_OLD, origin)
        properties.setdefault(REAL_SUBSCRIPTION, self._subscription)
        return properties

    # --- moving ---

    async def move(self, message: Message[Any], addressed: Addressed, settle: Settle) -> None:
        """Publish the copy, then have ``settle`` acknowledge the original.

        The copy of an encrypted message is encrypted for the same keys. Raises the errors of both,
        and `CryptoError` if the copy can't be encrypted or the original wasn't decrypted. After an
        error the copy may be stored and the original
        unacknowledged; moving the message again doesn't store a second copy.
        """
        _check_decrypted(message)
        where = described_id(message.message_id())
        name = f"{message.topic_name()}-{self._subscription}-{where}-{addressed.suffix}"
        async with self._room:
            if self._closed:
                raise AlreadyClosed("the consumer is closed")
            producer = await self._producer(name, addressed)
            await self._send(producer.send, message, addressed.dead_letter)
            if await settle():
                self._producers.pop(name, None)
                await producer.close()

    async def send_in(self, txn: Transaction, message: Message[Any], addressed: Addressed) -> None:
        """Publish the copy in a transaction; returns when it is stored.

        The transaction commits or aborts copy and original together. So no producer name is needed
        against duplicates, and one producer serves for all messages.
        """
        _check_decrypted(message)
        if self._closed:
            raise AlreadyClosed("the consumer is closed")
        topic = await self._partition(described_id(message.message_id()), addressed)
        shared = (topic, addressed.dead_letter.key_names)
        starting = self._shared.get(shared)
        if starting is None or (starting.done() and _is_out(starting)):
            made = self._started(topic, addressed, None)
            starting = self._shared[shared] = self._core.spawn(made)
        producer = await asyncio.shield(starting)
        addressed.dead_letter.sequence_id = None
        await self._send(partial(txn.send, producer, urgent=True), message, addressed.dead_letter)

    async def _send(
        self,
        send: Callable[[DeadLetter, Done], None],
        message: Message[Any],
        dead_letter: DeadLetter,
    ) -> None:
        """Send the copy with the schema of the original, if the topic accepts the schema."""
        version = message.schema_version()
        if version:
            try:
                dead_letter.schema = await self._core.schemas.at(message.topic_name(), version)
            except TopicNotFound as error:
                logger.info("%r goes on without its schema: %s", message, error)
        try:
            await _sent(send, dead_letter)
        except IncompatibleSchema as error:
            logger.warning("%r goes on without its schema: %s", message, error)
            dead_letter.schema = None
            await _sent(send, dead_letter)

    async def _producer(self, name: str, addressed: Addressed) -> PartitionProducer:
        known = self._producers.get(name)
        if known is not None and known.error is None:
            return known
        topic = await self._partition(name, addressed)
        producer = self._producers[name] = await self._started(topic, addressed, name)
        return producer

    async def _partition(self, name: str, addressed: Addressed) -> TopicName:
        topic = topic_name(addressed.topic)
        count = self._partitions.get(addressed.topic)
        if count is None:
            count = await self._core.partitions_of(str(topic))
            self._partitions[addressed.topic] = count
        if count:
            topic = topic.of_partition(partition_of(addressed.dead_letter.key or name, count))
        return topic

    async def _started(
        self, topic: TopicName, addressed: Addressed, name: str | None
    ) -> PartitionProducer:
        key_names = addressed.dead_letter.key_names
        options: ProducerOptions[Any] = ProducerOptions(
            str(topic),
            producer_name=name,
            chunking_enabled=True,
            encryption_keys=key_names or None,
            crypto_key_reader=self._key_reader if key_names else None,
        )
        first = self.rules.initial_subscription if addressed.suffix == "DLQ" else None
        producer = PartitionProducer(
            self._core, topic, options, name_is_ours=False, initial_subscription=first
        )
        await producer.start()
        return producer

    async def close(self) -> None:
        """Stop moving messages; returns when copies sent in transactions are stored."""
        self._closed = True
        shared = [
            each.result() for each in self._shared.values() if each.done() and not _is_out(each)
        ]
        await asyncio.gather(*(producer.close() for producer in shared))

    def stop(self) -> None:
        """Stop moving messages, at once."""
        self._closed = True
        for producer in self._producers.values():
            producer.stop()
        self._producers.clear()
        for starting in self._shared.values():
            starting.cancel()
            if starting.done() and not _is_out(starting):
                starting.result().stop()
        self._shared.clear()


def _check_decrypted(message: Message[Any]) -> None:
    """Raise `CryptoError` if the message is still encrypted: its copy could never be decrypted."""
    if message.info.sealed:
        raise CryptoError(
            f"{message!r} is still encrypted, so it can't be moved: {message.info.sealed}"
        )


def _is_out(starting: asyncio.Task[PartitionProducer]) -> bool:
    """Whether a producer that was about to start will never send."""
    if starting.cancelled() or starting.exception() is not None:
        return True
    return starting.result().error is not None


async def _sent(send: Callable[[DeadLetter, Done], None], dead_letter: DeadLetter) -> None:
    receipt: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: VelarayError | None, message_id: MessageId | None) -> None:
        if receipt.done():
            return
        if error is not None:
            receipt.set_exception(error)
        else:
            receipt.set_result(None)

    send(dead_letter, done)
    await receipt


def origin_topic(message: Message[Any]) -> str:
    """The topic that a message was received from, without its partition."""
    return str(topic_name(message.topic_name()).topic)


def described_id(message_id: MessageId) -> str:
    """An id as Pulsar's Java client writes it."""
    parts = [message_id.ledger_id(), message_id.entry_id(), message_id.partition()]
    if message_id.batch_index() >= 0:
        parts.append(message_id.batch_index())
    return ":".join(map(str, parts))


def retry_letter_topic(topic: str, subscription: str) -> str:
    """The default retry topic of Pulsar's clients."""
    return f"{topic}-{subscription}-RETRY"

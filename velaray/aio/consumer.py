"""The consumer that users hold: one topic, all its partitions, several topics, or a pattern."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from velaray.aio.core import Core, start_all, topic_name, watch_partitions
from velaray.aio.inbox import AsyncInbox
from velaray.aio.partition_consumer import Inbox, PartitionConsumer, Subscription
from velaray.enums import ConsumerType, RegexSubscriptionMode
from velaray.events.ids import TopicName
from velaray.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
    Timeout,
    VelarayError,
)
from velaray.message import Message
from velaray.message_id import MessageId
from velaray.options import AioConsumerOptions, ConsumerOptions
from velaray.policies import DEFAULT_BATCH_RECEIVE
from velaray.received import ReceivedBatch

logger = logging.getLogger("velaray")


EVERYTHING = sys.maxsize


def many(max_messages: int | None) -> int:
    """``max_messages`` as a number. Raises `InvalidConfiguration` for one below 1."""
    if max_messages is None:
        return EVERYTHING
    if not isinstance(max_messages, int) or max_messages < 1:
        raise InvalidConfiguration(f"max_messages must be at least 1: {max_messages!r}")
    return max_messages


class ConsumerInbox(Inbox, Protocol):
    """An inbox that a consumer can close."""

    def close(self, error: VelarayError) -> None:
        """Everyone who waits, now or later, gets ``error``."""


def subscription_of(options: ConsumerOptions) -> Subscription:
    """What ``options`` say about the subscription."""
    timeout = options.unacked_messages_timeout_ms
    return Subscription(
        name=options.subscription_name,
        consumer_type=options.consumer_type,
        consumer_name=options.consumer_name,
        initial_position=options.initial_position,
        start_inclusive=options.start_message_id_inclusive,
        properties=options.properties,
        read_compacted=options.is_read_compacted,
        key_shared=options.key_shared_policy,
        batch_index_ack=options.batch_index_ack_enabled,
        queue_size=options.receiver_queue_size,
        ack_group_seconds=options.ack_group_time_ms / 1000,
        nack_delay_seconds=options.negative_ack_redelivery_delay_ms / 1000,
        ack_timeout_seconds=timeout / 1000 if timeout else None,
        max_chunked=options.max_pending_chunked_message,
    )


class TopicSet:
    """The partitions that a consumer is subscribed to, kept up to date, and their closing."""

    def __init__(
        self, core: Core, subscription: Subscription, queue_limit: int, inbox: ConsumerInbox
    ) -> None:
        self.parts: dict[str, PartitionConsumer] = {}
        self._core = core
        self._subscription = subscription
        self._queue_limit = queue_limit
        self._inbox = inbox
        self._topics: dict[str, int] = {}
        self._watchers: list[asyncio.Task[None]] = []

    async def add(self, topics: Sequence[TopicName]) -> None:
        """Subscribe to topics with all their partitions; to all or, on an error, to none."""
        names = [str(topic) for topic in topics]
        counts = await asyncio.gather(*(self._core.partitions_of(name) for name in names))
        added: list[TopicName] = []
        for topic, count in zip(topics, counts, strict=True):
            added += [topic.of_partition(index) for index in range(count)] or [topic]
        self._bound_queues(len(self.parts) + len(added))
        made = self._made(added)
        await start_all(self._core, made)
        self.parts.update({part.topic: part for part in made})
        for topic, count in zip(topics, counts, strict=True):
            self._topics[str(topic)] = count
            if count:
                self._watch(topic, count)

    def _bound_queues(self, parts: int) -> None:
        subscription = self._subscription
        if parts > 1 and subscription.queue_size == 0:
            raise InvalidConfiguration("receiver_queue_size=0 needs a single topic partition")
        size = min(subscription.queue_size, max(self._queue_limit // max(parts, 1), 1))
        if size != subscription.queue_size:
            self._subscription = subscription.with_queue_size(size)

    def _made(self, topics: Sequence[TopicName]) -> list[PartitionConsumer]:
        return [
            PartitionConsumer(self._core, topic, self._subscription, self._inbox)
            for topic in topics
        ]

    def _watch(self, topic: TopicName, count: int) -> None:
        async def grow(known: int, now: int) -> None:
            for part in self._made([topic.of_partition(index) for index in range(known, now)]):
                self.parts[part.topic] = part
                part.start_in_background()

        self._watchers.append(
            self._core.spawn(watch_partitions(self._core, str(topic), count, grow))
        )

    def watch_pattern(self, pattern: TopicPattern, period: float) -> None:
        """Look for topics that match, every ``period`` seconds, and subscribe to new ones."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(period)
                try:
                    found = await pattern.matches(self._core)
                    await self.add([t for t in found if str(t) not in self._topics])
                except VelarayError as error:
                    logger.warning("can't look for topics of a pattern: %s", error)

        self._watchers.append(self._core.spawn(watch()))

    def of(self, message_id: MessageId) -> PartitionConsumer:
        """The partition that an id belongs to. Raises `InvalidMessage` if that's unclear."""
        parts = self.parts
        topic = message_id.topic_name()
        if topic is not None and topic in parts:
            return parts[topic]
        if topic is None:
            if len(parts) == 1:
                return next(iter(parts.values()))
            found = [part for part in parts.values() if part.partition == message_id.partition()]
            if len(found) == 1:
                return found[0]
        raise InvalidMessage(
            f"{message_id} of topic {topic} belongs to no topic of this consumer, or it's not"
            " known to which: give the topic to MessageId.deserialize"
        )

    def stop(self) -> None:
        """Leave all partitions at once."""
        for watcher in self._watchers:
            watcher.cancel()
        for part in self.parts.values():
            part.stop()

    async def close(self) -> None:
        """Leave all partitions, with acknowledgements made durable."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*(part.close() for part in self.parts.values()))


class TopicPattern:
    """A pattern for topic names of one namespace."""

    def __init__(self, pattern: str, mode: RegexSubscriptionMode) -> None:
        parts = pattern.rpartition("://")[2].split("/", 2)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        if len(parts) != 3:
            raise InvalidConfiguration(
                f"topic pattern {pattern!r}: write persistent://tenant/namespace/regex"
            )
        self._namespace = f"{parts[0]}/{parts[1]}"
        self._mode = mode
        try:
            self._pattern = re.compile(f"{re.escape(self._namespace)}/{parts[2]}")
        except re.error as error:
            raise InvalidConfiguration(f"topic pattern {pattern!r}: {error}") from error

    async def matches(self, core: Core) -> list[TopicName]:
        """The topics that exist now and match."""
        names = await core.retrying(
            f"listing the topics of {self._namespace}",
            lambda: core.lookup.topics_of(self._namespace, self._mode),
        )
        return [topic_name(name) for name in names if self.matches_name(name)]

    def matches_name(self, name: str) -> bool:
        """Whether a full topic name matches, its domain left aside."""
        return self._pattern.fullmatch(name.partition("://")[2]) is not None


class ConsumerBase:
    """What consumers and readers of both faces have in common; on the loop's thread."""

    def __init__(
        self, core: Core, subscription: Subscription, queue_limit: int, inbox: ConsumerInbox
    ) -> None:
        self.core = core
        self.subscription = subscription
        self.inbox = inbox
        self.topics = TopicSet(core, subscription, queue_limit, inbox)
        self.closed = False

    async def add_topics(self, topics: str | Sequence[str]) -> None:
        """Subscribe to one topic or several, with all their partitions."""
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise InvalidConfiguration("topic: an empty list; name at least one topic")
        await self.topics.add([topic_name(name) for name in dict.fromkeys(names)])

    async def add_pattern(self, pattern: TopicPattern, period: float) -> None:
        """Subscribe to the topics that match, and to new ones every ``period`` seconds."""
        await self.topics.add(await pattern.matches(self.core))
        self.topics.watch_pattern(pattern, period)

    def acknowledge(self, message: Message | MessageId) -> PartitionConsumer:
        """Note an acknowledgement; returns the partition it belongs to."""
        if type(message) is Message and not self.closed:
            info = message.info
            known = self.topics.parts.get(info.topic)
            if known is not None:
                index = message.index
                known.acknowledge_indexes(info, range(index, index + 1))
                return known
        part, message_id = self.located(message)
        part.acknowledge(message_id)
        return part

    def acknowledge_many(
        self, batch: ReceivedBatch | Iterable[Message | MessageId]
    ) -> list[PartitionConsumer]:
        """Note acknowledgements; returns the partitions they belong to."""
        if not isinstance(batch, ReceivedBatch):
            return list(dict.fromkeys(self.acknowledge(message) for message in batch))
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        self.check_batch(batch)
        for segment in batch.segments:
            segment.block.part.acknowledge_indexes(segment.block.info, segment.indexes)
        return list(dict.fromkeys(segment.block.part for segment in batch.segments))

    def acknowledge_run(self, messages: deque[Any], first: Message) -> None:
        """Note an acknowledgement of ``first`` and of what follows it in ``messages``.

        Takes from the left of ``messages`` those that follow ``first`` within its batch.
        """
        info, start = first.info, first.index
        end = start + 1
        while messages:
            following = messages[0]
            if type(following) is not Message or following.info is not info:
                break
            if following.index != end:
                break
            messages.popleft()
            end += 1
        self.topics.parts[info.topic].acknowledge_indexes(info, range(start, end))

    def check_batch(self, batch: ReceivedBatch) -> None:
        """Raise `InvalidMessage` if another consumer received it."""
        for part in dict.fromkeys(segment.block.part for segment in batch.segments):
            if self.topics.parts.get(part.topic) is not part:
                raise InvalidMessage(f"{batch!r} of {part.topic} was received elsewhere")

    def acknowledge_cumulative(self, message: Message | MessageId) -> PartitionConsumer:
        """Note a cumulative acknowledgement; returns the partition it belongs to."""
        self.check_cumulative()
        part, message_id = self.located(message)
        part.acknowledge_cumulative(message_id)
        return part

    def check_cumulative(self) -> None:
        """Raise `CumulativeAcknowledgementNotAllowedError` unless the type allows it."""
        kind = self.subscription.consumer_type
        if kind in (ConsumerType.Shared, ConsumerType.KeyShared):
            raise CumulativeAcknowledgementNotAllowedError(
                "acknowledge_cumulative needs an Exclusive or Failover subscription;"
                f" this one is {kind.name}"
            )

    def located(self, message: Message | MessageId) -> tuple[PartitionConsumer, MessageId]:
        """The partition and the id of a message. Raises `InvalidMessage`."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        if isinstance(message, Message):
            message = message.message_id()
        elif not isinstance(message, MessageId):
            raise InvalidMessage(f"not a Message or MessageId: {message!r}")
        return self.topics.of(message), message

    async def seek(self, target: MessageId | int) -> None:
        """Seek on one partition (by id) or on all (by time, or to either end)."""
        if isinstance(target, bool) or not isinstance(target, MessageId | int):
            raise InvalidMessage(f"seek to a MessageId or to milliseconds since 1970: {target!r}")
        parts = list(self.topics.parts.values())
        ends = (MessageId.earliest, MessageId.latest)
        if isinstance(target, MessageId) and target not in ends:
            parts = [self.topics.of(target)]
        await asyncio.gather(*(part.seek(target) for part in parts))

    async def last_message_id(self) -> MessageId:
        """The last id of the topic. Raises `OperationNotSupported` for several partitions."""
        parts = list(self.topics.parts.values())
        if len(parts) != 1:
            raise OperationNotSupported(
                "get_last_message_id needs a consumer of one topic partition; this one has"
                f" {len(parts)}"
            )
        return (await parts[0].last_message_id())[0]

    async def unsubscribe(self) -> None:
        """Delete the subscription everywhere, then close."""
        await asyncio.gather(*(part.unsubscribe() for part in self.topics.parts.values()))
        await self.close()

    async def close(self) -> None:
        """Leave, with acknowledgements made durable."""
        self.closed = True
        self.inbox.close(AlreadyClosed("the consumer is closed"))
        await self.topics.close()

    def stop(self) -> None:
        """Leave at once."""
        self.closed = True
        self.inbox.close(AlreadyClosed("the consumer is closed"))
        self.topics.stop()


class SubscribedTopics(ConsumerBase):
    """What both faces' consumers have in common; on the loop's thread."""

    def __init__(self, core: Core, options: ConsumerOptions, inbox: ConsumerInbox) -> None:
        limit = options.max_total_receiver_queue_size_across_partitions
        super().__init__(core, subscription_of(options), limit, inbox)
        self._options = options

    async def start(self) -> None:
        """Subscribe to whatever the options name."""
        options = self._options
        topic = options.topic
        if isinstance(options, AioConsumerOptions) and options.is_pattern_topic:
            if not isinstance(topic, str):
                raise InvalidConfiguration("is_pattern_topic=True needs topic to be a str")
            topic = re.compile(topic)
        if isinstance(topic, re.Pattern):
            pattern = TopicPattern(topic.pattern, options.regex_subscription_mode)
            await self.add_pattern(pattern, options.pattern_auto_discovery_period)
        else:
            await self.add_topics(topic)


class Consumer:
    """Receives and acknowledges messages. Made by `velaray.aio.Client.subscribe`.

    Delivery is at least once: what isn't acknowledged comes again, after a reconnect as
    well. What was acknowledged with a receipt never does, unless the subscription is moved.
    """

    def __init__(
        self, core: Core, options: ConsumerOptions, on_close: Callable[[Consumer], None]
    ) -> None:
        self._options = options
        fetch = options.receiver_queue_size == 0
        self._inbox = AsyncInbox(lambda: self._base.topics.parts.values(), fetch)
        self._base = SubscribedTopics(core, options, self._inbox)
        self._on_close = on_close

    async def start(self) -> None:
        """Subscribe; called by the client."""
        await self._base.start()

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message. Raises `Timeout` if none comes in time, by default waits for ever.

        Cancelling loses no message. Raises `AlreadyClosed` when the consumer is closed.
        """
        message = self._inbox.pop()
        if message is not None:
            return message
        if timeout_millis is None:
            return await self._inbox.get()
        try:
            async with asyncio.timeout(timeout_millis / 1000):
                return await self._inbox.get()
        except TimeoutError as error:
            raise Timeout(f"no message in {timeout_millis} ms") from error

    async def batch_receive(self) -> list[Message]:
        """Messages up to the limits of ``batch_receive_policy``; maybe none, if time is up."""
        policy = self._options.batch_receive_policy or DEFAULT_BATCH_RECEIVE
        messages: list[Message] = []
        size = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        try:
            async with asyncio.timeout_at(end):
                while not policy.full(len(messages), size):
                    message = self._inbox.pop() or await self._inbox.get()
                    messages.append(message)
                    size += len(message)
        except TimeoutError:
            return messages
        return messages

    async def receive_many(
        self, max_messages: int | None = None, timeout_millis: int | None = None
    ) -> ReceivedBatch:
        """All messages that wait, or ``max_messages`` of them, as soon as there is one.

        `ReceivedBatch` is a sequence of their values; nothing is made per message until
        it's asked for. How many wait depends on ``receiver_queue_size``. Raises `Timeout`
        and `AlreadyClosed` as `receive` does, `InvalidConfiguration` for a
        ``max_messages`` below 1. Cancelling loses no message.
        """
        limit = many(max_messages)
        try:
            async with asyncio.timeout(None if timeout_millis is None else timeout_millis / 1000):
                return ReceivedBatch(await self._inbox.get_many(limit))
        except TimeoutError as error:
            if isinstance(error, VelarayError):
                raise
            raise Timeout(f"no message in {timeout_millis} ms") from error

    async def acknowledge_many(
        self,
        batch: ReceivedBatch | Iterable[Message | MessageId],
        *,
        receipt: bool | None = None,
    ) -> None:
        """Acknowledge all messages of a batch, or any messages; guarantees as `acknowledge`.

        For a `ReceivedBatch` there's no step per message.
        """
        parts = self._base.acknowledge_many(batch)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await asyncio.gather(*(part.receipt() for part in parts))

    async def acknowledge(
        self, message: Message | MessageId, *, receipt: bool | None = None
    ) -> None:
        """Acknowledge one message.

        Without a receipt it returns at once; the acknowledgement is sent within
        ``ack_group_time_ms``, and a crash before that brings the message back. With
        ``receipt=True`` (or the consumer's ``ack_receipt_enabled``) it returns when the
        acknowledgement is durable: no crash brings the message back after that. For a
        message of a batch this holds once all of the batch is acknowledged, or with
        ``batch_index_ack_enabled``. Raises `InvalidMessage` for an id of another topic, and
        with a receipt `Timeout` if the outcome is unknown.
        """
        part = self._base.acknowledge(message)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await part.receipt()

    async def acknowledge_cumulative(
        self, message: Message | MessageId, *, receipt: bool | None = None
    ) -> None:
        """Acknowledge all messages of the partition up to and including this one.

        Guarantees as `acknowledge`. Raises `CumulativeAcknowledgementNotAllowedError`
        unless the consumer is Exclusive or Failover.
        """
        part = self._base.acknowledge_cumulative(message)
        if self._options.ack_receipt_enabled if receipt is None else receipt:
            await part.receipt()

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have the message delivered again after ``negative_ack_redelivery_delay_ms``.

        On an Exclusive or Failover subscription everything unacknowledged comes again.
        """
        part, message_id = self._base.located(message)
        part.negative_acknowledge(message_id)

    async def redeliver_unacknowledged_messages(self) -> None:
        """Have everything delivered again that isn't acknowledged; returns at once."""
        for part in self._base.topics.parts.values():
            part.redeliver_all()

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription: the next message is the one after ``messageid``.

        (Or that message itself, with ``start_message_id_inclusive``.) An int is a publish
        time in milliseconds: the next message is the first published then or later. On
        return the position is durable and messages received from now on are from there.
        """
        await self._base.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """The id of the topic's last message; entry id -1 if the topic is empty."""
        return await self._base.last_message_id()

    async def unsubscribe(self) -> None:
        """Delete the subscription and close: its position and backlog are gone for good."""
        await self._base.unsubscribe()
        self._on_close(self)

    async def close(self) -> None:
        """Leave the subscription. Acknowledgements are made durable before, if possible.

        What was received and not acknowledged goes to other consumers, or waits.
        """
        await self._base.close()
        self._on_close(self)

    def stop(self) -> None:
        """Leave at once, without sending what was acknowledged last."""
        self._base.stop()

    def topic(self) -> str:
        """The topic, or the topics joined by commas."""
        return ",".join(described_topics(self._base))

    def subscription_name(self) -> str:
        """The name of the subscription."""
        return self._options.subscription_name

    def consumer_name(self) -> str:
        """The name that was given; "" if none."""
        return self._options.consumer_name or ""

    def is_connected(self) -> bool:
        """Whether every partition's subscription is attached at the moment."""
        return all(part.connected for part in self._base.topics.parts.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while True:
            try:
                message = await self.receive()
            except AlreadyClosed:
                return
            yield message

    def __repr__(self) -> str:
        return f"<Consumer {self.subscription_name()} of {self.topic()}>"


def described_topics(base: ConsumerBase) -> list[str]:
    """The topics of a consumer, without partitions, in order."""
    return list(dict.fromkeys(str(topic_name(name).topic) for name in base.topics.parts))

"""The base of the asyncio and synchronous consumers and readers; on the loop's thread."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from velaray.client.acknowledging import Part, place_of
from velaray.client.acks import Where, bits_at
from velaray.client.consumer_extras import Extras
from velaray.client.core import Core, topic_name
from velaray.client.dead_letters import (
    Addressed,
    DeadLetterPolicy,
    DeadLetterProducers,
    retry_letter_topic,
)
from velaray.client.exceptions import (
    AlreadyClosed,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    InvalidMessage,
)
from velaray.client.interceptors import ConsumerInterceptors
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import AioConsumerOptions, ConsumerOptions
from velaray.client.partition_consumer import PartitionConsumer
from velaray.client.policies import MAX_RECONSUME_TIMES, ConsumerDeadLetterPolicy
from velaray.client.received import ReceivedBatch
from velaray.client.schema.base import typed
from velaray.client.subscription import Subscription
from velaray.client.topics import ConsumerInbox, TopicPattern, TopicSet
from velaray.client.transactions import Transaction
from velaray.wire.dead_letters import dead_letter_topic

SeekTarget = MessageId | int | Callable[[str], MessageId | int]
"""An id, a publish time in milliseconds, or a function that returns either for a partition."""


def subscription_of(options: ConsumerOptions[Any]) -> Subscription:
    """The subscription that ``options`` describe."""
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
        nack_backoff=options.negative_ack_redelivery_backoff,
        ack_timeout_backoff=options.ack_timeout_redelivery_backoff,
        schema=options.schema,
        replicated=options.replicate_subscription_state_enabled,
        key_reader=options.crypto_key_reader,
        crypto_failure_action=options.crypto_failure_action,
        subscription_properties=options.subscription_properties,
    )


def dead_letter_rules(options: ConsumerOptions[Any]) -> DeadLetterPolicy | None:
    """The rules for moving messages to other topics; None if messages are never moved.

    Raises `InvalidConfiguration` for a pattern whose retry topic isn't named.
    """
    policy = options.dead_letter_policy
    if policy is None:
        if not options.enable_retry:
            return None
        policy = ConsumerDeadLetterPolicy(MAX_RECONSUME_TIMES)
    dead, retry = policy.dead_letter_topic, None
    if options.enable_retry:
        retry = policy.retry_letter_topic
        if retry is None or dead is None:
            by_pattern = isinstance(options, AioConsumerOptions) and options.is_pattern_topic
            if by_pattern or not isinstance(options.topic, str | list | tuple) or not options.topic:
                raise InvalidConfiguration(
                    "enable_retry with a pattern needs a dead_letter_policy with"
                    " dead_letter_topic and retry_letter_topic"
                )
            first = options.topic if isinstance(options.topic, str) else options.topic[0]
            first = str(topic_name(first).topic)
            retry = retry or retry_letter_topic(first, options.subscription_name)
            dead = dead or dead_letter_topic(first, options.subscription_name)
    return DeadLetterPolicy(
        policy.max_redeliver_count,
        policy.dead_letter_undecodable,
        dead,
        retry,
        policy.initial_subscription_name,
    )


class ConsumerBase:
    """Base of the asyncio and synchronous consumers and readers; on the loop's thread."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        queue_limit: int,
        inbox: ConsumerInbox,
        extras: Extras | None = None,
    ) -> None:
        self.core = core
        self.subscription = subscription
        self.inbox = inbox
        self.extras = extras or Extras()
        self.topics = TopicSet(core, subscription, queue_limit, inbox, self.extras)
        self.closed = False
        self._ended = False

    async def add_topics(self, topics: str | Sequence[str], create: bool = True) -> None:
        """Subscribe to one topic or several, with all their partitions.

        ``create`` is as for `TopicSet.add`.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise InvalidConfiguration("topic is an empty list: name at least one topic")
        wanted = [topic_name(name) for name in dict.fromkeys(names)]
        await self.topics.add(wanted, create=create)

    async def add_pattern(self, pattern: TopicPattern, period: float) -> None:
        """Subscribe to matching topics; look for new ones every ``period`` seconds."""
        await self.topics.add(await pattern.matches(self.core))
        self.topics.watch_pattern(pattern, period)

    def acknowledge(self, message: Message[Any] | MessageId) -> PartitionConsumer:
        """Note an acknowledgement; return the partition that it belongs to."""
        if type(message) is Message and not self.closed:
            info = message.info
            known = self.topics.parts.get(info.topic)
            if known is not None:
                index = message.index
                known.acks.acknowledge_indexes(info, range(index, index + 1))
                return known
        part, message_id = self.located(message)
        part.acks.acknowledge(message_id)
        return part

    def acknowledge_many(
        self, batch: ReceivedBatch | Iterable[Message[Any] | MessageId]
    ) -> list[PartitionConsumer]:
        """Note acknowledgements; return the partitions that they belong to."""
        if not isinstance(batch, ReceivedBatch):
            return list(dict.fromkeys(self.acknowledge(message) for message in batch))
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        self.check_batch(batch)
        parts = [self.topics.parts[segment.block.part.topic] for segment in batch.segments]
        for part, segment in zip(parts, batch.segments, strict=True):
            part.acks.acknowledge_indexes(segment.block.info, segment.indexes)
        return list(dict.fromkeys(parts))

    def acknowledge_run(self, messages: deque[Any], first: Message[Any]) -> None:
        """Note an acknowledgement of ``first`` and of the messages that follow it in its batch.

        Removes those messages from the left of ``messages``.
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
        self.topics.parts[info.topic].acks.acknowledge_indexes(info, range(start, end))

    def check_batch(self, batch: ReceivedBatch) -> None:
        """Raise `InvalidMessage` if another consumer received the batch."""
        for part in dict.fromkeys(segment.block.part for segment in batch.segments):
            if self.topics.parts.get(part.topic) is not part:
                raise InvalidMessage(f"{batch!r} of {part.topic} was received by another consumer")

    def acknowledge_cumulative(self, message: Message[Any] | MessageId) -> PartitionConsumer:
        """Note a cumulative acknowledgement; return the partition that it belongs to."""
        self.check_cumulative()
        part, message_id = self.located(message)
        part.acks.acknowledge_cumulative(message_id)
        return part

    def check_cumulative(self) -> None:
        """Raise an error unless the subscription type allows cumulative acknowledgement.

        The error is `CumulativeAcknowledgementNotAllowedError`.
        """
        if self.subscription.shared:
            kind = self.subscription.consumer_type
            raise CumulativeAcknowledgementNotAllowedError(
                "acknowledge_cumulative needs an Exclusive or Failover subscription;"
                f" this one is {kind.name}"
            )

    def located(self, message: Message[Any] | MessageId) -> tuple[PartitionConsumer, MessageId]:
        """Return the partition and the id of a message. Raises `InvalidMessage`."""
        if self.closed:
            raise AlreadyClosed("the consumer is closed")
        if isinstance(message, Message):
            message = message.message_id()
        elif not isinstance(message, MessageId):
            raise InvalidMessage(f"not a Message or MessageId: {message!r}")
        return self.topics.of(message), message

    async def acknowledge_in(self, txn: Transaction, message: Message[Any] | MessageId) -> None:
        """Acknowledge one message in a transaction; returns when the service has recorded it."""
        part, message_id = self.located(message)
        where, size, bits = place_of(message_id)
        txn.belongs_to(self.core)
        txn.check_open()
        await part.acks.acknowledge_in(txn, {where: (size, bits)})

    async def acknowledge_many_in(
        self, txn: Transaction, batch: ReceivedBatch | Iterable[Message[Any] | MessageId]
    ) -> None:
        """Acknowledge many messages in a transaction, with one request for each partition."""
        places = self._places(batch)
        txn.belongs_to(self.core)
        txn.check_open()
        recorded = [part.acks.acknowledge_in(txn, acks) for part, acks in places.items()]
        for result in await asyncio.gather(*recorded, return_exceptions=True):
            if result is not None:
                raise result

    def _places(
        self, batch: ReceivedBatch | Iterable[Message[Any] | MessageId]
    ) -> dict[PartitionConsumer, dict[Where, Part]]:
        places: list[tuple[PartitionConsumer, Where, int, int]] = []
        if isinstance(batch, ReceivedBatch):
            if self.closed:
                raise AlreadyClosed("the consumer is closed")
            self.check_batch(batch)
            for segment in batch.segments:
                info, size = segment.block.info, segment.block.info.batch_size
                bits = bits_at(segment.indexes) if size else 0
                part = self.topics.parts[segment.block.part.topic]
                places.append((part, info.where, size, bits))
        else:
            for message in batch:
                part, message_id = self.located(message)
                places.append((part, *place_of(message_id)))
        found: dict[PartitionConsumer, dict[Where, Part]] = {}
        for part, where, size, bits in places:
            acks = found.setdefault(part, {})
            acks[where] = (size, acks.get(where, (0, 0))[1] | bits)
        return found

    async def acknowledge_until_in(
        self, txn: Transaction, message: Message[Any] | MessageId
    ) -> None:
        """Acknowledge all messages up to ``message`` in a transaction."""
        self.check_cumulative()
        part, message_id = self.located(message)
        place_of(message_id)  # raises its error before anything is done
        await self.in_transaction(txn, part.acks.acknowledge_until_in(txn, message_id))

    async def in_transaction(self, txn: Transaction, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in a transaction of this client, which waits for it."""
        try:
            txn.belongs_to(self.core)
        except InvalidConfiguration:
            work.close()
            raise
        await txn.run(work)

    async def seek(self, target: SeekTarget) -> None:
        """Seek on one partition (by id) or on all (by time, to either end, or with a function)."""
        if callable(target):
            await self._seek_each(target)
            return
        if isinstance(target, bool) or not isinstance(target, MessageId | int):
            raise InvalidMessage(f"seek to a MessageId or to milliseconds since 1970: {target!r}")
        parts = list(self.topics.parts.values())
        ends = (MessageId.earliest, MessageId.latest)
        if isinstance(target, MessageId) and target not in ends:
            parts = [self.topics.of(target)]
        await asyncio.gather(*(part.seek(target) for part in parts))

    async def _seek_each(self, target_of: Callable[[str], MessageId | int]) -> None:
        targets = {part: target_of(part.topic) for part in self.topics.parts.values()}
        for part, target in targets.items():
            if isinstance(target, bool) or not isinstance(target, MessageId | int):
                raise InvalidMessage(f"{part.topic}: seek to a MessageId or to a time: {target!r}")
        await asyncio.gather(*(part.seek(target) for part, target in targets.items()))

    async def unsubscribe(self) -> None:
        """Delete the subscription on all partitions, then close."""
        await asyncio.gather(*(part.unsubscribe() for part in self.topics.parts.values()))
        await self.close()

    async def close(self) -> None:
        """Leave, after making acknowledgements durable."""
        self.closed = True
        self.inbox.close(AlreadyClosed("the consumer is closed"))
        if self.extras.dead_letters is not None:
            await self.extras.dead_letters.close()
        self._end_extras()
        await self.topics.close()

    def stop(self) -> None:
        """Leave at once."""
        self.closed = True
        self.inbox.close(AlreadyClosed("the consumer is closed"))
        self._end_extras()
        self.topics.stop()

    def _end_extras(self) -> None:
        dead_letters, interceptors = self.extras.dead_letters, self.extras.interceptors
        if dead_letters is not None:
            dead_letters.stop()
        if interceptors is not None and not self._ended:
            interceptors.close()
        self._ended = True

    def pause(self) -> None:
        """Ask the service for no more messages; messages that wait already can be received."""
        self.topics.pause(True)

    def resume(self) -> None:
        """Continue after `pause`."""
        self.topics.pause(False)


class SubscribedTopics(ConsumerBase):
    """Base of the asyncio and synchronous consumers; on the loop's thread."""

    def __init__(self, core: Core, options: ConsumerOptions[Any], inbox: ConsumerInbox) -> None:
        limit = options.max_total_receiver_queue_size_across_partitions
        rules = dead_letter_rules(options)
        name, keys = options.subscription_name, options.crypto_key_reader
        dead_letters = None if rules is None else DeadLetterProducers(core, name, rules, keys)
        watching = ConsumerInterceptors(options.interceptors) if options.interceptors else None
        extras = Extras(dead_letters, watching, typed(options.schema))
        super().__init__(core, subscription_of(options), limit, inbox, extras)
        self._options = options

    async def start(self) -> None:
        """Subscribe to the topics that the options name."""
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
        dead_letters = self.extras.dead_letters
        if dead_letters is not None and dead_letters.rules.retry_letter_topic is not None:
            await self.add_topics(dead_letters.rules.retry_letter_topic)

    async def reconsume_later(
        self,
        message: Message[Any],
        delay_millis: int,
        properties: Mapping[str, str] | None,
        txn: Transaction | None,
    ) -> None:
        """Schedule redelivery of the message, as a copy from the retry topic."""
        dead_letters = self.extras.dead_letters
        if dead_letters is None or dead_letters.rules.retry_letter_topic is None:
            raise InvalidConfiguration("reconsume_later needs subscribe(enable_retry=True)")
        if not isinstance(delay_millis, int) or delay_millis < 0:
            raise InvalidMessage(f"delay_millis must be an int of at least 0: {delay_millis!r}")
        part = self._part_of(message)
        await self._move(part, message, dead_letters.later(message, delay_millis, properties), txn)

    async def dead_letter(
        self, message: Message[Any], properties: Mapping[str, str] | None, txn: Transaction | None
    ) -> None:
        """Move the message to the dead-letter topic."""
        dead_letters = self.extras.dead_letters
        if dead_letters is None:
            raise InvalidConfiguration(
                "dead_letter needs subscribe(dead_letter_policy=…) or enable_retry=True"
            )
        part = self._part_of(message)
        await self._move(part, message, dead_letters.dead(message, properties), txn)

    def _part_of(self, message: Message[Any]) -> PartitionConsumer:
        if not isinstance(message, Message):
            raise InvalidMessage(f"only a received Message can be moved, not {message!r}")
        return self.located(message)[0]

    async def _move(
        self,
        part: PartitionConsumer,
        message: Message[Any],
        dead_letter: Addressed,
        txn: Transaction | None,
    ) -> None:
        moving = part.move(message, dead_letter, txn)
        await (moving if txn is None else self.in_transaction(txn, moving))


def described_topics(base: ConsumerBase) -> list[str]:
    """The topics of a consumer, without partitions, in order."""
    return list(dict.fromkeys(str(topic_name(name).topic) for name in base.topics.parts))

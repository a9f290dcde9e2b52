"""The topics of a consumer: their partitions, kept up to date, and patterns of names."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from velaray.client.consumer_extras import Extras
from velaray.client.core import Core, start_all, topic_name, watch_partitions
from velaray.client.enums import RegexSubscriptionMode
from velaray.client.exceptions import (
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
    VelarayError,
)
from velaray.client.existing_topics import partitions_of_existing
from velaray.client.message_id import MessageId
from velaray.client.partition_consumer import Inbox, PartitionConsumer
from velaray.client.read_bounds import Span, SpanLimits, Spot
from velaray.client.subscription import Subscription
from velaray.events.ids import TopicName

logger = logging.getLogger("velaray")


class ConsumerInbox(Inbox, Protocol):
    """An inbox that a consumer can close."""

    def close(self, error: VelarayError) -> None:
        """Raise ``error`` in waiting and later calls."""


class TopicSet:
    """The partitions that a consumer is subscribed to, kept up to date, and their closing."""

    def __init__(
        self,
        core: Core,
        subscription: Subscription,
        queue_limit: int,
        inbox: ConsumerInbox,
        extras: Extras,
    ) -> None:
        self.parts: dict[str, PartitionConsumer] = {}
        self._core = core
        self._subscription = subscription
        self._queue_limit = queue_limit
        self._inbox = inbox
        self._extras = extras
        self._topics: dict[str, int] = {}
        self._paused = False
        self._watchers: list[asyncio.Task[None]] = []

    async def add(
        self, topics: Sequence[TopicName], new: bool = False, create: bool = True
    ) -> None:
        """Subscribe to topics with all their partitions; after an error to none of them.

        ``new``: the topics are newer than the consumer. ``create``: missing topics are created, as
        the service's policy allows; otherwise they raise `TopicNotFound`.
        """
        counts = await asyncio.gather(*(self._partitions_of(topic, create) for topic in topics))
        added: list[TopicName] = []
        for topic, count in zip(topics, counts, strict=True):
            added += topic.members(count)
        self._bound_queues(len(self.parts) + len(added))
        made = self._made(added, new)
        await start_all(self._core, made)
        self.parts.update({part.topic: part for part in made})
        for topic, count in zip(topics, counts, strict=True):
            self._topics[str(topic)] = count
            if count:
                self._watch(topic, count)

    async def _partitions_of(self, topic: TopicName, create: bool) -> int:
        if create:
            return await self._core.partitions_of(str(topic))
        return await partitions_of_existing(self._core, topic)

    def _bound_queues(self, parts: int) -> None:
        subscription = self._subscription
        if parts > 1 and subscription.queue_size == 0:
            raise InvalidConfiguration("receiver_queue_size=0 needs a single topic partition")
        size = min(subscription.queue_size, max(self._queue_limit // max(parts, 1), 1))
        if size != subscription.queue_size:
            self._subscription = subscription.with_queue_size(size)

    def _made(self, topics: Sequence[TopicName], new: bool) -> list[PartitionConsumer]:
        subscription = self._subscription.of_new_topics() if new else self._subscription
        made = [
            PartitionConsumer(self._core, topic, subscription, self._inbox, self._extras)
            for topic in topics
        ]
        for part in made:
            part.pause(self._paused)
        return made

    def _watch(self, topic: TopicName, count: int) -> None:
        async def grow(known: int, now: int) -> None:
            added = [topic.of_partition(index) for index in range(known, now)]
            for part in self._made(added, new=True):
                self.parts[part.topic] = part
                part.start_in_background()

        self._watchers.append(
            self._core.spawn(watch_partitions(self._core, str(topic), count, grow))
        )

    def watch_pattern(self, pattern: TopicPattern, period: float) -> None:
        """Look for matching topics every ``period`` seconds, and subscribe to new ones."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(period)
                try:
                    found = await pattern.matches(self._core)
                    await self.add([t for t in found if str(t) not in self._topics], new=True)
                except VelarayError as error:
                    logger.warning("can't look for the topics of a pattern: %s", error)

        self._watchers.append(self._core.spawn(watch()))

    def of(self, message_id: MessageId) -> PartitionConsumer:
        """Return the partition that an id belongs to.

        Raises `InvalidMessage` if that is ambiguous.
        """
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
            f"{message_id} of topic {topic} belongs to no topic of this consumer, or its"
            " topic is unknown: pass the topic to MessageId.deserialize"
        )

    async def positions(self) -> dict[str, tuple[MessageId, MessageId]]:
        """Return every partition's last message and acknowledged position."""
        parts = self.parts
        found = await asyncio.gather(*(part.queries.last_message_id() for part in parts.values()))
        return dict(zip(parts, found, strict=True))

    async def spans(self, steps: Mapping[str, tuple[Spot, SpanLimits]]) -> dict[str, Span]:
        """Return the next step in each of these partitions."""
        parts = self.parts
        found = await asyncio.gather(
            *(parts[name].queries.span(*step) for name, step in steps.items())
        )
        return dict(zip(steps, found, strict=True))

    async def last_message_ids(self) -> list[MessageId]:
        """Return the last id of every partition, with its topic; entry id -1 if there is none."""
        parts = self.parts.values()
        found = await asyncio.gather(*(part.queries.last_message_id() for part in parts))
        return [last for last, _ in found]

    async def last_message_id(self) -> MessageId:
        """Return the last id of the topic.

        Raises `OperationNotSupported` for several partitions.
        """
        parts = list(self.parts.values())
        if len(parts) != 1:
            raise OperationNotSupported(
                "get_last_message_id needs a consumer of one topic partition; this one has"
                f" {len(parts)}: use get_last_message_ids"
            )
        return (await parts[0].queries.last_message_id())[0]

    def pause(self, paused: bool) -> None:
        """Pause or resume the delivery of messages."""
        self._paused = paused
        for part in self.parts.values():
            part.pause(paused)

    def stop(self) -> None:
        """Leave all partitions at once."""
        for watcher in self._watchers:
            watcher.cancel()
        for part in self.parts.values():
            part.stop()

    async def close(self) -> None:
        """Leave all partitions, after making acknowledgements durable."""
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
        """Return the existing topics that match."""
        names = await core.retrying(
            f"listing the topics of {self._namespace}",
            lambda: core.lookup.topics_of(self._namespace, self._mode),
        )
        return [topic_name(name) for name in names if self.matches_name(name)]

    def matches_name(self, name: str) -> bool:
        """Whether a full topic name matches, regardless of its domain."""
        return self._pattern.fullmatch(name.partition("://")[2]) is not None

"""Moves dead letters: publishes the entries that a subscription has chosen to the dead-letter
topic.

Dead letters are published one at a time, in the order of their numbers, and each is retried until
it is stored. So de-duplication in the dead-letter topic stores each exactly once. See
`velaray.actors.subscription.dead_letters`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from velaray.actors.catalog.policies import DEFAULTS
from velaray.actors.machine import Reason, Refusal
from velaray.actors.partition.ledger_table import NoSuchEntryError
from velaray.actors.partition.machine import Chunk, Publish, StartAt
from velaray.actors.partition.state import SubscriptionRef
from velaray.broker.catalog.messages import EnsureTopic
from velaray.broker.coordinator.coordinators import check_not_systems, is_systems
from velaray.broker.partition.entries import CachedEntry
from velaray.broker.partition.messages import Append
from velaray.broker.partition.sealing import Sealing, refuse_sealed
from velaray.broker.partition.topic_schemas import TopicSchemas
from velaray.broker.schema_registry.messages import Register
from velaray.broker.schema_registry.schema_calls import (
    LEGACY_JSON,
    STRATEGY,
    info_of,
    schema_policies,
)
from velaray.broker.subscription.messages import DeadLettersMoved
from velaray.broker.topic_policies import TopicPolicies
from velaray.events.ids import ActorKey, InvalidNameError, MessageId, Position, TopicName
from velaray.schemas.compatibility import Strategy
from velaray.topology.actor_system import ActorSystem
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError
from velaray.topology.transient import TRANSIENT_OR_STORE
from velaray.wire.dead_letters import Courier, dead_letter_topic
from velaray.wire.errors import CompressionError, MalformedEntryError
from velaray.wire.messages import read_metadata
from velaray.wire.schemas import NO_VERSION, read_version, version_bytes

logger = logging.getLogger("velaray")

PRODUCER_PREFIX = "dead-letters-of:"
"""The prefix of their producer names. Such producers never expire, because their de-duplication
must last."""

_TRANSIENT: tuple[type[Exception], ...] = (*TRANSIENT_OR_STORE, InvalidNameError)
_TAKES_ALL = {**DEFAULTS, STRATEGY: str(Strategy.ALWAYS_COMPATIBLE), LEGACY_JSON: True}
_UNREADABLE = (MalformedEntryError, CompressionError)


class Partition(Protocol):
    """What the mover needs of the source partition."""

    key: ActorKey
    actor_system: ActorSystem
    policies: TopicPolicies
    schemas: TopicSchemas

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that is cancelled with the partition."""
        ...


class Log(Protocol):
    """What the mover needs of the partition's log."""

    async def entry(self, offset: int) -> CachedEntry:
        """Return one entry, from memory or disk."""
        ...

    def position_of(self, offset: int) -> Position:
        """Return the position that clients see."""
        ...


class Channel(Protocol):
    """What the mover needs of the subscription's channel."""

    name: str

    def tell(self, notice: Message) -> None:
        """Notify the subscription's dispatcher."""


class Publishing(Protocol):
    """What `append` needs of the publish path."""

    sealing: Sealing | None

    async def append(self, command: Publish) -> Any:
        """Append an entry; return the reply when it is durable."""


class Subscriptions(Protocol):
    """What `append` needs of the table of subscriptions."""

    async def create_subscription(
        self, name: str, start: StartAt | int, properties: dict[str, str]
    ) -> SubscriptionRef:
        """Create a durable subscription unless it exists."""
        ...


class DeadLetterTopic(Protocol):
    """What `append` needs of a dead-letter topic's partition."""

    @property
    def publishing(self) -> Publishing:
        """The publish path."""
        ...

    @property
    def subscriptions(self) -> Subscriptions:
        """The table of subscriptions."""
        ...


def is_for_dead_letters(topic: TopicName) -> bool:
    """Whether it is a dead-letter topic, by its name: then its own dead letters stay in it."""
    return str(topic.topic).endswith("-DLQ")


async def append(partition: DeadLetterTopic, request: Append) -> None:
    """Store one entry for another actor, once for each producer and number. It is durable on
    return.

    Raises `RemoteError` if the topic refuses it.
    """
    refuse_sealed(partition.publishing.sealing, "it takes no dead letters from servers")
    if name := request.initial_subscription:
        await partition.subscriptions.create_subscription(name, StartAt.EARLIEST, {})
    metadata = read_metadata(request.entry)
    chunk = Chunk(metadata.uuid, 0, 1) if metadata.num_chunks_from_msg > 1 else None
    reply = await partition.publishing.append(
        Publish(
            request.producer,
            request.number,
            request.number,
            request.messages,
            request.entry,
            True,
            chunk,
        )
    )
    if isinstance(reply, Refusal):
        raise RemoteError(reply.reason, reply.message)


class DeadLetterMover:
    """Moves the dead letters of one subscription while its channel is open."""

    def __init__(
        self,
        partition: Partition,
        log: Log,
        channel: Channel,
        key: ActorKey,
        on_moved: Callable[[], None],
    ) -> None:
        """``on_moved`` is called when no dead letter is left to move."""
        self._partition = partition
        self._log = log
        self._channel = channel
        self._on_moved = on_moved
        self._topic = str(partition.key.topic_name.topic)
        producer = f"{PRODUCER_PREFIX}{key.text()}"
        self._producer = producer
        self._courier = Courier(producer, self._topic, channel.name)
        self._dead_letters: deque[tuple[int, int, Sequence[int]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._versions: dict[tuple[ActorKey, bytes], bytes] = {}

    @property
    def busy(self) -> bool:
        """Whether dead letters are being moved."""
        return bool(self._dead_letters)

    def take(self, dead_letters: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Move these dead letters: (offset, number, unacknowledged words of the batch)."""
        self._dead_letters += dead_letters
        if self._task is None or self._task.done():
            self._task = self._partition.spawn(self._move_all())

    def close(self) -> None:
        """Stop: the channel is closed. The dispatcher sends unconfirmed dead letters again to the
        next one."""
        self._dead_letters.clear()
        if self._task is not None:
            self._task.cancel()

    async def _move_all(self) -> None:
        backoff = self._partition.actor_system.backoff()
        while self._dead_letters:
            try:
                offset = await self._move(*self._dead_letters[0])
            except _TRANSIENT as error:
                logger.warning("dead letters of %s wait: %s", self._topic, error)
                await backoff.wait()
                continue
            backoff.reset()
            self._dead_letters.popleft()
            self._channel.tell(DeadLettersMoved([offset]))
        self._on_moved()

    async def _move(self, offset: int, number: int, words: Sequence[int]) -> int:
        partition = self._partition
        try:
            entry = bytes((await self._log.entry(offset)).data)
        except NoSuchEntryError:
            return offset  # it was trimmed meanwhile, so it is no longer needed
        at = MessageId(*self._log.position_of(offset), partition.key.partition)
        mask = sum((word & (1 << 64) - 1) << 64 * place for place, word in enumerate(words))
        await self._publish(at, entry, number, mask or None)
        return offset

    async def _publish(self, at: MessageId, entry: bytes, number: int, mask: int | None) -> None:
        """Publish the entry at ``at`` as the dead letter ``number``."""
        partition = self._partition
        now_ms = partition.actor_system.clock_ms()
        policy = partition.policies.raw["deadLetter"] or {}
        key = await self._destination(policy)
        try:
            version = await self._version_there(key, read_metadata(entry).schema_version)
            copied, messages = self._courier.copy(entry, at, number, mask, now_ms, version)
        except _UNREADABLE:
            copied, messages = entry, 1  # published as it is
        subscription = policy.get("initialSubscriptionName")
        append = Append(self._producer, number, copied, messages, subscription)
        await partition.actor_system.request(key, append)

    async def _version_there(self, key: ActorKey, version: bytes) -> bytes:
        """The dead-letter topic's version of a schema of this topic; its registry accepts all of
        them. An unknown version is dropped, because there it would name another schema."""
        partition = self._partition
        registry = ActorKey.of_schema_registry(key.topic_name, key.topic_incarnation)
        known = self._versions.get((registry, version))
        if known is not None:
            return known
        try:
            number = read_version(version)
            if number is None:
                return NO_VERSION
            info = info_of(await partition.schemas.find(number))
            register = Register(info, schema_policies(_TAKES_ALL))
            found = await partition.actor_system.request(registry, register)
        except (ValueError, RemoteError) as error:
            if isinstance(error, RemoteError) and error.kind != Reason.NOT_FOUND:
                raise
            return NO_VERSION
        assert found["version"] is not None
        translated = self._versions[registry, version] = version_bytes(found["version"])
        return translated

    async def _destination(self, policy: dict[str, Any]) -> ActorKey:
        """The partition of the dead-letter topic, which is created if needed.

        Raises `RemoteError` (NOT_ALLOWED) if a user's policy names a topic of the system.
        """
        actor_system = self._partition.actor_system
        topic = TopicName.parse(
            policy.get("deadLetterTopic") or dead_letter_topic(self._topic, self._channel.name)
        )
        if not is_systems(self._partition.key.topic_name):
            check_not_systems(topic)
        catalog = ActorKey.catalog()
        found = await actor_system.request(catalog, EnsureTopic(str(topic)))
        if found["partitions"]:
            topic = topic.of_partition(0)  # always the first one, even if partitions are added
            found = await actor_system.request(catalog, EnsureTopic(str(topic)))
        return ActorKey.of_partition(topic, found["incarnation"])

"""The calls of Ray handles. A client of the cluster serves them, so they are checked as a client's.

Each kind of handle has a class whose ``ALLOWED`` lists its methods; nothing else can be called.
`velaray.handles` is the other end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Protocol

from velaray.admin.handle_sessions import Sessions
from velaray.admin.handle_transactions import HandleTransactions
from velaray.admin.schemas import described
from velaray.broker.catalog.messages import Policies, Topic
from velaray.broker.coordinator import messages as coordinator_messages
from velaray.broker.coordinator.coordinators import is_systems
from velaray.broker.partition import messages as partition_messages
from velaray.broker.schema_registry import messages as schema_messages
from velaray.broker.schema_registry.schema_calls import POLICIES, has_registry
from velaray.broker.wire_errors import code_of
from velaray.client.client import Client
from velaray.client.consumer import Consumer
from velaray.client.core import topic_name
from velaray.client.enums import ConsumerType, InitialPosition
from velaray.client.exceptions import (
    NotAllowedError,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    from_server,
)
from velaray.client.message import Message
from velaray.client.message_id import MessageId
from velaray.client.options import ClientOptions
from velaray.client.producer import Producer
from velaray.client.schema.base import Schema
from velaray.client.transactions import Transaction
from velaray.events.ids import ActorKey, TopicName, TransactionId
from velaray.geo.replication.messages import Replication
from velaray.topology.actor_system import ActorSystem
from velaray.topology.auth import HANDLES_METHOD
from velaray.topology.fan_out import each
from velaray.topology.messages import ReplyT, Request
from velaray.topology.rpc import reason_of
from velaray.topology.system_credentials import SystemCredentials
from velaray.topology.transient import TRANSIENT

PRODUCER_IDLE_S = 60.0
"""A producer that isn't used for so long is closed."""

Row = dict[str, Any]


class HandleCalls:
    """Answers the calls of a cluster's handles."""

    def __init__(self, actor_system: ActorSystem, service_url: str) -> None:
        config = actor_system.config
        proves = config.auth or config.tls
        proof = SystemCredentials(config.rpc_key, HANDLES_METHOD) if proves else None
        self.client = Client.with_options(ClientOptions(service_url, authentication=proof))
        self.actor_system = actor_system
        self.producers: Sessions[Producer[Any]] = Sessions()
        self.consumers: Sessions[Consumer[Any]] = Sessions()
        self.transactions = HandleTransactions(self.client)

    async def invoke(
        self, kind: str, target: Sequence[Any], method: str, /, *args: Any, **kwargs: Any
    ) -> Any:
        """The result of a method of the handle of this kind. Raises the client's errors, and
        `NotAllowedError` for a kind or method that isn't listed."""
        if kind not in _KINDS:
            raise NotAllowedError(f"there are no {kind!r} handles, only {', '.join(_KINDS)}")
        calls = _KINDS[kind](self, *target)
        if method not in calls.ALLOWED:
            raise NotAllowedError(
                f"a {kind} handle has no method {method!r}: it has {', '.join(calls.ALLOWED)}"
            )
        return await getattr(calls, method)(*args, **kwargs)

    async def ask(self, key: ActorKey, request: Request[ReplyT]) -> ReplyT:
        """Ask an actor of the cluster, for one operation timeout. Raises the client's errors."""

        async def attempt() -> ReplyT:
            try:
                return await self.actor_system.request(key, request)
            except TRANSIENT as error:
                raise from_server(code_of(error), reason_of(error)) from error

        return await self.client.core.retrying(f"asking {key}", attempt)

    async def partitions(self, topic: TopicName) -> dict[str, ActorKey]:
        """The partition actors of a topic, or that of a partition, by name."""
        found = await self.ask(ActorKey.catalog(), Topic(str(topic)))
        count = found["partitions"] if topic.partition < 0 else 0
        keys = ActorKey.of_partitions(topic, found["incarnation"], count)
        return {str(key.topic_name): key for key in keys}

    async def ask_partitions(self, topic: TopicName, request: Request[ReplyT]) -> dict[str, ReplyT]:
        """The answers of the partitions of a topic, by name."""
        keys = await self.partitions(topic)
        answers = await each(list(keys.values()), lambda key: self.ask(key, request))
        return dict(zip(keys, answers, strict=True))


class _Kind(Protocol):
    """The calls of one kind of handle."""

    ALLOWED: ClassVar[tuple[str, ...]]


class TopicCalls:
    """The calls of `velaray.handle`."""

    ALLOWED: ClassVar[tuple[str, ...]] = ("describe", "publish", "publish_many", "stats")

    def __init__(self, calls: HandleCalls, topic: str) -> None:
        self._calls = calls
        self._topic = _users_topic(topic)

    def _producer(self) -> AbstractAsyncContextManager[Producer[Any]]:
        opening = partial(
            self._calls.client.create_producer,
            str(self._topic),
            batching_enabled=False,  # a batch would delay each of its messages
            block_if_queue_full=True,
        )
        return self._calls.producers.use(str(self._topic), opening, PRODUCER_IDLE_S)

    async def publish(
        self,
        content: Any,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_timestamp: int | None = None,
        deliver_after: timedelta | None = None,
        schema: Schema[Any] | None = None,
        txn: TransactionId | None = None,
    ) -> MessageId:
        """Publish one message."""

        async def publish(transaction: Transaction | None) -> MessageId:
            async with self._producer() as producer:
                return await producer.send(
                    content,
                    properties,
                    key,
                    event_timestamp=event_timestamp,
                    deliver_after=deliver_after,
                    schema=schema,
                    txn=transaction,
                )

        return await self._calls.transactions.within(txn, publish)

    async def publish_many(
        self, contents: Any, keys: Any = None, *, txn: TransactionId | None = None
    ) -> list[MessageId]:
        """Publish many messages in order."""

        async def publish(transaction: Transaction | None) -> list[MessageId]:
            async with self._producer() as producer:
                sent = await producer.send_many(contents, keys, txn=transaction)
                return sent.message_ids()

        return await self._calls.transactions.within(txn, publish)

    async def stats(self) -> dict[str, Row]:
        """Counters, by partition."""
        return await self._calls.ask_partitions(self._topic, partition_messages.Stats())

    async def describe(self) -> Row:
        """The topic, its partitions, properties and subscriptions."""
        found = await self._calls.ask(ActorKey.catalog(), Topic(str(self._topic)))
        names = await self._calls.ask_partitions(self._topic, partition_messages.Subscriptions())
        return {
            "topic": str(self._topic),
            "partitions": list(names),
            "properties": dict(found["properties"]),
            "subscriptions": sorted({name for each in names.values() for name in each}),
        }


class SubscriptionCalls:
    """The calls of `velaray.subscription_handle`."""

    ALLOWED: ClassVar[tuple[str, ...]] = ("acknowledge", "close", "describe", "receive")

    def __init__(
        self,
        calls: HandleCalls,
        topic: str,
        subscription: str,
        ack_timeout_s: float,
        initial_position: InitialPosition,
    ) -> None:
        self._calls = calls
        self._topic = _users_topic(topic)
        self._subscription = subscription
        self._ack_timeout_s = ack_timeout_s
        self._initial_position = initial_position
        self._key = str(self._topic), subscription, ack_timeout_s

    def _consumer(self) -> AbstractAsyncContextManager[Consumer[Any]]:
        opening = partial(
            self._calls.client.subscribe,
            str(self._topic),
            self._subscription,
            ConsumerType.Shared,
            initial_position=self._initial_position,
            unacked_messages_timeout_ms=round(self._ack_timeout_s * 1000),
            batch_index_ack_enabled=True,
        )
        return self._calls.consumers.use(self._key, opening, self._ack_timeout_s)

    async def receive(
        self, max_messages: int = 100, timeout_s: float = 10.0
    ) -> list[Message[bytes]]:
        """Messages, as soon as there is one; none within ``timeout_s`` is an empty list."""
        async with self._consumer() as consumer:
            try:
                received = await consumer.receive_many(max_messages, round(timeout_s * 1000))
            except Timeout:
                return []
            return received.messages()

    async def acknowledge(
        self,
        messages: Sequence[Message[Any] | MessageId],
        *,
        txn: TransactionId | None = None,
    ) -> None:
        """Acknowledge messages durably, or in a transaction."""

        async def acknowledge(transaction: Transaction | None) -> None:
            async with self._consumer() as consumer:
                await consumer.acknowledge_many(messages, receipt=True, txn=transaction)

        await self._calls.transactions.within(txn, acknowledge)

    async def close(self) -> None:
        """Close the consumer."""
        await self._calls.consumers.close(self._key)

    async def describe(self) -> dict[str, Row]:
        """The state of the subscription, by partition. Raises `SubscriptionNotFound`."""
        asked = partition_messages.DescribeSubscription(self._subscription)
        found = {}
        for name, key in (await self._calls.partitions(self._topic)).items():
            try:
                found[name] = await self._calls.ask(key, asked)
            except (SubscriptionNotFound, TopicNotFound):
                continue
        if not found:
            problem = f"{self._topic} has no subscription {self._subscription!r}"
            raise SubscriptionNotFound(problem)
        return found


class CoordinatorCalls:
    """The calls of `velaray.coordinator_handle`."""

    ALLOWED: ClassVar[tuple[str, ...]] = ("abort", "begin", "commit", "describe")

    def __init__(self, calls: HandleCalls, number: int) -> None:
        self._calls = calls
        self._transactions = calls.transactions
        self._number = number

    async def begin(self, timeout_s: float = 60.0) -> TransactionId:
        """Begin a transaction of this coordinator."""
        return await self._transactions.begin(self._number, timeout_s)

    async def commit(self, txn: TransactionId) -> None:
        """Commit a transaction, of any coordinator."""
        await self._transactions.end(txn, commit=True)

    async def abort(self, txn: TransactionId) -> None:
        """Abort a transaction, of any coordinator."""
        await self._transactions.end(txn, commit=False)

    async def describe(self) -> Row:
        """Counts of transactions."""
        await self._transactions.check(self._number)
        key = ActorKey.of_coordinator(self._number)
        return await self._calls.ask(key, coordinator_messages.Stats())


class SchemaRegistryCalls:
    """The calls of `velaray.schema_registry_handle`."""

    ALLOWED: ClassVar[tuple[str, ...]] = ("describe", "get", "versions")

    def __init__(self, calls: HandleCalls, topic: str) -> None:
        self._calls = calls
        self._topic = _users_topic(topic).topic

    async def _versions(self, *, gone: bool = False) -> list[Row]:
        topic = await self._calls.ask(ActorKey.catalog(), Topic(str(self._topic), at_home=True))
        key = ActorKey.of_schema_registry(self._topic, topic["incarnation"])
        if not await has_registry(self._calls.actor_system, key):
            return []
        found = await self._calls.ask(key, schema_messages.Schemas(gone))
        return [described(each) for each in found]

    async def get(self, version: int | None = None) -> Row | None:
        """A version, deleted or not, or the latest one; None if there is none."""
        found = await self._versions(gone=version is not None)
        if version is None:
            return found[-1] if found else None
        return next((each for each in found if each["version"] == version), None)

    async def versions(self) -> list[Row]:
        """All versions that aren't deleted."""
        return await self._versions()

    async def describe(self) -> Row:
        """The numbers of the versions, and the policies."""
        policies = Policies(str(self._topic), effective=list(POLICIES))
        return {
            "topic": str(self._topic),
            "versions": [each["version"] for each in await self._versions()],
            "policies": await self._calls.ask(ActorKey.catalog(), policies),
        }


class ReplicatorCalls:
    """The calls of `velaray.replicator_handle`."""

    ALLOWED: ClassVar[tuple[str, ...]] = ("describe",)

    def __init__(self, calls: HandleCalls, topic: str, cluster: str) -> None:
        self._calls = calls
        self._topic = _users_topic(topic)
        self._cluster = cluster

    async def describe(self) -> dict[str, Row]:
        """State and backlog, by partition."""
        found = await self._calls.ask_partitions(self._topic, Replication())
        return {
            name: replicators[self._cluster]
            for name, replicators in found.items()
            if self._cluster in replicators
        }


_KINDS: dict[str, Callable[..., _Kind]] = {
    "topic": TopicCalls,
    "subscription": SubscriptionCalls,
    "coordinator": CoordinatorCalls,
    "schema registry": SchemaRegistryCalls,
    "replicator": ReplicatorCalls,
}


def _users_topic(text: str) -> TopicName:
    """The name. Raises `InvalidTopicName`, and `NotAllowedError` for a topic of the system."""
    topic = topic_name(text)
    if is_systems(topic):
        raise NotAllowedError(f"{topic} belongs to the system")
    return topic

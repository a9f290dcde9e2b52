"""The description of a subscription, which all partitions of a consumer share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from velaray.client.encryption_keys import EncryptionKeyReader
from velaray.client.enums import ConsumerCryptoFailureAction, ConsumerType, InitialPosition
from velaray.client.message_id import MessageId
from velaray.client.policies import ConsumerKeySharedPolicy, RedeliveryBackoff
from velaray.client.schema.base import Schema
from velaray.schemas import SchemaType
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.schemas import to_proto


@dataclass(frozen=True)
class Subscription:
    """The subscription's topic-independent parameters."""

    name: str
    consumer_type: ConsumerType = ConsumerType.Exclusive
    consumer_name: str | None = None
    initial_position: InitialPosition = InitialPosition.Latest
    start: MessageId | None = None
    start_inclusive: bool = False
    properties: Mapping[str, str] | None = None
    read_compacted: bool = False
    key_shared: ConsumerKeySharedPolicy | None = None
    batch_index_ack: bool = False
    queue_size: int = 1000
    ack_group_seconds: float = 0.1
    nack_delay_seconds: float = 60.0
    ack_timeout_seconds: float | None = None
    max_chunked: int = 10
    nack_backoff: RedeliveryBackoff | None = None
    ack_timeout_backoff: RedeliveryBackoff | None = None
    schema: Schema[Any] | None = None
    replicated: bool = False
    key_reader: EncryptionKeyReader | None = None
    crypto_failure_action: ConsumerCryptoFailureAction = ConsumerCryptoFailureAction.FAIL
    subscription_properties: Mapping[str, str] | None = None

    @property
    def durable(self) -> bool:
        """Whether the service keeps the subscription without consumers."""
        return self.start is None

    @property
    def shared(self) -> bool:
        """Whether several consumers get messages: redelivery is requested by entry then."""
        return self.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared)

    def command(self, topic: str, consumer_id: int) -> pb.CommandSubscribe:
        """Build the command to subscribe, without the start position."""
        subscribe = pb.CommandSubscribe(
            topic=topic,
            subscription=self.name,
            subType=int(self.consumer_type),  # type: ignore[arg-type]
            consumer_id=consumer_id,
            durable=self.durable,
            read_compacted=self.read_compacted,
            initialPosition=int(self.initial_position),  # type: ignore[arg-type]
        )
        if self.schema is not None and self.schema.info.type is not SchemaType.BYTES:
            subscribe.schema.CopyFrom(to_proto(self.schema.info))
        if self.replicated:
            subscribe.replicate_subscription_state = True
        if self.consumer_name is not None:
            subscribe.consumer_name = self.consumer_name
        for key, value in (self.properties or {}).items():
            subscribe.metadata.add(key=key, value=value)
        for key, value in (self.subscription_properties or {}).items():
            subscribe.subscription_properties.add(key=key, value=value)
        if self.key_shared is not None:
            policy, meta = self.key_shared, subscribe.keySharedMeta
            meta.keySharedMode = int(policy.key_shared_mode)  # type: ignore[assignment]
            meta.allowOutOfOrderDelivery = policy.allow_out_of_order_delivery
            for first, last in policy.sticky_ranges:
                meta.hashRanges.add(start=first, end=last)
        return subscribe

    def of_new_topics(self) -> Subscription:
        """Return the subscription for topics that are newer than the consumer.

        It begins at the start of the topics, so that no message is missed.
        """
        if self.start is None:
            return replace(self, initial_position=InitialPosition.Earliest)
        if self.start == MessageId.latest:
            return replace(self, start=MessageId.earliest)
        return self

    def with_queue_size(self, size: int) -> Subscription:
        """Return the subscription with another limit of waiting messages."""
        return replace(self, queue_size=size)

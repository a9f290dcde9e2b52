"""The limits of the fields of commands: one table, which servers apply before a handler runs.

A field without a row is a fault of the program: a test compares the table with the protocol. The
entry of a SEND is checked by `velaray.wire.plausible`. docs/limits.md is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message as ProtobufMessage

from velaray.events.ids import INT32_MAX, INT64_MAX, UINT64_MAX
from velaray.events.ids_pb2 import MessageIdData
from velaray.schemas.validation import MAX_SCHEMA_BYTES
from velaray.wire import pulsar_pb2 as pb

MAX_BATCH = 1 << 20
"""The most messages of one entry."""

MAX_ACKS = 100_000
"""The most message ids of one command."""

MAX_PROPERTIES = 1000
"""The most properties of a producer, a consumer, a subscription, a topic or a schema."""

MAX_PROPERTY_BYTES = 128 * 1024
"""The most bytes of all these properties together."""

MAX_TOPIC_BYTES = 1024
"""The most bytes of a topic's full name. Each part has at most 200 when it is percent-encoded."""

MAX_TEXT_BYTES = 1024
"""The most bytes of other names, and of short texts."""

MAX_CREDENTIAL_BYTES = 32 * 1024
"""The most bytes of a token or another credential."""

MAX_RANGES = 65_536
"""The most hash ranges of a consumer, which is their number in the ring."""


class Fault(NamedTuple):
    """What is wrong with a command, and the error with which it is answered."""

    text: str
    code: pb.ServerError


class Rule(Protocol):
    """The limit of a field."""

    def fault(self, value: Any) -> str:
        """Why the value is out of the limit, to follow the field's name; "" if it isn't."""
        ...

    @property
    def stated(self) -> str:
        """The limit, as the documents state it."""
        ...


@dataclass(frozen=True, slots=True)
class Unlimited:
    """No limit beyond that of the type; ``why`` no value does harm."""

    why: str

    def fault(self, value: Any) -> str:
        """As `Rule.fault`."""
        return ""

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"any: {self.why}"


@dataclass(frozen=True, slots=True)
class Number:
    """A number from ``least`` to ``most``."""

    least: int
    most: int

    def fault(self, value: int) -> str:
        """As `Rule.fault`."""
        if self.least <= value <= self.most:
            return ""
        return f"is {value}; it must be {self.least} to {self.most}"

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"{self.least} to {_spelled(self.most)}"


@dataclass(frozen=True, slots=True)
class Size:
    """A text or bytes of at most ``most`` bytes."""

    most: int
    code: pb.ServerError = pb.NotAllowedError

    def fault(self, value: str | bytes) -> str:
        """As `Rule.fault`."""
        if len(value) <= self.most // 4:  # a character has at most four bytes
            return ""
        size = len(value.encode()) if isinstance(value, str) else len(value)
        return "" if size <= self.most else f"has {size} bytes; it may have {self.most}"

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"{self.most:,} bytes"


@dataclass(frozen=True, slots=True)
class Several:
    """At least ``least`` and at most ``most`` values, each within ``each``."""

    most: int
    each: Rule
    least: int = 0

    def fault(self, values: Any) -> str:
        """As `Rule.fault`."""
        if not self.least <= len(values) <= self.most:
            return f"has {len(values)} values; it must have {self.least} to {self.most}"
        if isinstance(self.each, Unlimited):
            return ""
        return next(filter(None, map(self.each.fault, values)), "")

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"{self.least} to {self.most:,} values, each {self.each.stated}"


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties: limits of their number and of their bytes together."""

    def fault(self, values: Any) -> str:
        """As `Rule.fault`."""
        if len(values) > MAX_PROPERTIES:
            return f"has {len(values)} properties; it may have {MAX_PROPERTIES}"
        size = sum(each.ByteSize() for each in values)
        if size > MAX_PROPERTY_BYTES:
            return f"has {size} bytes; it may have {MAX_PROPERTY_BYTES}"
        return ""

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"{MAX_PROPERTIES:,} properties of {MAX_PROPERTY_BYTES:,} bytes together"


@dataclass(frozen=True, slots=True)
class Part:
    """A message whose fields have rows of their own."""

    name: str

    def fault(self, value: ProtobufMessage) -> str:
        """As `Rule.fault`."""
        found = _fault_in(value)
        return f"is out of its limits: {found.text}" if found else ""

    @property
    def stated(self) -> str:
        """As `Rule.stated`."""
        return f"as {self.name}"


def _spelled(number: int) -> str:
    for bits in (31, 63, 64):
        for less in (1, 2):
            if number == (1 << bits) - less:
                return f"2^{bits} - {less}"
    return f"{number:,}"


_FLAG = Unlimited("it is true or false")
_CHOICE = Unlimited("other values are refused when the command is decoded")
_ID = Unlimited("it is looked up in the connection")
_LOOKED_UP = Unlimited("it is looked up in the topic's log")
_UNUSED = Unlimited("it is not used")
_INT64 = Number(0, INT64_MAX)
_TEXT = Size(MAX_TEXT_BYTES)
_TOPIC = Size(MAX_TOPIC_BYTES, pb.InvalidTopicName)
_CREDENTIAL = Size(MAX_CREDENTIAL_BYTES)
_PROPERTIES = Properties()
_VERSION = Size(64)
_MESSAGE_ID = Part("MessageIdData")
_SCHEMA = Part("Schema")
_REQUEST: dict[str, Rule] = {"request_id": _INT64}
_TXN: dict[str, Rule] = {"txnid_least_bits": _INT64, "txnid_most_bits": _INT64}
_PRINCIPAL: dict[str, Rule] = {
    "original_principal": _TEXT,
    "original_auth_data": _CREDENTIAL,
    "original_auth_method": _TEXT,
}
_CLOSE: dict[str, Rule] = {
    **_REQUEST,
    "assignedBrokerServiceUrl": _UNUSED,
    "assignedBrokerServiceUrlTls": _UNUSED,
}

PARTS: Mapping[type, Mapping[str, Rule]] = {
    pb.FeatureFlags: {each.name: _FLAG for each in pb.FeatureFlags.DESCRIPTOR.fields},
    pb.AuthData: {"auth_method_name": _TEXT, "auth_data": _CREDENTIAL},
    pb.Schema: {
        "name": _TEXT,
        "schema_data": Size(MAX_SCHEMA_BYTES, pb.IncompatibleSchema),
        "type": _CHOICE,
        "properties": _PROPERTIES,
    },
    pb.IntRange: {"start": Number(0, 65_535), "end": Number(0, 65_535)},
    pb.KeySharedMeta: {
        "keySharedMode": _CHOICE,
        "hashRanges": Several(MAX_RANGES, Part("IntRange")),
        "allowOutOfOrderDelivery": _FLAG,
    },
    pb.Subscription: {"topic": _TOPIC, "subscription": _TEXT},
    pb.SpanRequest: {
        "after": _MESSAGE_ID,
        "entries": _INT64,
        "until": _MESSAGE_ID,
        "messages": _INT64,
        "bytes": _INT64,
        "some": _FLAG,
        "chunks_after": _MESSAGE_ID,
        "given_up": _FLAG,
    },
    MessageIdData: {
        "ledgerId": _LOOKED_UP,
        "entryId": _LOOKED_UP,
        "partition": _LOOKED_UP,
        "batch_index": _LOOKED_UP,
        "ack_set": Several(MAX_BATCH // 64, Unlimited("bits of messages")),
        "batch_size": Number(-1, MAX_BATCH),
        "first_chunk_message_id": _MESSAGE_ID,
    },
}
"""The limits of messages inside commands."""

_IDS = Unlimited("looked up; an ack_set is compared with its entry")

COMMANDS: Mapping[type, Mapping[str, Rule]] = {
    pb.CommandConnect: {
        "client_version": _TEXT,
        "auth_method": _CHOICE,
        "auth_method_name": _TEXT,
        "auth_data": _CREDENTIAL,
        "protocol_version": Unlimited("the lower version of both sides counts"),
        "proxy_to_broker_url": _TEXT,
        **_PRINCIPAL,
        "feature_flags": Part("FeatureFlags"),
        "proxy_version": _TEXT,
    },
    pb.CommandAuthResponse: {
        "client_version": _TEXT,
        "response": Part("AuthData"),
        "protocol_version": Unlimited("the lower version of both sides counts"),
    },
    pb.CommandPing: {},
    pb.CommandPong: {},
    pb.CommandLookupTopic: {
        "topic": _TOPIC,
        **_REQUEST,
        "authoritative": _FLAG,
        **_PRINCIPAL,
        "advertised_listener_name": _TEXT,
        "properties": _PROPERTIES,
    },
    pb.CommandPartitionedTopicMetadata: {
        "topic": _TOPIC,
        **_REQUEST,
        **_PRINCIPAL,
        "metadata_auto_creation_enabled": _FLAG,
    },
    pb.CommandGetTopicsOfNamespace: {
        **_REQUEST,
        "namespace": _TEXT,
        "mode": _CHOICE,
        "topics_pattern": _TEXT,
        "topics_hash": _TEXT,
        "properties": _PROPERTIES,
    },
    pb.CommandProducer: {
        "topic": _TOPIC,
        "producer_id": _ID,
        **_REQUEST,
        "producer_name": _TEXT,
        "encrypted": _FLAG,
        "metadata": _PROPERTIES,
        "schema": _SCHEMA,
        "epoch": _INT64,
        "user_provided_producer_name": _FLAG,
        "producer_access_mode": _CHOICE,
        "topic_epoch": _INT64,
        "txn_enabled": _FLAG,
        "initial_subscription_name": _TEXT,
    },
    pb.CommandCloseProducer: {"producer_id": _ID, **_CLOSE},
    pb.CommandSend: {
        "producer_id": _ID,
        "sequence_id": _INT64,
        "num_messages": Number(1, MAX_BATCH),
        **_TXN,
        "highest_sequence_id": _INT64,
        "is_chunk": _FLAG,
        "marker": _FLAG,
        "message_id": _UNUSED,
    },
    pb.CommandSubscribe: {
        "topic": _TOPIC,
        "subscription": _TEXT,
        "subType": _CHOICE,
        "consumer_id": _ID,
        **_REQUEST,
        "consumer_name": _TEXT,
        "priority_level": Unlimited("it only orders consumers"),
        "durable": _FLAG,
        "start_message_id": _MESSAGE_ID,
        "metadata": _PROPERTIES,
        "read_compacted": _FLAG,
        "schema": _SCHEMA,
        "initialPosition": _CHOICE,
        "replicate_subscription_state": _FLAG,
        "force_topic_creation": _FLAG,
        "start_message_rollback_duration_sec": _UNUSED,
        "keySharedMeta": Part("KeySharedMeta"),
        "subscription_properties": _PROPERTIES,
        "consumer_epoch": Number(0, UINT64_MAX),
    },
    pb.CommandCloseConsumer: {"consumer_id": _ID, **_CLOSE},
    pb.CommandFlow: {"consumer_id": _ID, "messagePermits": Number(0, INT32_MAX)},
    pb.CommandAck: {
        "consumer_id": _ID,
        "ack_type": _CHOICE,
        "message_id": Several(MAX_ACKS, _IDS, least=1),
        "validation_error": _CHOICE,
        "properties": _UNUSED,
        **_TXN,
        **_REQUEST,
        "repeated_attempt": _FLAG,
    },
    pb.CommandRedeliverUnacknowledgedMessages: {
        "consumer_id": _ID,
        "message_ids": Several(MAX_ACKS, _IDS),
        "consumer_epoch": Number(0, UINT64_MAX),
    },
    pb.CommandUnsubscribe: {"consumer_id": _ID, **_REQUEST, "force": _FLAG},
    pb.CommandSeek: {
        "consumer_id": _ID,
        **_REQUEST,
        "message_id": _MESSAGE_ID,
        "message_publish_time": _INT64,
    },
    pb.CommandGetLastMessageId: {"consumer_id": _ID, **_REQUEST, "span": Part("SpanRequest")},
    pb.CommandConsumerStats: {**_REQUEST, "consumer_id": _ID},
    pb.CommandGetSchema: {**_REQUEST, "topic": _TOPIC, "schema_version": _VERSION},
    pb.CommandGetOrCreateSchema: {
        **_REQUEST,
        "topic": _TOPIC,
        "schema": _SCHEMA,
        "producerName": _TEXT,
    },
    pb.CommandTcClientConnectRequest: {
        **_REQUEST,
        "tc_id": _INT64,
        "scalable": _FLAG,
        "series": _TEXT,
    },
    pb.CommandNewTxn: {
        **_REQUEST,
        "txn_ttl_millis": Number(0, INT64_MAX >> 10),
        "tc_id": _INT64,
        "scalable": _FLAG,
        "series": _TEXT,
        "series_number": _INT64,
        "partitions": Several(10_000, _TOPIC),
        "subscription": Several(10_000, Part("Subscription")),
    },
    pb.CommandAddPartitionToTxn: {
        **_REQUEST,
        **_TXN,
        "partitions": Several(10_000, _TOPIC),
        "scalable": _FLAG,
    },
    pb.CommandAddSubscriptionToTxn: {
        **_REQUEST,
        **_TXN,
        "subscription": Several(10_000, Part("Subscription")),
        "scalable": _FLAG,
    },
    pb.CommandEndTxn: {
        **_REQUEST,
        **_TXN,
        "txn_action": _CHOICE,
        "scalable": _FLAG,
        "series": _TEXT,
        "series_number": _INT64,
        "series_transactions": Several(100_000, _INT64),
    },
}
"""The limits of the commands that servers take. All other commands are refused."""

_REQUIRED = {
    kind: tuple(
        (name, rule) for name, rule in rules.items() if isinstance(rule, Several) and rule.least
    )
    for kind, rules in COMMANDS.items()
}
_ALL: dict[str, Mapping[str, Rule]] = {
    kind.DESCRIPTOR.full_name: rules  # type: ignore[attr-defined]
    for kind, rules in (*PARTS.items(), *COMMANDS.items())
}


def _fault_in(message: ProtobufMessage) -> Fault | None:
    rules = _ALL[message.DESCRIPTOR.full_name]
    for field, value in message.ListFields():
        rule = rules[field.name]
        if text := rule.fault(value):
            code = rule.code if isinstance(rule, Size) else pb.NotAllowedError
            return Fault(f"{field.name} {text}", code)
    return None


def _is_usual_ack(ack: pb.CommandAck) -> bool:
    return (
        0 < len(ack.message_id) <= MAX_ACKS
        and ack.request_id | ack.txnid_most_bits | ack.txnid_least_bits <= INT64_MAX
    )


def _is_usual_flow(flow: pb.CommandFlow) -> bool:
    return flow.messagePermits <= INT32_MAX


_USUAL: dict[type, Callable[[Any], bool]] = {
    pb.CommandAck: _is_usual_ack,
    pb.CommandFlow: _is_usual_flow,
}
"""Short checks of frequent commands: a command that passes is within its limits."""


def fault_in(command: Any) -> Fault | None:
    """The first field of a command that is out of its limit; None if there is none.

    A SEND is checked with its entry, by `velaray.wire.plausible.fault_of`. A command that servers
    don't take has no fault: it is refused for that.
    """
    kind = type(command)
    is_usual = _USUAL.get(kind)
    if is_usual is not None and is_usual(command):
        return None
    required = _REQUIRED.get(kind)
    if required is None:
        return None
    for name, rule in required:
        if text := rule.fault(getattr(command, name)):
            return Fault(f"{name} {text}", pb.NotAllowedError)
    return _fault_in(command)

"""The limits of commands: each field has one, and values at and beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from velaray.events.ids import INT64_MAX
from velaray.wire import pulsar_pb2 as pb
from velaray.wire.commands import Send, decode_command, encode_command
from velaray.wire.errors import MalformedCommandError
from velaray.wire.limits import (
    COMMANDS,
    MAX_ACKS,
    MAX_BATCH,
    MAX_PROPERTIES,
    MAX_TOPIC_BYTES,
    PARTS,
    Number,
    Properties,
    Several,
    Size,
    fault_in,
)
from velaray.wire.plausible import fault_of

FROM_SERVERS = {
    *("Connected", "SendReceipt", "SendError", "Message", "Success", "Error", "ProducerSuccess"),
    *("ReachedEndOfTopic", "ActiveConsumerChange", "TopicMigrated", "AuthChallenge"),
    *("WatchTopicListSuccess", "WatchTopicUpdate"),
}
NOT_SERVED = {
    *("WatchTopicList", "WatchTopicListClose"),
    *("EndTxnOnPartition", "EndTxnOnSubscription"),
}
"""Commands that servers refuse whatever they contain."""

TYPES: dict[str, Any] = {kind.DESCRIPTOR.full_name: kind for kind in (*COMMANDS, *PARTS)}


def all_commands() -> Iterator[type]:
    for field in pb.BaseCommand.DESCRIPTOR.fields:
        if field.message_type is not None:
            yield getattr(pb, field.message_type.name)


def test_every_command_is_limited_or_refused() -> None:
    for kind in all_commands():
        name = kind.__name__.removeprefix("Command")
        refused = name in FROM_SERVERS or name in NOT_SERVED or name.endswith("Response")
        assert (kind in COMMANDS) != (refused and name != "AuthResponse"), name


@pytest.mark.parametrize("kind", [*COMMANDS, *PARTS], ids=lambda kind: kind.__name__)
def test_every_field_has_a_limit(kind: Any) -> None:
    rules = {**COMMANDS, **PARTS}[kind]
    assert set(rules) == {field.name for field in kind.DESCRIPTOR.fields}
    assert all(rule.stated for rule in rules.values())
    for field in kind.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        described = rules[field.name].stated
        inner = field.message_type.name
        assert inner in ("KeyValue", "KeyLongValue") or (
            field.message_type.full_name in TYPES or described.startswith("any: it is not used")
        ), f"{kind.__name__}.{field.name} needs a limit for {inner}"


def filled(kind: Any) -> Any:
    """A message with its required fields, within the limits."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        rule = {**COMMANDS, **PARTS}[kind][field.name]
        if isinstance(rule, Several) and rule.least:
            getattr(message, field.name).add(ledgerId=1, entryId=1)
        elif field.label == FieldDescriptor.LABEL_REQUIRED:
            fill(message, field)
    return message


def fill(message: Any, field: FieldDescriptor) -> None:
    if field.message_type is not None:
        getattr(message, field.name).CopyFrom(filled(TYPES[field.message_type.full_name]))
    elif field.type == FieldDescriptor.TYPE_STRING:
        setattr(message, field.name, "x")
    elif field.type == FieldDescriptor.TYPE_BYTES:
        setattr(message, field.name, b"x")
    elif field.enum_type is not None:
        setattr(message, field.name, field.enum_type.values[0].number)
    else:
        setattr(message, field.name, 1)


def beyond(rule: Any, field: FieldDescriptor) -> Any:
    """A value beyond the limit; None if the type has none."""
    if isinstance(rule, Number):
        bits = 64 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else 32
        return rule.most + 1 if rule.most < (1 << bits) - 1 else None
    if isinstance(rule, Size):
        long = "é" * (rule.most // 2 + 1)
        return long if field.type == FieldDescriptor.TYPE_STRING else long.encode()
    if isinstance(rule, Several) and field.message_type is None:
        small = "x" if field.type == FieldDescriptor.TYPE_STRING else 1
        return [small] * (rule.most + 1)
    if isinstance(rule, Several):
        return [filled(TYPES[field.message_type.full_name])] * (rule.most + 1)
    if isinstance(rule, Properties):
        one = pb.KeyLongValue(key="k", value=1)
        if field.message_type.name == "KeyValue":
            return [pb.KeyValue(key="k", value="v")] * (MAX_PROPERTIES + 1)
        return [one] * (MAX_PROPERTIES + 1)
    return None


LIMITED = [
    (kind, field.name)
    for kind in COMMANDS
    if kind is not pb.CommandSend
    for field in kind.DESCRIPTOR.fields  # type: ignore[attr-defined]
]


@pytest.mark.parametrize(
    ("kind", "name"), LIMITED, ids=[f"{kind.__name__}.{name}" for kind, name in LIMITED]
)
def test_a_value_beyond_its_limit_is_a_fault(kind: Any, name: str) -> None:
    field, rule = kind.DESCRIPTOR.fields_by_name[name], COMMANDS[kind][name]
    message = filled(kind)
    assert fault_in(message) is None
    value = beyond(rule, field)
    if value is None:
        return
    if isinstance(value, list):
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)
    found = fault_in(decode_command(encode_command(message)))
    assert found is not None
    assert found.text.startswith(name)


def test_limits_hold_inside_of_parts() -> None:
    subscribe = filled(pb.CommandSubscribe)
    subscribe.keySharedMeta.keySharedMode = pb.STICKY
    subscribe.keySharedMeta.hashRanges.add(start=0, end=65_536)
    found = fault_in(subscribe)
    assert found is not None
    assert "end is 65536" in found.text
    add = pb.CommandAddSubscriptionToTxn(request_id=1)
    add.subscription.add(topic="x" * (MAX_TOPIC_BYTES + 1), subscription="s")
    assert fault_in(add) is not None


def test_an_acknowledgement_names_a_message_at_least_and_not_too_many() -> None:
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Cumulative)
    assert fault_in(ack) is not None
    ack.message_id.extend([filled(TYPES["velaray.events.MessageIdData"])] * MAX_ACKS)
    assert fault_in(ack) is None
    ack.message_id.add(ledgerId=1, entryId=1)
    assert fault_in(ack) is not None


@pytest.mark.parametrize(
    "send",
    [
        Send(1, INT64_MAX + 1),
        Send(1, 1, highest_sequence_id=INT64_MAX + 1),
        Send(1, 1, num_messages=MAX_BATCH + 1),
        Send(1, 1, num_messages=0),
        Send(1, 1, txn_id=(INT64_MAX + 1, 1)),
        Send(1, 1, txn_id=(1, INT64_MAX + 1)),
    ],
)
def test_a_send_beyond_its_limits_is_a_fault(send: Send) -> None:
    assert fault_of(send, bytes(100))


def random_value(random: Random, field: FieldDescriptor) -> Any:
    numbers = [0, 1, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)]
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(["", "x", "/", "\0", "é" * 400, "x" * 2000, "persistent://a/b/c"])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice([b"", b"x", bytes(40_000), bytes(600_000)])
    if field.enum_type is not None:
        return random.choice(field.enum_type.values).number
    return random.choice(numbers)


def randomize(random: Random, message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.label != FieldDescriptor.LABEL_REQUIRED and random.random() < 0.4:
            continue
        repeated = field.label == FieldDescriptor.LABEL_REPEATED
        many = random.choice([0, 1, 3]) if repeated else 1
        for _ in range(many):
            try:
                if field.message_type is not None:
                    place = getattr(message, field.name)
                    inner = place.add() if repeated else place
                    if random.random() < 0.9:
                        randomize(random, inner)
                elif repeated:
                    getattr(message, field.name).append(random_value(random, field))
                else:
                    setattr(message, field.name, random_value(random, field))
            except (ValueError, OverflowError):  # out of the range of the field's own type
                continue


@pytest.mark.parametrize("seed", range(40))
def test_any_command_is_within_its_limits_or_has_a_named_fault(seed: int) -> None:
    random = Random(seed)
    for kind, _ in product([kind for kind in COMMANDS if kind is not pb.CommandSend], range(3)):
        message: Any = kind()
        randomize(random, message)
        if not message.IsInitialized():
            continue
        try:
            received = decode_command(encode_command(message))
        except MalformedCommandError:
            continue
        found = fault_in(received)
        if found is not None:
            assert found.text.split(" ")[0] in COMMANDS[kind]
            assert len(found.text) < 500

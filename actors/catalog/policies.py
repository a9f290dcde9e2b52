"""The policies of clusters, namespaces and topics: names, levels, valid values.

Names and JSON forms are those of Pulsar's REST interface for namespaces (where a topic's path
differs, such as ``maxProducers``, the REST layer maps it). A policy that isn't in the table is
refused, since a misspelt one would be stored and never applied.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from types import MappingProxyType
from typing import Any, NoReturn

from velaray.schemas.compatibility import Strategy

ISOLATION = "isolation"
"""The policy that gives a topic a process of its own."""
SUBSCRIPTION_RATES = "dispatchRateOfSubscriptions"
"""The policy that has the dispatch rates of single subscriptions, by name."""
NO_ISOLATION, DEDICATED = "none", "dedicated"


class InvalidPolicyError(ValueError):
    """A policy's name, level or value isn't valid; the message has the reason."""


class Level(Flag):
    """The levels at which a policy may be set."""

    CLUSTER = auto()
    NAMESPACE = auto()
    TOPIC = auto()


Reader = Callable[[Any], Any]
"""Returns a parsed JSON value in its stored form; raises `ValueError` if it isn't valid.

As Pulsar's JSON reader does, it accepts numbers and booleans as texts, and ignores fields that are
null or an empty text.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: its levels, its reader, and its default where it is set nowhere."""

    name: str
    levels: Level
    reader: Reader
    default: Any = None
    in_every_answer: bool = True
    """Whether catalog and partitions list its default where it is set nowhere. A new policy says
    False: then it changes no answer in clusters that don't use it."""


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise ValueError("must be true or false")


def _whole(least: int) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and least <= value < 1 << 63):
            raise ValueError(f"must be a whole number >= {least}")
        return int(value)

    return read


def _one_of(*choices: str) -> Reader:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return str(value)

    return read


def _text(value: Any) -> str:
    if not (isinstance(value, str) and value):
        raise ValueError("must be a text, not empty")
    return value


def _names(value: Any) -> list[str]:
    if not (value and _are_names(value)):
        raise ValueError("must be a list of names, not empty")
    return list(value)


def _no_or_more_names(value: Any) -> list[str]:
    if not _are_names(value):
        raise ValueError("must be a list of names, which may be empty")
    return list(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _texts_by_name(value: Any) -> dict[str, str]:
    if not (isinstance(value, dict) and all(isinstance(text, str) for text in value.values())):
        raise ValueError("must be an object whose values are texts")
    return dict(value)


def _by_name(reader: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("must be an object with a value for each name")
        return {name: _field(name, reader, each) for name, each in value.items()}

    return read


def _record(
    required: Mapping[str, Reader],
    *,
    without_effect: Mapping[str, Any] = MappingProxyType({}),
    **optional: Reader,
) -> Reader:
    """``without_effect``: fields that aren't applied, each with the only accepted value, which
    changes nothing."""
    fields = {**required, **optional}

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"must be an object with {', '.join(fields)}")
        given = {name: field for name, field in value.items() if field not in (None, "")}
        for name in required:
            if name not in given:
                raise ValueError(f"lacks {name}")
        found = {}
        for name, field in given.items():
            if name in fields:
                found[name] = _field(name, fields[name], field)
            elif name not in without_effect:
                raise ValueError(f"has no field {name}; it has {', '.join(fields)}")
            elif field != without_effect[name]:
                raise ValueError(
                    f"has {name}, which velaray doesn't apply: leave it out, "
                    f"or give {json.dumps(without_effect[name])}"
                )
        return found

    return read


def _field(name: str, reader: Reader, value: Any) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error


def _auto_topics(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _AUTO_TOPICS(value)
    if found.get("topicType") == "partitioned" and not found.get("defaultNumPartitions"):
        raise ValueError("of type partitioned needs defaultNumPartitions >= 1")
    return found


def _retention(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _RETENTION(value)
    if list(found.values()).count(0) == 1:
        raise ValueError("with one limit 0 needs the other 0 as well; -1 ignores a limit")
    return found


_NUMBER = re.compile(r"-?[0-9]{1,19}")
_AUTO_TOPICS = _record(
    {"allowAutoTopicCreation": _boolean},
    topicType=_one_of("partitioned", "non-partitioned"),
    defaultNumPartitions=_whole(0),
)
_RETENTION = _record({"retentionTimeInMinutes": _whole(-1), "retentionSizeInMB": _whole(-1)})
_QUOTA = _record(
    {"policy": _one_of("producer_request_hold", "producer_exception", "consumer_backlog_eviction")},
    limit=_whole(-1),
    limitSize=_whole(-1),
    limitTime=_whole(-1),
)
_RATE = _record(
    {"dispatchThrottlingRateInMsg": _whole(-1), "dispatchThrottlingRateInByte": _whole(-1)},
    relativeToPublishRate=_boolean,
    ratePeriodInSecond=_whole(1),
)
_REPLICATION_RATE = _record(
    {"dispatchThrottlingRateInMsg": _whole(-1), "dispatchThrottlingRateInByte": _whole(-1)},
    without_effect={"relativeToPublishRate": False},
    ratePeriodInSecond=_whole(1),
)
_PUBLISH_RATE = _record(
    {
        "publishThrottlingRateInMsg": _whole(-1),
        "publishThrottlingRateInByte": _whole(-1),
    }
)
_ALL = Level.CLUSTER | Level.NAMESPACE | Level.TOPIC
_WIDE = Level.CLUSTER | Level.NAMESPACE

POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            "retention",
            _ALL,
            _retention,
            {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        ),
        Policy("messageTTL", _ALL, _whole(0), 0),
        Policy(
            "backlogQuota", _ALL, _record({}, destination_storage=_QUOTA, message_age=_QUOTA), {}
        ),
        Policy("subscriptionExpirationTime", _WIDE, _whole(0), 0),
        Policy("deduplication", _ALL, _boolean, True),
        Policy("autoTopicCreation", _WIDE, _auto_topics, {"allowAutoTopicCreation": True}),
        Policy(
            "autoSubscriptionCreation",
            _ALL,
            _record({"allowAutoSubscriptionCreation": _boolean}),
            {"allowAutoSubscriptionCreation": True},
        ),
        Policy("schemaCompatibilityStrategy", _ALL, _one_of(*Strategy), "FULL"),
        Policy("schemaValidationEnforced", _ALL, _boolean, False),
        Policy("isAllowAutoUpdateSchema", _ALL, _boolean, True),
        Policy("schemaJsonAllowLegacyJacksonFormat", _ALL, _boolean, False),
        Policy("schemaProtobufNativeFieldCheck", _ALL, _boolean, False),
        Policy(
            "delayedDelivery",
            _ALL,
            _record(
                {"active": _boolean, "tickTime": _whole(1)}, maxDeliveryDelayInMillis=_whole(0)
            ),
            {"active": True, "tickTime": 1000},
        ),
        Policy(
            "deadLetter",
            _ALL,
            _record(
                {"maxRedeliverCount": _whole(1)},
                deadLetterTopic=_text,
                initialSubscriptionName=_text,
            ),
        ),
        Policy("maxTopicsPerNamespace", _WIDE, _whole(0), 0),
        Policy("maxProducersPerTopic", _ALL, _whole(0), 0),
        Policy("maxConsumersPerTopic", _ALL, _whole(0), 0),
        Policy("maxConsumersPerSubscription", _ALL, _whole(0), 0),
        Policy("maxSubscriptionsPerTopic", _ALL, _whole(0), 0),
        Policy("maxUnackedMessagesPerConsumer", _ALL, _whole(0), 50_000),
        Policy("maxUnackedMessagesPerSubscription", _ALL, _whole(0), 200_000),
        Policy("maxMessageSize", Level.TOPIC, _whole(0), 0),
        Policy("compactionThreshold", _ALL, _whole(0), 0),
        Policy("dispatchRate", _ALL, _RATE),
        Policy("subscriptionDispatchRate", _ALL, _RATE),
        Policy(SUBSCRIPTION_RATES, Level.TOPIC, _by_name(_RATE), {}, in_every_answer=False),
        Policy("replicatorDispatchRate", _ALL, _REPLICATION_RATE),
        Policy("publishRate", _ALL, _PUBLISH_RATE),
        Policy("replication", Level.NAMESPACE | Level.TOPIC, _names),
        Policy("properties", Level.NAMESPACE, _texts_by_name, {}),
        Policy(
            ISOLATION, Level.NAMESPACE | Level.TOPIC, _one_of(NO_ISOLATION, DEDICATED), NO_ISOLATION
        ),
        Policy("pullFrom", Level.NAMESPACE | Level.TOPIC, _no_or_more_names, []),
    )
}

DEFAULTS: Mapping[str, Any] = {
    name: known.default for name, known in POLICIES.items() if known.in_every_answer
}
"""The defaults of the policies that are in every answer."""


def policy(name: str) -> Policy:
    """The policy called ``name``. Raises `InvalidPolicyError` if there is none."""
    found = POLICIES.get(name)
    if found is None:
        raise InvalidPolicyError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return found


def policy_at(name: str, level: Level) -> Policy:
    """The policy called ``name`` if it may be set at ``level``; else `InvalidPolicyError`."""
    found = policy(name)
    if level not in found.levels:
        where = " and ".join(str(each.name).lower() for each in found.levels)
        raise InvalidPolicyError(f"policy {name} can't be set on a {level.name}; only on {where}")
    return found


def canonical(name: str, level: Level, value: bytes) -> bytes:
    """``value`` in one JSON form, so that equal values are equal bytes.

    Raises `InvalidPolicyError` if there is no such policy at this level or it doesn't take
    this value.
    """
    reader = policy_at(name, level).reader
    try:
        parsed = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError(f"policy {name}: not JSON: {error}") from error
    try:
        found = reader(parsed)
    except ValueError as error:
        raise InvalidPolicyError(f"policy {name} {error}; got {value[:100]!r}") from error
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} isn't a JSON value")

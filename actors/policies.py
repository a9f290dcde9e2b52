"""The policies that clusters, namespaces and topics may carry: names, levels, valid values.

Names and JSON forms are those of Pulsar's REST interface for namespaces (where a topic's
path differs, such as ``maxProducers``, the REST layer maps it). A policy that isn't in the
table is refused: a misspelt one would otherwise be kept and never applied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NoReturn

from velaray.schemas.compatibility import Strategy


class InvalidPolicyError(ValueError):
    """A policy's name, level or value isn't accepted; the message says which and why."""


class Level(Flag):
    """Where a policy may be set."""

    CLUSTER = auto()
    NAMESPACE = auto()
    TOPIC = auto()


Validator = Callable[[Any], str | None]
"""Says what is wrong with a parsed JSON value, or None."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: where it may be set, what it accepts, what holds while it is set nowhere."""

    name: str
    levels: Level
    validator: Validator
    default: Any = None


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _whole(least: int) -> Validator:
    def validate(value: Any) -> str | None:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return None if whole and least <= value < 1 << 63 else f"must be a whole number >= {least}"

    return validate


def _one_of(*choices: str) -> Validator:
    def validate(value: Any) -> str | None:
        return None if value in choices else f"must be one of {', '.join(choices)}"

    return validate


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be a text, not empty"


def _names(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(isinstance(name, str) for name in value)
    return None if good else "must be a list of names, not empty"


def _no_or_more_names(value: Any) -> str | None:
    good = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return None if good else "must be a list of names; an empty one says none"


def _record(required: Mapping[str, Validator], **optional: Validator) -> Validator:
    fields = {**required, **optional}

    def validate(value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"must be an object with {', '.join(fields)}"
        for name in required:
            if name not in value:
                return f"lacks {name}"
        for name, field in value.items():
            if name not in fields:
                return f"has no field {name}; it has {', '.join(fields)}"
            if problem := fields[name](field):
                return f"{name} {problem}"
        return None

    return validate


def _auto_topics(value: Any) -> str | None:
    problem = _record(
        {"allowAutoTopicCreation": _boolean},
        topicType=_one_of("partitioned", "non-partitioned"),
        defaultNumPartitions=_whole(0),
    )(value)
    if problem:
        return problem
    if value.get("topicType") == "partitioned" and not value.get("defaultNumPartitions"):
        return "of type partitioned needs defaultNumPartitions >= 1"
    return None


def _retention(value: Any) -> str | None:
    limits = ("retentionTimeInMinutes", "retentionSizeInMB")
    if problem := _record(dict.fromkeys(limits, _whole(-1)))(value):
        return problem
    if [value[name] == 0 for name in limits].count(True) == 1:
        return "with one limit 0 needs the other 0 as well; -1 ignores a limit"
    return None


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
        Policy("replicatorDispatchRate", _ALL, _REPLICATION_RATE),
        Policy("publishRate", _ALL, _PUBLISH_RATE),
        Policy("replication", Level.NAMESPACE | Level.TOPIC, _names),
        Policy("pullFrom", Level.NAMESPACE | Level.TOPIC, _no_or_more_names, []),
    )
}

DEFAULTS: Mapping[str, Any] = {name: known.default for name, known in POLICIES.items()}
"""What holds of every policy that is set nowhere."""


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
    validator = policy_at(name, level).validator
    try:
        parsed = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError(f"policy {name}: not JSON: {error}") from error
    if problem := validator(parsed):
        raise InvalidPolicyError(f"policy {name} {problem}; got {value[:100]!r}")
    return json.dumps(parsed, sort_keys=True, separators=(",", ":")).encode()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")

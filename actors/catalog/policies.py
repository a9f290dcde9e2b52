"""The policies of clusters, namespaces and topics: names, levels, valid values.

Names and JSON forms are those of Pulsar's REST interface for namespaces (where a topic's path
differs, such as ``maxProducers``, the REST layer maps it). A policy that isn't in the table is
refused, since a misspelt one would be stored and never applied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, NoReturn

from velaray.actors.catalog.policy_types import (
    Boolean,
    ByName,
    ListOf,
    Nothing,
    NothingIn,
    OneOf,
    Only,
    PolicyType,
    Record,
    Text,
    Texts,
    Whole,
)
from velaray.schemas.compatibility import Strategy

ISOLATION = "isolation"
"""The policy that gives a topic a process of its own."""
SUBSCRIPTION_RATES = "dispatchRateOfSubscriptions"
"""The policy that has the dispatch rates of single subscriptions, by name."""
OFFLOAD_BYTES = "offloadThreshold"
OFFLOAD_SECONDS = "offloadThresholdInSeconds"
OFFLOAD_LAG = "offloadDeletionLagMs"
SUBSCRIPTION_TYPES = "subscriptionTypesEnabled"
"""The policy that has the types of subscription that may be used, with the protocol's names."""
PERMISSIONS = "permissions"
"""The policy that has the actions that roles may take, by role."""
SUBSCRIPTION_PERMISSIONS = "permissionsOnSubscriptions"
"""The policy that has the only roles that may use a subscription, by subscription."""
SUBSCRIPTION_AUTH_MODE = "subscriptionAuthMode"
"""The policy that ties the names of subscriptions to roles."""
BY_PREFIX = "Prefix"
ERASABLE = "erasable"
"""The policy by which messages can be erased, by their key or their subject."""
NOT_ERASABLE = "none"
ENCRYPTION_REQUIRED = "encryptionRequired"
"""The policy by which producers must encrypt their messages end to end."""
NO_ISOLATION, DEDICATED = "none", "dedicated"


class InvalidPolicyError(ValueError):
    """A policy's name, level or value isn't valid; the message has the reason."""


class Level(Flag):
    """The levels at which a policy may be set."""

    CLUSTER = auto()
    NAMESPACE = auto()
    TOPIC = auto()


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: a row of the table.

    ``applied_by`` is the place in the code that applies it, as ``module:name`` without the package
    ``velaray``. ``default`` is the value where it is set nowhere.

    A policy of Pulsar's that isn't applied has the reason in ``not_applied`` instead. Its type is
    the values without effect: they are accepted and not stored, and others are refused by name.
    """

    name: str
    type: PolicyType
    levels: Level
    default: Any
    description: str
    applied_by: str
    in_every_answer: bool = True
    """Whether catalog and partitions list its default where it is set nowhere. A new policy says
    False: then it changes no answer in clusters that don't use it."""
    not_applied: str = ""

    @property
    def refusal(self) -> str:
        """The refusal of a value with an effect, for a policy that isn't applied."""
        return f"velaray doesn't support the policy {self.name}: {self.not_applied}"


def _not_applied(
    name: str, kind: PolicyType, levels: Level, default: Any, description: str, reason: str
) -> Policy:
    return Policy(name, kind, levels, default, description, "", not_applied=reason)


def _check_auto_topics(found: Mapping[str, Any]) -> None:
    if found.get("topicType") == "partitioned" and not found.get("defaultNumPartitions"):
        raise ValueError("of type partitioned needs defaultNumPartitions >= 1")


def _check_retention(found: Mapping[str, Any]) -> None:
    if list(found.values()).count(0) == 1:
        raise ValueError("if one limit is 0, the other must be 0 too; -1 ignores a limit")


_AUTO_TOPICS = Record(
    {"allowAutoTopicCreation": Boolean()},
    {"topicType": OneOf(("partitioned", "non-partitioned")), "defaultNumPartitions": Whole()},
    check=_check_auto_topics,
)
_RETENTION = Record(
    {"retentionTimeInMinutes": Whole(-1), "retentionSizeInMB": Whole(-1)}, check=_check_retention
)
_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
_QUOTA = Record(
    {"policy": OneOf(_ACTIONS)},
    {"limit": Whole(-1), "limitSize": Whole(-1), "limitTime": Whole(-1)},
)
_LIMITS = {"dispatchThrottlingRateInMsg": Whole(-1), "dispatchThrottlingRateInByte": Whole(-1)}
_RATE = Record(_LIMITS, {"relativeToPublishRate": Boolean(), "ratePeriodInSecond": Whole(1)})
_REPLICATION_RATE = Record(
    _LIMITS,
    {"ratePeriodInSecond": Whole(1)},
    without_effect={"relativeToPublishRate": False},
)
_PUBLISH_RATE = Record(
    {"publishThrottlingRateInMsg": Whole(-1), "publishThrottlingRateInByte": Whole(-1)}
)
_DELAYS = Record({"active": Boolean(), "tickTime": Whole(1)}, {"maxDeliveryDelayInMillis": Whole()})
_DEAD_LETTER = Record(
    {"maxRedeliverCount": Whole(1)},
    {"deadLetterTopic": Text(), "initialSubscriptionName": Text()},
)
ACTIONS = ("produce", "consume", "functions", "packages", "sinks", "sources")
"""The actions that can be granted. The last four have no effect: velaray has no such services."""
_ALL = Level.CLUSTER | Level.NAMESPACE | Level.TOPIC
_WIDE = Level.CLUSTER | Level.NAMESPACE
_NARROW = Level.NAMESPACE | Level.TOPIC
_MAINTENANCE = "broker.partition.maintenance:Maintenance"
_SCHEMAS = "broker.schema_registry.schema_calls:schema_policies"
_SUBSCRIPTIONS = "broker.partition.subscriptions:Subscriptions"
_DISPATCHER = "broker.subscription.dispatcher:SubscriptionDispatcher"
_RATES = "broker.partition.channel.throttle:DispatchRates"
_AUTHORISATION = "broker.authorisation.grants:Grants"
_BOOKKEEPER = "the journal keeps its ledgers in files, without BookKeeper"
_OFFLOADER = "broker.partition.offloader:Offloader"
_OFFLOAD = (
    "`velaray start --offload` gives the place, and policies of the namespace give the thresholds"
)

_ROWS = (
    Policy(
        "retention",
        _RETENTION,
        _ALL,
        {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
        "How long acknowledged data is kept, and how much; -1: no limit.",
        _MAINTENANCE,
    ),
    Policy(
        "messageTTL",
        Whole(),
        _ALL,
        0,
        "Seconds after which unacknowledged messages expire; 0: never.",
        _MAINTENANCE,
    ),
    Policy(
        "backlogQuota",
        Record(optional={"destination_storage": _QUOTA, "message_age": _QUOTA}),
        _ALL,
        {},
        "The largest backlog in bytes, the oldest in seconds, and what happens beyond.",
        _MAINTENANCE,
    ),
    Policy(
        "subscriptionExpirationTime",
        Whole(),
        _WIDE,
        0,
        "Minutes after which unused subscriptions are deleted; 0: never.",
        _MAINTENANCE,
    ),
    Policy(
        "deduplication",
        Boolean(),
        _ALL,
        True,
        "Whether messages that a producer sends again are dropped.",
        "broker.partition.publishing:Publishing",
    ),
    Policy(
        "autoTopicCreation",
        _AUTO_TOPICS,
        _WIDE,
        {"allowAutoTopicCreation": True},
        "Whether clients create topics by using them, and with how many partitions.",
        "actors.catalog.machine:CatalogMachine",
    ),
    Policy(
        "autoSubscriptionCreation",
        Record({"allowAutoSubscriptionCreation": Boolean()}),
        _ALL,
        {"allowAutoSubscriptionCreation": True},
        "Whether consumers create subscriptions by subscribing.",
        _SUBSCRIPTIONS,
    ),
    Policy(
        "schemaCompatibilityStrategy",
        OneOf(tuple(Strategy)),
        _ALL,
        "FULL",
        "What a new schema must be compatible with.",
        _SCHEMAS,
    ),
    Policy(
        "schemaValidationEnforced",
        Boolean(),
        _ALL,
        False,
        "Whether producers without a schema are refused where there is one.",
        "broker.schema_registry.schema_calls:ENFORCED",
    ),
    Policy(
        "isAllowAutoUpdateSchema",
        Boolean(),
        _ALL,
        True,
        "Whether producers add versions to the schemas of topics.",
        _SCHEMAS,
    ),
    Policy(
        "schemaJsonAllowLegacyJacksonFormat",
        Boolean(),
        _ALL,
        False,
        "Whether JSON schemas in the format of Jackson are accepted.",
        _SCHEMAS,
    ),
    Policy(
        "schemaProtobufNativeFieldCheck",
        Boolean(),
        _ALL,
        False,
        "Whether the fields of PROTOBUF_NATIVE schemas must be compatible.",
        _SCHEMAS,
    ),
    Policy(
        "delayedDelivery",
        _DELAYS,
        _ALL,
        {"active": True, "tickTime": 1000},
        "Whether messages may be delayed, how exactly (milliseconds), and how long at most.",
        "broker.partition.delayed_delivery:DelayedDeliveryTracker",
    ),
    Policy(
        "deadLetter",
        _DEAD_LETTER,
        _ALL,
        None,
        "After how many redeliveries a message moves to which dead-letter topic.",
        "broker.subscription.dead_letter_decisions:DeadLetterDecisions",
    ),
    Policy(
        "maxTopicsPerNamespace",
        Whole(),
        _WIDE,
        100_000,
        "Topics of a namespace; 0: any number.",
        "actors.catalog.machine:CatalogMachine",
    ),
    Policy(
        "maxProducersPerTopic",
        Whole(),
        _ALL,
        10_000,
        "Producers of a topic at a time; 0: any number.",
        "broker.partition.publishing:Publishing",
    ),
    Policy(
        SUBSCRIPTION_TYPES,
        ListOf(OneOf(("Exclusive", "Shared", "Failover", "Key_Shared")), may_be_empty=True),
        _NARROW,
        [],
        "The types of subscription with which consumers and readers connect; none: all types.",
        "broker.partition.session.consumers:check_type",
        in_every_answer=False,
    ),
    Policy(
        "maxConsumersPerTopic",
        Whole(),
        _ALL,
        20_000,
        "Consumers of a topic at a time; 0: any number.",
        _SUBSCRIPTIONS,
    ),
    Policy(
        "maxConsumersPerSubscription",
        Whole(),
        _ALL,
        10_000,
        "Consumers of a subscription at a time; 0: any number.",
        _SUBSCRIPTIONS,
    ),
    Policy(
        "maxSubscriptionsPerTopic",
        Whole(),
        _ALL,
        10_000,
        "Durable subscriptions of a topic; 0: any number.",
        _SUBSCRIPTIONS,
    ),
    Policy(
        "maxUnackedMessagesPerConsumer",
        Whole(),
        _ALL,
        50_000,
        "Unacknowledged messages that a Shared or Key_Shared consumer holds; 0: any number.",
        _DISPATCHER,
    ),
    Policy(
        "maxUnackedMessagesPerSubscription",
        Whole(),
        _ALL,
        200_000,
        "Unacknowledged messages that these consumers of a subscription hold; 0: any number.",
        _DISPATCHER,
    ),
    Policy(
        "maxMessageSize",
        Whole(),
        Level.TOPIC,
        0,
        "Bytes of a message; 0: the limit of the protocol.",
        "broker.partition.session.publishing:PublishHandlers",
    ),
    Policy(
        "compactionThreshold",
        Whole(),
        _ALL,
        0,
        "Bytes of backlog after which a topic is compacted; 0: only on request.",
        "broker.partition.compactor:Compactor",
    ),
    Policy(
        "dispatchRate",
        _RATE,
        _ALL,
        None,
        "Messages and bytes that a partition delivers per period, to all subscriptions together.",
        _RATES,
    ),
    Policy(
        "subscriptionDispatchRate",
        _RATE,
        _ALL,
        None,
        "Messages and bytes that a partition delivers per period to each subscription.",
        _RATES,
    ),
    Policy(
        SUBSCRIPTION_RATES,
        ByName(_RATE),
        Level.TOPIC,
        {},
        "The rates of single subscriptions, by name, instead of subscriptionDispatchRate.",
        _RATES,
        in_every_answer=False,
    ),
    Policy(
        "replicatorDispatchRate",
        _REPLICATION_RATE,
        _ALL,
        None,
        "Messages and bytes that each replicator sends per period.",
        "geo.replication.replication_keeper:ReplicationKeeper",
    ),
    Policy(
        "publishRate",
        _PUBLISH_RATE,
        _ALL,
        None,
        "Messages and bytes that a partition takes in a second.",
        "broker.partition.publishing:Publishing",
    ),
    Policy(
        "replication",
        ListOf(Text()),
        _NARROW,
        None,
        "The clusters that have the topic, with this one.",
        "actors.catalog.clusters:remotes_of",
    ),
    Policy(
        "properties",
        Texts(),
        Level.NAMESPACE,
        {},
        "Texts of users, which change nothing.",
        "admin.namespaces:_PROPERTIES",
    ),
    Policy(
        ISOLATION,
        OneOf((NO_ISOLATION, DEDICATED)),
        _NARROW,
        NO_ISOLATION,
        "Whether the actors of a topic have processes of their own.",
        "broker.partition.partition_actor:PartitionActor",
    ),
    Policy(
        "pullFrom",
        ListOf(Text(), may_be_empty=True),
        _NARROW,
        [],
        "Clusters from which messages are pulled.",
        "actors.catalog.inbound_replication:PULL_FROM",
    ),
    Policy(
        OFFLOAD_BYTES,
        Whole(-1),
        Level.NAMESPACE,
        -1,
        "Bytes of a partition's newest ledgers that stay; older ones move to the archive; -1: all.",
        _OFFLOADER,
        in_every_answer=False,
    ),
    Policy(
        OFFLOAD_SECONDS,
        Whole(-1),
        Level.NAMESPACE,
        -1,
        "Seconds after which complete ledgers move to the archive; -1: never.",
        _OFFLOADER,
        in_every_answer=False,
    ),
    Policy(
        OFFLOAD_LAG,
        Whole(),
        Level.NAMESPACE,
        4 * 3600 * 1000,
        "Milliseconds from the copy of a ledger in the archive to the deletion of the local one.",
        _OFFLOADER,
        in_every_answer=False,
    ),
    Policy(
        PERMISSIONS,
        ByName(ListOf(OneOf(ACTIONS))),
        _NARROW,
        None,
        "Actions that roles may take, by role. A role has the actions of the namespace and of the "
        "topic. `velaray permissions` changes those of one role.",
        _AUTHORISATION,
        in_every_answer=False,
    ),
    Policy(
        SUBSCRIPTION_PERMISSIONS,
        ByName(ListOf(Text())),
        Level.NAMESPACE,
        None,
        "The only roles that may use a subscription, by subscription. Every role that may consume "
        "may use any other subscription.",
        _AUTHORISATION,
        in_every_answer=False,
    ),
    Policy(
        SUBSCRIPTION_AUTH_MODE,
        OneOf(("None", BY_PREFIX)),
        Level.NAMESPACE,
        "None",
        "With Prefix, the name of a role's subscription begins with the role and a dash.",
        _AUTHORISATION,
        in_every_answer=False,
    ),
    Policy(
        ERASABLE,
        OneOf((NOT_ERASABLE, "key", "subject")),
        Level.NAMESPACE,
        NOT_ERASABLE,
        "What messages can be erased by: nothing, their key, or their property `subject`. It is "
        "set before the namespace has topics, in a cluster with encryption keys.",
        "broker.partition.sealing:Sealing",
        in_every_answer=False,
    ),
    Policy(
        ENCRYPTION_REQUIRED,
        Boolean(),
        Level.NAMESPACE,
        False,
        "Whether producers must encrypt messages end to end. Others are closed and refused, and so "
        "is every message without encryption.",
        "broker.partition.session.admission:check_encrypts",
        in_every_answer=False,
    ),
    _not_applied(
        "deduplicationSnapshotInterval",
        Nothing(),
        _NARROW,
        None,
        "After how many messages the sequence ids of producers are stored.",
        "checkpoints hold them",
    ),
    _not_applied(
        "persistence",
        Nothing(),
        _NARROW,
        None,
        "How many copies BookKeeper stores.",
        _BOOKKEEPER,
    ),
    _not_applied(
        "subscribeRate",
        NothingIn("subscribeThrottlingRatePerConsumer"),
        _NARROW,
        None,
        "How often a consumer may subscribe.",
        "consumers may subscribe at any rate",
    ),
    _not_applied(
        "offloadPolicies",
        Nothing(),
        _NARROW,
        None,
        "Which ledgers move to another store.",
        _OFFLOAD,
    ),
    _not_applied(
        "inactiveTopicPolicies",
        NothingIn("deleteWhileInactive"),
        _NARROW,
        None,
        "When unused topics are deleted.",
        "inactive topics are never deleted",
    ),
    _not_applied(
        "entryFilters",
        Nothing(),
        _NARROW,
        None,
        "Code that chooses the entries of consumers.",
        "brokers filter no entries",
    ),
    _not_applied(
        "dispatcherPauseOnAckStatePersistent",
        Only(False),
        _NARROW,
        False,
        "Whether delivery waits until acknowledgements are stored.",
        "the state of acknowledgements is journaled whole",
    ),
    _not_applied(
        "resourceGroup",
        Nothing(),
        _NARROW,
        None,
        "The group that shares limits of traffic.",
        "there are no resource groups",
    ),
    _not_applied(
        "shadowTopics",
        Nothing(),
        Level.TOPIC,
        [],
        "Topics that show the messages of this one.",
        "there are no shadow topics",
    ),
    _not_applied(
        "allowedClusters",
        Nothing(),
        Level.NAMESPACE,
        [],
        "The clusters that may have the namespace.",
        "the tenant's allowed clusters apply",
    ),
    _not_applied(
        "bookieAffinity",
        Nothing(),
        Level.NAMESPACE,
        None,
        "The bookies that store the data.",
        _BOOKKEEPER,
    ),
    _not_applied(
        "antiAffinity",
        Nothing(),
        Level.NAMESPACE,
        None,
        "Namespaces that brokers keep apart.",
        "Ray places every actor by itself",
    ),
    _not_applied(
        "migration",
        Nothing(),
        Level.NAMESPACE,
        None,
        "Whether clients are sent to another cluster.",
        "a tenant is moved with `velaray migrate`",
    ),
)

TABLE: Mapping[str, Policy] = {policy.name: policy for policy in _ROWS}
"""Every policy, with those that aren't applied."""
POLICIES: Mapping[str, Policy] = {
    name: policy for name, policy in TABLE.items() if not policy.not_applied
}
"""The policies that are applied."""

DEFAULTS: Mapping[str, Any] = {
    name: known.default for name, known in POLICIES.items() if known.in_every_answer
}
"""The defaults of the policies that are in every answer."""


def policy(name: str) -> Policy:
    """The applied policy called ``name``. Raises `InvalidPolicyError` if there is none."""
    found = POLICIES.get(name)
    if found is None and name in TABLE:
        raise InvalidPolicyError(TABLE[name].refusal)
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
    kind = policy_at(name, level).type
    try:
        parsed = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidPolicyError(f"policy {name}: not JSON: {error}") from error
    try:
        found = kind.parse(parsed)
    except ValueError as error:
        raise InvalidPolicyError(f"policy {name} {error}; got {value[:100]!r}") from error
    return json.dumps(found, sort_keys=True, separators=(",", ":")).encode()


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} isn't a JSON value")

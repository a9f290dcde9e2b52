"""A topic's policies in the form in which its partitions apply them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from velaray.actors.catalog.policies import (
    DEDICATED,
    DEFAULTS,
    ENCRYPTION_REQUIRED,
    ISOLATION,
    OFFLOAD_BYTES,
    OFFLOAD_LAG,
    OFFLOAD_SECONDS,
    POLICIES,
    SUBSCRIPTION_RATES,
)
from velaray.actors.rates import DispatchLimit

MINUTE_MS = 60_000
MIB = 1 << 20
AGES = ("retention", "messageTTL", OFFLOAD_BYTES, OFFLOAD_SECONDS)
"""The policies by which stored data expires, or moves to the archive, when it reaches an age."""
_FOR_DISPATCHERS = (
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "delayedDelivery",
    "deadLetter",
)
_DISPATCH_RATES = ("dispatchRate", "subscriptionDispatchRate", SUBSCRIPTION_RATES)


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit on the backlog, in bytes or milliseconds, and the action beyond it."""

    limit: int
    policy: str


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The policies of a topic. A limit of 0 is no limit; a retention of -1 has no end.

    ``publish_rate`` is messages and bytes a second. A negative ``offload_bytes`` or ``offload_ms``
    is no threshold; ``offload_lag_ms`` is the time from the copy of a ledger to the deletion of the
    local one. ``raw`` has every policy as the catalog reports it.
    """

    raw: Mapping[str, Any]
    deduplicate: bool
    max_message_size: int
    encryption_required: bool
    max_producers: int
    max_consumers: int
    max_consumers_per_subscription: int
    max_subscriptions: int
    create_subscriptions: bool
    retention_ms: int
    retention_bytes: int
    compacting: bool
    ttl_ms: int
    expiry_ms: int
    publish_rate: tuple[int, int]
    dispatch_limit: DispatchLimit | None
    size_quota: Quota | None
    age_quota: Quota | None
    isolated: bool
    offload_bytes: int
    offload_ms: int
    offload_lag_ms: int

    @property
    def offloads(self) -> bool:
        """Whether ledgers move to the archive by themselves."""
        return self.offload_bytes >= 0 or self.offload_ms >= 0

    @property
    def ages(self) -> bool:
        """Whether stored data expires, or moves to the archive, when it reaches an age."""
        return self.retention_ms > 0 or self.ttl_ms > 0 or self.offloads

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> TopicPolicies:
        """The policies in effective ones; those missing in ``found`` have their defaults."""
        raw = {**DEFAULTS, **found}
        retention, quotas = raw["retention"], raw["backlogQuota"]
        return cls(
            raw=raw,
            deduplicate=raw["deduplication"],
            max_message_size=raw["maxMessageSize"],
            encryption_required=raw.get(ENCRYPTION_REQUIRED, False),
            max_producers=raw["maxProducersPerTopic"],
            max_consumers=raw["maxConsumersPerTopic"],
            max_consumers_per_subscription=raw["maxConsumersPerSubscription"],
            max_subscriptions=raw["maxSubscriptionsPerTopic"],
            create_subscriptions=raw["autoSubscriptionCreation"]["allowAutoSubscriptionCreation"],
            retention_ms=_scaled(retention["retentionTimeInMinutes"], MINUTE_MS),
            retention_bytes=_scaled(retention["retentionSizeInMB"], MIB),
            compacting=raw["compactionThreshold"] > 0,
            ttl_ms=raw["messageTTL"] * 1000,
            expiry_ms=raw["subscriptionExpirationTime"] * MINUTE_MS,
            publish_rate=_publish_rate(raw["publishRate"]),
            dispatch_limit=_dispatch_limit(raw["dispatchRate"]),
            size_quota=_size_quota(quotas.get("destination_storage")),
            age_quota=_age_quota(quotas.get("message_age")),
            isolated=raw[ISOLATION] == DEDICATED,
            offload_bytes=_offload(raw, OFFLOAD_BYTES),
            offload_ms=_scaled(_offload(raw, OFFLOAD_SECONDS), 1000),
            offload_lag_ms=_offload(raw, OFFLOAD_LAG),
        )

    def subscription_limit(self, name: str) -> DispatchLimit | None:
        """The limit of the deliveries of one subscription: its own, or that of each one."""
        every = self.raw["subscriptionDispatchRate"]
        return _dispatch_limit(self.raw.get(SUBSCRIPTION_RATES, {}).get(name, every))

    def limits_as(self, other: TopicPolicies) -> bool:
        """Whether the limits of deliveries are the same."""
        return all(self.raw.get(name) == other.raw.get(name) for name in _DISPATCH_RATES)

    def for_dispatchers(self) -> dict[str, Any]:
        """The policies that subscriptions apply themselves, by name."""
        return {name: self.raw[name] for name in _FOR_DISPATCHERS}


def _offload(raw: Mapping[str, Any], name: str) -> int:
    value: int = raw.get(name, POLICIES[name].default)
    return value


def _scaled(value: int, unit: int) -> int:
    return value if value < 0 else value * unit


def _publish_rate(found: Mapping[str, int] | None) -> tuple[int, int]:
    if found is None:
        return 0, 0
    return found["publishThrottlingRateInMsg"], found["publishThrottlingRateInByte"]


def _dispatch_limit(found: Mapping[str, Any] | None) -> DispatchLimit | None:
    if found is None:
        return None
    messages, size = (found[f"dispatchThrottlingRateIn{unit}"] for unit in ("Msg", "Byte"))
    if max(messages, size) <= 0:
        return None
    relative = found.get("relativeToPublishRate", False)
    return DispatchLimit(messages, size, found.get("ratePeriodInSecond", 1), relative)


def _size_quota(found: Mapping[str, Any] | None) -> Quota | None:
    """``limit`` is the older name of ``limitSize``."""
    if found is None:
        return None
    limit = found.get("limitSize", found.get("limit", -1))
    return None if limit < 0 else Quota(limit, found["policy"])


def _age_quota(found: Mapping[str, Any] | None) -> Quota | None:
    if found is None:
        return None
    limit = found.get("limitTime", -1)
    return None if limit <= 0 else Quota(limit * 1000, found["policy"])

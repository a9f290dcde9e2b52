"""The topic of the audit log, and its retention."""

from __future__ import annotations

import json

from velaray.actors.catalog.machine import SYSTEM_NAMESPACE, SYSTEM_TENANT
from velaray.broker.catalog.messages import CreateTopic, Policies, SetPolicy, Topic
from velaray.events.ids import ActorKey, TopicName
from velaray.topology.actor_system import ActorSystem
from velaray.topology.config import AuditSettings

AUDIT = TopicName(SYSTEM_TENANT, SYSTEM_NAMESPACE, "__audit")
"""The topic. It has no subscriptions, so only retention trims it."""
_RETENTION = "retention"
_DAY_MINUTES = 24 * 60


def is_audit_topic(topic: TopicName) -> bool:
    """Whether it is `AUDIT`."""
    return topic == AUDIT


async def find_audit_topic(actor_system: ActorSystem) -> ActorKey:
    """The actor of the audit log. Raises `RemoteError` (NOT_FOUND) if nothing was ever recorded,
    and what `ActorSystem.request` raises."""
    found = await actor_system.request(ActorKey.catalog(), Topic(str(AUDIT)))
    return ActorKey.of_partition(AUDIT, found["incarnation"])


async def ensure_audit_topic(actor_system: ActorSystem, settings: AuditSettings) -> ActorKey:
    """Create the topic if necessary, with the retention of the settings.

    Repeating it changes nothing. Raises what `ActorSystem.request` raises.
    """
    catalog, name = ActorKey.catalog(), str(AUDIT)
    await actor_system.request(catalog, CreateTopic(name, exist_ok=True))
    retention = {
        "retentionTimeInMinutes": settings.days * _DAY_MINUTES,
        "retentionSizeInMB": settings.size_mib,
    }
    own = await actor_system.request(catalog, Policies(topic=name))
    if own.get(_RETENTION) != retention:
        text = json.dumps(retention).encode()
        await actor_system.request(catalog, SetPolicy(_RETENTION, text, topic=name))
    return await find_audit_topic(actor_system)

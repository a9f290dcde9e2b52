"""Failover: tenants of a lost cluster continue in this one, to which it replicated.

One decision of the catalog makes this cluster the tenant's home. Each partition then takes over the
lost cluster's producer state, so that producers continue at their last sequence id, and gives up
incomplete transactions. Failover doesn't wait for the lost cluster. Entries that still arrive from
it later are stored as usual.
"""

from __future__ import annotations

from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.catalog.messages import SetHome, TenantObjects
from velaray.broker.partition.messages import AdoptProducers, Origins
from velaray.events.ids import ActorKey
from velaray.geo.replication.messages import ExportProgress, GiveUpForeign, SettleForeign
from velaray.geo.tenant_migration import messages as m
from velaray.geo.tenant_migration.asking import ask_catalog, partition_of, partitions_of
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError


async def fail_over(actor_system: ActorSystem, tenant: str, lost: str | None) -> dict[str, Any]:
    """Make this cluster the home of a tenant of cluster ``lost``. Returns, by partition, what may
    be missing and what may be redelivered.

    Repeating it changes nothing more, and returns the state by then. ``lost`` defaults to the
    tenant's home, if another cluster is known as that. Raises `RemoteError`: NOT_FOUND if the
    tenant isn't here, INVALID if the lost cluster is unknown or this one; and what
    `ActorSystem.request` raises: then the failover may have been decided, and the call should be
    repeated.
    """
    here = await ask_catalog(actor_system, TenantObjects(tenant))
    if not here["tenant"]:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {tenant!r}: nothing of it was replicated")
    lost = lost or here["home"]
    if lost is None or lost == actor_system.config.name or lost not in here["clusters"]:
        problem = f"this cluster is the home of tenant {tenant} already"
        named = f"no other cluster {lost!r} is known" if lost else problem
        raise RemoteError(Reason.INVALID, f"{named}: name the lost cluster")
    await ask_catalog(actor_system, SetHome(tenant, actor_system.config.name))
    keys = await partitions_of(actor_system, here["topics"])
    # Release complete transactions first: passive partitions may not have reported theirs.
    await each(keys, lambda key: actor_system.request(key, SettleForeign()))
    return {
        "tenant": tenant,
        "lost": lost,
        "home": actor_system.config.name,
        "partitions": await each(keys, lambda key: _take_over(actor_system, key, lost)),
    }


async def received(
    actor_system: ActorSystem, tenant: str, topic: str, cluster: str
) -> dict[str, Any]:
    """What a partition has from another cluster: the ``newest`` position that arrived, and each
    subscription's acknowledgements by positions there, as SubscriptionProgress.

    Raises `RemoteError`, and what `ActorSystem.request` raises.
    """
    key = await partition_of(actor_system, tenant, topic)
    await actor_system.request(key, m.SettleProgress())
    extent = await actor_system.request(key, m.Extent())
    told: dict[str, list[bytes]] = {}
    for subscription in extent["subscriptions"]:
        since, more, parts = None, True, told.setdefault(subscription, [])
        while more:
            asked = ExportProgress(subscription, f"who lost {cluster}", since)
            answer = await actor_system.request(key, asked)
            since, more = answer["token"], answer["more"]
            parts += answer["parts"]
    origins = await actor_system.request(key, Origins())
    return {"newest": origins.get(cluster), "subscriptions": told}


async def _take_over(actor_system: ActorSystem, key: ActorKey, lost: str) -> dict[str, Any]:
    adopted = await actor_system.request(key, AdoptProducers(origin=lost))
    transactions = await actor_system.request(key, GiveUpForeign(lost))
    report = await actor_system.request(key, m.FailoverReport(lost))
    return {**report, "producers": adopted, "transactions": transactions}

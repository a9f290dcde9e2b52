"""Checks whether a tenant can migrate to another cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as m
from velaray.geo.tenant_migration.asking import ask_catalog, partitions_of
from velaray.geo.tenant_migration.messages import Extent
from velaray.geo.tenant_migration.migration_target import RestTarget
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError
from velaray.topology.tls import outgoing_tls
from velaray.wire.replication import replicator_subscription

_SHOWN = 5
"""The most names in a list of obstacles."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What would migrate, the obstacles, and what the target already has of the tenant."""

    namespaces: int
    topics: int
    partitions: int
    subscriptions: int
    entries: int
    problems: tuple[str, ...]
    found: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As JSON for the admin interface."""
        return asdict(self)


async def examine(actor_system: ActorSystem, asked: m.MayBeginMigration) -> Examination:
    """Check whether a tenant can migrate as ``asked``, without changes.

    Raises `RemoteError` if the catalog or the other cluster refuses it, `Unreachable` if the other
    cluster doesn't answer.
    """
    tenant, cluster = asked.tenant, asked.target
    await ask_catalog(actor_system, asked)
    facts = await ask_catalog(actor_system, m.ReachCluster(cluster))
    name, tls = actor_system.config.name, outgoing_tls(actor_system.config)
    there = await RestTarget(cluster, facts, name, tenant, tls=tls).look()
    here = await ask_catalog(actor_system, m.TenantObjects(tenant))
    keys = await partitions_of(actor_system, here["topics"])
    extents = await each(keys, lambda key: actor_system.request(key, Extent()))
    named = await ask_catalog(actor_system, m.NamedClusters(tenant))
    names = [str(key.topic_name) for key in keys]
    return Examination(
        len(here["namespaces"]),
        len(here["topics"]),
        len(keys),
        sum(len(found["subscriptions"]) for found in extents),
        sum(found["entries"] for found in extents),
        (
            *_problems_there(actor_system, cluster, there),
            *(
                f"policy {policy} of {where} names {_some(clusters)}: remove it"
                for policy, where, clusters in named
            ),
            *_problems_of_partitions(cluster, dict(zip(names, extents, strict=True))),
        ),
        tuple([tenant] if there["tenant"] else []) + tuple(sorted(there["namespaces"])),
    )


async def begin(actor_system: ActorSystem, asked: m.MayBeginMigration) -> None:
    """Begin a migration if there is no obstacle. Raises as `examine`, and `RemoteError`
    (CONFLICT) that names the obstacles."""
    found = await examine(actor_system, asked)
    if found.problems:
        raise RemoteError(Reason.CONFLICT, "; ".join(found.problems))
    who = asked.tenant, asked.target, asked.progress, asked.max_lag
    await ask_catalog(actor_system, m.BeginMigration(*who, found.found))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _problems_there(
    actor_system: ActorSystem, cluster: str, there: Mapping[str, Any]
) -> Iterator[str]:
    own = actor_system.config
    if there["cluster"] != cluster:
        yield f"the cluster that is registered as {cluster} calls itself {there['cluster']}"
    elif there["number"] == own.cluster_number:
        yield (
            f"clusters {own.name} and {cluster} both have the number {there['number']}: start one "
            "of them, without data, with another --cluster-number"
        )
    if own.name not in there["clusters"]:
        yield f"cluster {cluster} doesn't know this one: register {own.name} there"
    if there["home"] not in (None, own.name):
        yield f"in cluster {cluster} the tenant's home is {there['home']}"
    if there["topics"]:
        yield f"cluster {cluster} has topics of the tenant: {_some(there['topics'])}"
    with_policies = [name for name, own_ones in there["namespaces"].items() if own_ones]
    if with_policies:
        yield f"cluster {cluster} has policies on {_some(with_policies)}: remove them there"


def _problems_of_partitions(
    cluster: str, extents: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    replicator = replicator_subscription(cluster)
    read = [name for name, found in extents.items() if replicator in found["replicators"]]
    if read:
        yield f"a replicator to {cluster} still reads {_some(read)}: wait until it's gone"
    compacted = [name for name, found in extents.items() if found["only_compacted"]]
    if compacted:
        yield f"entries are kept in compacted views alone, which don't move: {_some(compacted)}"

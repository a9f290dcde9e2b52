"""The catalog's answers to requests that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from velaray.actors.catalog import machine
from velaray.actors.catalog import state as queries
from velaray.actors.catalog.clusters import (
    REPLICATION,
    elsewhere,
    home_of,
    remotes_of,
    replication_problem,
)
from velaray.actors.catalog.deleted_topics import restorable_topics
from velaray.actors.catalog.grants import grants_at
from velaray.actors.catalog.inbound_replication import PULL_FROM, pulled_from
from velaray.actors.catalog.migration_state import Migration
from velaray.actors.catalog.migrations import current, decide_begin, target_of
from velaray.actors.catalog.state import Catalog, Cluster, Scope, Topic
from velaray.actors.machine import Reason, Refusal
from velaray.broker.catalog import messages as m
from velaray.broker.catalog.commands import begin_of, scope_of, split_namespace
from velaray.events.ids import TopicName
from velaray.topology.messages import Message
from velaray.topology.rpc import RemoteError


def describe(topic: Topic) -> dict[str, Any]:
    """A topic as replies show it."""
    return {
        "topic": str(topic.name),
        "partitions": topic.partitions,
        "incarnation": topic.incarnation,
        "properties": dict(topic.properties),
    }


def _clusters(state: Catalog, request: m.Clusters) -> Any:
    """The public properties of every cluster."""
    return {
        name: {
            **_urls(cluster),
            "has_token": bool(cluster.token),
            "progress": cluster.progress,
            "own": name == state.own,
        }
        for name, cluster in sorted(state.clusters.items())
    }


def _urls(cluster: Cluster) -> dict[str, str]:
    """All addresses of a cluster; "": none."""
    return {
        "service_url": cluster.service_url,
        "admin_url": cluster.admin_url,
        "service_url_tls": cluster.service_url_tls,
        "admin_url_tls": cluster.admin_url_tls,
    }


def _reached(cluster: Cluster) -> dict[str, Any]:
    """The addresses and the token of a cluster, for actors that connect to it: by TLS if it has
    such addresses."""
    service_url, admin_url = cluster.reached_at
    return {"service_url": service_url, "admin_url": admin_url, "token": cluster.token or None}


def _home(state: Catalog, request: m.Home) -> Any:
    """The home cluster of a tenant, with its addresses and token; None: this cluster.

    ``urls`` are those for clients, which may not use TLS."""
    name = home_of(state, request.tenant)
    if name is None:
        return None
    cluster = state.clusters[name]
    return {"cluster": name, **_reached(cluster), "urls": _urls(cluster)}


def _may_replicate(state: Catalog, request: m.MayReplicate) -> Any:
    """Raise `RemoteError` if no namespace of the tenant can have this policy."""
    if request.tenant not in state.tenants:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {request.tenant!r}")
    if refusal := replication_problem(state, request.tenant, request.value):
        raise RemoteError(refusal.reason, refusal.message)


def _homes(state: Catalog, request: m.Homes) -> Any:
    """The homes of all tenants that another cluster serves."""
    return dict(sorted(state.homes.items()))


def _tenants(state: Catalog, request: m.Tenants) -> Any:
    return {
        name: {
            "admin_roles": list(state.tenants[name].admin_roles),
            "allowed_clusters": list(state.tenants[name].allowed_clusters),
        }
        for name in queries.tenants(state)
    }


def _namespaces(state: Catalog, request: m.Namespaces) -> Any:
    if request.tenant not in state.tenants:
        raise RemoteError(Reason.NOT_FOUND, f"no tenant {request.tenant!r}")
    return [f"{request.tenant}/{name}" for name in queries.namespaces(state, request.tenant)]


def _check_at_home(state: Catalog, tenant: str) -> None:
    """Raise `RemoteError` (ELSEWHERE) if another cluster serves the tenant."""
    if refusal := elsewhere(state, tenant):
        raise RemoteError(refusal.reason, refusal.message)


def _topics(state: Catalog, request: m.Topics) -> Any:
    tenant, namespace = split_namespace(request.namespace)
    if request.at_home:
        _check_at_home(state, tenant)
    if not queries.exists(state, Scope(tenant, namespace)):
        raise RemoteError(Reason.NOT_FOUND, f"no namespace {request.namespace!r}")
    found = queries.topics(state, tenant, namespace)
    if request.partitions:
        return [name for topic in found for name in topic.partition_names()]
    return [describe(topic) for topic in found]


def _one_topic(state: Catalog, request: m.Topic) -> Any:
    name = TopicName.parse(request.topic)
    if request.at_home:
        _check_at_home(state, name.tenant)
    topic = queries.find_topic(state, TopicName.parse(request.topic))
    if topic is None:
        if problem := machine.unsupported(TopicName.parse(request.topic)):
            raise RemoteError(Reason.NOT_ALLOWED, problem)
        raise RemoteError(Reason.NOT_FOUND, f"no topic {request.topic}")
    return describe(topic)


def _serving(state: Catalog, request: m.Serving) -> Any:
    """The properties that a partition needs in order to serve. Refused (NOT_FOUND) if the topic was
    deleted."""
    name = TopicName.parse(request.topic)
    topic = queries.find_topic(state, name)
    if topic is None or topic.incarnation != request.incarnation:
        raise RemoteError(Reason.NOT_FOUND, f"{name} was deleted")
    scope = Scope.of_topic(name)
    return {
        "policies": queries.effective_policies(state, scope),
        "replication": {
            remote: {
                **_reached(cluster),
                "progress": cluster.progress,
                "all_subscriptions": False,
            }
            for remote, cluster in remotes_of(state, scope).items()
        }
        | _migration_target(state, name.tenant),
        "pull": {
            remote: _reached(cluster) for remote, cluster in pulled_from(state, scope).items()
        },
        "home": home_of(state, name.tenant),
    }


def _policies(state: Catalog, request: m.Policies) -> Any:
    scope = scope_of(request.topic, request.namespace)
    if not queries.exists(state, scope):
        raise RemoteError(Reason.NOT_FOUND, f"there is no {scope}")
    if request.effective:
        return {name: queries.effective_policy(state, scope, name) for name in request.effective}
    return dict(queries.own_policies(state, scope))


def _grants(state: Catalog, request: m.WatchGrants) -> dict[str, Any]:
    return grants_at(state, Scope(request.tenant, request.namespace, request.topic))


def _deleted_topics(state: Catalog, request: m.DeletedTopics, now_ms: int) -> Any:
    """The deleted topics of a name, or all; ``due``: their purge may begin."""
    name = TopicName.parse(request.topic).topic if request.topic else None
    return [
        {
            **describe(deleted_topic.topic),
            "begun": deleted_topic.begun,
            "until_ms": deleted_topic.until_ms,
            "due": deleted_topic.begun or deleted_topic.until_ms <= now_ms,
        }
        for _, deleted_topic in sorted(state.deleted_topics.items())
        if name is None or deleted_topic.topic.name == name
    ]


def _restorable_topics(state: Catalog, request: m.RestorableTopics, now_ms: int) -> Any:
    """The deleted topics of a namespace that can be undeleted, also if the namespace is deleted."""
    tenant, namespace = split_namespace(request.namespace)
    found = restorable_topics(state, tenant, namespace, now_ms)
    if not found and not queries.exists(state, Scope(tenant, namespace)):
        raise RemoteError(Reason.NOT_FOUND, f"no namespace {request.namespace!r}")
    return [
        {
            **describe(deleted_topic.topic),
            "deleted_ms": deleted_topic.deleted_ms,
            "until_ms": deleted_topic.until_ms,
        }
        for deleted_topic in found
    ]


def _may_begin(state: Catalog, request: m.MayBeginMigration, now_ms: int) -> None:
    """Raise `RemoteError` if `BeginMigration` would be refused or change nothing."""
    decision = decide_begin(state, begin_of(request), now_ms)
    if decision is None:
        where = state.migrations[request.tenant].target
        raise RemoteError(Reason.CONFLICT, f"tenant {request.tenant} is already moving to {where}")
    if isinstance(decision.reply, Refusal):
        raise RemoteError(decision.reply.reason, decision.reply.message)


def _described(tenant: str, migration: Migration) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "number": migration.number,
        "target": migration.target,
        "progress": migration.progress,
        "max_lag": migration.max_lag,
        "found": list(migration.found),
        "phase": migration.phase,
        "over": migration.over,
        "steps": [[phase, at_ms] for phase, at_ms in migration.steps],
        "why": migration.why,
    }


def _migration(state: Catalog, request: m.Migration) -> dict[str, Any]:
    """The newest migration of a tenant."""
    found = state.migrations.get(request.tenant)
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"tenant {request.tenant} has no migration from here")
    return _described(request.tenant, found)


def _migrations(state: Catalog, request: m.Migrations) -> list[dict[str, Any]]:
    """The newest migrations of all tenants; ``running``: those that aren't over."""
    return [
        _described(tenant, found)
        for tenant, found in sorted(state.migrations.items())
        if not request.running or current(state, tenant)
    ]


def _reach(state: Catalog, request: m.ReachCluster) -> dict[str, Any]:
    found = state.clusters.get(request.cluster)
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"no cluster {request.cluster!r}: register it first")
    return _reached(found)


def _incoming(state: Catalog, request: m.Arrival) -> dict[str, Any] | None:
    """The newest migration of a tenant to this cluster, and its outcome; None: there is none."""
    found = state.incoming.get(request.tenant)
    if found is None:
        return None
    return {"source": found.source, "migration": found.number, "end": found.ending}


def _tenant_status(state: Catalog, request: m.TenantObjects) -> dict[str, Any]:
    """The objects of a tenant in this cluster, the tenant's home, and the known clusters."""
    tenant = request.tenant
    names = queries.namespaces(state, tenant)
    return {
        "clusters": sorted(state.clusters),
        "tenant": tenant in state.tenants,
        "home": home_of(state, tenant),
        "namespaces": {
            f"{tenant}/{name}": bool(queries.own_policies(state, Scope(tenant, name)))
            for name in names
        },
        "topics": [
            str(topic.name) for name in names for topic in queries.topics(state, tenant, name)
        ],
    }


def _named_clusters(state: Catalog, request: m.NamedClusters) -> list[tuple[str, str, list[str]]]:
    """The other clusters that policies of a tenant name: policy, scope, clusters."""
    found = []
    for scope in state.policies:
        if scope.tenant != request.tenant:
            continue
        values = queries.own_policies(state, scope)
        for policy in (REPLICATION, PULL_FROM):
            others = sorted(set(values.get(policy) or ()) - {state.own})
            if others:
                found.append((policy, str(scope), others))
    return sorted(found)


def _migration_target(state: Catalog, tenant: str) -> dict[str, dict[str, Any]]:
    """The target of the tenant's migration, as another cluster to replicate everything to."""
    found = target_of(state, tenant)
    if found is None:
        return {}
    return {
        found.target: {
            **_reached(state.clusters[found.target]),
            "progress": found.progress,
            "all_subscriptions": True,
            "from_earliest": True,
            "everything": True,
        }
    }


QUERIES: Mapping[type[Message], Callable[[Catalog, Any], Any]] = {
    m.Clusters: _clusters,
    m.Home: _home,
    m.Homes: _homes,
    m.MayReplicate: _may_replicate,
    m.Tenants: _tenants,
    m.Namespaces: _namespaces,
    m.Topics: _topics,
    m.Topic: _one_topic,
    m.Serving: _serving,
    m.Policies: _policies,
    m.WatchGrants: _grants,
    m.Migration: _migration,
    m.Migrations: _migrations,
    m.ReachCluster: _reach,
    m.Arrival: _incoming,
    m.TenantObjects: _tenant_status,
    m.NamedClusters: _named_clusters,
}
TIMED_QUERIES: Mapping[type[Message], Callable[[Catalog, Any, int], Any]] = {
    m.DeletedTopics: _deleted_topics,
    m.RestorableTopics: _restorable_topics,
    m.MayBeginMigration: _may_begin,
}
"""Queries whose answer depends on the clock (milliseconds since 1970)."""
CERTAIN: frozenset[type[Message]] = frozenset({m.Topic, m.Serving, m.DeletedTopics})
"""Queries whose answers lead to the deletion of journals; a superseded catalog doesn't answer
them."""

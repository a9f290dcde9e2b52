"""The machine's command for each request that changes the catalog."""

from __future__ import annotations

from typing import Any

from velaray.actors.catalog import clusters, grants, machine, migration_target, migrations
from velaray.actors.catalog import state as queries
from velaray.actors.catalog.deleted_topics import BeginPurge, EndPurge, UndeleteTopic
from velaray.actors.catalog.state import Scope
from velaray.broker.catalog import messages as m
from velaray.events.ids import TopicName
from velaray.topology.messages import Message


def scope_of(topic: str | None, namespace: str | None) -> Scope:
    """The scope of a policy: the topic, else the namespace, else the cluster."""
    if topic:
        return Scope.of_topic(TopicName.parse(topic))
    return Scope(*split_namespace(namespace)) if namespace else queries.CLUSTER


def split_namespace(namespace: str) -> tuple[str, str]:
    """The tenant and the local name of ``tenant/namespace``."""
    tenant, _, name = namespace.partition("/")
    return tenant, name


def _fields(request: Message) -> dict[str, Any]:
    """The fields of a request whose command has the same ones."""
    return {name: getattr(request, name) for name in request.__struct_fields__}


def command_of(request: Message) -> Any | None:
    """The command to decide; None for a query. Raises `InvalidNameError`."""
    for part in (_of_clusters_and_tenants, _of_topics, _of_grants, _of_migrations):
        if (command := part(request)) is not None:
            return command
    return None


def _of_clusters_and_tenants(request: Message) -> Any | None:
    match request:
        case m.Bootstrap():
            return machine.Bootstrap(**_fields(request))
        case m.RegisterCluster():
            return clusters.RegisterCluster(**_fields(request))
        case m.UpdateCluster():
            return clusters.UpdateCluster(**_fields(request))
        case m.MeetCluster():
            return clusters.MeetCluster(request.cluster, request.data_id)
        case m.DeleteCluster():
            return clusters.DeleteCluster(request.cluster)
        case m.SetHome():
            return clusters.SetTenantHome(request.tenant, request.cluster)
        case m.CreateTenant(tenant, roles, allowed):
            return machine.CreateTenant(tenant, roles, allowed)
        case m.UpdateTenant(tenant, roles, allowed):
            return machine.UpdateTenant(tenant, roles, allowed)
        case m.DeleteTenant():
            return machine.DeleteTenant(request.tenant)
        case m.CreateNamespace():
            return machine.CreateNamespace(*split_namespace(request.namespace))
        case m.DeleteNamespace():
            name = split_namespace(request.namespace)
            return machine.DeleteNamespace(*name, request.force, request.window_ms)
    return None


def _of_topics(request: Message) -> Any | None:
    match request:
        case m.CreateTopic(topic, partitions, properties, exist_ok):
            name = TopicName.parse(topic)
            return machine.CreateTopic(name, partitions, properties, exist_ok)
        case m.EnsureTopic():
            return machine.EnsureTopic(TopicName.parse(request.topic), request.at_home)
        case m.GrowPartitions():
            return machine.GrowPartitions(TopicName.parse(request.topic), request.partitions)
        case m.SetTopicProperties(topic, properties, removed):
            return machine.SetTopicProperties(TopicName.parse(topic), properties, removed)
        case m.DeleteTopic(topic, incarnation, window_ms):
            return machine.DeleteTopic(TopicName.parse(topic), incarnation, window_ms)
        case m.UndeleteTopic():
            return UndeleteTopic(TopicName.parse(request.topic))
        case m.BeginPurge():
            return BeginPurge(request.incarnation)
        case m.EndPurge():
            return EndPurge(request.incarnation)
        case m.SetPolicy():
            scope = scope_of(request.topic, request.namespace)
            return machine.SetPolicy(scope, request.name, request.value)
        case m.RemovePolicy():
            return machine.RemovePolicy(scope_of(request.topic, request.namespace), request.name)
    return None


def _of_grants(request: Message) -> Any | None:
    match request:
        case m.GrantActions(role, actions):
            scope = scope_of(request.topic, request.namespace)
            return grants.GrantActions(scope, role, actions)
        case m.RevokeActions():
            return grants.RevokeActions(scope_of(request.topic, request.namespace), request.role)
        case m.GrantSubscription(namespace, subscription, roles):
            return grants.GrantSubscription(scope_of(None, namespace), subscription, roles)
        case m.RevokeSubscription(namespace, subscription, role):
            return grants.RevokeSubscription(scope_of(None, namespace), subscription, role)
    return None


def changed_grants(request: Message) -> Scope | None:
    """The scope whose grants may differ after a request; None if none do."""
    match request:
        case m.CreateTenant() | m.UpdateTenant() | m.DeleteTenant():
            return Scope(request.tenant)
        case m.DeleteNamespace() | m.GrantSubscription() | m.RevokeSubscription():
            return scope_of(None, request.namespace)
        case m.DeleteTopic() | m.UndeleteTopic():
            return scope_of(request.topic, None)
        case m.GrantActions() | m.RevokeActions():
            return scope_of(request.topic, request.namespace)
        case m.SetPolicy() | m.RemovePolicy() if request.name in grants.GRANT_POLICIES:
            return scope_of(request.topic, request.namespace)
    return None


def _of_migrations(request: Message) -> Any | None:
    match request:
        case m.BeginMigration():
            return begin_of(request)
        case m.AdvanceMigration():
            return migrations.AdvanceMigration(request.tenant, request.number, request.phase)
        case m.RollBackMigration():
            return migrations.RollBackMigration(request.tenant, request.why)
        case m.ExpectTenant():
            return migration_target.ExpectTenant(request.tenant, request.source, request.migration)
        case m.EndArrival(tenant, source, number, stays):
            return migration_target.EndIncomingMigration(tenant, source, number, stays)
    return None


def begin_of(request: m.BeginMigration | m.MayBeginMigration) -> migrations.BeginMigration:
    """The command that begins the migration."""
    return migrations.BeginMigration(
        request.tenant, request.target, request.progress, request.max_lag, request.found
    )

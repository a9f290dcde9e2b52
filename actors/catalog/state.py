"""The state of the catalog, and queries on it.

The queries are pure functions; their results never change afterwards, so callers may keep them.
None of them reads a clock or another actor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgpack

from velaray.actors.catalog import migration_state
from velaray.actors.catalog.migration_state import IncomingMigration, Migration
from velaray.actors.catalog.policies import POLICIES, Level, policy
from velaray.events.ids import ActorKey, TopicName


class Progress(StrEnum):
    """The form in which a cluster understands the progress of another one's subscriptions."""

    EXACT = "exact"
    """All that is acknowledged, single messages too."""
    SNAPSHOTS = "snapshots"
    """Pulsar's snapshots: the mark-delete alone."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster's ``pulsar://`` and ``http://`` addresses, the ``token`` that this cluster presents
    there ("": none), its ``data_id`` at the first contact ("": no contact yet), and its
    ``pulsar+ssl://`` and ``https://`` addresses. "" is no address."""

    service_url: str
    admin_url: str
    token: str = field(default="", repr=False)
    progress: str = Progress.EXACT
    data_id: str = ""
    service_url_tls: str = ""
    admin_url_tls: str = ""

    @property
    def reached_at(self) -> tuple[str, str]:
        """Where this cluster connects to it, by TLS if possible: service URL and admin URL."""
        return self.service_url_tls or self.service_url, self.admin_url_tls or self.admin_url


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's administrators and the clusters that it may use."""

    admin_roles: tuple[str, ...]
    allowed_clusters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: ``partitions`` is 0 for a plain one.

    ``incarnation`` distinguishes it from earlier and later topics of the same name.
    """

    name: TopicName
    partitions: int
    incarnation: int
    properties: Mapping[str, str] = field(default_factory=dict)

    def actors(self) -> tuple[ActorKey, ...]:
        """The keys of the partition actors that serve this topic, in order."""
        numbers = range(self.partitions) if self.partitions else (-1,)
        return tuple(
            ActorKey.of_partition(self.name.of_partition(number), self.incarnation)
            for number in numbers
        )

    def partition_names(self) -> Iterator[str]:
        """The names of the partitions, in order; the topic's own name if it has none."""
        name = str(self.name)
        if not self.partitions:
            yield name
        for number in range(self.partitions):
            yield f"{name}-partition-{number}"


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a policy: the cluster (all fields empty), a namespace, or a topic.

    ``topic`` is the topic's full name without partition.
    """

    tenant: str = ""
    namespace: str = ""
    topic: str = ""

    @classmethod
    def of_topic(cls, topic: TopicName) -> Scope:
        """The scope of a topic; for a partition, that of its topic."""
        return cls(topic.tenant, topic.namespace, str(topic.topic))

    @property
    def level(self) -> Level:
        """The level of the scope."""
        if self.topic:
            return Level.TOPIC
        return Level.NAMESPACE if self.namespace else Level.CLUSTER

    def wider(self) -> Scope:
        """The namespace of a topic, or the cluster."""
        return Scope(self.tenant, self.namespace) if self.topic else Scope()

    def upwards(self) -> Iterator[Scope]:
        """This scope, then the wider ones: the order in which policies take precedence."""
        if self.topic:
            yield self
        if self.namespace:
            yield Scope(self.tenant, self.namespace)
        yield Scope()

    def __str__(self) -> str:
        return self.topic or "/".join(filter(None, (self.tenant, self.namespace))) or "the cluster"


CLUSTER = Scope()
_NONE: bytes = msgpack.packb([])


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic with its policies; ``until_ms`` is the end of its window, 0 without one. It
    can't be restored after its purge has ``begun``. ``deleted_ms`` is the time of its deletion, 0
    without a window, or if an earlier version deleted it."""

    topic: Topic
    until_ms: int
    begun: bool
    policies: Mapping[str, bytes] = field(default_factory=dict)
    deleted_ms: int = 0


@dataclass(slots=True)
class Catalog:
    """The catalog's state. ``namespaces`` is keyed by (tenant, namespace), topics by full name,
    deleted topics by incarnation. ``own`` is this cluster's name ("": not known yet), ``homes`` has
    the home clusters of tenants with another home, ``migrations`` the newest migration of each
    tenant to another cluster, ``arrivals`` the newest one to this cluster. ``sizes`` are the
    numbers of topics of namespaces; each partition counts as one."""

    clusters: dict[str, Cluster] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    namespaces: dict[tuple[str, str], dict[str, Topic]] = field(default_factory=dict)
    policies: dict[Scope, dict[str, bytes]] = field(default_factory=dict)
    deleted_topics: dict[int, DeletedTopic] = field(default_factory=dict)
    next_incarnation: int = 1
    own: str = ""
    homes: dict[str, str] = field(default_factory=dict)
    migrations: dict[str, Migration] = field(default_factory=dict)
    next_migration: int = 1
    incoming: dict[str, IncomingMigration] = field(default_factory=dict)
    sizes: dict[tuple[str, str], int] = field(default_factory=dict)


def tenants(state: Catalog) -> tuple[str, ...]:
    """The names of all tenants, sorted."""
    return tuple(sorted(state.tenants))


def namespaces(state: Catalog, tenant: str) -> tuple[str, ...]:
    """A tenant's namespaces (without the tenant's name), sorted; none if there's no tenant."""
    return tuple(sorted(name for owner, name in state.namespaces if owner == tenant))


def topics(state: Catalog, tenant: str, namespace: str) -> tuple[Topic, ...]:
    """A namespace's topics, sorted by name; none if there's no such namespace."""
    found = state.namespaces.get((tenant, namespace), {})
    return tuple(sorted(found.values(), key=lambda topic: topic.name))


def topic_count(state: Catalog, tenant: str, namespace: str) -> int:
    """The number of topics in a namespace; each partition counts as one."""
    return state.sizes.get((tenant, namespace), 0)


def size_of(topics: Iterable[Topic]) -> int:
    """The number of these topics; each partition counts as one."""
    return sum(max(topic.partitions, 1) for topic in topics)


def find_topic(state: Catalog, name: TopicName) -> Topic | None:
    """The topic called ``name``; for a partition its topic, if that has such a partition."""
    found = state.namespaces.get((name.tenant, name.namespace), {}).get(str(name.topic))
    return found if found is not None and name.partition < found.partitions else None


def exists(state: Catalog, scope: Scope) -> bool:
    """Whether the scope exists."""
    if scope.level is Level.CLUSTER:
        return not scope.tenant
    found = state.namespaces.get((scope.tenant, scope.namespace))
    return found is not None and (not scope.topic or scope.topic in found)


def own_policies(state: Catalog, scope: Scope) -> Mapping[str, Any]:
    """The policies set on ``scope`` itself, by name, as parsed JSON."""
    found = state.policies.get(scope, {})
    return MappingProxyType({name: json.loads(found[name]) for name in sorted(found)})


def effective_policy(state: Catalog, scope: Scope, name: str) -> Any:
    """The value of policy ``name`` for ``scope``, as parsed JSON: topic over namespace over
    cluster.

    If it is set nowhere: its default, which may be None. Raises `InvalidPolicyError` if there is no
    such policy.
    """
    known = policy(name)
    for each in scope.upwards():
        value = state.policies.get(each, {}).get(name)
        if value is not None:
            return json.loads(value)
    return known.default


def effective_policies(state: Catalog, scope: Scope) -> dict[str, Any]:
    """`effective_policy` by name, of every policy in effect that `Policy.in_every_answer` keeps or
    that is set."""
    return {
        name: effective_policy(state, scope, name)
        for name, known in POLICIES.items()
        if known.in_every_answer or any(name in own for own in _own(state, scope))
    }


def _own(state: Catalog, scope: Scope) -> Iterator[Mapping[str, bytes]]:
    return (state.policies.get(each, {}) for each in scope.upwards())


def topics_where(
    state: Catalog, names: Collection[str], matches: Callable[[Scope], bool]
) -> Iterator[Topic]:
    """The topics whose scope ``matches``, in the order of the catalog.

    ``matches`` must depend on the effective policies of these ``names`` alone. It is asked once for
    a namespace, and once for each topic that has one of these policies of its own. So namespaces
    where nothing matches cost no walk over their topics.
    """
    own: dict[tuple[str, str], set[str]] = {}
    for scope, values in state.policies.items():
        if scope.topic and not values.keys().isdisjoint(names):
            own.setdefault((scope.tenant, scope.namespace), set()).add(scope.topic)
    for namespace, inside in state.namespaces.items():
        others = matches(Scope(*namespace))
        set_here = own.get(namespace, set())
        if others or set_here:
            for name, topic in inside.items():
                if matches(Scope.of_topic(topic.name)) if name in set_here else others:
                    yield topic


def snapshot(state: Catalog) -> dict[str, bytes]:
    """The state as a segment for its roots and one for each namespace.

    Later additions have segments of their own, absent while they are empty, so digests in
    checkpoints of earlier versions still match.
    """
    segments = {
        "catalog": msgpack.packb(
            [
                state.next_incarnation,
                [(name, c.service_url, c.admin_url) for name, c in sorted(state.clusters.items())],
                [
                    (name, tenant.admin_roles, tenant.allowed_clusters)
                    for name, tenant in sorted(state.tenants.items())
                ],
                sorted(state.policies.get(CLUSTER, {}).items()),
            ]
        )
    }
    policies: dict[tuple[str, str], list[Any]] = {key: [] for key in state.namespaces}
    for scope, values in state.policies.items():
        if scope.level is not Level.CLUSTER:
            policies[scope.tenant, scope.namespace].append((scope.topic, sorted(values.items())))
    for (tenant, namespace), found in state.namespaces.items():
        rows = [_topic_row(topic) for _, topic in sorted(found.items())]
        body = [tenant, namespace, rows, sorted(policies[tenant, namespace])]
        segments[f"namespace {tenant}/{namespace}"] = msgpack.packb(body)
    if state.deleted_topics:
        deleted_topics = [
            (
                _topic_row(deleted_topic.topic),
                deleted_topic.until_ms,
                deleted_topic.begun,
                sorted(deleted_topic.policies.items()),
            )
            for _, deleted_topic in sorted(state.deleted_topics.items())
        ]
        segments["graves"] = msgpack.packb(deleted_topics)
    times = [
        (incarnation, deleted_topic.deleted_ms)
        for incarnation, deleted_topic in sorted(state.deleted_topics.items())
        if deleted_topic.deleted_ms
    ]
    if times:
        segments["deletion times"] = msgpack.packb(times)
    rows = [
        (name, cluster.token, cluster.progress, *filter(None, [cluster.data_id]))
        for name, cluster in sorted(state.clusters.items())
        if cluster.token or cluster.progress != Progress.EXACT or cluster.data_id
    ]
    if rows or state.own or state.homes:
        segments["clusters"] = msgpack.packb([state.own, rows, sorted(state.homes.items())])
    by_tls = [
        (name, cluster.service_url_tls, cluster.admin_url_tls)
        for name, cluster in sorted(state.clusters.items())
        if cluster.service_url_tls or cluster.admin_url_tls
    ]
    if by_tls:
        segments["tls"] = msgpack.packb(by_tls)
    if state.migrations:
        moves = [state.next_migration, migration_state.rows_of(state.migrations)]
        segments["migrations"] = msgpack.packb(moves)
    if state.incoming:
        segments["arrivals"] = msgpack.packb(migration_state.incoming_rows(state.incoming))
    return segments


def _topic_row(topic: Topic) -> tuple[Any, ...]:
    properties = sorted(topic.properties.items())
    return str(topic.name), topic.partitions, topic.incarnation, properties


def _topic_of(row: Sequence[Any]) -> Topic:
    name, partitions, incarnation, properties = row
    return Topic(TopicName.parse(name), partitions, incarnation, dict(properties))


def restore(segments: Mapping[str, bytes]) -> Catalog:
    """The inverse of `snapshot`."""
    number, clusters, tenant_rows, values = msgpack.unpackb(segments["catalog"])
    state = Catalog(
        {name: Cluster(service, admin) for name, service, admin in clusters},
        {name: Tenant(tuple(roles), tuple(allowed)) for name, roles, allowed in tenant_rows},
        next_incarnation=number,
    )
    if values:
        state.policies[CLUSTER] = dict(values)
    times = dict(msgpack.unpackb(segments.get("deletion times", _NONE)))
    for row, until_ms, begun, policies in msgpack.unpackb(segments.get("graves", _NONE)):
        topic = _topic_of(row)
        state.deleted_topics[topic.incarnation] = DeletedTopic(
            topic, until_ms, begun, dict(policies), times.get(topic.incarnation, 0)
        )
    if "clusters" in segments:
        state.own, more, homes = msgpack.unpackb(segments["clusters"])
        state.homes = dict(homes)
        for name, token, progress, *rest in more:
            known, data_id = state.clusters[name], rest[0] if rest else ""
            told = replace(known, token=token, progress=progress, data_id=data_id)
            state.clusters[name] = told
    for name, service, admin in msgpack.unpackb(segments.get("tls", _NONE)):
        known = state.clusters[name]
        state.clusters[name] = replace(known, service_url_tls=service, admin_url_tls=admin)
    if "migrations" in segments:
        state.next_migration, moves = msgpack.unpackb(segments["migrations"])
        state.migrations = migration_state.from_rows(moves)
    state.incoming = migration_state.incoming_from(msgpack.unpackb(segments.get("arrivals", _NONE)))
    for segment, body in segments.items():
        if not segment.startswith("namespace "):
            continue
        tenant, namespace, rows, policies = msgpack.unpackb(body)
        found = {row[0]: _topic_of(row) for row in rows}
        state.namespaces[tenant, namespace] = found
        state.sizes[tenant, namespace] = size_of(found.values())
        for topic, values in policies:
            state.policies[Scope(tenant, namespace, topic)] = dict(values)
    return state

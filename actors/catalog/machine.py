"""The catalog: clusters, tenants, namespaces, topics and policies.

It is a tree: a tenant holds namespaces, a namespace holds topics, and only empty ones can be
deleted. Policies belong to the cluster, a namespace or a topic and are deleted with it. Every topic
gets an incarnation, a number that is never reused, so nothing of a deleted topic is mistaken for
its successor's.

Commands may arrive twice. Creating an existing thing in the same shape has the same answer as the
first time, except that ``created`` / ``changed`` are false; in another shape it is refused
ALREADY_EXISTS. A repeated deletion is refused NOT_FOUND; only `DeleteTopic` with an incarnation is
answered as done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.message import Message

from velaray.actors.catalog import migration_target, migrations
from velaray.actors.catalog import state as catalog_state
from velaray.actors.catalog.clusters import (
    REPLICATION,
    DeleteCluster,
    MeetCluster,
    RegisterCluster,
    SetTenantHome,
    UpdateCluster,
    decide_delete,
    decide_home,
    decide_meet,
    decide_register,
    decide_update,
    elsewhere,
    evolve_home,
    evolve_registered,
    registration,
    replication_problem,
    withdrawal_problem,
)
from velaray.actors.catalog.deleted_topics import (
    BeginPurge,
    EndPurge,
    UndeleteTopic,
    decide_begin,
    decide_end,
    evolve_begun,
    evolve_deleted,
    evolve_restored,
    newest_deleted_topic,
)
from velaray.actors.catalog.erasable import erasable_problem, excluded_problem
from velaray.actors.catalog.grants import (
    GrantActions,
    GrantSubscription,
    RevokeActions,
    RevokeSubscription,
    changed_policy,
)
from velaray.actors.catalog.inbound_replication import PULL_FROM, pull_problem
from velaray.actors.catalog.migration_target import EndIncomingMigration, ExpectTenant
from velaray.actors.catalog.migrations import (
    AdvanceMigration,
    BeginMigration,
    RollBackMigration,
    current,
    decide_advance,
    decide_roll_back,
    is_closed,
    keeps_all,
)
from velaray.actors.catalog.policies import ERASABLE, InvalidPolicyError, canonical, policy_at
from velaray.actors.catalog.state import (
    Catalog,
    Cluster,
    Scope,
    Tenant,
    Topic,
    effective_policy,
    exists,
    find_topic,
    namespaces,
    size_of,
    topic_count,
)
from velaray.actors.machine import Decision, Reason, Refusal, refuse, require
from velaray.events.events_pb2 import (
    BurialBegun,
    ClusterDeleted,
    ClusterRegistered,
    LedgerOpened,
    MigrationAdvanced,
    MigrationBegun,
    NamespaceCreated,
    NamespaceDeleted,
    PartitionsAdded,
    PolicyRemoved,
    PolicySet,
    TenantArrived,
    TenantCreated,
    TenantDeleted,
    TenantExpected,
    TenantHomeSet,
    TenantUpdated,
    TopicBuried,
    TopicCreated,
    TopicDeleted,
    TopicPropertiesSet,
    TopicRestored,
)
from velaray.events.ids import InvalidNameError, TopicName, check_name

MAX_PARTITIONS = 10_000
SYSTEM_TENANT = "pulsar"
SYSTEM_NAMESPACE = "system"
_BUILT_IN = (("public", "default"), (SYSTEM_TENANT, SYSTEM_NAMESPACE))


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Create what every cluster has: itself and the tenants public and pulsar.

    Sent at every start; a changed address is stored. Replies `Done`.
    """

    cluster: str
    service_url: str
    admin_url: str
    service_url_tls: str = ""
    admin_url_tls: str = ""


@dataclass(frozen=True, slots=True)
class CreateTenant:
    """Create a tenant; ``allowed_clusters`` names registered ones, at least one. Replies `Done`."""

    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateTenant:
    """Replace a tenant's roles and clusters. Replies `Done`."""

    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteTenant:
    """Delete a tenant without namespaces. Replies `Done`."""

    tenant: str


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """Create a namespace of an existing tenant. Replies `Done`."""

    tenant: str
    namespace: str


@dataclass(frozen=True, slots=True)
class DeleteNamespace:
    """Delete a namespace and its policies; with ``force`` its topics as well. Replies `Done`.

    The deletion is one decision: it is never visible in part, and no topic is created in between.
    Without ``force`` a namespace with topics is refused NOT_EMPTY. Its topics can be undeleted for
    ``window_ms`` milliseconds, after the namespace is created again.
    """

    tenant: str
    namespace: str
    force: bool = False
    window_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic with ``partitions`` (0: plain) in an existing namespace. Replies `Ensured`.

    With ``exist_ok`` an existing topic of that name is the answer, whatever its shape.
    """

    topic: TopicName
    partitions: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    exist_ok: bool = False


@dataclass(frozen=True, slots=True)
class EnsureTopic:
    """Find a topic, or create it if policy autoTopicCreation allows it. Replies `Ensured`.

    The name may be a partition's: then its topic must have the partition, and nothing is created.
    ``at_home`` requires that this cluster is the tenant's home; else the command is refused
    ELSEWHERE.
    """

    topic: TopicName
    at_home: bool = False


@dataclass(frozen=True, slots=True)
class GrowPartitions:
    """Raise a partitioned topic's number of partitions to ``partitions``. Replies `Ensured`."""

    topic: TopicName
    partitions: int


@dataclass(frozen=True, slots=True)
class SetTopicProperties:
    """Add ``properties`` to a topic's, and remove those in ``removed``. Replies `Ensured`."""

    topic: TopicName
    properties: Mapping[str, str]
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete a topic and its policies. Replies `Done`.

    It can be undeleted for ``window_ms`` milliseconds (see
    `velaray.actors.catalog.deleted_topics`). With an ``incarnation`` only that topic is deleted: if
    it no longer exists, the answer is done (``changed`` false), and a later topic of the same name
    stays.
    """

    topic: TopicName
    incarnation: int = 0
    window_ms: int = 0


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Set a policy on the cluster, a namespace or a topic; ``value`` is JSON. Replies `Done`."""

    scope: Scope
    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class RemovePolicy:
    """Remove a policy, so that the wider scope's applies. Replies `Done`, also if it wasn't set."""

    scope: Scope
    name: str


@dataclass(frozen=True, slots=True)
class Done:
    """The state is as requested; ``changed`` says whether the command changed it."""

    changed: bool = True


@dataclass(frozen=True, slots=True)
class Ensured:
    """The present topic; ``created`` says whether the command created it or added partitions."""

    topic: Topic
    created: bool


class CatalogMachine:
    """The machine of the catalog; see the module's docstring."""

    def initial(self) -> Catalog:
        """An empty catalog."""
        return Catalog()

    def decide(self, state: Catalog, command: Any, now_ms: int) -> Decision:
        """The decision on ``command``; an invalid name, policy or text is refused INVALID."""
        try:
            return _decide(state, command, now_ms)
        except (InvalidNameError, InvalidPolicyError, UnicodeEncodeError) as error:
            return refuse(Reason.INVALID, str(error))

    def evolve(self, state: Catalog, event: Message) -> None:
        """Apply one event."""
        match event:
            case LedgerOpened():
                pass
            case ClusterRegistered():
                evolve_registered(state, event)
            case ClusterDeleted(name=name):
                del state.clusters[name]
            case TenantHomeSet(tenant=tenant):
                evolve_home(state, event)
                migration_target.taken_over(state, tenant)
            case TenantExpected():
                migration_target.evolve_expected(state, event)
            case TenantArrived():
                migration_target.evolve_arrived(state, event)
            case MigrationBegun():
                migrations.evolve_begun(state, event)
            case MigrationAdvanced():
                migrations.evolve_advanced(state, event)
            case TenantCreated(tenant=tenant) | TenantUpdated(tenant=tenant):
                roles, clusters = tuple(event.admin_roles), tuple(event.allowed_clusters)
                state.tenants[tenant] = Tenant(roles, clusters)
            case TenantDeleted(tenant=tenant):
                del state.tenants[tenant]
            case NamespaceCreated(tenant=tenant, namespace=namespace):
                state.namespaces[tenant, namespace] = {}
                state.sizes[tenant, namespace] = 0
            case NamespaceDeleted(tenant=tenant, namespace=namespace):
                del state.namespaces[tenant, namespace]
                del state.sizes[tenant, namespace]
                state.policies.pop(Scope(tenant, namespace), None)
            case PolicySet(name=name):
                state.policies.setdefault(_scope(event), {})[name] = event.value
            case PolicyRemoved(name=name):
                values = state.policies[_scope(event)]
                del values[name]
                if not values:
                    del state.policies[_scope(event)]
            case TopicCreated():
                _put(state, _created(event))
                state.next_incarnation = event.incarnation + 1
            case PartitionsAdded():
                topic = _at(state, event.topic)
                _put(state, _with_partitions(topic, event.partitions))
            case TopicPropertiesSet():
                _put(state, replace(_at(state, event.topic), properties=dict(event.properties)))
            case TopicDeleted():
                topic = _at(state, event.topic)
                _remove(state, topic)
                evolve_deleted(state, event, topic)
            case TopicRestored():
                _put(state, evolve_restored(state, event))
            case BurialBegun():
                evolve_begun(state, event)
            case TopicBuried(incarnation=incarnation):
                del state.deleted_topics[incarnation]
            case _:
                raise TypeError(f"not a catalog's event: {type(event).__name__}")

    def check(self, state: Catalog) -> None:
        """Raise `InvariantViolation` naming the first broken invariant."""
        found = [topic for inside in state.namespaces.values() for topic in inside.values()]
        numbers = [topic.incarnation for topic in found] + list(state.deleted_topics)
        for number, deleted_topic in state.deleted_topics.items():
            sound = number == deleted_topic.topic.incarnation and (
                deleted_topic.begun or deleted_topic.until_ms > 0
            )
            require(sound, "a deleted topic is stored under its own incarnation", str(number))
        require(not state.own or state.own in state.clusters, "this cluster is registered")
        for tenant_name, cluster in state.homes.items():
            elsewhere = cluster in state.clusters and cluster != state.own
            require(elsewhere, "a home is another cluster, a registered one", tenant_name)
        migrations.check(state)
        migration_target.check(state)
        for name, tenant in state.tenants.items():
            known = set(tenant.allowed_clusters) <= state.clusters.keys()
            require(known, "a tenant's clusters are registered", name)
        for owner, name in state.namespaces:
            require(owner in state.tenants, "a namespace has its tenant", f"{owner}/{name}")
        for key, inside in state.namespaces.items():
            for name, topic in inside.items():
                same = TopicName.parse(name) == topic.name == topic.name.topic
                home = (topic.name.tenant, topic.name.namespace)
                require(same and home == key, "a topic lies under its own name", name)
                sane = 0 <= topic.partitions <= MAX_PARTITIONS
                require(sane, "a topic's partitions are in range", name)
        require(len(set(numbers)) == len(numbers), "no two topics share an incarnation")
        fresh = all(0 < number < state.next_incarnation for number in numbers)
        require(fresh, "the next incarnation is above all that were used")
        sizes = {key: size_of(inside.values()) for key, inside in state.namespaces.items()}
        require(state.sizes == sizes, "the topics of namespaces are counted")
        for scope, values in state.policies.items():
            require(exists(state, scope), "a policy belongs to an existing scope", str(scope))
            require(bool(values), "no scope is kept without a policy", str(scope))
            for name, value in values.items():
                valid = canonical(name, scope.level, value) == value
                require(valid, "a policy is valid and canonical", name)

    def snapshot(self, state: Catalog) -> Mapping[str, bytes]:
        """One segment for the roots, one for each namespace."""
        return catalog_state.snapshot(state)

    def restore(self, segments: Mapping[str, bytes]) -> Catalog:
        """The inverse of `snapshot`."""
        return catalog_state.restore(segments)


def _held(state: Catalog, command: Any) -> Refusal | None:
    """The reason to refuse a command until a tenant's migration ends."""
    match command:
        case DeleteTopic(topic):
            return keeps_all(state, topic.tenant)
        case DeleteNamespace(tenant=tenant):
            return keeps_all(state, tenant)
        case (
            DeleteTenant(tenant)
            | UpdateTenant(tenant)
            | SetTenantHome(tenant)
            | ExpectTenant(tenant)
        ):
            return keeps_all(state, tenant, to_the_end=True)
        case DeleteCluster(cluster):
            moving = (tenant for tenant in sorted(state.migrations) if current(state, tenant))
            to = (tenant for tenant in moving if state.migrations[tenant].target == cluster)
            return next((keeps_all(state, tenant, to_the_end=True) for tenant in to), None)
        case CreateNamespace(tenant=tenant):
            return is_closed(state, tenant)
        case (
            CreateTopic(topic)
            | GrowPartitions(topic)
            | SetTopicProperties(topic)
            | UndeleteTopic(topic)
        ):
            return is_closed(state, topic.tenant)
        case EnsureTopic(topic, at_home) if at_home or find_topic(state, topic) is None:
            # After the switch the refusal names the new home.
            switched = at_home and topic.tenant in state.homes
            return None if switched else is_closed(state, topic.tenant)
        case SetPolicy(scope) | RemovePolicy(scope) | GrantActions(scope) | RevokeActions(scope):
            return is_closed(state, scope.tenant)
        case GrantSubscription(scope) | RevokeSubscription(scope):
            return is_closed(state, scope.tenant)
    return None


def _decide(state: Catalog, command: Any, now_ms: int) -> Decision:
    if state.migrations and (refusal := _held(state, command)):
        return Decision(reply=refusal)
    match command:
        case Bootstrap():
            return _bootstrap(state, command)
        case RegisterCluster():
            return _done(decide_register(state, command))
        case UpdateCluster():
            return _done(decide_update(state, command))
        case MeetCluster():
            return _done(decide_meet(state, command))
        case DeleteCluster():
            return _done(decide_delete(state, command))
        case SetTenantHome(tenant) | BeginMigration(tenant) | ExpectTenant(tenant) if (
            tenant == SYSTEM_TENANT
        ):
            return refuse(Reason.NOT_ALLOWED, f"tenant {tenant} belongs to the system")
        case SetTenantHome():
            return _done(decide_home(state, command))
        case BeginMigration():
            return _done(migrations.decide_begin(state, command, now_ms))
        case AdvanceMigration():
            return _done(decide_advance(state, command, now_ms))
        case RollBackMigration():
            return _done(decide_roll_back(state, command, now_ms))
        case ExpectTenant():
            return _done(migration_target.decide_expect(state, command))
        case EndIncomingMigration():
            return _done(migration_target.decide_end(state, command))
        case CreateTenant():
            return _create_tenant(state, command)
        case UpdateTenant():
            return _update_tenant(state, command)
        case DeleteTenant(tenant):
            return _delete_tenant(state, tenant)
        case CreateNamespace(tenant, namespace):
            return _create_namespace(state, tenant, namespace)
        case DeleteNamespace():
            return _delete_namespace(state, command, now_ms)
        case CreateTopic():
            return _create_topic(state, command)
        case EnsureTopic():
            return _ensure_topic(state, command)
        case GrowPartitions(topic, partitions):
            return _grow(state, topic, partitions)
        case SetTopicProperties():
            return _set_properties(state, command)
        case DeleteTopic():
            return _delete_topic(state, command, now_ms)
        case UndeleteTopic(topic):
            return _undelete_topic(state, topic, now_ms)
        case BeginPurge():
            return _done(decide_begin(state, command, now_ms))
        case EndPurge():
            return _done(decide_end(state, command))
        case SetPolicy(scope, name, value):
            return _set_policy(state, scope, name, value)
        case RemovePolicy(scope, name):
            return _remove_policy(state, scope, name)
        case GrantActions() | RevokeActions() | GrantSubscription() | RevokeSubscription():
            name, changed = changed_policy(state, command)
            if changed is None:
                return _remove_policy(state, command.scope, name)
            return _set_policy(state, command.scope, name, changed)
    raise TypeError(f"not a catalog's command: {command!r}")


def _changes(*events: Message) -> Decision:
    return Decision(events, Done(bool(events)))


def _done(decision: Decision | None) -> Decision:
    """The decision with its reply; without an event nothing had to change."""
    if decision is None:
        return _changes()
    return _changes(*decision.events) if decision.events else decision


def _bootstrap(state: Catalog, command: Bootstrap) -> Decision:
    cluster = check_name("cluster", command.cluster)
    if state.own not in ("", cluster):
        problem = f"this data is cluster {state.own}'s: start it under that name, not {cluster}"
        return refuse(Reason.CONFLICT, problem)
    return _changes(*_brought_in(state, command))


def _brought_in(state: Catalog, command: Bootstrap) -> Iterator[Message]:
    by_tls = {
        "service_url_tls": command.service_url_tls,
        "admin_url_tls": command.admin_url_tls,
    }
    own = Cluster(command.service_url, command.admin_url, **by_tls)
    cluster = command.cluster
    if state.own != cluster or state.clusters[cluster] != own:
        yield registration(cluster, own, own=True)
    for tenant, namespace in _BUILT_IN:
        if tenant not in state.tenants:
            yield TenantCreated(tenant=tenant, allowed_clusters=[cluster])
        if (tenant, namespace) not in state.namespaces:
            yield NamespaceCreated(tenant=tenant, namespace=namespace)


def _tenant_problem(state: Catalog, command: CreateTenant | UpdateTenant) -> str | None:
    check_name("tenant", command.tenant)
    unknown = sorted(set(command.allowed_clusters) - state.clusters.keys())
    if unknown:
        return f"tenant {command.tenant}: no such cluster: {', '.join(unknown)}"
    if not command.allowed_clusters:
        return f"tenant {command.tenant}: name at least one allowed cluster"
    return None


def _create_tenant(state: Catalog, command: CreateTenant) -> Decision:
    if problem := _tenant_problem(state, command):
        return refuse(Reason.INVALID, problem)
    found = state.tenants.get(command.tenant)
    if found == Tenant(command.admin_roles, command.allowed_clusters):
        return _changes()
    if found is not None:
        return refuse(Reason.ALREADY_EXISTS, f"tenant {command.tenant} exists")
    return _changes(
        TenantCreated(
            tenant=command.tenant,
            admin_roles=command.admin_roles,
            allowed_clusters=command.allowed_clusters,
        )
    )


def _update_tenant(state: Catalog, command: UpdateTenant) -> Decision:
    if problem := _tenant_problem(state, command):
        return refuse(Reason.INVALID, problem)
    found = state.tenants.get(command.tenant)
    if found is None:
        return refuse(Reason.NOT_FOUND, f"no tenant {command.tenant}")
    if found == Tenant(command.admin_roles, command.allowed_clusters):
        return _changes()
    if refusal := withdrawal_problem(state, command.tenant, command.allowed_clusters):
        return Decision(reply=refusal)
    return _changes(
        TenantUpdated(
            tenant=command.tenant,
            admin_roles=command.admin_roles,
            allowed_clusters=command.allowed_clusters,
        )
    )


def _delete_tenant(state: Catalog, tenant: str) -> Decision:
    if tenant not in state.tenants:
        return refuse(Reason.NOT_FOUND, f"no tenant {tenant}")
    if tenant == SYSTEM_TENANT:
        return refuse(Reason.NOT_ALLOWED, f"tenant {tenant} belongs to the system")
    if inside := namespaces(state, tenant):
        return refuse(Reason.NOT_EMPTY, f"tenant {tenant} holds {len(inside)} namespaces")
    return _changes(TenantDeleted(tenant=tenant))


def _create_namespace(state: Catalog, tenant: str, namespace: str) -> Decision:
    check_name("namespace", namespace)
    if tenant not in state.tenants:
        return refuse(Reason.NOT_FOUND, f"no tenant {tenant}")
    if (tenant, namespace) in state.namespaces:
        return _changes()
    return _changes(NamespaceCreated(tenant=tenant, namespace=namespace))


def _delete_namespace(state: Catalog, command: DeleteNamespace, now_ms: int) -> Decision:
    tenant, namespace = command.tenant, command.namespace
    inside = state.namespaces.get((tenant, namespace))
    if inside is None:
        return refuse(Reason.NOT_FOUND, f"no namespace {tenant}/{namespace}")
    if (tenant, namespace) == (SYSTEM_TENANT, SYSTEM_NAMESPACE):
        return refuse(Reason.NOT_ALLOWED, f"namespace {tenant}/{namespace} belongs to the system")
    if inside and not command.force:
        return refuse(
            Reason.NOT_EMPTY,
            f"namespace {tenant}/{namespace} holds {len(inside)} topics; force deletes them too",
        )
    topics = [_deletion(name, command.window_ms, now_ms) for name in sorted(inside)]
    return _changes(*topics, NamespaceDeleted(tenant=tenant, namespace=namespace))


def _deletion(topic: str, window_ms: int, now_ms: int) -> TopicDeleted:
    if not window_ms:
        return TopicDeleted(topic=topic)
    until_ms = now_ms + window_ms
    return TopicDeleted(topic=topic, restorable_until_ms=until_ms, deleted_ms=now_ms)


def _create_topic(state: Catalog, command: CreateTopic) -> Decision:
    name = _whole_topic(command.topic)
    if problem := unsupported(name):
        return refuse(Reason.NOT_ALLOWED, problem)
    if not 0 <= command.partitions <= MAX_PARTITIONS:
        return refuse(
            Reason.INVALID, f"topic {name}: partitions must be 0 (plain) to {MAX_PARTITIONS}"
        )
    found = find_topic(state, name)
    if found is None:
        return _new_topic(state, name, command.partitions, command.properties)
    same = found.partitions == command.partitions and found.properties == command.properties
    if same or command.exist_ok:
        return Decision(reply=Ensured(found, created=False))
    return refuse(Reason.ALREADY_EXISTS, f"topic {name} exists with {found.partitions} partitions")


def _ensure_topic(state: Catalog, command: EnsureTopic) -> Decision:
    name = command.topic
    _whole_topic(name.topic)
    if problem := unsupported(name):
        return refuse(Reason.NOT_ALLOWED, problem)
    if command.at_home and (refusal := elsewhere(state, name.tenant)):
        return Decision(reply=refusal)
    found = find_topic(state, name)
    if found is not None:
        return Decision(reply=Ensured(found, created=False))
    rule = effective_policy(state, Scope(name.tenant, name.namespace), "autoTopicCreation")
    if name.partition >= 0 or not rule["allowAutoTopicCreation"]:
        return refuse(Reason.NOT_FOUND, f"no topic {name}")
    partitioned = rule.get("topicType") == "partitioned"
    return _new_topic(state, name, rule["defaultNumPartitions"] if partitioned else 0, {})


def unsupported(name: TopicName) -> str | None:
    """The reason why a topic isn't supported; None if it is."""
    if name.domain == "persistent":
        return None
    return f"velaray doesn't support non-persistent topics, such as {name}: use persistent://"


def _new_topic(
    state: Catalog, name: TopicName, partitions: int, properties: Mapping[str, str]
) -> Decision:
    if (name.tenant, name.namespace) not in state.namespaces:
        return refuse(Reason.NOT_FOUND, f"no namespace {name.namespace_name}")
    if problem := _too_many(state, name, max(partitions, 1)):
        return refuse(Reason.NOT_ALLOWED, problem)
    event = TopicCreated(
        topic=str(name),
        partitions=partitions,
        incarnation=state.next_incarnation,
        properties=dict(properties),
    )
    return Decision((event,), Ensured(_created(event), created=True))


def _too_many(state: Catalog, name: TopicName, more: int) -> str | None:
    scope = Scope(name.tenant, name.namespace)
    limit = effective_policy(state, scope, "maxTopicsPerNamespace")
    if limit and topic_count(state, name.tenant, name.namespace) + more > limit:
        return f"namespace {scope} may hold {limit} topics (policy maxTopicsPerNamespace)"
    return None


def _grow(state: Catalog, name: TopicName, partitions: int) -> Decision:
    found = find_topic(state, _whole_topic(name))
    if found is None:
        return refuse(Reason.NOT_FOUND, f"no topic {name}")
    if not found.partitions:
        return refuse(Reason.CONFLICT, f"topic {name} is not partitioned")
    if not found.partitions <= partitions <= MAX_PARTITIONS:
        return refuse(
            Reason.INVALID,
            f"topic {name}: partitions can only grow, from {found.partitions} to {MAX_PARTITIONS}",
        )
    if partitions == found.partitions:
        return Decision(reply=Ensured(found, created=False))
    if problem := _too_many(state, name, partitions - found.partitions):
        return refuse(Reason.NOT_ALLOWED, problem)
    event = PartitionsAdded(topic=str(name), partitions=partitions)
    return Decision((event,), Ensured(_with_partitions(found, partitions), created=True))


def _set_properties(state: Catalog, command: SetTopicProperties) -> Decision:
    name = command.topic
    found = find_topic(state, _whole_topic(name))
    if found is None:
        return refuse(Reason.NOT_FOUND, f"no topic {name}")
    wanted = {**found.properties, **command.properties}
    for key in command.removed:
        wanted.pop(key, None)
    if wanted == found.properties:
        return Decision(reply=Ensured(found, created=False))
    event = TopicPropertiesSet(topic=str(name), properties=wanted)
    return Decision((event,), Ensured(replace(found, properties=wanted), created=False))


def _delete_topic(state: Catalog, command: DeleteTopic, now_ms: int) -> Decision:
    name, incarnation = command.topic, command.incarnation
    found = find_topic(state, _whole_topic(name))
    if 0 < incarnation < state.next_incarnation and (
        found is None or found.incarnation != incarnation
    ):
        return _changes()
    if found is None or incarnation not in (0, found.incarnation):
        return refuse(Reason.NOT_FOUND, f"no topic {name}")
    return _changes(_deletion(str(name), command.window_ms, now_ms))


def _undelete_topic(state: Catalog, name: TopicName, now_ms: int) -> Decision:
    deleted_topic = newest_deleted_topic(state, _whole_topic(name), now_ms)
    if deleted_topic is None:
        return refuse(Reason.NOT_FOUND, f"no deleted topic {name} that can be had back")
    if find_topic(state, name) is not None:
        return refuse(Reason.ALREADY_EXISTS, f"topic {name} exists; delete or move it first")
    if (name.tenant, name.namespace) not in state.namespaces:
        return refuse(Reason.NOT_FOUND, f"no namespace {name.namespace_name}")
    if problem := _too_many(state, name, max(deleted_topic.topic.partitions, 1)):
        return refuse(Reason.NOT_ALLOWED, problem)
    named = deleted_topic.policies.get(REPLICATION)
    if named and (refusal := replication_problem(state, name.tenant, named)):
        return Decision(reply=refusal)
    event = TopicRestored(incarnation=deleted_topic.topic.incarnation)
    return Decision((event,), Ensured(deleted_topic.topic, created=True))


def _set_policy(state: Catalog, scope: Scope, name: str, value: bytes) -> Decision:
    settled = canonical(name, scope.level, value)
    if not exists(state, scope):
        return refuse(Reason.NOT_FOUND, f"no {scope} to set policy {name} on")
    if name == REPLICATION and (refusal := replication_problem(state, scope.tenant, settled)):
        return Decision(reply=refusal)
    if name == PULL_FROM and (refusal := pull_problem(state, settled)):
        return Decision(reply=refusal)
    if name == ERASABLE and (refusal := erasable_problem(state, scope, settled)):
        return Decision(reply=refusal)
    if refusal := excluded_problem(state, scope, name, settled):
        return Decision(reply=refusal)
    if state.policies.get(scope, {}).get(name) == settled:
        return _changes()
    return _changes(
        PolicySet(
            tenant=scope.tenant,
            namespace=scope.namespace,
            topic=scope.topic,
            name=name,
            value=settled,
        )
    )


def _remove_policy(state: Catalog, scope: Scope, name: str) -> Decision:
    policy_at(name, scope.level)
    if not exists(state, scope):
        return refuse(Reason.NOT_FOUND, f"no {scope} to remove policy {name} from")
    if name not in state.policies.get(scope, {}):
        return _changes()
    if name == ERASABLE and (refusal := erasable_problem(state, scope, None)):
        return Decision(reply=refusal)
    return _changes(
        PolicyRemoved(tenant=scope.tenant, namespace=scope.namespace, topic=scope.topic, name=name)
    )


def _whole_topic(name: TopicName) -> TopicName:
    if name.partition >= 0:
        raise InvalidNameError(f"{name} names a partition; name the topic {name.topic}")
    if TopicName.parse(str(name)) != name:
        raise InvalidNameError(f"invalid topic name {str(name)!r}: it reads as something else")
    return name


def _scope(event: PolicySet | PolicyRemoved) -> Scope:
    return Scope(event.tenant, event.namespace, event.topic)


def _created(event: TopicCreated) -> Topic:
    name = TopicName.parse(event.topic)
    return Topic(name, event.partitions, event.incarnation, dict(event.properties))


def _with_partitions(topic: Topic, partitions: int) -> Topic:
    return Topic(topic.name, partitions, topic.incarnation, topic.properties)


def _put(state: Catalog, topic: Topic) -> None:
    name = topic.name
    inside, key = state.namespaces[name.tenant, name.namespace], (name.tenant, name.namespace)
    former = inside.get(str(name))
    state.sizes[key] += size_of([topic]) - (size_of([former]) if former else 0)
    inside[str(name)] = topic


def _remove(state: Catalog, topic: Topic) -> None:
    key = topic.name.tenant, topic.name.namespace
    del state.namespaces[key][str(topic.name)]
    state.sizes[key] -= size_of([topic])


def _at(state: Catalog, text: str) -> Topic:
    name = TopicName.parse(text)
    return state.namespaces[name.tenant, name.namespace][text]

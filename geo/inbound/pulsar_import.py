"""Import a tenant from another cluster, usually Pulsar, by inbound replication.

`take_over` creates what the tenant has there and sets the policy ``pullFrom``, `statuses` reports
progress, and `finish` ends the import. Each can be repeated, after a crash or for new topics.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from velaray.actors.catalog.inbound_replication import PULL_FROM
from velaray.actors.machine import Reason
from velaray.broker.catalog import messages as m
from velaray.broker.partition.messages import AdoptProducers
from velaray.broker.schema_registry.messages import Register
from velaray.broker.schema_registry.schema_calls import (
    AUTO_UPDATE,
    POLICIES,
    STRATEGY,
    schema_policies,
)
from velaray.client.admin import Admin
from velaray.events.ids import ActorKey, TopicName
from velaray.geo.inbound.inbound_progress import MalformedStats
from velaray.geo.inbound.messages import Pulls
from velaray.geo.inbound.pulsar_metadata import (
    FoundTenant,
    FoundTopic,
    read_tenant,
    topics_of,
)
from velaray.geo.replication.remote_admin import NotThere, RemoteAdmin, path_of
from velaray.geo.replication.replicator_settings import CannotReplicate, Remote
from velaray.geo.tenant_migration.tenant_copy import MetadataConflict, Step, There, carry_out, plan
from velaray.geo.tenant_migration.tenant_metadata import (
    NamespaceMetadata,
    TenantMetadata,
    TopicMetadata,
)
from velaray.geo.tenant_migration.tenant_metadata import read_tenant as read_own
from velaray.schemas import SchemaInfo
from velaray.schemas.compatibility import Strategy
from velaray.schemas.validation import identity
from velaray.topology.actor_system import ActorSystem
from velaray.topology.fan_out import each
from velaray.topology.rpc import RemoteError
from velaray.topology.tls import outgoing_tls
from velaray.wire.replication import CLIENT_VERSION, pull_subscription

LAST_LOOK_S = 30.0
"""The time for which `finish` waits for another look at the subscriptions."""
LOOKS = 2
"""The number of looks after which the last one surely began after the request."""
SHOWN = 5
"""The most obstacles that an error names."""
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """The steps that were or would be done, and remarks for the operator."""

    steps: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """As JSON for the admin interface."""
        return {"steps": list(self.steps), "notes": list(self.notes)}


async def take_over(
    actor_system: ActorSystem, tenant: str, cluster: str, token: str | None, *, dry_run: bool
) -> Report:
    """Create a tenant with everything that it has in ``cluster``, and replicate its topics from
    there.

    ``token`` is the caller's, for this cluster. Raises `RemoteError`: NOT_FOUND for an
    unknown cluster or tenant, NOT_ALLOWED if this cluster has no number, CONFLICT if a resource
    here has another shape, UNAVAILABLE if the other cluster doesn't answer. These errors change
    nothing. After another error a part may be done; repeat the call.
    """
    _check_number(actor_system)
    remote = await _remote(actor_system, cluster)
    try:
        found = await read_tenant(RemoteAdmin(remote), tenant)
    except NotThere as error:
        raise RemoteError(Reason.NOT_FOUND, str(error)) from error
    except (CannotReplicate, MalformedStats) as error:
        raise RemoteError(Reason.UNAVAILABLE, str(error)) from error
    there = await _there(actor_system, tenant)
    steps = _plan(found, cluster, there)
    schemas = list(_new_schemas(found, there))
    pulled = [name for name in sorted(found.namespaces) if cluster not in _sources(there, name)]
    texts = [
        *(step.text for step in steps),
        *(f"register schema {number} of topic {topic}" for topic, number, _ in schemas),
        *(f"pull namespace {name} from {cluster}" for name in pulled),
    ]
    if not dry_run:
        known = await actor_system.request(ActorKey.catalog(), m.Clusters())
        own, actors = known[actor_system.config.name], actor_system.actors_tls
        url = own["admin_url_tls"] or own["admin_url"]
        admin = Admin(url, token=token, client_version=CLIENT_VERSION, tls=actors)
        await asyncio.to_thread(carry_out, steps, admin)
        for topic, _, schema in schemas:
            await _register(actor_system, topic, schema)
        for name in pulled:
            scope = m.Policies(namespace=name)
            await _pull(actor_system, scope, {*_sources(there, name), cluster})
    return Report(tuple(texts), tuple(f"left out: {each_}" for each_ in sorted(found.left_out)))


def _check_number(actor_system: ActorSystem) -> None:
    if actor_system.config.cluster_number == 0:
        problem = (
            "this cluster has the number 0, like every Pulsar cluster, so message ids would be "
            "ambiguous. Start it on a new data directory with --cluster-number 1 or above"
        )
        raise RemoteError(Reason.NOT_ALLOWED, problem)


async def _remote(actor_system: ActorSystem, cluster: str) -> Remote:
    facts = await actor_system.request(ActorKey.catalog(), m.ReachCluster(cluster))
    if cluster == actor_system.config.name:
        raise RemoteError(Reason.NOT_ALLOWED, f"{cluster} is this cluster")
    tls = outgoing_tls(actor_system.config)
    return Remote(cluster, facts["service_url"], facts["admin_url"], facts["token"], tls=tls)


async def _there(actor_system: ActorSystem, tenant: str) -> There:
    """The state of the tenant here."""
    known = await actor_system.request(ActorKey.catalog(), m.Clusters())
    try:
        metadata = await read_own(actor_system, tenant)
    except RemoteError as error:
        if error.kind != Reason.NOT_FOUND:
            raise
        metadata = None
    return There(actor_system.config.name, frozenset(known), metadata)


def _plan(found: FoundTenant, cluster: str, there: There) -> list[Step]:
    """Check for conflicts. Raises `RemoteError` (CONFLICT)."""
    here = there.metadata
    wanted = TenantMetadata(
        found.tenant,
        tuple(found.admin_roles) if here is None else here.admin_roles,
        () if here is None else here.allowed_clusters,
        {name: _namespace(name, found, here) for name in sorted(found.namespaces)},
    )

    def owned(name: str) -> bool:
        scope = TopicName.parse(name).namespace_name if "://" in name else name
        return name == found.tenant or cluster in _sources(there, scope)

    try:
        return plan(wanted, cluster, there, owned)
    except MetadataConflict as error:
        raise RemoteError(Reason.CONFLICT, str(error)) from error


def _namespace(name: str, found: FoundTenant, here: TenantMetadata | None) -> NamespaceMetadata:
    known = None if here is None else here.namespaces.get(name)
    topics = {}
    for topic, one in found.topics.items():
        if TopicName.parse(topic).namespace_name == name:
            topics[topic] = _topic(one, None if known is None else known.topics.get(topic))
    own = {} if known is None else known.policies
    return NamespaceMetadata({**own, **found.namespaces[name]}, topics)


def _topic(found: FoundTopic, known: TopicMetadata | None) -> TopicMetadata:
    """The wanted state. Other resources here stay."""
    if known is None:
        return TopicMetadata(found.partitions, {}, found.policies, (), found.subscriptions)
    new = {
        partition: {
            name: properties
            for name, properties in subscriptions.items()
            if name not in known.subscriptions.get(partition, {})
        }
        for partition, subscriptions in found.subscriptions.items()
    }
    policies = {**known.policies, **found.policies}
    return TopicMetadata(found.partitions, known.properties, policies, known.schemas, new)


def _sources(there: There, namespace: str) -> set[str]:
    """The clusters that a namespace is replicated from now."""
    metadata = there.metadata
    known = None if metadata is None else metadata.namespaces.get(namespace)
    return set() if known is None else set(known.policies.get(PULL_FROM) or ())


def _new_schemas(found: FoundTenant, there: There) -> Iterator[tuple[str, int, SchemaInfo]]:
    """The missing schemas: their topics, their versions there, and their definitions."""
    for topic, one in sorted(found.topics.items()):
        space = TopicName.parse(topic).namespace_name
        spaces = {} if there.metadata is None else there.metadata.namespaces
        here = spaces[space].topics.get(topic) if space in spaces else None
        known = set() if here is None else {schema.identity for schema in here.schemas}
        for number, schema in enumerate(one.schemas):
            if identity(schema).hex() not in known:
                yield topic, number, schema


async def _register(actor_system: ActorSystem, topic: str, schema: SchemaInfo) -> None:
    """Register each schema without a compatibility check: the other cluster accepted it."""
    name = TopicName.parse(topic)
    found = await actor_system.request(ActorKey.catalog(), m.Topic(topic))
    key = ActorKey.of_schema_registry(name, found["incarnation"])
    asked = m.Policies(topic, effective=list(POLICIES))
    policies = await actor_system.request(ActorKey.catalog(), asked)
    policies |= {AUTO_UPDATE: True, STRATEGY: str(Strategy.ALWAYS_COMPATIBLE)}
    await actor_system.request(key, Register(schema, schema_policies(policies)))


async def _pull(actor_system: ActorSystem, scope: m.Policies, clusters: Collection[str]) -> None:
    catalog, where = ActorKey.catalog(), (scope.topic, scope.namespace)
    if clusters:
        value = json.dumps(sorted(clusters)).encode()
        await actor_system.request(catalog, m.SetPolicy(PULL_FROM, value, *where))
    else:
        await actor_system.request(catalog, m.RemovePolicy(PULL_FROM, *where))


# -- progress ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pulled:
    """A partition with inbound replication, and its source clusters."""

    key: ActorKey
    clusters: tuple[str, ...]


async def pulled_partitions(actor_system: ActorSystem, tenant: str) -> list[Pulled]:
    """The imported partitions of a tenant. Raises `RemoteError` (NOT_FOUND) if it is unknown."""
    catalog, found = ActorKey.catalog(), []
    for namespace in await actor_system.request(catalog, m.Namespaces(tenant)):
        for topic in await actor_system.request(catalog, m.Topics(namespace)):
            asked = m.Policies(topic["topic"], effective=[PULL_FROM])
            sources = (await actor_system.request(catalog, asked))[PULL_FROM]
            if sources:
                name = TopicName.parse(topic["topic"])
                found += [
                    Pulled(ActorKey.of_partition(member, topic["incarnation"]), tuple(sources))
                    for member in name.members(topic["partitions"])
                ]
    return found


async def statuses(actor_system: ActorSystem, tenant: str) -> list[dict[str, Any]]:
    """The status of each inbound replicator of a tenant, by partition and cluster. Raises as
    `pulled_partitions`, and what `ActorSystem.call` raises."""
    partitions = await pulled_partitions(actor_system, tenant)
    answers = await each(partitions, lambda found: actor_system.request(found.key, Pulls()))
    return [
        _row(str(found.key.topic_name), cluster, answer.get(cluster))
        for found, answer in zip(partitions, answers, strict=True)
        for cluster in found.clusters
    ]


def _row(topic: str, cluster: str, found: Mapping[str, Any] | None) -> dict[str, Any]:
    if found is None:
        found = {"state": "starting", "backlog": None, "in_flight": 0, "rounds": 0, "quiet": False}
    return {
        "topic": topic,
        "cluster": cluster,
        "state": found["state"],
        "backlog": found["backlog"],
        "inFlight": found["in_flight"],
        "entries": found.get("entries", 0),
        "duplicates": found.get("duplicates", 0),
        "passedOver": found.get("passed_over", {}),
        "rounds": found["rounds"],
        "quiet": found["quiet"],
        "reason": found.get("reason", ""),
        "progressReason": found.get("progress_reason", ""),
    }


# -- the end ---------------------------------------------------------------------------


async def finish(actor_system: ActorSystem, tenant: str, cluster: str, *, force: bool) -> Report:
    """End the import from ``cluster``, once everything has arrived; with ``force``, at once.

    Producers that continue here keep their sequence ids. Raises `RemoteError`: NOT_FOUND if
    nothing of the tenant is imported from there, CONFLICT if something hasn't arrived.
    """
    partitions = [
        found
        for found in await pulled_partitions(actor_system, tenant)
        if cluster in found.clusters
    ]
    if not partitions:
        raise RemoteError(Reason.NOT_FOUND, f"no topic of tenant {tenant} is pulled from {cluster}")
    admin = RemoteAdmin(await _remote(actor_system, cluster))
    if not force:
        await _check_all_is_here(actor_system, tenant, cluster, partitions, admin)
    for found in partitions:
        await actor_system.request(found.key, AdoptProducers(origin=cluster))
    steps = [text async for text in _stop(actor_system, tenant, cluster)]
    await each(partitions, lambda found: _gone(actor_system, found.key, cluster))
    left = [text for text in await _leave(actor_system, admin, partitions) if text]
    return Report(tuple(steps), tuple(left))


async def _check_all_is_here(
    actor_system: ActorSystem,
    tenant: str,
    cluster: str,
    partitions: Sequence[Pulled],
    admin: RemoteAdmin,
) -> None:
    problems = await _missing(tenant, partitions, admin)
    if not problems:
        problems = await _unfinished(actor_system, tenant, cluster)
    if problems:
        shown = "; ".join(problems[:SHOWN])
        if len(problems) > SHOWN:
            shown += f"; and {len(problems) - SHOWN} more"
        problem = (
            f"tenant {tenant} isn't here completely: {shown}. Wait, or give --force to stop now"
        )
        raise RemoteError(Reason.CONFLICT, problem)


async def _missing(tenant: str, partitions: Sequence[Pulled], admin: RemoteAdmin) -> list[str]:
    """Topics there that aren't imported."""
    here = {found.key.topic_name for found in partitions}
    spaces = sorted({name.namespace_name for name in here})
    problems = []
    try:
        for space in spaces:
            topics, _ = await topics_of(admin, space)
            for topic, count in sorted(topics.items()):
                new = [name for name in topic.members(count) if name not in here]
                problems += [f"{name} is new there: run the import again" for name in new]
    except NotThere:
        return []  # the namespace was deleted there
    except CannotReplicate as error:
        raise RemoteError(Reason.UNAVAILABLE, str(error)) from error
    return problems


async def _unfinished(actor_system: ActorSystem, tenant: str, cluster: str) -> list[str]:
    """The missing parts after another look at the subscriptions."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAST_LOOK_S
    rows = await _rows(actor_system, tenant, cluster)
    begun = {row["topic"]: row["rounds"] for row in rows}
    while True:
        problems = list(_problems(rows, begun))
        if not problems or loop.time() > deadline:
            return problems
        if any(row["backlog"] for row in rows):
            return problems
        await asyncio.sleep(_PAUSE_S)
        rows = await _rows(actor_system, tenant, cluster)


async def _rows(actor_system: ActorSystem, tenant: str, cluster: str) -> list[dict[str, Any]]:
    return [row for row in await statuses(actor_system, tenant) if row["cluster"] == cluster]


def _problems(rows: Sequence[Mapping[str, Any]], begun: Mapping[str, int]) -> Iterator[str]:
    for row in rows:
        problem = row["reason"] or row["progressReason"]
        if row["backlog"] is None:
            yield f"{row['topic']}: {problem or 'it is not known how much is missing'}"
        elif row["backlog"] or row["inFlight"] or not row["quiet"]:
            text = f"{row['topic']}: {row['backlog']} entries are missing"
            yield f"{text} ({problem})" if problem else text
        elif row["rounds"] < begun.get(row["topic"], 0) + LOOKS:
            yield f"{row['topic']}: its subscriptions haven't been read yet"


async def _stop(actor_system: ActorSystem, tenant: str, cluster: str) -> AsyncIterator[str]:
    """Remove the cluster from the policies of the tenant; yields the changed scopes."""
    catalog = ActorKey.catalog()
    for namespace in await actor_system.request(catalog, m.Namespaces(tenant)):
        scopes = [m.Policies(namespace=namespace)]
        for topic in await actor_system.request(catalog, m.Topics(namespace)):
            scopes.append(m.Policies(topic["topic"]))
        for scope in scopes:
            sources = (await actor_system.request(catalog, scope)).get(PULL_FROM)
            if sources and cluster in sources:
                await _pull(actor_system, scope, set(sources) - {cluster})
                yield f"stop pulling {scope.topic or scope.namespace} from {cluster}"


async def _gone(actor_system: ActorSystem, key: ActorKey, cluster: str) -> None:
    """Wait until a partition has no inbound replicator."""
    async with asyncio.timeout(LAST_LOOK_S):
        while cluster in await actor_system.request(key, Pulls()):
            await asyncio.sleep(_PAUSE_S)


async def _leave(
    actor_system: ActorSystem, admin: RemoteAdmin, partitions: Sequence[Pulled]
) -> list[str]:
    """Delete the subscriptions of the import there; returns those that are left."""
    name = pull_subscription(actor_system.config.name)

    async def delete(found: Pulled) -> str:
        topic = found.key.topic_name
        try:
            await admin.request("DELETE", f"{path_of(topic)}/subscription/{name}?force=true")
        except NotThere:
            return ""
        except CannotReplicate as error:
            return f"deleting subscription {name} of {topic} in {admin.cluster} failed: {error}"
        return ""

    return await each(partitions, delete)

"""Copies the metadata of a tenant to another cluster.

`plan` compares both clusters and lists the steps; `carry_out` does them through the admin interface
of the other cluster. Missing resources are created and equal ones are left, so the copy can be
repeated after a crash and while the source changes. Resources with another shape are refused,
unless the caller owns them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from velaray.actors.catalog.clusters import REPLICATION
from velaray.client.admin import Admin, Conflict, NotFound
from velaray.client.message_id import MessageId
from velaray.client.tls import TlsOptions
from velaray.events.portable import PortableError
from velaray.geo.tenant_migration.tenant_metadata import (
    NamespaceMetadata,
    Properties,
    SchemaText,
    TenantMetadata,
    TopicMetadata,
)
from velaray.wire.replication import CLIENT_VERSION


class MetadataConflict(PortableError):
    """The other cluster has resources with another shape; ``problems`` names them."""

    def __init__(self, cluster: str, problems: Collection[str]) -> None:
        super().__init__(f"cluster {cluster}: {'; '.join(problems)}")
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class There:
    """The other cluster: its name, the clusters that it knows, and its part of the tenant."""

    name: str
    clusters: frozenset[str]
    metadata: TenantMetadata | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the copy; ``text`` describes it."""

    text: str
    do: Callable[[Admin], None] = field(repr=False, compare=False)


def look_at(admin: Admin, tenant: str) -> There:
    """Read the other cluster and its part of a tenant. Raises what `Admin` raises."""
    known = admin.clusters()
    (name,) = (cluster for cluster, found in known.items() if found["local"])
    try:
        metadata = TenantMetadata.of_json(admin.tenant_metadata(tenant))
    except NotFound:
        metadata = None
    return There(name, frozenset(known), metadata)


def plan(
    here: TenantMetadata,
    source: str,
    there: There,
    owned: Callable[[str], bool] = lambda name: False,
    *,
    settled: bool = False,
) -> list[Step]:
    """The steps that give the other cluster what cluster ``source`` has.

    Tenants, namespaces and topics for whose names ``owned`` is true are changed where they differ.
    Subscriptions that exist only there are kept, unless the topic is owned and the metadata here is
    ``settled``, so that nothing is created or deleted any more. Raises `MetadataConflict`.
    """
    planner = _Planner(source, there, owned, settled)
    planner.tenant(here)
    if planner.problems:
        raise MetadataConflict(there.name, planner.problems)
    return planner.steps


def admin_of(cluster: Mapping[str, Any], tls: TlsOptions | None = None) -> Admin:
    """The admin interface of a cluster, from the catalog's facts. Requests address this very
    cluster, so they aren't redirected to the tenant's home."""
    url, token = cluster["admin_url"], cluster["token"]
    return Admin(url, token=token, client_version=CLIENT_VERSION, tls=tls)


def carry_out(steps: Collection[Step], admin: Admin) -> None:
    """Do the steps in order. Raises what `Admin` raises at the first failure; then make a new
    plan."""
    for step in steps:
        step.do(admin)


class _Planner:
    """Compares both sides, and collects steps and conflicts."""

    def __init__(
        self, source: str, there: There, owned: Callable[[str], bool], settled: bool
    ) -> None:
        self._source = source
        self._there = there
        self._owned = owned
        self._settled = settled
        self.steps: list[Step] = []
        self.problems: list[str] = []

    def _add(self, text: str, do: Callable[[Admin], None]) -> None:
        self.steps.append(Step(text, do))

    def _change(self, of: str, problem: str, text: str, do: Callable[[Admin], None]) -> None:
        """Handle a difference: a step if it may be changed, else a conflict."""
        if self._owned(of):
            self._add(text, do)
        else:
            self.problems.append(problem)

    # -- the tenant ----------------------------------------------------------------

    def tenant(self, here: TenantMetadata) -> None:
        """All steps."""
        name, roles = here.tenant, list(here.admin_roles)
        wanted = sorted({*here.allowed_clusters, self._there.name})
        if unknown := sorted(set(wanted) - self._there.clusters):
            problem = f"tenant {name} may use {', '.join(unknown)}, which isn't registered there"
            self.problems.append(problem)
        found = self._there.metadata
        if found is None:
            self._add(
                f"create tenant {name}",
                lambda admin: admin.create_tenant(name, admin_roles=roles, allowed_clusters=wanted),
            )
        else:
            self._existing_tenant(here, found, wanted)
        spaces = {} if found is None else found.namespaces
        for space, metadata in here.namespaces.items():
            self._namespace(space, metadata, spaces.get(space))

    def _existing_tenant(
        self, here: TenantMetadata, found: TenantMetadata, wanted: list[str]
    ) -> None:
        name, roles = here.tenant, list(here.admin_roles)
        allowed = sorted({*wanted, *found.allowed_clusters})
        if sorted(roles) == sorted(found.admin_roles) and allowed == sorted(found.allowed_clusters):
            return
        self._change(
            name,
            f"tenant {name} has roles {list(found.admin_roles)} and clusters "
            f"{list(found.allowed_clusters)} there, not {roles} and {wanted}",
            f"update tenant {name}",
            lambda admin: admin.update_tenant(name, admin_roles=roles, allowed_clusters=allowed),
        )

    # -- namespaces ----------------------------------------------------------------

    def _namespace(
        self, name: str, here: NamespaceMetadata, found: NamespaceMetadata | None
    ) -> None:
        if found is None:
            self._add(f"create namespace {name}", lambda admin: admin.create_namespace(name))
        self._policies(name, here.policies, None if found is None else found.policies)
        topics = {} if found is None else found.topics
        for topic, metadata in here.topics.items():
            self._topic(topic, metadata, topics.get(topic))

    def _policies(
        self, where: str, here: Mapping[str, Any], found: Mapping[str, Any] | None
    ) -> None:
        wanted = {name: self._moved(name, value) for name, value in here.items()}
        for name in sorted(wanted.keys() | (found or {}).keys()):
            value = wanted.get(name)
            if not found or name not in found:
                self._add(f"set policy {name} of {where}", _set_policy(where, name, value))
                continue
            if _same(name, value, found[name]):
                continue
            problem = f"policy {name} of {where} is {found[name]} there, not {value}"
            verb = "remove" if value is None else "set"
            text = f"{verb} policy {name} of {where}"
            self._change(where, problem, text, _set_policy(where, name, value))

    def _moved(self, name: str, value: Any) -> Any:
        """The policy for the other cluster: in the list of clusters of replication, it takes the
        source's place."""
        if name != REPLICATION or self._there.name in value:
            return value
        return [self._there.name if each == self._source else each for each in value]

    # -- topics --------------------------------------------------------------------

    def _topic(self, name: str, here: TopicMetadata, found: TopicMetadata | None) -> None:
        if found is None:
            properties, partitions = dict(here.properties), here.partitions
            shape = f"{partitions} partitions" if partitions else "no partitions"
            self._add(
                f"create topic {name} with {shape}",
                lambda admin: admin.create_topic(
                    name, partitions=partitions, properties=properties
                ),
            )
        elif not self._fits(name, here, found):
            return
        self._policies(name, here.policies, None if found is None else found.policies)
        self._schemas(name, here.schemas, () if found is None else found.schemas)
        for partition, subscriptions in here.subscriptions.items():
            known = {} if found is None else found.subscriptions.get(partition, {})
            self._subscriptions(name, partition, subscriptions, known)

    def _fits(self, name: str, here: TopicMetadata, found: TopicMetadata) -> bool:
        """Whether the topic there can be made equal to the one here."""
        if dict(here.properties) != dict(found.properties):
            self.problems.append(f"topic {name} has other properties there")
            return False
        if here.partitions == found.partitions:
            return True
        problem = f"topic {name} has {found.partitions} partitions there, not {here.partitions}"
        if not 0 < found.partitions < here.partitions:
            self.problems.append(problem)  # partitions can't be removed
            return False
        count = here.partitions
        self._change(
            name,
            problem,
            f"give topic {name} {count} partitions",
            lambda admin: admin.grow_partitions(name, count),
        )
        return True

    def _schemas(
        self, topic: str, here: tuple[SchemaText, ...], found: tuple[SchemaText, ...]
    ) -> None:
        known = {schema.identity for schema in found}
        if strangers := known - {schema.identity for schema in here}:
            self.problems.append(
                f"topic {topic} has {len(strangers)} schemas there that it doesn't have here"
            )
            return
        for number, schema in enumerate(here):
            if schema.identity not in known:
                text = f"register schema {number} of topic {topic} ({schema.type})"
                self._add(text, _upload(topic, schema))

    def _subscriptions(
        self,
        topic: str,
        partition: str,
        here: Mapping[str, Properties],
        found: Mapping[str, Properties],
    ) -> None:
        for name, properties in here.items():
            if name not in found:
                text = f"create subscription {name} on {partition}"
                self._add(text, _subscribe(partition, name, properties))
            elif dict(found[name]) != dict(properties):
                self.problems.append(
                    f"subscription {name} on {partition} has other properties there"
                )
        if self._settled and self._owned(topic):
            for name in sorted(found.keys() - here.keys()):
                text = f"delete subscription {name} on {partition}"
                self._add(text, _unsubscribe(partition, name))


def _same(name: str, value: Any, found: Any) -> bool:
    if name == REPLICATION and value and found:
        return sorted(value) == sorted(found)
    return bool(value == found)


def _set_policy(where: str, name: str, value: Any) -> Callable[[Admin], None]:
    if value is None:
        return lambda admin: admin.remove_policy_of(where, name)
    return lambda admin: admin.set_policy_of(where, name, value)


def _upload(topic: str, schema: SchemaText) -> Callable[[Admin], None]:
    def upload(admin: Admin) -> None:
        admin.upload_schema(topic, schema.type, schema.schema, schema.properties)

    return upload


def _subscribe(partition: str, name: str, properties: Properties) -> Callable[[Admin], None]:
    def create(admin: Admin) -> None:
        with contextlib.suppress(Conflict):  # its progress is older here
            admin.create_subscription(partition, name, MessageId.earliest, properties)

    return create


def _unsubscribe(partition: str, name: str) -> Callable[[Admin], None]:
    return lambda admin: admin.delete_subscription(partition, name)

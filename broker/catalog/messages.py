"""The requests that the catalog answers.

Names of tenants, namespaces (``tenant/namespace``), topics and clusters are texts.
"""

from __future__ import annotations

from typing import Any

from velaray.actors.catalog.migration_state import Phase
from velaray.actors.catalog.state import Progress
from velaray.topology.messages import Message, Request, field

Row = dict[str, Any]

MAX_LAG = 1000
"""The default of the number of entries that the target of a migration may lack when the fence is
put up."""

# -- commands: clusters --------------------------------------------------------------


class Bootstrap(Request[Row]):
    """Register the cluster itself, with the default tenant and namespace."""

    cluster: str
    service_url: str
    admin_url: str
    service_url_tls: str = ""
    admin_url_tls: str = ""


class RegisterCluster(Request[Row]):
    """Register another cluster."""

    cluster: str
    service_url: str
    admin_url: str
    token: str = ""
    progress: Progress = Progress.EXACT
    service_url_tls: str = ""
    admin_url_tls: str = ""


class UpdateCluster(Request[Row]):
    """Change the registration of a cluster; None leaves a field as it is."""

    cluster: str
    service_url: str | None = None
    admin_url: str | None = None
    token: str | None = None
    progress: Progress | None = None
    service_url_tls: str | None = None
    admin_url_tls: str | None = None


class MeetCluster(Request[Row]):
    """Record the id of another cluster's data."""

    cluster: str
    data_id: str


class DeleteCluster(Request[Row]):
    """Remove another cluster."""

    cluster: str


# -- commands: tenants and namespaces ------------------------------------------------


class SetHome(Request[Row]):
    """Set the home cluster of a tenant."""

    tenant: str
    cluster: str


class CreateTenant(Request[Row]):
    """Create a tenant."""

    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class UpdateTenant(Request[Row]):
    """Replace a tenant's roles and clusters."""

    tenant: str
    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


class DeleteTenant(Request[Row]):
    """Delete a tenant without namespaces."""

    tenant: str


class CreateNamespace(Request[Row]):
    """Create a namespace."""

    namespace: str


class DeleteNamespace(Request[Row]):
    """Delete a namespace; ``force``: with its topics, which can be undeleted for ``window_ms``."""

    namespace: str
    force: bool = False
    window_ms: int = 0


# -- commands: topics and policies ---------------------------------------------------


class CreateTopic(Request[Row]):
    """Create a topic; 0 ``partitions``: it isn't partitioned."""

    topic: str
    partitions: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    exist_ok: bool = False


class EnsureTopic(Request[Row]):
    """Create a topic unless it exists; ``at_home``: only if this cluster is its tenant's home."""

    topic: str
    at_home: bool = False


class GrowPartitions(Request[Row]):
    """Raise the number of partitions."""

    topic: str
    partitions: int


class SetTopicProperties(Request[Row]):
    """Set and remove properties of a topic."""

    topic: str
    properties: dict[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


class DeleteTopic(Request[Row]):
    """Delete a topic; ``incarnation`` 0: any incarnation."""

    topic: str
    incarnation: int = 0
    window_ms: int = 0


class UndeleteTopic(Request[Row]):
    """Restore a deleted topic within its window."""

    topic: str


class BeginPurge(Request[Row]):
    """Record that the purge of a deleted topic begins."""

    incarnation: int


class EndPurge(Request[Row]):
    """Record that a deleted topic is purged."""

    incarnation: int


class GrantActions(Request[Row]):
    """Let a role take these actions, and no others, on a topic, or else a namespace."""

    role: str
    actions: tuple[str, ...]
    topic: str | None = None
    namespace: str | None = None


class RevokeActions(Request[Row]):
    """Let a role take no action on a topic, or else a namespace."""

    role: str
    topic: str | None = None
    namespace: str | None = None


class GrantSubscription(Request[Row]):
    """Let only these roles, and those of earlier grants, use a subscription."""

    namespace: str
    subscription: str
    roles: tuple[str, ...]


class RevokeSubscription(Request[Row]):
    """Take a role off the list of a subscription."""

    namespace: str
    subscription: str
    role: str


class SetPolicy(Request[Row]):
    """Set a policy, as JSON, of a topic, a namespace or the cluster."""

    name: str
    value: bytes
    topic: str | None = None
    namespace: str | None = None


class RemovePolicy(Request[Row]):
    """Remove a policy of a topic, a namespace or the cluster."""

    name: str
    topic: str | None = None
    namespace: str | None = None


# -- commands: migrations ------------------------------------------------------------


class BeginMigration(Request[Row]):
    """Start the migration of a tenant to another cluster."""

    tenant: str
    target: str
    progress: Progress = Progress.EXACT
    max_lag: int = MAX_LAG
    found: tuple[str, ...] = ()


class AdvanceMigration(Request[Row]):
    """Record that a migration is in a phase."""

    tenant: str
    number: int
    phase: Phase


class RollBackMigration(Request[Row]):
    """Roll back the migration of a tenant."""

    tenant: str
    why: str


class ExpectTenant(Request[Row]):
    """Record, at the target, that a tenant's migration to this cluster begins."""

    tenant: str
    source: str
    migration: int


class EndArrival(Request[Row]):
    """Record, at the target, how a migration ended."""

    tenant: str
    source: str
    migration: int
    stays: bool


# -- queries -------------------------------------------------------------------------


class Clusters(Request[Row]):
    """The public properties of every cluster."""


class ReachCluster(Request[Row]):
    """The addresses and the token of a cluster."""

    cluster: str


class Home(Request[Row | None]):
    """The home cluster of a tenant; None: this one."""

    tenant: str


class Homes(Request[Row]):
    """The home clusters of all tenants whose home is another cluster."""


class MayReplicate(Request[None]):
    """Refused if no namespace of the tenant can have this policy ``replication``."""

    tenant: str
    value: Any


class Tenants(Request[Row]):
    """All tenants."""


class Namespaces(Request[list[str]]):
    """The namespaces of a tenant."""

    tenant: str


class Topics(Request[list[Any]]):
    """The topics of a namespace; ``partitions``: the names of all their partitions."""

    namespace: str
    partitions: bool = False
    at_home: bool = False


class Topic(Request[Row]):
    """One topic."""

    topic: str
    at_home: bool = False


class Serving(Request[Row]):
    """The properties that a partition needs in order to serve."""

    topic: str
    incarnation: int


class Watch(Request[Row]):
    """`Serving`; the connection gets `PoliciesChanged` after every change from then on."""

    topic: str
    incarnation: int


class WatchGrants(Request[Row]):
    """What is granted to roles in a tenant, a namespace or a topic; the connection gets
    `GrantsChanged` after every change from then on."""

    tenant: str
    namespace: str = ""
    topic: str = ""


class Policies(Request[Row]):
    """The policies of a topic, a namespace or the cluster; ``effective``: with those of wider
    scopes and the defaults."""

    topic: str | None = None
    namespace: str | None = None
    effective: list[str] | None = None


class DeletedTopics(Request[list[Row]]):
    """The deleted topics of a name, or all, whose purge isn't over."""

    topic: str | None = None


class RestorableTopics(Request[list[Row]]):
    """The deleted topics of a namespace that can be undeleted."""

    namespace: str


class MayBeginMigration(Request[None]):
    """Refused if `BeginMigration` is, or if it would change nothing."""

    tenant: str
    target: str
    progress: Progress = Progress.EXACT
    max_lag: int = MAX_LAG
    found: tuple[str, ...] = ()


class Migration(Request[Row]):
    """The newest migration of a tenant, as journaled."""

    tenant: str


class MigrationStatus(Request[Row]):
    """The newest migration of a tenant, and the progress of its driver."""

    tenant: str


class Migrations(Request[list[Row]]):
    """The newest migrations of all tenants; ``running``: those that aren't over."""

    running: bool = False


class Arrival(Request[Row | None]):
    """The newest migration of a tenant to this cluster; None: there is none."""

    tenant: str


class TenantObjects(Request[Row]):
    """The objects of a tenant in this cluster."""

    tenant: str


class NamedClusters(Request[list[Any]]):
    """The other clusters that policies of a tenant name."""

    tenant: str


# -- notices of the catalog ------------------------------------------------------------


class EndWatch(Message):
    """The connection gets no more `PoliciesChanged` of a topic."""

    topic: str


class PoliciesChanged(Message):
    """Something in the answer to `Watch` for a topic may have changed: ask again."""

    topic: str


class GrantsChanged(Message):
    """Answers to `WatchGrants` of a tenant, of a namespace or of a topic, and of what is in it, may
    have changed: ask again."""

    tenant: str
    namespace: str = ""
    topic: str = ""

"""Known clusters and the home clusters of tenants: rules of the catalog's machine.

A cluster can't be deleted while a tenant may use it, a policy names it or it is the home of a
tenant. This cluster itself can be neither changed nor deleted. Policy ``replication`` names
clusters that its tenant may use, including this one.

Commands: `RegisterCluster`, `UpdateCluster`, `MeetCluster`, `DeleteCluster`, `SetTenantHome`.
Events: ClusterRegistered, ClusterDeleted, TenantHomeSet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from velaray.actors.catalog.inbound_replication import PULL_FROM, pulling_from
from velaray.actors.catalog.state import (
    Catalog,
    Cluster,
    Progress,
    Scope,
    Tenant,
    effective_policy,
    topics_where,
)
from velaray.actors.machine import Decision, Reason, Refusal, refuse
from velaray.events.events_pb2 import ClusterDeleted, ClusterRegistered, TenantHomeSet
from velaray.events.ids import ActorKey, check_name

REPLICATION = "replication"


@dataclass(frozen=True, slots=True)
class RegisterCluster:
    """Register another cluster. Replies `Done`.

    ``token`` is what this cluster presents to that one; ``progress`` is the form in which that one
    understands the progress of subscriptions.
    """

    cluster: str
    service_url: str
    admin_url: str
    token: str = field(default="", repr=False)
    progress: str = Progress.EXACT
    service_url_tls: str = ""
    admin_url_tls: str = ""


@dataclass(frozen=True, slots=True)
class UpdateCluster:
    """Change the registration of another cluster; None keeps a value. Replies `Done`."""

    cluster: str
    service_url: str | None = None
    admin_url: str | None = None
    token: str | None = field(default=None, repr=False)
    progress: str | None = None
    service_url_tls: str | None = None
    admin_url_tls: str | None = None


@dataclass(frozen=True, slots=True)
class MeetCluster:
    """Record the id of a cluster's data, as the cluster reports it. Replies `Done`; refused if it
    reported another id before: both sets of data have messages with the same ids and must not be
    confused."""

    cluster: str
    data_id: str


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Remove another cluster that nothing names any more. Replies `Done`."""

    cluster: str


@dataclass(frozen=True, slots=True)
class SetTenantHome:
    """Make this cluster the home of a tenant; "" or this cluster's name: here.

    Replies `Done`. The tenant needn't exist here.
    """

    tenant: str
    cluster: str


def decide_register(state: Catalog, command: RegisterCluster) -> Decision | None:
    """The decision to register a cluster; None if it is registered in the same shape."""
    name = check_name("cluster", command.cluster)
    wanted = Cluster(
        command.service_url,
        command.admin_url,
        command.token,
        command.progress,
        service_url_tls=command.service_url_tls,
        admin_url_tls=command.admin_url_tls,
    )
    found = state.clusters.get(name)
    if found is not None and replace(found, data_id="") == wanted:
        return None
    if found is not None:
        return refuse(Reason.ALREADY_EXISTS, f"cluster {name} exists")
    return _registered(name, wanted)


def decide_update(state: Catalog, command: UpdateCluster) -> Decision | None:
    """The decision to change a cluster; None if nothing changes."""
    name = command.cluster
    found = state.clusters.get(name)
    if found is None:
        return refuse(Reason.NOT_FOUND, f"no cluster {name!r}")
    if name == state.own:
        return refuse(Reason.NOT_ALLOWED, f"cluster {name} is this one: it can't be changed")
    given = {
        "service_url": command.service_url,
        "admin_url": command.admin_url,
        "token": command.token,
        "progress": command.progress,
        "service_url_tls": command.service_url_tls,
        "admin_url_tls": command.admin_url_tls,
    }
    wanted = replace(found, **{key: value for key, value in given.items() if value is not None})
    return None if wanted == found else _registered(name, wanted)


def decide_meet(state: Catalog, command: MeetCluster) -> Decision | None:
    """The decision to record a cluster's data id: the first one is recorded and must never
    change."""
    name, found = command.cluster, state.clusters.get(command.cluster)
    if found is None or name == state.own or found.data_id == command.data_id:
        return None
    if found.data_id:
        return refuse(
            Reason.CONFLICT,
            f"cluster {name} has other data than at the first contact, so its message "
            "ids mean other messages: a cluster that lost its data needs a new name and number. If "
            f"the first contact was with the wrong cluster, delete {name} and create it again",
        )
    return Decision((registration(name, replace(found, data_id=command.data_id)),))


def _registered(name: str, cluster: Cluster) -> Decision:
    if problem := _problem(cluster):
        return refuse(Reason.INVALID, f"cluster {name}: {problem}")
    return Decision((registration(name, cluster),))


def registration(name: str, cluster: Cluster, *, own: bool = False) -> ClusterRegistered:
    """The event that registers ``cluster`` as it is."""
    return ClusterRegistered(
        name=name,
        service_url=cluster.service_url,
        admin_url=cluster.admin_url,
        token=cluster.token,
        progress=cluster.progress,
        own=own,
        data_id=cluster.data_id,
        service_url_tls=cluster.service_url_tls,
        admin_url_tls=cluster.admin_url_tls,
    )


def _problem(cluster: Cluster) -> str | None:
    """The fault of a registration; the token is never quoted."""
    service, admin = cluster.service_url, cluster.admin_url
    service_tls, admin_tls = cluster.service_url_tls, cluster.admin_url_tls
    if not is_service_url(service) and (service or not service_tls):
        return f"its service URL must be pulsar://host:port, not {service[:200]!r}"
    if not _is_admin_url(admin, "http", "https") and (admin or not admin_tls):
        return f"its admin URL must be http(s)://host:port, not {admin[:200]!r}"
    if service_tls and not is_service_url(service_tls, "pulsar+ssl"):
        return f"its TLS service URL must be pulsar+ssl://host:port, not {service_tls[:200]!r}"
    if admin_tls and not _is_admin_url(admin_tls, "https"):
        return f"its TLS admin URL must be https://host:port, not {admin_tls[:200]!r}"
    if any(not 32 < ord(character) < 127 for character in cluster.token):
        return "its token contains characters that tokens can't have"
    if cluster.progress not in tuple(Progress):
        choices = " or ".join(Progress)
        return f"its progress must be {choices}, not {cluster.progress[:40]!r}"
    return None


def is_service_url(text: str, *schemes: str) -> bool:
    """Whether clients can connect to the URL, which has one of the schemes; by default pulsar."""
    scheme, separator, addresses = text.partition("://")
    known = scheme in (schemes or ("pulsar",))
    return bool(separator) and known and all(map(_is_address, addresses.split(",")))


def _is_admin_url(text: str, *schemes: str) -> bool:
    scheme, separator, address = text.partition("://")
    return bool(separator) and scheme in schemes and _is_address(address)


def _is_address(text: str) -> bool:
    """Whether the text is ``host`` or ``host:port``, and nothing more."""
    try:
        url = urlsplit(f"//{text}")
        port = url.port
    except ValueError:
        return False
    bare = url.netloc == text and "@" not in text
    return bare and bool(url.hostname) and port != 0 and text.isprintable() and " " not in text


def decide_delete(state: Catalog, command: DeleteCluster) -> Decision:
    """The decision to delete a cluster, which is refused while anything names it."""
    name = command.cluster
    if name not in state.clusters:
        return refuse(Reason.NOT_FOUND, f"no cluster {name!r}")
    if name == state.own:
        return refuse(Reason.NOT_ALLOWED, f"cluster {name} is this one: it can't be deleted")
    for use in _uses(state, name):
        return refuse(Reason.NOT_ALLOWED, f"cluster {name} can't be deleted: {use}")
    return Decision((ClusterDeleted(name=name),))


def _uses(state: Catalog, cluster: str) -> Iterator[str]:
    for tenant, rules in sorted(state.tenants.items()):
        if cluster in rules.allowed_clusters:
            yield f"tenant {tenant} may use it"
    for scope in _replicating_to(state, cluster):
        yield f"policy {REPLICATION} of {scope} names it"
    for scope in pulling_from(state, cluster):
        yield f"policy {PULL_FROM} of {scope} names it"
    for tenant, home in sorted(state.homes.items()):
        if home == cluster:
            yield f"it is the home of tenant {tenant}"


def _replicating_to(state: Catalog, cluster: str) -> Iterator[Scope]:
    for scope, values in state.policies.items():
        if REPLICATION in values and cluster in json.loads(values[REPLICATION]):
            yield scope


def decide_home(state: Catalog, command: SetTenantHome) -> Decision | None:
    """The decision to set a tenant's home; None if it is there already."""
    tenant, cluster = check_name("tenant", command.tenant), command.cluster
    if cluster and cluster not in state.clusters:
        return refuse(Reason.NOT_FOUND, f"no cluster {cluster!r}: register it first")
    home = "" if cluster == state.own else cluster
    if state.homes.get(tenant, "") == home:
        return None
    return Decision((TenantHomeSet(tenant=tenant, cluster=home),))


def evolve_registered(state: Catalog, event: ClusterRegistered) -> None:
    """Apply the event."""
    progress = Progress(event.progress or Progress.EXACT)
    where = event.service_url, event.admin_url
    by_tls = event.service_url_tls, event.admin_url_tls
    cluster = Cluster(*where, event.token, progress, event.data_id, *by_tls)
    state.clusters[event.name] = cluster
    if event.own:
        state.own = event.name


def evolve_home(state: Catalog, event: TenantHomeSet) -> None:
    """Apply the event."""
    if event.cluster:
        state.homes[event.tenant] = event.cluster
    else:
        del state.homes[event.tenant]


def withdrawal_problem(state: Catalog, tenant: str, allowed: tuple[str, ...]) -> Refusal | None:
    """The reason why a tenant can't be limited to these clusters: something replicates to
    another."""
    before = state.tenants.get(tenant, Tenant((), ()))
    for cluster in sorted(set(before.allowed_clusters) - set(allowed)):
        for scope in _replicating_to(state, cluster):
            if scope.tenant == tenant:
                problem = f"policy {REPLICATION} of {scope} names cluster {cluster}"
                return Refusal(Reason.CONFLICT, f"tenant {tenant}: {problem}")
    return None


def replication_problem(state: Catalog, tenant: str, value: bytes) -> Refusal | None:
    """The fault of a tenant's policy ``replication``."""
    names = json.loads(value)
    unknown = sorted(set(names) - state.clusters.keys())
    if unknown:
        problem = f"no such cluster: {', '.join(unknown)}"
    elif forbidden := sorted(set(names) - set(state.tenants[tenant].allowed_clusters)):
        problem = f"tenant {tenant} may not use {', '.join(forbidden)}"
    elif state.own and state.own not in names:
        problem = f"it must name this cluster as well, {state.own}"
    else:
        return None
    return Refusal(Reason.NOT_ALLOWED, f"policy {REPLICATION}: {problem}")


# -- queries -----------------------------------------------------------------------


def remotes_of(state: Catalog, scope: Scope) -> dict[str, Cluster]:
    """The other clusters that a topic is replicated to, by name."""
    names = effective_policy(state, scope, REPLICATION) or []
    return {
        name: state.clusters[name]
        for name in sorted(names)
        if name != state.own and name in state.clusters
    }


def elsewhere(state: Catalog, tenant: str) -> Refusal | None:
    """The refusal of a client whose tenant has its home in another cluster."""
    home = home_of(state, tenant)
    if home is None:
        return None
    return Refusal(Reason.ELSEWHERE, f"the home of tenant {tenant} is cluster {home}")


def replicated_partitions(state: Catalog) -> list[ActorKey]:
    """The partitions of all topics that are replicated to other clusters."""
    return [
        key
        for topic in topics_where(
            state, {REPLICATION}, lambda scope: bool(remotes_of(state, scope))
        )
        for key in topic.actors()
    ]


def home_of(state: Catalog, tenant: str) -> str | None:
    """The other cluster that is a tenant's home; None: requests are served here."""
    return state.homes.get(tenant)

"""What the catalog is asked about tenants that move."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from velaray.actors.catalog import state as queries
from velaray.actors.catalog.clusters import REPLICATION, home_of
from velaray.actors.catalog.inbound_replication import PULL_FROM
from velaray.actors.catalog.migration_state import Migration, Phase
from velaray.actors.catalog.migration_target import EndArrival, ExpectTenant
from velaray.actors.catalog.migrations import (
    AdvanceMigration,
    BeginMigration,
    RollBackMigration,
    current,
    decide_begin,
    target_of,
)
from velaray.actors.catalog.state import Catalog, Progress, Scope
from velaray.actors.machine import Reason, Refusal
from velaray.topology.actor_system import ActorSystem
from velaray.topology.rpc import RemoteError

MAX_LAG = 1000
"""So many entries may be missing at the target when the fence is put up, by default."""


class Migrations(Protocol):
    """Drives the tenants' migrations that the catalog records (`velaray.geo.tenant_migration`)."""

    async def start(self) -> None:
        """Continue all migrations that aren't over."""

    def stop(self) -> None:
        """Stop driving them; the next activation of the catalog continues."""

    def changed(self, tenant: str) -> None:
        """Note that the tenant's migration began, or is in another phase."""

    async def status(self, tenant: str) -> dict[str, Any]:
        """Return what is known of the tenant's newest migration."""


MakeMigrations = Callable[
    [ActorSystem, Callable[[str, dict[str, Any]], Awaitable[Any]]], Migrations
]
"""Makes them from the actor system and the catalog's `call`."""


def _begin(args: dict[str, Any]) -> BeginMigration:
    return BeginMigration(
        args["tenant"],
        args["target"],
        args.get("progress", Progress.EXACT),
        args.get("max_lag", MAX_LAG),
        tuple(args.get("found", ())),
    )


COMMANDS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "begin_migration": _begin,
    "advance_migration": lambda a: AdvanceMigration(a["tenant"], a["number"], Phase(a["phase"])),
    "roll_back_migration": lambda a: RollBackMigration(a["tenant"], a["why"]),
    "expect_tenant": lambda a: ExpectTenant(a["tenant"], a["source"], a["migration"]),
    "end_arrival": lambda a: EndArrival(a["tenant"], a["source"], a["migration"], a["stays"]),
}


def _may_begin(state: Catalog, args: dict[str, Any]) -> None:
    """Return if `BeginMigration` would do something here and now."""
    decision = decide_begin(state, _begin(args), args["now_ms"])
    if decision is None:
        where = state.migrations[args["tenant"]].target
        raise RemoteError(Reason.CONFLICT, f"tenant {args['tenant']} is on its way to {where}")
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


def _migration(state: Catalog, args: dict[str, Any]) -> dict[str, Any]:
    """The newest migration of a tenant."""
    found = state.migrations.get(args["tenant"])
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"tenant {args['tenant']} never was to move from here")
    return _described(args["tenant"], found)


def _migrations(state: Catalog, args: dict[str, Any]) -> list[dict[str, Any]]:
    """The newest migrations of all tenants; ``running``: those that aren't over."""
    return [
        _described(tenant, found)
        for tenant, found in sorted(state.migrations.items())
        if not args.get("running") or current(state, tenant)
    ]


def _reach(state: Catalog, args: dict[str, Any]) -> dict[str, Any]:
    """What an actor must know to talk to a cluster, the token included."""
    found = state.clusters.get(args["cluster"])
    if found is None:
        raise RemoteError(Reason.NOT_FOUND, f"no cluster {args['cluster']!r}: register it first")
    return {
        "service_url": found.service_url,
        "admin_url": found.admin_url,
        "token": found.token or None,
    }


def _arrival(state: Catalog, args: dict[str, Any]) -> dict[str, Any] | None:
    """The newest migration of a tenant to here, and how it ended; None: there never was one."""
    found = state.arrivals.get(args["tenant"])
    if found is None:
        return None
    return {"source": found.source, "migration": found.number, "end": found.ending}


def _whereabouts(state: Catalog, args: dict[str, Any]) -> dict[str, Any]:
    """What of a tenant is here, where it is at home, which clusters are known."""
    tenant = args["tenant"]
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


def _named_clusters(state: Catalog, args: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """Which other clusters policies of a tenant name: the policy, what it's set on, clusters."""
    found = []
    for scope in state.policies:
        if scope.tenant != args["tenant"]:
            continue
        values = queries.own_policies(state, scope)
        for policy in (REPLICATION, PULL_FROM):
            others = sorted(set(values.get(policy) or ()) - {state.own})
            if others:
                found.append((policy, str(scope), others))
    return sorted(found)


QUERIES: Mapping[str, Callable[[Catalog, dict[str, Any]], Any]] = {
    "may_begin_migration": _may_begin,
    "migration": _migration,
    "migrations": _migrations,
    "reach_cluster": _reach,
    "arrival": _arrival,
    "whereabouts": _whereabouts,
    "named_clusters": _named_clusters,
}


def moving_to(state: Catalog, tenant: str) -> dict[str, dict[str, Any]]:
    """Where everything of a tenant is to be replicated to besides, as it is on its way there: the
    cluster's name, and what a partition must know of it."""
    found = target_of(state, tenant)
    if found is None:
        return {}
    return {
        found.target: {
            **_reach(state, {"cluster": found.target}),
            "progress": found.progress,
            "all_subscriptions": True,
            "from_earliest": True,
            "everything": True,
        }
    }
